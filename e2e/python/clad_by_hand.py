"""A client of clad in plain Python, made from docs/PROTOCOL.md alone: the proof that the page suffices.

`Producer` appends with tickets, resends and reconnects; `Reader` reads and continues after a lost connection. It is a
test, not a product: one thread per producer, one record per append, no shared memory.
"""

import os
import select
import socket
import threading
import time

from clad_wire import *

ANSWER_SECONDS = 60
PING_SECONDS = 15


class Refused(Exception):
    """The daemon's error: `fields` has its code, flags, text and tagged fields."""

    def __init__(self, fields):
        super().__init__(f"error {fields['code']}: {fields.get('text', '')}")
        self.fields, self.code = fields, fields["code"]


class Connection:
    """A socket and the frames that come from it."""

    def __init__(self, address, hello, timeout):
        scheme, _, place = address.partition("://")
        self.inside, self.socket = bytearray(), socket.socket(socket.AF_UNIX if scheme == "unix" else socket.AF_INET)
        host, _, port = place.rpartition(":")
        try:
            self.socket.settimeout(timeout)
            self.socket.connect(place if scheme == "unix" else (host, int(port)))
            try:
                self.socket.sendall(hello)
            except OSError:
                pass  # the reason may still be there to be read
            kind, _, self.welcome = self.wait()
            if kind != WELCOME:
                raise Wrong(MALFORMED, f"frame {kind} in place of WELCOME")
        except BaseException:
            self.socket.close()
            raise

    def next(self):
        """A frame that is here: kind, request id, fields; or nothing."""
        if len(self.inside) < 16:
            return None
        kind, length, request_id = decode_header(bytes(self.inside[:16]))
        if len(self.inside) < 16 + length:
            return None
        body = bytes(self.inside[16:16 + length])
        del self.inside[:16 + length]
        fields = decode_body(kind, body)
        if kind == ERROR and request_id == 0:
            raise Refused(fields["error"])
        return kind, request_id, fields

    def receive(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        self.inside += data

    def wait(self):
        while (got := self.next()) is None:
            self.receive()
        return got


# Sections 4 and 5: a producer.

QUEUED, SENT, HELD, DONE = range(4)


class Failed(Exception):
    """An append or flush that did not reach its level."""

    def __init__(self, code, maybe_written, what=""):
        super().__init__(f"error {code}: {what}; {'it may be' if maybe_written else 'it is not'} written")
        self.code, self.maybe_written = code, maybe_written


class Ticket:
    """The outcome of an append or flush, when it is there."""

    def __init__(self, level, payload=b"", index=0):
        self.level, self.payload, self.index = level, payload, index
        self.state, self.maybe, self.expected, self.place = QUEUED, False, 0, None
        self.done, self.error = threading.Event(), None

    def resolve(self, error=None):
        if not self.done.is_set():
            self.state, self.error, self.payload = DONE, error, b""
            self.done.set()

    def fail(self, code, maybe_written, what=""):
        self.resolve(Failed(code, maybe_written or self.maybe or self.state in (SENT, HELD), what))

    def wait(self, timeout=None):
        """The epoch and the offset; nothing at level `none`."""
        if not self.done.wait(timeout):
            raise TimeoutError("no answer yet")
        if self.error:
            raise self.error
        return self.place


class Producer:
    def __init__(self, address, component="", producer_id="", producer_epoch=0, backoff=2.0, secret=""):
        self.address, self.longest_wait, self.comes_back = address, backoff, bool(producer_id)
        self.id = producer_id or os.urandom(16).hex()
        secret = secret or ("" if address.startswith("unix:") else os.urandom(32).hex())
        self.hello = encode_hello(component, secret, producer_id=self.id, producer_epoch=producer_epoch, intent=1)
        self.group = {"resource": {"attributes": [{"key": "service.name", "value": {"string": component}}]}} if component else {}
        self.lock, self.pending, self.flushes = threading.Lock(), [], []
        self.next_index, self.base, self.flush_id, self.sent_any = 0, 0, 0, False
        self.log, self.first_place, self.end, self.closing = None, None, None, False
        self.wakes, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def append(self, record, level):
        payload = encode_payload(self.group, [record])
        with self.lock:
            if self.end or self.closing:
                raise Failed(getattr(self.end, "code", 0), False, "the producer has ended")
            ticket = Ticket(level, payload, self.next_index)
            self.next_index += 1
            self.pending.append(ticket)
        self._wake()
        return ticket

    def flush(self, level, timeout=None):
        with self.lock:
            ticket = Ticket(level, index=self.next_index)
            self.flushes.append(ticket)
            if self.end:
                ticket.fail(getattr(self.end, "code", 0), True)
        self._wake()
        ticket.wait(timeout)

    def close(self, timeout=None):
        self.closing = True
        self._wake()
        self.thread.join(timeout)

    def _wake(self):
        try:
            self.waker.send(b"x")
        except OSError:
            pass  # it is awake, or has ended

    def _idle(self):
        return not self.pending and not self.flushes

    def _run(self):
        wait, dialled = 0.005, False
        while True:
            try:
                if dialled and self._idle():
                    if self.closing:
                        return self._ended(None)
                    select.select([self.wakes], [], [])
                    self.wakes.recv(4096)
                    continue
                dialled = True
                connection = Connection(self.address, self.hello, ANSWER_SECONDS)
                try:
                    wait = 0.005
                    if self._serve(connection):
                        return self._ended(None)
                finally:
                    connection.socket.close()
                    with self.lock:
                        self._lost()
            except (OSError, Wrong):
                pause = 0
            except Refused as error:
                pause = error.fields.get("retry_after_ms", 0) / 1000
                if not error.fields["flags"] & 1:
                    return self._ended(error)
            wait = min(wait * 2, self.longest_wait)
            time.sleep(max(wait, pause))

    def _ended(self, error):
        with self.lock:
            self.end = error or Failed(0, False, "closed")
            for ticket in self.pending + self.flushes:
                ticket.fail(getattr(error, "code", 0), ticket in self.flushes, str(error))
            self.pending, self.flushes = [], []
        self.wakes.close()
        self.waker.close()

    def _lost(self):
        for ticket in self.pending:
            ticket.maybe |= ticket.state in (SENT, HELD)
            if ticket.state == SENT:
                ticket.state = QUEUED
        for ticket in self.flushes:
            ticket.state = QUEUED

    def _welcomed(self, welcome):
        """Section 5, after a lost connection."""
        last = welcome.get("last")
        self.expected = last["sequence"] + 1 if last else 0
        self.epoch, self.window, self.limit = welcome["epoch"], welcome["window"], welcome["max_append_bytes"]
        self.unsure, self.hold, self.not_before = False, False, 0
        forgotten = False
        if not last and self.first_place and welcome["log_id"] == self.log:
            epoch, offset = self.first_place
            starts = [(one["epoch"], one["first_offset"]) for one in welcome.get("earlier", [])]
            starts.append((welcome["epoch"], welcome["epoch_first_offset"]))
            forgotten = not any(start > epoch and offset >= first for start, first in starts)
            self.first_place = None
        if self.log not in (None, welcome["log_id"]) or forgotten:
            # Whether they are stored cannot be known any more: sent again they might be stored twice.
            for ticket in self.pending:
                if ticket.maybe:
                    ticket.fail(0, True, "another log, or a producer that was forgotten")
        if self.log != welcome["log_id"]:
            self.log, self.first_place, self.sent_any = welcome["log_id"], None, False
        self._trim()
        if not self.sent_any:
            self.base = self.expected - (self.pending[0].index if self.pending else self.next_index)
        self.marks = {}
        for level, name in ((RECEIVED, "received"), (WRITTEN, "written"), (DURABLE, "durable")):
            self._mark(level, welcome[name], welcome["epoch"], welcome["epoch_first_offset"])
        for ticket in self.pending:
            if ticket.state == HELD:
                ticket.state = QUEUED

    def _serve(self, connection):
        """Works on a connection; true if everything is done."""
        sock, out = connection.socket, bytearray()
        with self.lock:
            self._welcomed(connection.welcome)
        sock.setblocking(False)
        heard, pinged = time.monotonic(), False
        while True:
            with self.lock:
                while (got := connection.next()) is not None:
                    self._answer(*got)
                while len(out) < 1 << 20 and (more := self._next_out()):
                    out += more
                waits = any(ticket.state in (SENT, HELD) for ticket in self.pending + self.flushes)
                if self.closing and self._idle() and not out:
                    break
            now = time.monotonic()
            if waits and now > heard + (ANSWER_SECONDS if pinged else PING_SECONDS):
                if pinged:
                    raise TimeoutError("no PONG")
                pinged, heard = True, now
                out += encode_control(PING, 1)
            timers = [PING_SECONDS] + [self.not_before - now] * (self.not_before > now)
            readable, _, _ = select.select([sock, self.wakes], [sock] if out else [], [], max(0, min(timers)))
            if self.wakes in readable:
                self.wakes.recv(4096)
            if sock in readable:
                connection.receive()
                heard, pinged = time.monotonic(), False
            if out:
                try:
                    del out[:sock.send(out)]
                except BlockingIOError:
                    pass
                except OSError:
                    connection.receive()  # the reason may still be there to be read
        sock.settimeout(ANSWER_SECONDS)
        if not self.comes_back:
            sock.sendall(encode_control(BYE))
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(4096):
                pass
        except OSError:
            pass
        return True

    def _trim(self):
        self.pending = [ticket for ticket in self.pending if ticket.state != DONE]
        self.flushes = [ticket for ticket in self.flushes if ticket.state != DONE]

    def _next_out(self):
        """The next frame to send, if one may be sent now."""
        for flush in self.flushes:
            if self.pending and self.pending[0].index < flush.index:
                break
            if flush.state == QUEUED and self.not_before <= time.monotonic():
                self.flush_id, flush.state = self.flush_id + 1, SENT
                flush.expected = self.flush_id
                return encode_control(FLUSH, self.flush_id, level=flush.level)
        # After a refusal everything in flight is answered first: then it is known what the daemon expects.
        if self.not_before > time.monotonic() or (self.hold and any(t.state == SENT for t in self.pending)):
            return None
        self.hold = False
        for at, ticket in enumerate(self.pending[:self.window]):
            sequence = self.base + ticket.index
            if ticket.state != QUEUED:
                continue
            if sequence > self.expected and at > 0:
                return None  # only the oldest may jump: everything before it has its outcome
            if len(ticket.payload) > self.limit:
                ticket.fail(APPEND_TOO_LARGE, False, "longer than this daemon takes")
                self._trim()
                return self._next_out()
            mark = at == 0 and (sequence > self.expected or self.unsure)
            ticket.state, ticket.expected, self.sent_any = SENT, self.expected, True
            self.expected = max(self.expected, sequence + 1)
            data = encode_append(sequence, 1, ticket.level, int(mark), ticket.payload)
            if ticket.level == NONE:
                self.unsure = True
                ticket.resolve()
                self._trim()
            return data
        return None

    def _answer(self, kind, request_id, fields):
        if kind == ACCEPTED:
            self._accepted(fields)
        elif kind == REFUSED:
            self._refused(fields)
        elif kind == WATERMARK:
            self.epoch = max(self.epoch, fields["epoch"])
            self._mark(fields["level"], fields["offset"], fields["epoch"], fields["epoch_first_offset"])
        if kind not in (WATERMARK, ERROR) or not request_id:
            return
        for flush in self.flushes:
            if flush.state == SENT and flush.expected == request_id:
                error = fields.get("error")
                if error and error["flags"] & 1:
                    flush.state = QUEUED
                    self._retry(error)
                elif error:
                    flush.fail(error["code"], True, error.get("text", ""))
                else:
                    flush.resolve()
        self._trim()

    def _find(self, fields):
        index = fields["first_seq"] - self.base
        return next((ticket for ticket in self.pending if ticket.index == index and ticket.state in (SENT, HELD)), None)

    def _accepted(self, fields):
        ticket = self._find(fields)
        if ticket is None:
            return
        ticket.state, ticket.place = HELD, (fields["epoch"], fields["first_offset"])
        self.first_place = self.first_place or ticket.place
        self.unsure = False
        for level, mark in list(self.marks.items()):
            self._mark(level, *mark)
        self._cover(RECEIVED, fields["first_offset"] + 1, fields["epoch"], 0, [ticket])

    def _mark(self, level, offset, epoch, first):
        """A watermark: section 4, epochs and watermarks."""
        self.marks[level] = (offset, epoch, first)
        self._cover(level, offset, epoch, first, self.pending)

    def _cover(self, level, offset, epoch, first, tickets):
        for ticket in tickets:
            if ticket.state != HELD:
                continue
            at, place = ticket.place
            kept = at == epoch or (at + 1 == epoch and place < first)
            if kept and place < offset and ticket.level <= level:
                ticket.resolve()
            elif not kept and at < epoch:
                ticket.state, ticket.maybe = QUEUED, True
        self._trim()

    def _refused(self, fields):
        ticket, error = self._find(fields), fields["error"]
        if ticket is None:
            return
        ticket.maybe |= bool(error["flags"] & 2) or ticket.state == HELD
        ticket.state, self.hold = QUEUED, True
        self.expected = min(self.expected, ticket.expected)
        gap = error["code"] == SEQUENCE_GAP
        if gap:
            self.expected = error.get("expected_sequence", 0)
            for other in self.pending:  # what is from there on is not stored, or no longer
                if other.state == HELD and self.base + other.index >= self.expected:
                    other.state, other.maybe = QUEUED, True
        if not error["flags"] & 1:
            ticket.fail(error["code"], False, error.get("text", ""))
            self._trim()
        elif not gap:
            self._retry(error)

    def _retry(self, error):
        self.not_before = time.monotonic() + max(error.get("retry_after_ms", 0) / 1000, min(0.01, self.longest_wait))


# Section 6: a reader.

class Reader:
    """Gives `("record", offset, record)`, `("gap", from, to)`, and nothing at the end."""

    def __init__(self, address, start=1, offset=0, level=WRITTEN, flags=0, log_id="", epoch=0, filter=None, backoff=2.0):
        self.address, self.follow, self.longest_wait = address, bool(flags & 1), backoff
        self.level, self.flags, self.connection, self.ready = level, flags, None, []
        self.read = {"start": start, "offset": offset, "log_id": log_id or bytes(16), "epoch": epoch}
        self.least = (filter or {}).get("min_severity", 0)
        # One condition: severities from the least one on.
        self.filter = struct.pack("<BBii", 1, 8, self.least, 0x7FFFFFFF).hex() if self.least else ""

    def _open(self):
        hello = encode_hello("by hand", intent=2)
        self.connection = Connection(self.address, hello, None)
        self.connection.socket.sendall(encode_control(READ, 1, level=self.level, flags=self.flags, filter=self.filter, **self.read))

    def _at(self, log_id, epoch, offset):
        self.read = {"start": 2, "log_id": log_id, "epoch": epoch, "offset": offset}

    def next(self):
        wait = 0.005
        while not self.ready:
            try:
                if self.connection is None:
                    self._open()
                kind, _, fields = self.connection.wait()
            except OSError:
                self.close()
                if not self.follow:
                    raise
                wait = min(wait * 2, self.longest_wait)
                time.sleep(wait)
                continue
            if kind == ERROR and fields["error"]["code"] == FILTER_UNSUPPORTED and self.filter:
                self.filter = ""
                self.close()
                continue
            if kind == ERROR:
                raise Refused(fields["error"])
            if kind == READ_END:
                return None
            if kind in (CAUGHT_UP, PROGRESS):
                self._at(**fields["cursor"])
            elif kind == GAP:
                self.ready.append((fields["epoch"], fields["to"], ("gap", fields["from"], fields["to"])))
            elif kind == RECORDS:
                self._records(fields)
        epoch, offset, event = self.ready.pop(0)
        self._at(self.connection.welcome["log_id"], epoch, offset)
        return event

    def _records(self, fields):
        if crc32c(fields["payload"]) != fields["payload_crc"]:
            raise Wrong(BAD_CHECKSUM, f"the payload at offset {fields['first_offset']} is damaged")
        _, records = decode_payload(fields["payload"], fields["count"])
        for at in range(fields["skip"], fields["skip"] + fields["take"]):
            offset = fields["first_offset"] + at
            if not self.least or records[at].get("severity", 0) >= self.least:
                self.ready.append((fields["epoch"], offset + 1, ("record", offset, records[at])))

    def close(self):
        if self.connection:
            self.connection.socket.close()
            self.connection = None
