"""The exporters of Python's SDK, as they come, behind the handler of `logging`: `agent.py TRANSPORT MODE COUNT`.

README.md has what all agents have in common. The endpoint, headers and compression are the SDK's own variables.
"""

import logging
import sys
import threading
import time

from opentelemetry import trace
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

LEVELS = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]
# Records a second of `stream`, and how long the SDK keeps them before it sends.
STREAM_RATE = 200
STREAM_DELAY_MILLIS = 10


class Said(LogRecordExporter):
    """Hands over to an exporter, and prints the number of each record whose export it calls a success."""

    def __init__(self, exporter):
        self._exporter = exporter

    def export(self, batch):
        result = self._exporter.export(batch)
        numbers = [one.log_record.attributes["n"] for one in batch]
        good = result == LogRecordExportResult.SUCCESS
        print(*numbers, sep="\n", flush=True, file=sys.stdout if good else sys.stderr)
        return result

    def force_flush(self, timeout_millis=10_000):
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self):
        self._exporter.shutdown()


def exporter(transport):
    if transport == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    elif transport == "http":
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    else:
        sys.exit(f"no exporter for {transport}")
    return OTLPLogExporter()


def body(n):
    texts = [f"record {n}", f"Grüße {n}, 世界 🚀", "", f'one\ntwo\t"three" \\ {n}', "x" * 2000 + str(n), f"last {n}"]
    return texts[n % 6]


def attributes(n):
    kinds = [
        {"text": f"Zürich/東京 {n}"},
        {"least": -(2**63), "most": 2**63 - 1},
        {"half": n + 0.5, "tiny": 1e-300, "negative": -0.25},
        {"yes": True, "no": False},
        {"list": ["a", n, True, n + 0.5, ["in", []]]},
        {"map": {"key": "value", "inner": {"n": n, "list": [1, 2]}}},
        {"bytes": b"\x00\x01\xfe\xff"},
        {"empty": ""},
    ]
    found = {"n": n, **kinds[n % 8]}
    if n % 7 == 3:
        found["otel.event.name"] = "order.taken"
    return found


def log_simple(logger, n):
    exception = None
    if n % 10 == 9:
        try:
            raise ValueError(f"broken {n}")
        except ValueError:
            exception = sys.exc_info()
    log = lambda: logger.log(LEVELS[n % 5], body(n), extra=attributes(n), exc_info=exception)  # noqa: E731
    if n % 4 != 0:
        return log()
    context = SpanContext(int(f"c1ad{n + 1:028x}", 16), int(f"c1ad{n + 1:012x}", 16), False, TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        log()


def main():
    transport, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    attributes = {"service.name": "otlp-agent", "cpus": 2, "ratio": 0.5, "flag": True, "names": ["a", "b"]}
    provider = LoggerProvider(resource=Resource.create(attributes))
    delay = 1000 if mode == "simple" else STREAM_DELAY_MILLIS
    provider.add_log_record_processor(BatchLogRecordProcessor(Said(exporter(transport)), schedule_delay_millis=delay))
    top = logging.getLogger("clad")
    top.propagate = False
    top.setLevel(logging.DEBUG)
    top.addHandler(LoggingHandler(logger_provider=provider))
    loggers = [logging.getLogger("clad.agent"), logging.getLogger("clad.other")]
    ends = threading.Event()
    if mode == "simple":
        for n in range(count):
            log_simple(loggers[0], n)
    else:
        threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
        for n in range(count):
            if ends.is_set():
                break
            loggers[n % 2].info("record %d", n, extra={"n": n})
            time.sleep(1 / STREAM_RATE)
    provider.force_flush()
    provider.shutdown()


main()
