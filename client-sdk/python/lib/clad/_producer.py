"""Producers: for threads, and for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Dict, Mapping, Optional, Tuple, Type

from . import _clad
from ._clad import Receipt
from ._core import ANSWER_SECONDS_MAX, EXIT_SECONDS_MAX, Core
from ._errors import WaitTimeout
from ._types import INFO, Level, Overload, Stats, Wait, rule

LEVELS = ["none", "posted", "received", "written", "durable"]
RESUME_DELAY_SECONDS = 0.005

Fields = Dict[str, Any]


def _fields(
    body: object,
    severity: int,
    attributes: Optional[Mapping[str, object]],
    time: Optional[int],
    severity_text: str,
    event_name: str,
    trace_id: bytes,
    span_id: bytes,
) -> Fields:
    return {
        "body": body,
        "time": time,
        "severity": severity,
        "severity_text": severity_text,
        "attributes": None if attributes is None else dict(attributes),
        "trace_id": trace_id,
        "span_id": span_id,
        "event_name": event_name,
    }


class Ticket:
    """The outcome of an append that is to come. Dropping it cancels nothing."""

    def __init__(self, pending: "_clad.Pending", seconds_max: float) -> None:
        self._pending = pending
        self._seconds_max = seconds_max

    def wait(self, timeout: Optional[float] = None) -> Receipt:
        """Waits for the receipt, at most `timeout` seconds; without one, until the append must have ended.

        Raises an AppendError if the record does not reach its level, and WaitTimeout if the time is over first: then
        the append goes on, and can be waited for again. Other threads run meanwhile, and signals are handled.
        """
        receipt = self._pending.wait(self._seconds_max if timeout is None else timeout)
        assert isinstance(receipt, Receipt)
        return receipt

    def done(self) -> bool:
        """True once there is an outcome."""
        return self._pending.done()


class _Producer:
    def __init__(
        self,
        server: Optional[str] = None,
        *,
        component: Optional[str] = None,
        level: Optional[Level] = None,
        overload: Overload = Wait(),
        connect: bool = False,
        name: Optional[str] = None,
        max_buffered_bytes: Optional[int] = None,
        max_in_flight_appends: Optional[int] = None,
        max_append_records: Optional[int] = None,
        linger: Optional[float] = None,
        backoff: Optional[Tuple[float, float]] = None,
        connect_timeout: Optional[float] = None,
        delivery_timeout: Optional[float] = None,
        producer_id: Optional[str] = None,
        epoch: int = 0,
        secret: Optional[bytes] = None,
    ) -> None:
        self._core = Core(
            server,
            connects=connect,
            component=component,
            overload=overload,
            level=level,
            name=name,
            max_buffered_bytes=max_buffered_bytes,
            max_in_flight_appends=max_in_flight_appends,
            max_append_records=max_append_records,
            linger=linger,
            backoff=backoff,
            connect_timeout=connect_timeout,
            delivery_timeout=delivery_timeout,
            producer_id=producer_id,
            epoch=epoch,
            secret=secret,
        )

    @property
    def address(self) -> str:
        """The daemon."""
        return self._core.address

    @property
    def id(self) -> str:
        """The producer's id, 32 hex digits; another one in each process."""
        return self._core.call(lambda native: native.id())

    @property
    def log_info(self) -> Optional[Dict[str, Any]]:
        """What the daemon said of itself and its log at the last greeting; None before the first."""
        return self._core.call(lambda native: native.log_info())

    @property
    def last_stored(self) -> Optional[int]:
        """The sequence of the last record that the log had of this producer before this process sent one.

        A program with a `producer_id` goes on from there after its death; see Producer.resume.
        """
        last = self._core.call(lambda native: native.last_stored())
        return None if last is None else last[0]

    @property
    def why_waiting(self) -> Optional[str]:
        """Why nothing goes forward, in words for a person; None while records are taken."""
        return self._core.call(lambda native: native.why_waiting())

    def stats(self) -> Stats:
        """The counters of this process."""
        return self._core.stats()


class Producer(_Producer):
    """Appends records, with a receipt for each. Threads share one.

    Nothing waits for a daemon here unless `connect` is true; records wait in memory, at most `max_buffered_bytes`.
    `level` is the one that records are to reach: by default the highest that the log offers. Times are seconds.
    """

    @classmethod
    def resume(
        cls, server: Optional[str] = None, *, producer_id: str, epoch: int, at: Level = "written", **options: Any
    ) -> "Producer":
        """Goes on where an earlier process died: with its id and a higher epoch. `last_stored` is the place.

        Waits until the last record that the log has of this producer has reached the level `at`, at most
        `delivery_timeout` seconds. Raises a ConnectError, or WaitTimeout; the same call again is safe.
        """
        end: Optional[float] = None
        while True:
            producer = cls(server, producer_id=producer_id, epoch=epoch, connect=True, **options)
            last = producer._core.call(lambda native: native.last_stored())
            if last is None or LEVELS.index(last[1]) >= LEVELS.index(at):
                return producer
            end = end or monotonic() + producer._core.delivery_timeout
            producer._core.close(ANSWER_SECONDS_MAX)
            if monotonic() > end:
                raise WaitTimeout("the last record of this producer has not reached the level", None, True, True)
            sleep(RESUME_DELAY_SECONDS)

    def append(
        self,
        body: object,
        *,
        severity: int = INFO,
        attributes: Optional[Mapping[str, object]] = None,
        level: Optional[Level] = None,
        overload: Optional[Overload] = None,
        time: Optional[int] = None,
        severity_text: str = "",
        event_name: str = "",
        trace_id: bytes = b"",
        span_id: bytes = b"",
    ) -> Ticket:
        """Hands over a record and returns its ticket. Waits only for room, as `overload` says.

        `time` is in Unix nanoseconds: now, by default. Raises DroppedError if there was no room, TooLargeError if the
        log never takes it, ClosedError, or ForkedError; the record is not written then.
        """
        fields = _fields(body, severity, attributes, time, severity_text, event_name, trace_id, span_id)
        overload_rule = None if overload is None else rule(overload)
        pending = self._core.call(lambda native: native.append(fields, level, overload_rule))
        return Ticket(pending, self._core.delivery_timeout + ANSWER_SECONDS_MAX)

    def flush(self, level: Optional[Level] = None, timeout: float = 30.0) -> None:
        """Waits until all that was handed over has reached a level, at most `timeout` seconds.

        Raises the worst error of a record whose ticket was dropped, LostError, or WaitTimeout.
        """
        self._core.flush(level, timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Brings home what was handed over, at most `timeout` seconds, and ends. Errors are those of a flush."""
        self._core.close(timeout)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(EXIT_SECONDS_MAX)
        except Exception:  # the program's own error says more
            pass


class _Bridge:
    """Wakes one event loop. No thread waits for anything here: a receipt writes a byte, and the loop looks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = os.getpid()
        self._queue = _clad.WakeQueue()
        self._numbers = itertools.count()
        self._waiting: "Dict[int, Tuple[_clad.Pending, asyncio.Future[Any]]]" = {}
        loop.add_reader(self._queue.fileno(), self._look)

    def future(self, pending: "_clad.Pending") -> "asyncio.Future[Any]":
        future: "asyncio.Future[Any]" = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._waiting[number] = (pending, future)
        # A future that is cancelled is not polled any more.
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._step(number)
        return future

    def _look(self) -> None:
        for number in self._queue.take():
            self._step(number)

    def _step(self, number: int) -> None:
        pending, future = self._waiting.get(number, (None, None))
        if pending is None or future is None or future.done():
            return
        try:
            ended = pending.poll(self._queue, number)
        except Exception as error:
            future.set_exception(error)
        else:
            if ended is not None:
                future.set_result(ended[0])


_bridges: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge]" = weakref.WeakKeyDictionary()


def _future(pending: "_clad.Pending") -> "asyncio.Future[Any]":
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None or bridge.pid != os.getpid():
        bridge = _bridges[loop] = _Bridge(loop)
    return bridge.future(pending)


async def _within(future: "asyncio.Future[Any]", timeout: float) -> None:
    done, _ = await asyncio.wait([future], timeout=timeout)
    if not done:
        future.cancel()
        raise WaitTimeout(f"no answer within {timeout} s; it may still come", None, True, True)
    future.result()


class AsyncProducer(_Producer):
    """As Producer, for asyncio. A wait for room has no deadline of its own: use asyncio's. Records are not grouped."""

    async def submit(
        self,
        body: object,
        *,
        severity: int = INFO,
        attributes: Optional[Mapping[str, object]] = None,
        level: Optional[Level] = None,
        time: Optional[int] = None,
        severity_text: str = "",
        event_name: str = "",
        trace_id: bytes = b"",
        span_id: bytes = b"",
    ) -> "asyncio.Future[Receipt]":
        """Waits for room, hands over a record, and returns the future of its receipt.

        Cancelled, nothing was handed over. To cancel the future cancels nothing: the append goes on.
        """
        fields = _fields(body, severity, attributes, time, severity_text, event_name, trace_id, span_id)
        pending = self._core.call(lambda native: native.append_later(fields, level))
        ticket: "_clad.Pending" = await _future(pending)
        return _future(ticket)

    async def append(
        self,
        body: object,
        *,
        severity: int = INFO,
        attributes: Optional[Mapping[str, object]] = None,
        level: Optional[Level] = None,
        time: Optional[int] = None,
        severity_text: str = "",
        event_name: str = "",
        trace_id: bytes = b"",
        span_id: bytes = b"",
    ) -> Receipt:
        """Hands over a record and waits for its receipt. Cancelled, it may be handed over or not: see `submit`."""
        receipt = await self.submit(
            body,
            severity=severity,
            attributes=attributes,
            level=level,
            time=time,
            severity_text=severity_text,
            event_name=event_name,
            trace_id=trace_id,
            span_id=span_id,
        )
        return await receipt

    async def flush(self, level: Optional[Level] = None, timeout: float = 30.0) -> None:
        """As Producer.flush."""
        native = self._core.here()
        if native is not None:
            await _within(_future(native.flush(level or self._core.level)), timeout)

    async def close(self, timeout: float = 30.0) -> None:
        """As Producer.close."""
        native = self._core.here()
        self._core.is_closed = True
        if native is not None:
            await _within(_future(native.close()), timeout)

    async def __aenter__(self) -> "AsyncProducer":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close(EXIT_SECONDS_MAX)
        except Exception:  # the program's own error says more
            pass


__all__ = ["AsyncProducer", "Producer", "Ticket"]
