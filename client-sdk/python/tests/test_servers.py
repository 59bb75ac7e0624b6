"""gunicorn and uWSGI, the real ones, with the example; the other examples; the lines of the README."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from conftest import DEADLINE_SECONDS, ROOT, free_port, run, until

BIN = pathlib.Path(sys.executable).parent


class Server:
    def __init__(self, words, port, server, folder):
        self.base = f"http://127.0.0.1:{port}"
        env = {**os.environ, "CLAD_SERVER": server}
        self.out = open(folder / "web", "wb")
        self.process = subprocess.Popen(words, cwd=ROOT / "examples", env=env, stdout=self.out, stderr=self.out)
        until(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, (folder / "web").read_text()

    def answers(self):
        try:
            self.get("/up")
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(self.base + path, timeout=DEADLINE_SECONDS) as answer:
            return answer.read()

    def orders(self, count):
        answers = []

        def one(thread):
            for i in range(count // 4):
                answers.append(json.loads(self.get(f"/order?item={thread}-{i}")))

        threads = [threading.Thread(target=one, args=(thread,)) for thread in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return answers

    def end(self, number):
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_SECONDS)
        self.out.close()
        return status


def gunicorn(port, *words):
    return [str(BIN / "gunicorn"), "--bind", f"127.0.0.1:{port}", "--workers", "2", *words, "web:app"]


def uwsgi(port, *words):
    return [str(BIN / "uwsgi"), "--http-socket", f"127.0.0.1:{port}", "--workers", "2", "--master", "--die-on-term",
            "--wsgi-file", "web.py", "--callable", "app", "--virtualenv", str(BIN.parent), *words]


SERVERS = [
    pytest.param(gunicorn, (), id="gunicorn"),
    pytest.param(gunicorn, ("--preload",), id="gunicorn-preload"),
    pytest.param(gunicorn, ("--threads", "4"), id="gunicorn-threads"),
    pytest.param(uwsgi, (), id="uwsgi"),
    pytest.param(uwsgi, ("--enable-threads", "--threads", "4"), id="uwsgi-threads"),
]


@pytest.mark.parametrize("command, words", SERVERS)
def test_a_web_service(daemon, command, words):
    port = free_port()
    server = Server(command(port, *words), port, daemon.server, daemon.folder)
    answers = server.orders(80)
    assert server.end(signal.SIGTERM) == 0, (daemon.folder / "web").read_text()
    assert len(answers) == 80 and {answer["safe"] for answer in answers} == {"durable"}
    records = daemon.records("shop")
    orders = {record.offset: record for record in records if record.body == "order taken"}
    assert sorted(orders) == sorted(answer["order"] for answer in answers)
    assert len({record.attributes["item"] for record in orders.values()}) == 80
    requests = [record for record in records if record.body == "request" and record.attributes["url.path"] == "/order"]
    assert len(requests) == 80, "the last words of the workers are there too"
    assert server.process.pid not in {record.pid for record in requests}


def test_tasks(daemon):
    assert run((ROOT / "examples" / "tasks.py").read_text(), daemon.server).stderr == ""
    orders = daemon.records("orders")
    assert sorted(record.attributes["number"] for record in orders[:-1]) == list(range(300))
    assert orders[-1].attributes["orders"] == 300


def test_the_lines_of_the_readme(daemon):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) >= 3 and len(blocks[0].strip().splitlines()) <= 5
    for block in blocks:
        run(block, daemon.server)
    assert {record.body for record in daemon.records()} >= {"paid", "order"}
