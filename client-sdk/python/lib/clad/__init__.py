"""Logs to clad, which answers each record with how safe it is.

    import clad, logging
    clad.setup()
    logging.getLogger("shop").info("paid", extra={"order": 7})

`setup` makes `Handler` the log of a program. `Producer` and `AsyncProducer` give a receipt for each record; `Reader`
reads them back. client-sdk/python/README.md has forks, threads, asyncio, the end of a program, and errors.
"""

from ._clad import Receipt, Record
from ._errors import (
    AddressError,
    AppendError,
    ClosedError,
    ConnectError,
    CursorAbandonedError,
    CursorUnknownError,
    DamagedError,
    DeliveryTimeoutError,
    DroppedError,
    Error,
    ForkedError,
    LostError,
    ReadError,
    RefusedError,
    TooLargeError,
    WaitTimeout,
)
from ._handler import Handler, setup
from ._producer import AsyncProducer, Producer, Ticket
from ._reader import Reader
from ._types import (
    DEBUG,
    ERROR,
    FATAL,
    INFO,
    TRACE,
    WARN,
    CaughtUp,
    DropBelow,
    DropNewest,
    DropOldest,
    Filter,
    Gap,
    Level,
    Overload,
    Stats,
    Wait,
)

__all__ = [
    "DEBUG",
    "ERROR",
    "FATAL",
    "INFO",
    "TRACE",
    "WARN",
    "AddressError",
    "AppendError",
    "AsyncProducer",
    "CaughtUp",
    "ClosedError",
    "ConnectError",
    "CursorAbandonedError",
    "CursorUnknownError",
    "DamagedError",
    "DeliveryTimeoutError",
    "DropBelow",
    "DropNewest",
    "DropOldest",
    "DroppedError",
    "Error",
    "Filter",
    "ForkedError",
    "Gap",
    "Handler",
    "Level",
    "LostError",
    "Overload",
    "Producer",
    "ReadError",
    "Reader",
    "Receipt",
    "Record",
    "RefusedError",
    "Stats",
    "Ticket",
    "TooLargeError",
    "Wait",
    "WaitTimeout",
    "setup",
]
