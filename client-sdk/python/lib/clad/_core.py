"""The life of a producer: its daemon, its settings, forks, and the end of the process.

Invariants:
* A fork begins again. The hook of `os.register_at_fork` marks the parent's producer; where no hook runs (uWSGI forks
  in C), the first call is refused by the extension module, which knows its process, and begins again. Nobody else may
  have the identity of a parent: a chosen one stays refused (`ForkedError`).
* No lock is taken here: a fork could find it taken, a signal's handler could wait for itself.
* At the end of the process what was handed over is brought home, for at most EXIT_SECONDS_MAX in all.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import time
import weakref
from typing import Any, Callable, Dict, Optional, Set, TypeVar

from . import _clad
from ._errors import AddressError, Error, ForkedError
from ._types import Overload, Stats, rule

SERVER_VARIABLE = "CLAD_SERVER"
SOCKET = "/run/clad/clad.sock"
EXIT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 60.0
"""The longest wait beyond the delivery timeout, for the daemon that has the record."""
DELIVERY_SECONDS = 300.0
FORKS_MAX = 8

T = TypeVar("T")

_serials = itertools.count()
_live: "weakref.WeakSet[Core]" = weakref.WeakSet()
_pids_with_finalizer: Set[int] = set()


def find_server(server: Optional[str] = None) -> str:
    """The address of the daemon: what is given, else CLAD_SERVER, else this host's socket."""
    if server:
        return server
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        return named
    if os.path.exists(SOCKET):
        return f"unix://{SOCKET}"
    raise AddressError(f"no clad: {SERVER_VARIABLE} is not set, and {SOCKET} is not there")


def program() -> str:
    """The name of the program."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return name or "python"


class Running:
    """A producer of one process."""

    def __init__(self, native: "_clad.Producer") -> None:
        self.native = native
        self.pid = os.getpid()
        self.serial = next(_serials)
        self.is_of_parent = False


class Core:
    """A producer over forks."""

    def __init__(
        self,
        server: Optional[str],
        *,
        connects: bool,
        component: Optional[str],
        overload: Overload,
        level: Optional[str] = None,
        name: Optional[str] = None,
        max_buffered_bytes: Optional[int] = None,
        max_in_flight_appends: Optional[int] = None,
        max_append_records: Optional[int] = None,
        linger: Optional[float] = None,
        backoff: "Optional[tuple[float, float]]" = None,
        connect_timeout: Optional[float] = None,
        delivery_timeout: Optional[float] = None,
        producer_id: Optional[str] = None,
        epoch: int = 0,
        secret: Optional[bytes] = None,
    ) -> None:
        self.address = find_server(server)
        self.level = level
        self.delivery_timeout = DELIVERY_SECONDS if delivery_timeout is None else delivery_timeout
        self._is_chosen = producer_id is not None
        self._settings: Dict[str, Any] = {
            "component": program() if component is None else component,
            "name": name,
            "level": level,
            "overload": rule(overload),
            "max_buffered_bytes": max_buffered_bytes,
            "max_in_flight_appends": max_in_flight_appends,
            "max_append_records": max_append_records,
            "linger": linger,
            "backoff": backoff,
            "connect_timeout": connect_timeout,
            "delivery_timeout": delivery_timeout,
            "producer_id": producer_id,
            "epoch": epoch,
            "secret": secret,
        }
        self.is_closed = False
        # A handler's records are brought home by `logging.shutdown`.
        self.is_of_handler = False
        # Those that took over in a child of `fork`, by the serial of the one before.
        self._successors: Dict[int, Running] = {}
        self.running = self._begin(connects)
        _live.add(self)

    def _begin(self, connects: bool) -> Running:
        running = Running(_clad.Producer(self.address, connects, self._settings))
        _finalize_in_multiprocessing()
        return running

    def begin_again(self, before: Running) -> None:
        """Begins in a child of `fork`, in place of its parent's producer."""
        if self._is_chosen or self.is_closed:
            raise ForkedError("this process was forked from the one that made the producer; make another one here")
        # Of several threads one is first, and all use that one: this is one step under Python's lock.
        self.running = self._successors.setdefault(before.serial, self._begin(False))

    def call(self, f: "Callable[[_clad.Producer], T]") -> T:
        """Calls f with the producer of this process."""
        for _ in range(FORKS_MAX):
            running = self.running
            try:
                if not running.is_of_parent:
                    return f(running.native)
            except ForkedError:
                if running.pid == os.getpid():
                    raise
            self.begin_again(running)
        raise ForkedError("this process was forked too often in one call")

    def here(self) -> "Optional[_clad.Producer]":
        """The producer of this process, if one was begun in it."""
        running = self.running
        return running.native if running.pid == os.getpid() and not running.is_of_parent else None

    def flush(self, level: Optional[str], timeout: float) -> None:
        """Waits until what this process handed over has reached a level."""
        native = self.here()
        if native is not None:
            native.flush(level or self.level).wait(timeout)

    def close(self, timeout: float) -> None:
        """Brings home what this process handed over, and ends."""
        native = self.here()
        self.is_closed = True
        if native is not None:
            native.close().wait(timeout)

    def stats(self) -> Stats:
        """The counters of this process."""
        native = self.here()
        return Stats() if native is None else Stats(**native.stats())


def warn(text: str) -> None:
    """A line to the person who runs the program."""
    try:
        sys.stderr.write(f"clad: {text}\n")
    except Exception:  # stderr is gone, and with it whoever could read this
        pass


def flush_all(with_handlers: bool) -> None:
    """Brings home what is in memory, for at most EXIT_SECONDS_MAX in all."""
    end = time.monotonic() + EXIT_SECONDS_MAX
    for core in list(_live):
        if core.is_closed or (core.is_of_handler and not with_handlers):
            continue
        try:
            core.flush(None, max(0.0, end - time.monotonic()))
        except Error as error:
            warn(f"records may be missing from the log: {error}")


class _Owner:
    """What the hooks of multiprocessing belong to."""


_owner = _Owner()


def _finalize_in_multiprocessing() -> None:
    # Its children end by os._exit, which calls no hook but its own.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _pids_with_finalizer:
        _pids_with_finalizer.add(os.getpid())
        # It forgets all that was there before a child's work begins, and then calls this.
        util.register_after_fork(_owner, _add_finalizer)
        _add_finalizer(_owner)


def _add_finalizer(_: _Owner) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, _flush_in_multiprocessing, exitpriority=0)


def _flush_in_multiprocessing() -> None:
    # The first process ends as any other.
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        flush_all(True)


def _after_fork_in_child() -> None:
    for core in list(_live):
        core.running.is_of_parent = True


os.register_at_fork(after_in_child=_after_fork_in_child)
# Hooks run in reverse order: this one runs before that of `logging`, which was imported before.
atexit.register(flush_all, False)
