"""What a logging call costs: through the handler, beside QueueHandler alone and OpenTelemetry's LoggingHandler.

    pip install opentelemetry-sdk && CLAD_SERVER=unix:///run/clad/clad.sock python benches/logging_call.py

Rounds alternate. The lines have the median of the rounds' medians, and their spread. The exit code is 1 where a bar is missed.
`--smoke` makes few calls, and looks at counts alone. Whatever was logged must be acknowledged, or be in the queue.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import statistics
import sys
import time
from typing import Dict, List

import clad

ROUNDS = 9
CALLS = 5000
PAUSE_SECONDS = 0.05
SMOKE = "--smoke" in sys.argv[1:]
if SMOKE:
    ROUNDS, CALLS = 2, 100
# What the handler takes at most, beside others.
BARS = {"QueueHandler": 1.3, "OpenTelemetry": 0.5}


def measure(log: logging.Logger) -> float:
    """The median of calls with three fields, microseconds."""
    times: List[int] = []
    for i in range(CALLS):
        start = time.perf_counter_ns()
        log.info("order %d taken", i, extra={"order": i, "total": 12.5, "item": "book"})
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def logger(handler: logging.Handler) -> logging.Logger:
    log = logging.Logger("bench")
    log.addHandler(handler)
    return log


def main() -> None:
    records: "queue.SimpleQueue[object]" = queue.SimpleQueue()
    handler = clad.Handler(connect=True)
    ways: Dict[str, logging.Logger] = {
        "no handler": logger(logging.NullHandler()),
        "QueueHandler": logger(logging.handlers.QueueHandler(records)),
        "clad.Handler": logger(handler),
    }
    exporter = None
    try:
        from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, InMemoryLogRecordExporter

        exporter = InMemoryLogRecordExporter()
        provider = LoggerProvider()
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter, max_queue_size=max(2 * CALLS, 1024)))
        ways["OpenTelemetry"] = logger(LoggingHandler(logger_provider=provider))
    except ImportError as error:
        print(f"OpenTelemetry is left out: {error}")
    rounds: Dict[str, List[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, log in ways.items():
            rounds[name].append(measure(log))
            if name == "QueueHandler":
                assert records.qsize() == CALLS, records.qsize()
            while not records.empty():
                records.get()
            if exporter is not None:
                provider.force_flush()
                assert len(exporter.get_finished_logs()) == CALLS * (name == "OpenTelemetry")
                exporter.clear()
            handler.flush()
            time.sleep(PAUSE_SECONDS)
    for name, found in rounds.items():
        print(f"{name:14} {statistics.median(found):6.2f} us  ({min(found):.2f} to {max(found):.2f})")
    stats = handler.stats()
    assert (stats.acked, stats.dropped) == (ROUNDS * CALLS, 0), stats
    is_missed = False
    ours = rounds["clad.Handler"]
    for name, bar in BARS.items():
        if name in rounds:
            pairs = sorted(mine / other for mine, other in zip(ours, rounds[name]))
            ratio = statistics.median(pairs)
            is_missed |= ratio > bar
            print(f"clad.Handler is {ratio:.2f}x of {name} ({pairs[0]:.2f} to {pairs[-1]:.2f}), {bar} wanted")
    sys.exit(is_missed and not SMOKE)


if __name__ == "__main__":
    main()
