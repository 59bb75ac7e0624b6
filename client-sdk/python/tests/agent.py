"""The chaos agent: a client in a process of its own, which is killed. `AGENT ADDRESS PRODUCER_ID COMPONENT EPOCH MODE`."""

from __future__ import annotations

import queue
import sys
import threading
import time

from typing import TypeAlias

import clad

BACKOFF_SECONDS = (0.001, 0.02)
FOREVER_SECONDS = 3600.0
BUFFERED_BYTES = 16 << 10
PAUSE_SECONDS = 0.005
# No kill takes a record that has reached one of these.
SAFE: "list[clad.Level]" = ["written", "durable"]
# A rule, the records of an append, so that some are grouped, and the levels in turn.
RULES: "dict[str, tuple[clad.Overload, int, list[clad.Level]]]" = {
    "drops-newest": (clad.DropNewest(), 1, SAFE),
    "drops-oldest": (clad.DropOldest(), 5, SAFE),
    "drops-below": (clad.DropBelow(clad.WARN, 0.05), 20, SAFE),
    "mixed": (clad.Wait(0.02), 3, ["none", "received", *SAFE]),
}
Tickets: TypeAlias = "queue.Queue[tuple[str, clad.Level, clad.Ticket] | None]"
_lines = threading.Lock()


def say(*words: object) -> None:
    with _lines:
        print(*words, flush=True)


def wait_for_tickets(tickets: Tickets) -> int:
    """Prints outcomes in the order of the appends, until there is None; gives the number of refusals."""
    refused = 0
    while (item := tickets.get()) is not None:
        name, level, ticket = item
        try:
            offset = ticket.wait(FOREVER_SECONDS).offset
            if level in SAFE:
                say("receipt", name, "-" if offset is None else offset)
            else:
                say("sent", name)
        except clad.Error as error:
            refused += not isinstance(error, clad.DroppedError)
            if ":" in name and not error.maybe_written:
                say("never", name)
            else:
                say("error", name, error)
    return refused


def end_of_input() -> threading.Event:
    ended = threading.Event()

    def look() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=look, daemon=True).start()
    return ended


def keeps(address: str, producer_id: str, component: str, epoch: int) -> None:
    while True:
        try:
            producer = clad.Producer.resume(
                address, component=component, producer_id=producer_id, epoch=epoch, secret=b"chaos",
                backoff=BACKOFF_SECONDS, overload=clad.Wait(FOREVER_SECONDS),
            )
            break
        except clad.Error:
            time.sleep(PAUSE_SECONDS)
    last = producer.last_stored
    number = 0 if last is None else last + 1
    tickets: Tickets = queue.Queue()
    waiter = threading.Thread(target=wait_for_tickets, args=(tickets,))
    waiter.start()
    ended = end_of_input()
    try:
        while not ended.is_set():
            level = SAFE[number % 2]
            tickets.put((str(number), level, producer.append(str(number), time=1, level=level)))
            if number % 8 == 7:
                time.sleep(PAUSE_SECONDS)
            number += 1
    except clad.Error as error:
        say("error", error)
    tickets.put(None)
    waiter.join()
    producer.close(FOREVER_SECONDS)


def drops(address: str, component: str, rule: clad.Overload, grouped: int, levels: "list[clad.Level]") -> None:
    producer = clad.Producer(
        address, component=component, secret=b"chaos", overload=rule, max_buffered_bytes=BUFFERED_BYTES,
        max_append_records=grouped, backoff=BACKOFF_SECONDS,
    )
    ended = end_of_input()

    refused = []

    def log(thread: int) -> None:
        tickets: Tickets = queue.Queue()
        waiter = threading.Thread(target=lambda: refused.append(wait_for_tickets(tickets)))
        waiter.start()
        number = 0
        while not ended.is_set():
            name = f"{thread}:{number}"
            severity = clad.WARN if number % 2 else clad.INFO
            level = levels[number % len(levels)]
            try:
                ticket = producer.append(f"{thread} {number}", time=1, severity=severity, level=level)
                tickets.put((name, level, ticket))
            except clad.DroppedError:
                say("never", name)
            except clad.Error as error:
                say("error", name, error)
            number += 1
            if number % 64 == 0:
                time.sleep(0.04)
        tickets.put(None)
        waiter.join()

    threads = [threading.Thread(target=log, args=(thread,)) for thread in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for end in (producer.flush, producer.close):
        try:
            end(timeout=FOREVER_SECONDS)
        except clad.Error as error:
            # Records of a lower level may be lost with a daemon, which a flush reports.
            if levels == SAFE or not isinstance(error, clad.LostError):
                say("error", error)
    # Only now: the last report of drops has its outcome too. A report that failed is among the refused records.
    stats, refusals = producer.stats(), sum(refused)
    logged = stats.submitted - stats.drop_reports - max(0, stats.failed - refusals)
    say("stats", logged, stats.acked - stats.drop_reports, stats.dropped, refusals)


def follows(address: str) -> None:
    """Reads what is durable, over every death."""
    ended = end_of_input()
    reader: "clad.Reader | None" = None
    while reader is None and not ended.is_set():
        try:
            reader = clad.Reader(address, follow=True, level="durable")
        except clad.Error:
            time.sleep(PAUSE_SECONDS)
    while reader is not None and not ended.is_set():
        try:
            # The wait is short, as the end of stdin wakes no reader.
            event = reader.next(PAUSE_SECONDS)
        except clad.WaitTimeout:
            continue
        except clad.Error as error:
            say("error", error)
            return
        if not isinstance(event, clad.Record):
            say("error", event)
            return
        say("records", event.offset, 1)


def main(words: "list[str]") -> int:
    address, producer_id, component, epoch, mode = words
    if mode == "keeps":
        keeps(address, producer_id, component, int(epoch))
    elif mode == "follows":
        follows(address)
    elif mode in RULES:
        drops(address, component, *RULES[mode])
    else:
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
