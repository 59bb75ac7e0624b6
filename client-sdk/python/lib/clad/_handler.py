"""The handler for `logging`, and the line that sets it up.

Invariants: no lock of ours or of `logging` is held while a record is handed over or waited for. A logging call never
raises, and waits only where `overload` says so, as long as that says.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, Dict, Optional, Tuple, Type, Union

from ._core import Core, find_server, warn
from ._errors import ClosedError, DroppedError, Error, ForkedError, WaitTimeout
from ._types import DropBelow, DropNewest, Level, Overload, Stats

GROUP_RECORDS_MAX = 128
"""Records that are grouped while the producer is busy."""
TRACE_CHARACTERS_MAX = 256 * 1024


class Handler(logging.Handler):
    """Hands the records of `logging` to clad.

    `ack` is the level that records are sent again for until they have reached it, and that `flush` and the end of the
    program wait for, at most `flush_timeout` seconds. It never waits for a daemon, unless `connect` is true.
    """

    def __init__(
        self,
        server: Optional[str] = None,
        *,
        component: Optional[str] = None,
        ack: Level = "written",
        level: Union[int, str] = logging.NOTSET,
        overload: Overload = DropNewest(),
        flush_timeout: float = 5.0,
        connect: bool = False,
        max_buffered_bytes: Optional[int] = None,
        backoff: Optional[Tuple[float, float]] = None,
        delivery_timeout: Optional[float] = None,
    ) -> None:
        address = find_server(server)
        # An append in a ring is not grouped: it goes there in its caller's thread. A group is dropped whole, so it would
        # take what is severe along.
        is_single = address.startswith("shm:") or isinstance(overload, DropBelow)
        # First: `logging` keeps whatever it has seen.
        self._core = Core(
            address,
            connects=connect,
            component=component,
            overload=overload,
            level=ack,
            max_append_records=1 if is_single else GROUP_RECORDS_MAX,
            max_buffered_bytes=max_buffered_bytes,
            backoff=backoff,
            delivery_timeout=delivery_timeout,
        )
        super().__init__(level)
        self._core.is_of_handler = True
        self.flush_timeout = flush_timeout
        self._has_waited = False

    def createLock(self) -> None:
        """None: the client has its own order, and a thread that waits must hold up no other."""
        self.lock = None

    def _at_fork_reinit(self) -> None:
        pass

    def handle(self, record: logging.LogRecord) -> Any:
        """As logging.Handler.handle, without a lock."""
        passed: Any = self.filter(record)
        if isinstance(passed, logging.LogRecord):
            record = passed
        if passed:
            self.emit(record)
        return passed

    def emit(self, record: logging.LogRecord) -> None:
        """Hands over a record. What fails is told by `handleError`, as elsewhere in `logging`."""
        try:
            more: Optional[Dict[str, object]] = None
            try:
                body = record.getMessage() if self.formatter is None else self.formatter.format(record)
                if not isinstance(body, str):
                    body = str(body)
            except Exception as error:
                # The record is not lost with its text.
                self.handleError(record)
                body, more = _raw(record), {"log.format_error": type(error).__name__}
            if record.exc_info or record.stack_info:
                more = {**(more or {}), **_exception(record)}
            try:
                self._core.running.native.log(record.__dict__, body, more)
            except ForkedError:
                self._core.call(lambda native: native.log(record.__dict__, body, more))
        except (ClosedError, ForkedError):
            pass  # it was closed
        except Exception:
            try:
                self.handleError(record)
            except Exception:  # the stack may be at its end, or stderr gone
                pass

    def flush(self) -> None:
        """Waits until what was logged in this process has reached `ack`, at most `flush_timeout` seconds."""
        end = time.monotonic() + self.flush_timeout
        while not self._core.is_closed:
            try:
                return self._core.flush(None, max(0.0, end - time.monotonic()))
            except DroppedError:
                pass  # by the rule, and counted: the others are still on their way
            except Error as error:
                self._has_waited = isinstance(error, WaitTimeout)
                return self._missing(error)

    def close(self) -> None:
        """Brings home what was logged in this process, at most `flush_timeout` seconds, and ends."""
        super().close()
        if self._core.is_closed:
            return
        try:
            # `logging.shutdown` flushes first: a daemon that hangs is waited for once.
            self._core.close(0.0 if self._has_waited else self.flush_timeout)
        except DroppedError:
            pass
        except Error as error:
            if not self._has_waited:
                self._missing(error)

    def _missing(self, error: Error) -> None:
        if logging.raiseExceptions:
            warn(f"records may be missing from the log: {error}")

    def stats(self) -> Stats:
        """The counters of this process."""
        return self._core.stats()


def _raw(record: logging.LogRecord) -> str:
    try:
        return str(record.msg)
    except Exception:
        return f"<formatting failed: {type(record.msg).__name__}>"


def _exception(record: logging.LogRecord) -> Dict[str, object]:
    """The exception of a record, by OpenTelemetry's names."""
    found: Dict[str, object] = {}
    if record.exc_info and isinstance(record.exc_info, tuple) and record.exc_info[0] is not None:
        kind, value, trace = record.exc_info
        found["exception.type"] = _qualified(kind)
        try:
            found["exception.message"] = str(value)
        except Exception as error:
            found["exception.message"] = f"<formatting failed: {type(error).__name__}>"
        text = record.exc_text
        if not text:
            try:
                text = "".join(traceback.format_exception(kind, value, trace))
            except Exception as error:
                text = f"<formatting failed: {type(error).__name__}>"
        found["exception.stacktrace"] = text[:TRACE_CHARACTERS_MAX]
    if record.stack_info:
        found["code.stacktrace"] = record.stack_info[:TRACE_CHARACTERS_MAX]
    return found


def _qualified(kind: Type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def setup(
    level: Union[int, str] = logging.INFO,
    *,
    server: Optional[str] = None,
    logger: Optional[logging.Logger] = None,
    excepthook: bool = True,
    **options: Any,
) -> logging.Handler:
    """Sets up the log of a program: a handler of the root logger (or of `logger`), at a level of `logging`.

    The daemon is `server`, else CLAD_SERVER, else /run/clad/clad.sock. Where there is none, records go to stderr, with
    one warning: a program starts on a laptop without clad. With `excepthook`, exceptions that end the program or one
    of its threads are logged. Further options are those of Handler. A second call changes the level alone.
    """
    target = logging.getLogger() if logger is None else logger
    for known in target.handlers:
        if isinstance(known, (Handler, _Stderr)):
            target.setLevel(level)
            return known
    handler: logging.Handler
    try:
        handler = Handler(server, **options)
    except Error as error:
        warn(f"{error}; logging to stderr")
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    target.addHandler(handler)
    target.setLevel(level)
    if excepthook:
        _install_hooks(target)
    return handler


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """In place of a log."""


def _install_hooks(logger: logging.Logger) -> None:
    before, before_thread = sys.excepthook, threading.excepthook

    def hook(kind: Type[BaseException], value: BaseException, trace: Optional[TracebackType]) -> None:
        if issubclass(kind, Exception):
            logger.critical("uncaught exception", exc_info=(kind, value, trace))
        before(kind, value, trace)

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and issubclass(args.exc_type, Exception):
            exception = (args.exc_type, args.exc_value, args.exc_traceback)
            logger.critical("uncaught exception in a thread", exc_info=exception)
        before_thread(args)

    sys.excepthook, threading.excepthook = hook, thread_hook
