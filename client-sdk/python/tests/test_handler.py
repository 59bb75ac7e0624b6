"""The handler for `logging`, and the line that sets it up."""

import enum
import logging
import math
import os
import signal
import subprocess
import sys
import threading

import pytest

import clad
from conftest import DEADLINE_SECONDS, run, until


@pytest.fixture
def log(daemon):
    logger = logging.Logger("shop.orders")
    handler = clad.Handler(daemon.server, component="shop", flush_timeout=60)
    logger.addHandler(handler)
    yield logger
    handler.close()


def home(log):
    log.handlers[0].flush()


def test_parts_of_a_record(daemon, log):
    def pay():
        log.warning("paid %s", 12, extra={"order": 7, "total": 1.5, "ok": True, "tags": ["a", 2], "who": {"id": 1}, "no": None})

    pay()
    home(log)
    (record,) = daemon.records("shop")
    assert (record.body, record.severity, record.severity_text) == ("paid 12", clad.WARN, "WARNING")
    assert abs(record.time - record.observed_time) < 60e9 and record.pid == os.getpid()
    thread = threading.current_thread()
    assert record.attributes == {
        "log.target": "shop.orders",
        "code.file.path": __file__,
        "code.function.name": "pay",
        "thread.name": thread.name,
        "code.line.number": pay.__code__.co_firstlineno + 1,
        "thread.id": thread.ident,
        "order": 7,
        "total": 1.5,
        "ok": True,
        "tags": ["a", 2],
        "who": {"id": 1},
        "no": None,
    }
    kinds = {name: type(value) for name, value in record.attributes.items()}
    assert (kinds["order"], kinds["total"], kinds["ok"]) == (int, float, bool)


@pytest.mark.parametrize(
    "level, severity",
    [(0, 0), (5, 1), (10, 5), (15, 8), (20, 9), (25, 12), (30, 13), (40, 17), (50, 21), (53, 24), (70, 24)],
)
def test_severities(daemon, log, level, severity):
    log.handle(log.makeRecord("n", level, "f", 1, "m", (), None))
    home(log)
    (record,) = daemon.records("shop")
    assert record.severity == severity


def test_an_exception_and_a_stack(daemon, log):
    class Broken(Exception):
        pass

    try:
        raise Broken("no room") from ValueError("inner")
    except Broken:
        log.exception("it failed", stack_info=True)
    log.error("none", exc_info=(None, None, None))
    home(log)
    record, none = daemon.records("shop")
    found = record.attributes
    assert record.body == "it failed" and found["exception.message"] == "no room"
    assert found["exception.type"].endswith("test_an_exception_and_a_stack.<locals>.Broken")
    assert "ValueError: inner" in found["exception.stacktrace"] and "Stack (most recent" in found["code.stacktrace"]
    assert not any(key.startswith("exception") for key in none.attributes)


def test_a_formatter_makes_the_body(daemon, log):
    log.handlers[0].setFormatter(logging.Formatter("%(levelname)s|%(message)s|%(asctime)s"))
    log.info("x", extra={"k": 1})
    home(log)
    (record,) = daemon.records("shop")
    assert record.body.startswith("INFO|x|2") and record.attributes["k"] == 1
    assert not {"message", "asctime", "msg"} & set(record.attributes)


def test_trace_ids_of_opentelemetry(daemon, log):
    log.info("x", extra={"otelTraceID": "ab" * 16, "otelSpanID": "cd" * 8, "otelServiceName": "s"})
    log.info("y", extra={"otelTraceID": "0", "otelSpanID": "0"})
    home(log)
    first, second = daemon.records("shop")
    assert (first.trace_id, first.span_id) == (b"\xab" * 16, b"\xcd" * 8)
    assert (second.trace_id, second.span_id) == (b"", b"")


def test_values_of_all_kinds(daemon, log):
    class Color(enum.Enum):
        RED = 1

    class Bad:
        def __str__(self):
            raise TypeError("no text")

    deep = "bottom"
    for _ in range(100):
        deep = [deep]
    cyclic = []
    cyclic.extend([cyclic, cyclic])
    values = {
        "nul": "a\0b",
        "surrogate": "a\udc80b",
        "nan": math.nan,
        "inf": -math.inf,
        "big": 2**70,
        "bytes": b"\0\xff",
        "array": bytearray(b"x"),
        "enum": Color.RED,
        "bad": Bad(),
        "deep": deep,
        "cyclic": cyclic,
        "set": {1},
        "keys": {1: "one", ("t",): 2},
        "name\udc80": 1,
    }
    for key, value in values.items():
        log.info("one\0two \udfff", extra={key: value})
    home(log)
    records = daemon.records("shop")
    assert len(records) == len(values) and {record.body for record in records} == {"one\0two \\udfff"}
    found = {}
    for record in records:
        found.update(record.attributes)
    assert (found["nul"], found["surrogate"], found["big"]) == ("a\0b", "a\\udc80b", str(2**70))
    assert math.isnan(found["nan"]) and found["inf"] == -math.inf
    assert (found["bytes"], found["array"], found["enum"], found["set"]) == (b"\0\xff", b"x", "Color.RED", [1])
    assert found["bad"] == "<formatting failed: TypeError>" and found["name\\udc80"] == 1
    assert found["keys"] == {"1": "one", "('t',)": 2}
    depth, inner = 0, found["deep"]
    while isinstance(inner, list):
        depth, (inner,) = depth + 1, inner
    assert depth == 30 and "left out" in inner and "cyclic" in found


def test_a_long_record_is_cut(daemon, log):
    log.info("x" * (2 << 20), extra={"k": "y" * (2 << 20), "n": 1})
    log.info("many", extra={"list": ["z" * 1000] * 5000})
    home(log)
    first, second = daemon.records("shop")
    assert first.body == "x" * 32768 and first.attributes["k"] == "y" * 32768 and first.attributes["n"] == 1
    assert second.body == "many" and "list" not in second.attributes
    assert first.attributes["log.truncated"] and second.attributes["log.truncated"]


def test_a_text_that_cannot_be_made(daemon, log, capsys, monkeypatch):
    log.info("%d orders", "seven", extra={"k": 1})
    capsys.readouterr()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.info("%d %d", 1)
    assert capsys.readouterr().err == ""
    home(log)
    first, second = daemon.records("shop")
    assert (first.body, first.attributes["log.format_error"], first.attributes["k"]) == ("%d orders", "TypeError", 1)
    assert second.body == "%d %d"


def test_the_error_of_a_text_is_shown_as_logging_does(log, capsys):
    log.info("%d orders", "seven")
    assert "--- Logging error ---" in capsys.readouterr().err


def test_what_logs_while_it_is_logged(daemon, log):
    class Loud:
        def __str__(self):
            log.info("inside", extra={"loud": self})
            return "loud"

    log.info("outside", extra={"loud": Loud()})
    home(log)
    bodies = daemon.bodies("shop")
    stats = log.handlers[0].stats()
    assert bodies.count("inside") == 3 and bodies.count("outside") == 1 and bodies.index("outside") > 0
    assert stats.dropped_by["recursive"] == 1


def test_an_interrupt_while_a_value_is_made_reaches_the_program(daemon, log):
    class Interrupted:
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.info("x", extra={"k": Interrupted()})
    log.info("y")
    home(log)
    assert daemon.bodies("shop") == ["y"]


def test_64_threads(daemon, log):
    def work(number):
        for i in range(50):
            log.info("%d %d", number, i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    home(log)
    seen = {}
    for body in daemon.bodies("shop"):
        number, i = map(int, body.split())
        assert i == seen.get(number, -1) + 1
        seen[number] = i
    assert seen == {number: 49 for number in range(64)} and log.handlers[0].stats().dropped == 0


def test_no_lock_is_held_while_a_thread_waits(stopped):
    handler = clad.Handler(stopped.server, component="shop", overload=clad.Wait(60), max_buffered_bytes=2000)
    log = logging.Logger("x")
    log.addHandler(handler)
    through = []

    def work():
        for i in range(20):
            log.info("record %d", i)
            through.append(i)

    # Where the test fails it still waits: it must not hold up the end.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: handler.stats().buffered_bytes > 1000 and len(through) < 20)
    # It waits for room now, in the call; Python runs here, and the handler is free.
    assert handler.lock is None and thread.is_alive()
    handler.acquire()
    handler.release()
    handler.setLevel(logging.INFO)
    stopped.start()
    thread.join()
    handler.close()
    assert stopped.bodies("shop") == [f"record {i}" for i in range(20)]


def test_from_the_handler_of_a_signal(daemon, log):
    count = [0]

    def on_signal(*_):
        count[0] += 1
        log.info("signal")

    before = signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        logged = 0
        while count[0] < 50:
            log.info("plain", extra={"list": [object()] * 20})
            logged += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    home(log)
    bodies = daemon.bodies("shop")
    stats = log.handlers[0].stats()
    assert stats.dropped == 0
    assert (bodies.count("plain"), bodies.count("signal")) == (logged, count[0])


def test_without_a_daemon_nothing_waits_and_drops_are_reported(stopped):
    handler = clad.Handler(
        stopped.server, component="shop", max_buffered_bytes=20_000, backoff=(0.001, 0.01), flush_timeout=60
    )
    log = logging.Logger("x")
    log.addHandler(handler)
    for i in range(1000):
        log.info("record %d", i)
    dropped = handler.stats().dropped
    assert dropped > 0
    stopped.start()
    handler.flush()
    log.info("after")
    handler.flush()
    records = stopped.records("shop")
    reports = [record for record in records if record.event_name == "clad.records_dropped"]
    stored = [record.body for record in records if not record.event_name]
    assert len(stored) == len(set(stored)) == 1001 - dropped and stored[-1] == "after"
    assert sum(report.attributes["clad.dropped.records"] for report in reports) == dropped
    handler.close()


@pytest.mark.parametrize("overload", [clad.DropOldest(), clad.DropBelow(clad.ERROR, 0.0)])
def test_other_rules(stopped, overload):
    handler = clad.Handler(
        stopped.server, component="shop", overload=overload, max_buffered_bytes=20_000, backoff=(0.001, 0.01), flush_timeout=60
    )
    log = logging.Logger("x")
    log.addHandler(handler)
    count = 0

    def has_dropped(reason):
        nonlocal count
        for _ in range(10):
            log.log(logging.ERROR if count % 10 == 9 else logging.INFO, "%d", count)
            count += 1
        return handler.stats().dropped_by[reason] > 0

    # What the client has in its hands just then is not dropped: now and then others find no room all the same.
    reason = "oldest" if isinstance(overload, clad.DropOldest) else "severity"
    until(lambda: has_dropped(reason))
    stopped.start()
    handler.flush()
    stored = [int(record.body) for record in stopped.records("shop") if not record.event_name]
    stats = handler.stats()
    assert len(stored) + stats.dropped == count and stored == sorted(stored)
    if isinstance(overload, clad.DropOldest):
        assert not set(range(stored[-1])) <= set(stored)
    else:
        assert [i for i in stored if i % 10 == 9] == list(range(9, count, 10))
    handler.close()


def test_a_daemon_that_hangs_and_one_that_restarts(daemon, log):
    log.info("0")
    home(log)
    daemon.signal(signal.SIGSTOP)
    for i in range(1, 100):
        log.info("%d", i)
    daemon.signal(signal.SIGCONT)
    for i in range(100, 200):
        log.info("%d", i)
        if i == 150:
            daemon.kill()
        if i == 180:
            daemon.start()
    home(log)
    daemon.kill()
    daemon.socket.unlink(missing_ok=True)
    log.info("200")
    daemon.start()
    home(log)
    assert daemon.bodies("shop") == [str(i) for i in range(201)]
    assert log.handlers[0].stats().reconnects >= 2


def test_closed_again_and_logged_to(daemon, log, capsys):
    handler = log.handlers[0]
    log.info("x")
    handler.close()
    handler.close()
    handler.flush()
    log.info("y")
    assert daemon.bodies("shop") == ["x"] and capsys.readouterr().err == ""


SETUP = """
import clad, logging, sys
handler = clad.setup()
assert clad.setup(logging.DEBUG) is handler and len(logging.getLogger().handlers) == 1
logging.getLogger("a.b").info("hello")
"""


def test_setup_finds_the_daemon(daemon):
    assert run(SETUP, daemon.server).stderr == ""
    (record,) = daemon.records()
    assert (record.body, record.component) == ("hello", "python")


def test_setup_finds_the_hosts_daemon(daemon):
    # As the host has it: in a mount namespace of its own, as root.
    mount = 'mount -t tmpfs none /run && mkdir /run/clad && ln -s "$1" /run/clad/clad.sock && exec "$2" -c "$3"'
    words = ["unshare", "--mount", "sh", "-c", mount, "sh", str(daemon.socket), sys.executable, SETUP]
    environment = {name: value for name, value in os.environ.items() if name != "CLAD_SERVER"}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (ran.returncode, ran.stderr) == (0, "")
    (record,) = daemon.records()
    assert record.body == "hello"


@pytest.mark.parametrize("server", ["", "nonsense"])
@pytest.mark.skipif(os.path.exists("/run/clad/clad.sock"), reason="this host has a clad")
def test_setup_without_a_daemon(server):
    first, *rest = run(SETUP, server).stderr.splitlines()
    assert first.startswith("clad: ") and first.endswith("; logging to stderr") and rest == ["INFO a.b: hello"]


def test_a_wrong_address_leaves_no_handler_behind():
    count = len(logging._handlerList)
    with pytest.raises(clad.AddressError):
        clad.Handler("nonsense")
    with pytest.raises(clad.ConnectError) as caught:
        clad.Handler("unix:///nowhere/clad.sock", connect=True)
    assert caught.value.retryable and not caught.value.maybe_written
    assert len([ref for ref in logging._handlerList[count:] if ref() is not None]) == 0


def test_the_last_words(daemon):
    script = """
import clad, logging, threading, atexit
clad.setup()
atexit.register(logging.info, "at exit")
def work():
    for i in range(1000): logging.info("%d", i)
    raise ValueError("thread")
t = threading.Thread(target=work); t.start(); t.join()
raise KeyError("main")
"""
    ended = run(script, daemon.server, status=1)
    assert "KeyError: 'main'" in ended.stderr and "ValueError: thread" in ended.stderr
    records = daemon.records()
    assert [record.body for record in records[:1000]] == [str(i) for i in range(1000)]
    thread, main, last = records[1000:]
    assert (thread.attributes["exception.type"], main.attributes["exception.type"]) == ("ValueError", "KeyError")
    assert (thread.severity, last.body) == (clad.FATAL, "at exit")


def test_the_end_is_bounded_where_the_daemon_hangs(daemon):
    script = f"""
import clad, logging, os, signal
clad.setup(flush_timeout=0.2, connect=True)
os.kill({daemon.process.pid}, signal.SIGSTOP)
logging.info("x")
"""
    ended = run(script, daemon.server)
    assert len(ended.stderr.splitlines()) == 1 and "records may be missing from the log" in ended.stderr
    daemon.signal(signal.SIGCONT)


@pytest.mark.parametrize("overload", ["clad.DropNewest()", "clad.Wait(0.01)"])
def test_daemon_threads_log_while_the_interpreter_ends(daemon, overload):
    script = f"""
import clad, logging, threading
clad.setup(overload={overload}, max_buffered_bytes=4000)
def work():
    while True: logging.info("x")
for _ in range(8): threading.Thread(target=work, daemon=True).start()
import time; time.sleep(0.1)
"""
    for _ in range(5):
        assert run(script, daemon.server).stderr in ("", ENDING)


ENDING = "clad: records may be missing from the log: the producer ended before the append reached its level\n"


def test_a_stack_at_its_end(daemon, log):
    def deeper():
        log.info("x")
        deeper()

    with pytest.raises(RecursionError):
        deeper()
    log.info("after")
    home(log)
    assert daemon.bodies("shop")[-1] == "after"


def test_a_mutable_list_and_a_dict_that_change_meanwhile(daemon, log):
    class Changing:
        def __init__(self, what):
            self.what = what

        def __str__(self):
            self.what.clear()
            return "changed"

    values, pairs = [2, 3], {}
    values.insert(0, Changing(values))
    pairs.update(a=Changing(pairs), b=2)
    log.info("x", extra={"values": values, "pairs": pairs})
    home(log)
    (record,) = daemon.records("shop")
    assert record.attributes["values"] == ["changed"] and record.attributes["pairs"]["a"] == "changed"


def test_dict_config(daemon):
    script = """
import logging, logging.config
logging.config.dictConfig({
    "version": 1,
    "formatters": {"short": {"format": "%(name)s: %(message)s"}},
    "handlers": {"clad": {"class": "clad.Handler", "component": "shop", "ack": "written", "level": "INFO", "formatter": "short"}},
    "root": {"level": "DEBUG", "handlers": ["clad"]},
})
logging.getLogger("a").info("taken", extra={"order": 7})
logging.getLogger("a").debug("never")
"""
    run(script, daemon.server)
    (record,) = daemon.records("shop")
    assert record.body == "a: taken" and record.attributes["order"] == 7


def test_the_bench_stores_what_it_logs(daemon):
    said = run("import runpy, sys; sys.argv[1:] = ['--smoke']; runpy.run_path('benches/logging_call.py', run_name='__main__')",
               daemon.server).stdout
    assert "of QueueHandler" in said and "of OpenTelemetry" in said
