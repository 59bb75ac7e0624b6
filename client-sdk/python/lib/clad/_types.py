"""Small values: severities, rules for a lack of room, events of a reader."""

from __future__ import annotations

from typing import Literal, Mapping, NamedTuple, Sequence, Tuple, Union

Level = Literal["none", "posted", "received", "written", "durable"]
"""How safe a record is to be; see docs/DURABILITY.md."""

TRACE = 1
DEBUG = 5
INFO = 9
WARN = 13
ERROR = 17
FATAL = 21


class DropNewest(NamedTuple):
    """A record that finds no room is dropped. The call never waits."""


class DropOldest(NamedTuple):
    """Records that were never sent make room for it, oldest first. The call never waits."""


class DropBelow(NamedTuple):
    """Below the severity it is dropped; else those below make room, and then it waits, for at most so many seconds."""

    severity: int = WARN
    wait: float = 0.0


class Wait(NamedTuple):
    """The call waits for room, for at most so many seconds; then the record is dropped."""

    seconds: float = 30.0


Overload = Union[DropNewest, DropOldest, DropBelow, Wait]
"""What becomes of a record that finds no room."""

Rule = Tuple[str, int, float]


def rule(overload: Overload) -> Rule:
    """The same, as the extension module takes it."""
    if isinstance(overload, DropNewest):
        return ("drop_newest", 0, 0.0)
    if isinstance(overload, DropOldest):
        return ("drop_oldest", 0, 0.0)
    if isinstance(overload, DropBelow):
        return ("drop_below", overload.severity, overload.wait)
    if isinstance(overload, Wait):
        return ("wait", 0, overload.seconds)
    raise TypeError(f"{overload!r} is no rule for a lack of room")


class Stats(NamedTuple):
    """Counters of a producer: records, unless the name says otherwise.

    Each record is counted in `submitted`, and once it has ended in one of `acked`, `failed` and `dropped`.
    """

    submitted: int = 0
    sent: int = 0
    acked: int = 0
    resent: int = 0
    failed: int = 0
    dropped: int = 0
    drop_reports: int = 0
    reconnects: int = 0
    buffered_bytes: int = 0
    pending_appends: int = 0
    dropped_by: "dict[str, int]" = {}


class Filter(NamedTuple):
    """Records that a reader wants: those for which all that is stated here holds.

    Of `min_severity` or above; of one of `components` (`billing*` is each that begins so); with all of `attributes`,
    equal in type and value, lists excepted; with the text `body_contains` in the body, where that is text or bytes; of
    a trace; of a producer.
    """

    min_severity: int = 0
    components: Sequence[str] = ()
    attributes: Mapping[str, object] = {}
    body_contains: str = ""
    trace_id: bytes = b""
    producer_id: str = ""


class Gap(NamedTuple):
    """Offsets from `start` to before `end` that cannot be read: `retention` or `damage`. The read goes on after them."""

    start: int
    end: int
    reason: str


class CaughtUp(NamedTuple):
    """A following reader has given all there is so far."""

    cursor: str
