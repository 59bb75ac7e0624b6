"""The reader."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Deque, Dict, Iterator, Optional, Type, Union

from . import _clad
from ._clad import Record
from ._core import find_server
from ._types import CaughtUp, Filter, Gap, Level

Time = Union[int, datetime]
Event = Union[Record, Gap, CaughtUp]


def _nanoseconds(time: Optional[Time]) -> Optional[int]:
    if not isinstance(time, datetime):
        return time
    since = time.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return ((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


class Reader:
    """Reads a log: an iterator of records, and of gaps where records cannot be read.

    It starts at one of `offset`, `cursor` or `last` (the last n records; 0: only what comes from now on), else at the
    oldest record. `since` and `until` are datetimes or Unix nanoseconds. `filter`: only records that
    match; the daemon leaves out the others, and `limit` does not count them. `follow` goes on with what comes later, over
    disconnects and restarts. `level`: only what has reached `written` or `durable`.
    """

    def __init__(
        self,
        server: Optional[str] = None,
        *,
        offset: Optional[int] = None,
        cursor: Optional[str] = None,
        last: Optional[int] = None,
        since: Optional[Time] = None,
        until: Optional[Time] = None,
        filter: Optional[Filter] = None,
        follow: bool = False,
        level: Level = "written",
        limit: int = 0,
        caught_up: bool = False,
        connect_timeout: Optional[float] = None,
        reconnect_timeout: Optional[float] = None,
    ) -> None:
        starts = [("offset", offset), ("cursor", cursor), ("last", last)]
        given = [(name, value) for name, value in starts if value is not None]
        if len(given) > 1:
            raise ValueError(f"one start is enough, not {' and '.join(name for name, _ in given)}")
        start, value = given[0] if given else ("oldest", 0)
        self._since, self._until = _nanoseconds(since), _nanoseconds(until)
        self._caught_up = caught_up
        plan: Dict[str, Any] = {
            "start": start,
            "number": value if isinstance(value, int) else 0,
            "cursor": value if isinstance(value, str) else "",
            "follow": follow,
            "level": level,
            # Records that the time leaves out do not count.
            "limit": limit if self._since is None and self._until is None else 0,
            "since": self._since,
            "until": self._until,
            "filter": filter,
            "connect_timeout": connect_timeout,
            "reconnect_timeout": reconnect_timeout,
        }
        self._left = limit or None
        self._cursor: Optional[str] = cursor
        self._records: Deque[Record] = deque()
        self._native = _clad.Reader(find_server(server), plan)

    @property
    def cursor(self) -> Optional[str]:
        """The place behind the last event: where a later reader goes on. It misses nothing and gets nothing twice."""
        return self._cursor

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None at the end. Raises WaitTimeout after `timeout` seconds, and a ReadError if the read ended.

        Other threads run meanwhile, and signals are handled. One thread at a time reads.
        """
        while self._left != 0:
            if self._records:
                record = self._records.popleft()
                self._cursor = record.cursor
                # The daemon leaves out whole appends; a record of one can be outside all the same.
                if self._since is not None and record.time < self._since:
                    continue
                if self._until is not None and record.time > self._until:
                    continue
                if self._left is not None:
                    self._left -= 1
                return record
            event = self._native.next(timeout)
            if event is None:
                break
            if isinstance(event, list):
                self._records.extend(event)
            elif event[0] == "gap":
                return Gap(*event[1:])
            elif event[0] in ("caught_up", "progress"):
                self._cursor = event[1]
                if self._caught_up and event[0] == "caught_up":
                    return CaughtUp(event[1])
        return None

    def close(self) -> None:
        """Ends the read. Not while another thread is in `next`: it waits for that one."""
        self._native.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()
