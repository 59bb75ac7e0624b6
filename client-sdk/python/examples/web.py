"""A web service without a framework, under gunicorn: each request is a record, an order is answered once it is safe.

    gunicorn --chdir examples --workers 2 web:app
"""

import json
import logging
from typing import Any, Callable, Iterable, List
from urllib.parse import parse_qs

import clad

clad.setup(component="shop")
log = logging.getLogger("shop.web")
# One line for each worker: a fork begins again by itself, also where gunicorn loads this before it forks (--preload).
orders = clad.Producer(component="shop")


def app(environ: "dict[str, Any]", start_response: "Callable[..., Any]") -> Iterable[bytes]:
    path, query = environ["PATH_INFO"], parse_qs(environ.get("QUERY_STRING", ""))
    status, answer = "404 Not Found", b"not found\n"
    if path == "/order":
        try:
            receipt = orders.append("order taken", attributes={"item": query.get("item", ["?"])[0]}).wait(10)
            status, answer = "200 OK", json.dumps({"order": receipt.offset, "safe": receipt.level}).encode()
        except clad.Error as error:
            log.error("order not taken", exc_info=error)
            status, answer = "503 Service Unavailable", b"not taken\n"
    headers: "List[tuple[str, str]]" = [("Content-Length", str(len(answer)))]
    log.info("request", extra={"http.request.method": environ["REQUEST_METHOD"], "url.path": path, "status": status})
    start_response(status, headers)
    return [answer]
