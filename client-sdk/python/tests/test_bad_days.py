"""Bad input and bad days, from handlers and producers alike.

Elsewhere: a fork in the middle of calls in `test_fork.py`; handlers of signals, texts that cannot be made, records that
are cut and a stack at its end in `test_handler.py`; waits without a daemon, and interrupts, in `test_producer.py`.
"""

import ctypes
import logging
import math
import os
import shutil
import signal
import socket
import threading

import pytest

import clad
from conftest import free_port, run, until

HANG_SECONDS = float(os.environ.get("CLAD_HANG_SECONDS", "1"))
FAST = {"backoff": (0.001, 0.02)}


def logger(daemon, **options):
    log = logging.Logger("bad")
    log.addHandler(clad.Handler(daemon.server, component="bad", flush_timeout=60, **FAST, **options))
    return log, log.handlers[0]


# Input.


def nested(depth):
    value = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def depth_of(value):
    return 1 + depth_of(value[0]) if isinstance(value, list) else 0


VALUES = [
    pytest.param("a\0b", lambda found: found == "a\0b", id="nul"),
    pytest.param("a\udc80b\ud800", lambda found: found == "a\\udc80b\\ud800", id="lone-surrogates"),
    pytest.param(math.nan, math.isnan, id="nan"),
    pytest.param(nested(100), lambda found: depth_of(found) == 30, id="100-deep"),
    pytest.param({"a": {"b": nested(100)}}, lambda found: depth_of(found["a"]["b"]) == 28, id="100-deep-in-dicts"),
]


class MallocInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks f k".split()]


def allocated():
    """Bytes that are allocated now by malloc, in all threads."""
    info = ctypes.CDLL(None).mallinfo2
    info.restype = MallocInfo
    return (lambda of: of.hblkhd + of.uordblks)(info())


@pytest.mark.parametrize("length", [(2 << 20) + 1, 1 << 20], ids=["cut", "whole"])
def test_the_memory_of_a_long_record_is_released(daemon, length):
    log, handler = logger(daemon)
    with clad.Producer(daemon.server, component="bad") as producer:

        def all_ways(text):
            log.info(text)
            handler.flush()
            producer.append(text[: 1 << 20]).wait(60)

        all_ways("short")
        before = allocated()
        all_ways("x" * length)
        all_ways("short")
        # The producer's buffer may be that of the last long record. A kept batch with such room would be more.
        assert allocated() - before < 1536 << 10
    handler.close()


@pytest.mark.parametrize("value, is_right", VALUES)
def test_a_value_that_is_odd(daemon, value, is_right):
    log, handler = logger(daemon)
    log.info("logged", extra={"value": value})
    handler.close()
    with clad.Producer(daemon.server, component="bad") as producer:
        producer.append(value, attributes={"value": value})
    logged, appended = daemon.records("bad")
    assert all(map(is_right, (logged.attributes["value"], appended.attributes["value"], appended.body)))


def test_a_text_that_is_odd(daemon):
    log, handler = logger(daemon)
    log.info("nul \0 and surrogate \ud800")
    handler.close()
    assert daemon.bodies("bad") == ["nul \0 and surrogate \\ud800"]


def test_two_mebibytes(daemon):
    log, handler = logger(daemon)
    log.info("x" * (2 << 20))
    handler.close()
    with clad.Producer(daemon.server, component="bad") as producer:
        with pytest.raises(clad.TooLargeError) as caught:
            producer.append("x" * (2 << 20))
        assert not caught.value.maybe_written and isinstance(caught.value, clad.AppendError)
        producer.append("x" * ((2 << 20) - 100)).wait()
        assert producer.stats().dropped_by["too_large"] == 1
    cut, whole = [record for record in daemon.records("bad") if not record.event_name]
    assert cut.attributes["log.truncated"] and len(whole.body) == (2 << 20) - 100


def test_an_exception_while_it_is_logged(daemon, capsys):
    class Bad:
        def __str__(self):
            raise ZeroDivisionError("no text")

        __repr__ = __str__

    class BadError(Exception):
        def __str__(self):
            raise ZeroDivisionError("no text")

    log, handler = logger(daemon)
    log.info("%s", Bad())
    log.info(Bad())
    log.info("attribute", extra={"bad": Bad(), "good": 1})
    try:
        raise BadError
    except BadError:
        log.exception("exception")
    handler.setFormatter(type("Bad", (logging.Formatter,), {"format": lambda *_: 1 / 0})())
    log.info("formatter")
    handler.close()
    found = daemon.records("bad")
    assert [record.body for record in found] == [
        "%s", "<formatting failed: Bad>", "attribute", "exception", "formatter"
    ]
    assert [record.attributes.get("log.format_error") for record in found] == ["ZeroDivisionError"] * 2 + [None] * 2 + [
        "ZeroDivisionError"
    ]
    assert found[2].attributes["good"] == 1 and "failed" in found[2].attributes["bad"]
    assert found[3].attributes["exception.message"] == "<formatting failed: ZeroDivisionError>"
    assert capsys.readouterr().err.count("--- Logging error ---") == 3


# Threads, signals, the end.


def test_64_threads_wait_for_receipts(daemon):
    offsets = []

    def work(producer, number):
        for i in range(20):
            offsets.append(producer.append(f"{number} {i}", level="durable").wait().offset)

    with clad.Producer(daemon.server) as producer:
        threads = [threading.Thread(target=work, args=(producer, number)) for number in range(64)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert sorted(offsets) == list(range(64 * 20))


def test_append_in_the_handler_of_a_signal(daemon):
    """The signal comes in the middle of the same producer's calls."""
    tickets = []
    with clad.Producer(daemon.server, connect=True) as producer:
        before = signal.signal(signal.SIGALRM, lambda *_: tickets.append(producer.append("signal")))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            count = 0
            while len(tickets) < 50:
                producer.append("plain").wait()
                count += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        [ticket.wait() for ticket in tickets]
    bodies = daemon.bodies()
    assert (bodies.count("plain"), bodies.count("signal")) == (count, len(tickets))


def test_the_interpreter_ends_while_threads_wait(daemon):
    script = f"""
import clad, os, signal, threading, time
producer = clad.Producer(connect=True)
reader = clad.Reader(last=0, follow=True)
os.kill({daemon.process.pid}, signal.SIGSTOP)
ticket = producer.append("x")
for wait in (ticket.wait, reader.next, lambda: producer.flush(timeout=60), lambda: [producer.append("y") for _ in range(10**9)]):
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.1)
os.kill({daemon.process.pid}, signal.SIGCONT)
"""
    for _ in range(3):
        assert run(script, daemon.server).stderr in ("", ENDING)


ENDING = "clad: records may be missing from the log: the producer ended before the append reached its level\n"


def test_what_logs_when_the_interpreter_has_ended(daemon):
    script = """
import clad, logging
clad.setup()
logging.info("before")
class Late:
    def __del__(self, logging=logging): logging.info("after")
late = Late()
late.itself = late
"""
    assert run(script, daemon.server).stderr == ""
    assert daemon.bodies() == ["before"]


# The daemon and its socket.


def test_no_daemon(stopped):
    log, handler = logger(stopped)
    log.info("logged")
    with pytest.raises(clad.ConnectError) as caught:
        clad.Producer(stopped.server, connect=True)
    assert caught.value.retryable and not caught.value.maybe_written
    with pytest.raises(clad.ConnectError):
        clad.Reader(stopped.server)
    stopped.start()
    handler.close()
    assert stopped.bodies("bad") == ["logged"]


def test_a_daemon_that_hangs(daemon):
    log, handler = logger(daemon, connect=True, max_buffered_bytes=50_000)
    daemon.signal(signal.SIGSTOP)
    with clad.Producer(daemon.server) as producer:
        ticket = producer.append("appended")
        for number in range(1000):
            log.info("%d", number)  # no call waits
        assert 0 < handler.stats().dropped < 1000
        with pytest.raises(clad.WaitTimeout) as caught:
            ticket.wait(0.05)
        assert caught.value.maybe_written and caught.value.retryable
        with pytest.raises(clad.ConnectError):
            clad.Reader(daemon.server, connect_timeout=0.05)
        daemon.signal(signal.SIGCONT)
        ticket.wait()
    handler.close()
    assert len(daemon.bodies("bad")) == 1000 - handler.stats().dropped


def test_a_daemon_that_restarts(daemon):
    log, handler = logger(daemon)
    with clad.Producer(daemon.server, component="appended", **FAST) as producer:
        tickets = []
        for number in range(200):
            log.info("%d", number)
            tickets.append(producer.append(str(number)))
            if number % 50 == 25:
                tickets[-1].wait()
                daemon.kill()
                daemon.start()
        [ticket.wait() for ticket in tickets]
        assert producer.stats().reconnects >= 4
    handler.close()
    expected = [str(number) for number in range(200)]
    assert daemon.bodies("bad") == expected and daemon.bodies("appended") == expected


def test_a_daemon_that_is_replaced(daemon):
    """Another log is at the address: what was sent to the one before may be in that, and is not sent to the other."""
    log, handler = logger(daemon, connect=True)
    reader = clad.Reader(daemon.server, last=0, follow=True, caught_up=True)
    with clad.Producer(daemon.server, connect=True, **FAST) as producer:
        before = producer.append("before").wait().log_id
        cursor = reader.next().cursor
        daemon.signal(signal.SIGSTOP)
        sent = producer.append("sent")
        until(lambda: producer.stats().sent == 2)
        daemon.kill()
        shutil.rmtree(daemon.folder / "clad-data")
        daemon.start()
        with pytest.raises(clad.AppendError) as caught:
            sent.wait()
        assert caught.value.maybe_written and not isinstance(caught.value, clad.RefusedError)
        receipt = producer.append("after").wait()
        assert receipt.log_id != before and receipt.offset == 0
    log.info("logged")
    handler.close()
    assert daemon.bodies() == ["after", "logged"]
    with pytest.raises(clad.CursorUnknownError):
        list(clad.Reader(daemon.server, cursor=cursor))
    with pytest.raises(clad.CursorUnknownError):
        [reader.next(30) for _ in range(9)]


def test_a_socket_that_vanishes(daemon):
    log, handler = logger(daemon, connect=True)
    with clad.Producer(daemon.server, connect=True, **FAST) as producer:
        daemon.socket.unlink()
        producer.append("connected").wait()
        with pytest.raises(clad.ConnectError) as caught:
            clad.Producer(daemon.server, connect=True)
        assert caught.value.retryable
        daemon.kill()
        waits = producer.append("waits")
        log.info("logged")
        with pytest.raises(clad.WaitTimeout):
            waits.wait(0.05)
        assert str(daemon.socket) in producer.why_waiting
        daemon.start()
        waits.wait()
    handler.close()
    assert sorted(daemon.bodies()) == ["connected", "logged", "waits"]


# Refusals.


def test_busy(disk):
    """The daemon's memory is full, since its disk hangs: it refuses, and the client sends again."""
    small = {"limits__max_inflight_bytes": "1MiB", "limits__max_connection_inflight_bytes": "1MiB",
             "limits__max_append_bytes": "128KiB", "journal__max_record_bytes": "128KiB"}
    daemon = disk.daemon.start(**small)
    with clad.Producer(daemon.server, connect=True, **FAST) as producer:
        producer.append("first").wait()
        disk.hang()
        tickets = [producer.append(str(number) + "x" * 60_000) for number in range(60)]
        until(lambda: "busy" in (producer.why_waiting or ""))
        disk.resume()
        assert [ticket.wait().offset for ticket in tickets] == list(range(1, 61))
        assert producer.why_waiting is None and producer.stats().failed == 0


def test_no_space(disk):
    daemon = disk.daemon.start(journal__segment_bytes="1MiB", journal__max_record_bytes="64KiB",
                               limits__max_append_bytes="256KiB", journal__reserve_free="1MiB", journal__recycle="false")
    with clad.Producer(daemon.server, connect=True, **FAST) as producer:
        producer.append("first").wait()
        disk.fill()
        tickets = []

        def is_refused() -> bool:
            # What the daemon took before it saw the full disk waits there, without a refusal: so there is always one more.
            tickets.append(producer.append("x" * 60_000))
            return "no_space" in (producer.why_waiting or "")

        until(is_refused)
        with clad.Producer(daemon.server, delivery_timeout=1.0, connect=True, **FAST) as other:
            with pytest.raises(clad.RefusedError) as caught:
                other.append("y" * 60_000).wait()
            assert (caught.value.code, caught.value.maybe_written, caught.value.retryable) == ("no_space", False, True)
        log, handler = logger(daemon, max_buffered_bytes=20_000)
        for _ in range(100):
            log.info("logged")
        assert handler.stats().dropped > 0
        disk.make_room()
        assert [ticket.wait().offset for ticket in tickets][-1] >= len(tickets)
        handler.close()
    assert len(daemon.bodies("bad")) == 100 - handler.stats().dropped


def test_a_disk_that_hangs(disk):
    daemon = disk.daemon.start()
    log, handler = logger(daemon, connect=True)
    with clad.Producer(daemon.server, connect=True) as producer:
        producer.append("before").wait()
        disk.hang()
        tickets = [producer.append(str(number)) for number in range(100)]
        log.info("logged")
        with pytest.raises(clad.WaitTimeout):
            tickets[0].wait(HANG_SECONDS)
        with pytest.raises(clad.WaitTimeout):
            producer.flush(timeout=0.01)
        assert producer.append("received", level="received").wait().level == "received"
        disk.resume()
        assert {ticket.wait().level for ticket in tickets} == {"durable"}
        assert producer.stats().resent == 0
    handler.close()
    assert set(daemon.bodies()) == {"before", "logged", "received", *map(str, range(100))}


def test_a_level_that_is_not_offered(stopped, capsys):
    stopped.start(journal__durability="fire_and_forget")
    log, handler = logger(stopped, ack="durable")
    log.info("x")
    handler.flush()
    assert "not `durable`" in capsys.readouterr().err
    log.info("x")  # and the program goes on
    handler.close()
    log.info("x")
    with clad.Producer(stopped.server) as producer:
        with pytest.raises(clad.RefusedError) as caught:
            producer.append("y", level="durable").wait()
        error = caught.value
        assert (error.code, error.maybe_written, error.retryable) == ("level_unreachable", False, False)
        assert producer.append("z").wait().level == "written"
        with pytest.raises(ValueError):
            producer.append("x", level="safe")
    assert stopped.bodies() == ["z"]


def test_not_allowed(stopped):
    port = free_port()
    stopped.start(ingest__tcp__listen=f"127.0.0.1:{port}")
    server = f"tcp://127.0.0.1:{port}"
    until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
    with pytest.raises(clad.ReadError) as caught:
        next(clad.Reader(server))
    assert (caught.value.code, caught.value.retryable) == ("permission_denied", False)
    mine = {"producer_id": "ab" * 16, "connect": True}
    with clad.Producer(server, epoch=1, secret=b"mine", **mine) as producer:
        producer.append("mine").wait()
        with pytest.raises(clad.ConnectError) as caught:
            clad.Producer(server, epoch=2, secret=b"another's", **mine)
        assert (caught.value.code, caught.value.retryable) == ("producer_not_yours", False)
    assert stopped.bodies() == ["mine"]
