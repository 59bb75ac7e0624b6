"""Producers with receipts."""

import os
import signal
import threading

import pytest

import clad
from conftest import run, until


def test_a_first_durable_record(daemon):
    with clad.Producer(daemon.server, component="billing") as producer:
        receipt = producer.append("paid", attributes={"order": 7}, level="durable").wait()
    assert (receipt.offset, receipt.level, receipt.count, len(receipt.log_id)) == (0, "durable", 1, 32)
    (record,) = daemon.records("billing")
    assert (record.offset, record.body, record.attributes) == (0, "paid", {"order": 7})


def test_all_parts(daemon):
    with clad.Producer(daemon.server) as producer:
        producer.append(
            {"a": [1, b"x"]}, severity=clad.ERROR, time=5, severity_text="bad", event_name="shop.paid",
            trace_id=b"t" * 16, span_id=b"s" * 8, attributes={"k": None},
        )
        producer.append(None)
        assert producer.id == producer.id and producer.address == daemon.server
        until(lambda: producer.log_info is not None)
        assert producer.log_info["highest_ack"] == "durable" and producer.why_waiting is None
    first, second = daemon.records()
    assert (first.body, first.severity, first.time, first.severity_text) == ({"a": [1, b"x"]}, clad.ERROR, 5, "bad")
    assert (first.event_name, first.trace_id, first.span_id) == ("shop.paid", b"t" * 16, b"s" * 8)
    assert first.attributes == {"k": None} and (second.body, second.attributes) == (None, {})
    assert [first.sequence, second.sequence] == [0, 1]


def test_statistics(daemon):
    with clad.Producer(daemon.server) as producer:
        for i in range(10):
            producer.append(str(i))
        producer.flush("durable")
        stats = producer.stats()
    assert (stats.submitted, stats.acked, stats.failed, stats.dropped, stats.pending_appends) == (10, 10, 0, 0, 0)
    with pytest.raises(clad.ClosedError) as caught:
        producer.append("late")
    assert not caught.value.maybe_written and not caught.value.retryable


def test_no_daemon(stopped):
    producer = clad.Producer(stopped.server, delivery_timeout=0.1, backoff=(0.001, 0.01))
    ticket = producer.append("x")
    with pytest.raises(clad.DeliveryTimeoutError) as caught:
        ticket.wait()
    assert (caught.value.maybe_written, caught.value.retryable) == (False, True) and "not written" in str(caught.value)
    with pytest.raises(clad.DeliveryTimeoutError):
        ticket.wait()  # it stays
    with pytest.raises(clad.ConnectError):
        clad.Producer(stopped.server, connect=True)
    with pytest.raises(clad.AddressError):
        clad.Producer("nonsense")


def test_a_daemon_that_hangs(daemon):
    with clad.Producer(daemon.server, connect=True) as producer:
        daemon.signal(signal.SIGSTOP)
        ticket = producer.append("x")
        with pytest.raises(clad.WaitTimeout) as caught:
            ticket.wait(0.05)
        assert isinstance(caught.value, TimeoutError) and caught.value.maybe_written and not ticket.done()
        with pytest.raises(clad.WaitTimeout):
            producer.flush(timeout=0.05)
        daemon.signal(signal.SIGCONT)
        assert ticket.wait().offset == 0 and ticket.done() and ticket.wait() == ticket.wait()


def test_a_wait_lets_other_threads_run(daemon):
    with clad.Producer(daemon.server, connect=True) as producer:
        daemon.signal(signal.SIGSTOP)
        ticket = producer.append("x")
        threading.Timer(0.01, daemon.signal, [signal.SIGCONT]).start()
        assert ticket.wait(5).offset == 0


def test_a_daemon_that_restarts(daemon):
    with clad.Producer(daemon.server, backoff=(0.001, 0.02)) as producer:
        tickets = []
        for i in range(300):
            tickets.append(producer.append(str(i), level="durable" if i % 2 else "written"))
            if i % 100 == 50:
                tickets[-1].wait()
                producer.append("beside", level="none")
                daemon.kill()
                daemon.start()
        offsets = [ticket.wait().offset for ticket in tickets]
        assert producer.stats().reconnects >= 3
    assert offsets == sorted(offsets)
    found = {record.offset: record.body for record in daemon.records() if record.body != "beside"}
    assert [found[offset] for offset in offsets] == [str(i) for i in range(300)] and len(found) == 300


def test_rules_for_a_lack_of_room(stopped):
    producer = clad.Producer(stopped.server, max_buffered_bytes=4000, overload=clad.DropNewest(), backoff=(0.001, 0.01))
    tickets = []
    with pytest.raises(clad.DroppedError) as caught:
        while True:
            tickets.append(producer.append("x"))
    assert caught.value.retryable and not caught.value.maybe_written
    tickets.append(producer.append("y", overload=clad.DropOldest()))
    with pytest.raises(clad.DroppedError):
        tickets[0].wait()
    with pytest.raises(clad.DroppedError):
        producer.append("less", severity=clad.INFO, overload=clad.DropBelow(clad.WARN, 0.0))
    with pytest.raises(clad.DroppedError):
        producer.append("later", overload=clad.Wait(0.05))
    with pytest.raises(TypeError):
        producer.append("x", overload="wait")
    assert {name: count for name, count in producer.stats().dropped_by.items() if count} == {
        "no_room": 1, "oldest": 1, "severity": 1, "deadline": 1
    }
    waited = []
    thread = threading.Thread(target=lambda: waited.append(producer.append("waited", overload=clad.Wait(60)).wait()))
    thread.start()
    stopped.start()
    thread.join()
    producer.flush()
    producer.close()
    bodies = [record.body for record in stopped.records() if not record.event_name]
    assert waited and bodies == ["x"] * (len(tickets) - 2) + ["y", "waited"]


def test_an_interrupt_ends_a_wait(stopped):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    producer = clad.Producer(stopped.server, max_buffered_bytes=1024)
    try:
        for wait in (lambda: producer.append("x").wait(60), lambda: [producer.append("x" * 400) for _ in range(3)]):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                wait()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_program_goes_on_from_what_the_log_has(daemon):
    def start(epoch):
        return clad.Producer.resume(daemon.server, producer_id="cd" * 16, epoch=epoch)

    first = start(1)
    assert first.last_stored is None
    [first.append(str(i)) for i in range(5)]
    first.flush()
    second = start(2)
    assert second.last_stored == 4 and second.id == "cd" * 16
    second.append("5").wait()
    with pytest.raises(clad.AppendError) as caught:
        first.append("stale").wait()
    assert caught.value.code == "producer_fenced"
    second.close()
    assert daemon.bodies() == [str(i) for i in range(6)]


def test_a_producer_that_nobody_closes(daemon):
    script = """
import clad
producer = clad.Producer()
for i in range(500): producer.append(str(i))
"""
    assert run(script, daemon.server).stderr == ""
    assert daemon.bodies() == [str(i) for i in range(500)]


def test_an_error_in_the_block_is_the_error(stopped):
    with pytest.raises(KeyError):
        with clad.Producer(stopped.server, delivery_timeout=0.05) as producer:
            producer.append("x")
            raise KeyError("mine")


def test_the_environment(daemon, monkeypatch):
    monkeypatch.setenv("CLAD_SERVER", daemon.server)
    with clad.Producer() as producer:
        producer.append("x").wait()
    monkeypatch.delenv("CLAD_SERVER")
    if not os.path.exists("/run/clad/clad.sock"):
        with pytest.raises(clad.AddressError, match="CLAD_SERVER"):
            clad.Producer()


def test_shared_memory(daemon):
    with clad.Producer("shm://" + daemon.server.removeprefix("unix://"), connect=True) as producer:
        receipts = [producer.append(str(i), level="durable").wait() for i in range(20)]
        tickets = [producer.append(str(i)) for i in range(20, 200)]
        assert [ticket.wait().offset for ticket in tickets] == list(range(20, 200)) and receipts[-1].offset == 19
    assert daemon.bodies() == [str(i) for i in range(200)]
