"""Exceptions. Each says whether another try makes sense, and whether a reader may find the record all the same."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """The base of all of them.

    `code` is the daemon's code where the daemon refused, else None. `retryable`: the same again can succeed.
    `maybe_written`: the record may be in the log; False means that it certainly is not.
    """

    def __init__(
        self,
        text: str,
        code: Optional[str] = None,
        retryable: bool = False,
        maybe_written: bool = False,
        parting: Optional[str] = None,
    ) -> None:
        super().__init__(text, code, retryable, maybe_written, parting)
        self.text = text
        self.code = code
        self.retryable = retryable
        self.maybe_written = maybe_written
        self.parting = parting

    def __str__(self) -> str:
        return self.text


class AddressError(Error, ValueError):
    """A text that is no address, or nobody names a daemon."""


class ConnectError(Error):
    """There is no connection: no daemon, no answer, or a refusal."""


class WaitTimeout(Error, TimeoutError):
    """The time of this wait is over. What was waited for goes on, and may be waited for again."""


class AppendError(Error):
    """A record, or a flush, that did not reach its level."""


class RefusedError(AppendError):
    """The daemon does not take it; `code` says why."""


class DeliveryTimeoutError(AppendError):
    """No daemon, or one that takes nothing, for longer than `delivery_timeout`."""


class TooLargeError(AppendError):
    """Longer than the log takes."""


class DroppedError(AppendError):
    """Dropped for lack of room, by the rule of the producer or of the call. It is counted, and not written."""


class LostError(AppendError):
    """Records that had reached a lower level are gone. Only a flush ends with it."""


class ClosedError(AppendError):
    """The producer has ended."""


class ForkedError(AppendError):
    """It belongs to the process that this one was forked from."""


class ReadError(Error):
    """The read ended."""


class CursorAbandonedError(ReadError):
    """The cursor's history was abandoned after a loss. `parting` is the cursor from which the log goes on, if known."""


class CursorUnknownError(ReadError):
    """The cursor is of another log, or of a place that this log never had."""


class DamagedError(ReadError):
    """The records came damaged."""
