"""The reader."""

import datetime
import signal
import threading

import pytest

import clad

SECOND = 10**9


@pytest.fixture
def filled(daemon):
    with clad.Producer(daemon.server, component="a", max_append_records=10, linger=0.01) as producer:
        for i in range(100):
            producer.append(str(i), time=(i + 1) * SECOND, severity=i % 24 + 1)
    return daemon


def bodies(reader):
    return [int(record.body) for record in reader]


def test_where_to_start_and_to_end(filled):
    assert bodies(clad.Reader(filled.server)) == list(range(100))
    assert bodies(clad.Reader(filled.server, offset=97)) == [97, 98, 99]
    assert bodies(clad.Reader(filled.server, last=3)) == [97, 98, 99]
    assert bodies(clad.Reader(filled.server, offset=5, limit=4)) == [5, 6, 7, 8]
    assert bodies(clad.Reader(filled.server, since=34 * SECOND, until=37 * SECOND)) == [33, 34, 35, 36]
    assert bodies(clad.Reader(filled.server, since=34 * SECOND, limit=2)) == [33, 34]
    at = datetime.datetime.fromtimestamp(99, datetime.timezone.utc)
    assert bodies(clad.Reader(filled.server, since=at)) == [98, 99]
    assert bodies(clad.Reader(filled.server, level="durable", limit=1)) == [0]
    with pytest.raises(ValueError):
        clad.Reader(filled.server, offset=1, last=1)


def test_a_cursor_goes_on_within_an_append(filled):
    with clad.Reader(filled.server) as reader:
        seen = [int(next(reader).body) for _ in range(13)]
        cursor = reader.cursor
    filled.kill()
    filled.start()
    with clad.Reader(filled.server, cursor=cursor) as reader:
        seen += bodies(reader)
        assert reader.next() is None
    assert seen == list(range(100))
    with pytest.raises(clad.CursorUnknownError):
        next(clad.Reader(filled.server, cursor="ab" * 16 + ":0:5"))
    with pytest.raises(ValueError):
        clad.Reader(filled.server, cursor="nonsense")


def test_follow_over_a_restart(daemon):
    producer = clad.Producer(daemon.server, backoff=(0.001, 0.01))
    reader = clad.Reader(daemon.server, last=0, follow=True, caught_up=True)
    assert isinstance(reader.next(30), clad.CaughtUp)
    seen = []

    def follow():
        while len(seen) < 200:
            event = reader.next(30)
            if isinstance(event, clad.Record):
                seen.append(int(event.body))

    thread = threading.Thread(target=follow)
    thread.start()
    for i in range(200):
        producer.append(str(i))
        if i == 100:
            producer.flush()
            daemon.kill()
            daemon.start()
    producer.close()
    thread.join()
    assert seen == list(range(200))
    with pytest.raises(clad.WaitTimeout):
        while True:
            reader.next(0.05)
    reader.close()


def test_what_was_removed_is_a_gap(stopped):
    stopped.start(journal__segment_bytes="1MiB", journal__max_record_bytes="64KiB", retention__max_bytes="3MiB",
                  limits__max_append_bytes="256KiB")
    with clad.Producer(stopped.server) as producer:
        for _ in range(200):
            producer.append("x" * 50_000)
    event = clad.Reader(stopped.server).next()
    assert isinstance(event, clad.Gap) and (event.start, event.reason) == (0, "retention") and event.end > 0
    events = list(clad.Reader(stopped.server))
    assert isinstance(events[0], clad.Gap) and [record.offset for record in events[1:]] == list(range(events[0].end, 200))


def test_who_is_not_there(stopped):
    with pytest.raises(clad.ConnectError) as caught:
        clad.Reader(stopped.server)
    assert caught.value.retryable


def test_an_interrupt_ends_a_wait(daemon):
    def interrupt(*_):
        raise KeyboardInterrupt

    reader = clad.Reader(daemon.server, last=0, follow=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            next(reader)
    finally:
        signal.signal(signal.SIGALRM, before)
    with clad.Producer(daemon.server) as producer:
        producer.append("x")
    assert next(reader).body == "x"


def test_a_filter(daemon):
    with clad.Producer(daemon.server, component="shop") as producer:
        for severity, body, order in ((9, "paid", 7), (17, "paid", 7), (17, "paid", 8), (17, "sent", 7)):
            producer.append(body, severity=severity, attributes={"order": order, "paid": True}).wait()
    wanted = clad.Filter(min_severity=17, components=["other", "sh*"], attributes={"order": 7}, body_contains="aid")
    with clad.Reader(daemon.server, filter=wanted, limit=1) as reader:
        assert [(record.offset, record.body) for record in reader] == [(1, "paid")]
    for none in (
        clad.Filter(components=["sho"]),
        clad.Filter(attributes={"order": 7.0}),
        clad.Filter(trace_id=b"x" * 16),
        clad.Filter(producer_id="01" * 16),
    ):
        with clad.Reader(daemon.server, filter=none) as reader:
            assert list(reader) == []
    for wrong, error in ((clad.Filter(producer_id="x"), ValueError), (clad.Filter(attributes={"a": [1]}), TypeError)):
        with pytest.raises(error):
            clad.Reader(daemon.server, filter=wrong)
