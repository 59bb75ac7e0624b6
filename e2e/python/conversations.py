"""Plays vectors/conversations: the server's side by hand, the client's side with clad_by_hand."""

import os
import re
import select
import socket
import tempfile
import threading
import time

import clad_by_hand as clad
from clad_wire import APPEND, BYE, FLUSH, HELLO, PING, PONG, READ, crc32c, frame

STEP_SECONDS = 30
KINDS = {"HELLO": HELLO, "APPEND": APPEND, "FLUSH": FLUSH, "READ": READ, "BYE": BYE}


class Server:
    def __init__(self, listener, client_done):
        self.listener, self.client_done, self.socket = listener, client_done, None
        self.next, self.producer, self.request = None, None, bytes(4)

    def exactly(self, length):
        data = b""
        while len(data) < length:
            try:
                more = self.socket.recv(length - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            data += more
        return data

    def look(self):
        """The next frame as type, request id, body; nothing when the client has closed."""
        while self.next is None:
            head = self.exactly(16)
            if head is None:
                return None
            body = self.exactly(int.from_bytes(head[4:8], "little"))
            assert head[0] == 0xC1 and crc32c(head[:12]) == int.from_bytes(head[12:], "little"), head.hex()
            if head[1] == PING:
                self.socket.sendall(frame(PONG, body, int.from_bytes(head[8:12], "little")))
            else:
                self.next = head[1], head[8:12], body
        return self.next

    def take(self):
        came, self.next = self.look(), None
        return came

    @staticmethod
    def fits(step, came):
        return came and came[0] == KINDS[step["frame"]] and re.fullmatch(step["body"], came[2].hex())

    def comes(self, seconds):
        """Whether there is something to read, or a connection."""
        return self.next or select.select([self.socket or self.listener], [], [], seconds)[0]

    def step(self, step):
        do = step["do"]
        if do == "accept":
            assert self.socket is None, "the connection before is open"
            self.socket, self.next = self.listener.accept()[0], None
            self.socket.settimeout(STEP_SECONDS)
        elif do == "expect":
            came = self.take()
            assert self.fits(step, came), f"came {came and (came[0], came[2].hex())}"
            self.greeted(came[2]) if came[0] == HELLO else setattr(self, "request", came[1])
        elif do == "send":
            self.socket.sendall(self.patched(step.get("patch"), bytearray.fromhex(step["hex"])))
        elif do == "cut":
            self.socket.close()
            self.socket = None
        elif do == "end":
            assert self.take() is None, "the client does not close"
            self.socket.close()
            self.socket = None
        elif do == "nothing":
            came = self.comes(step["ms"] / 1000) and (self.socket is None or self.look())
            assert not came, f"something came: {came}"
        elif do == "optional":
            while not self.comes(0.02):
                if self.client_done.is_set():
                    return
            if self.fits(step["steps"][0], self.look()):
                for inner in step["steps"]:
                    self.step(inner)
        else:
            raise AssertionError(f"a server does not do {do}")

    def greeted(self, hello):
        said = hello[4:24] if any(hello[4:20]) else b"\xb2" * 16 + hello[20:24]
        assert self.producer in (None, said) or not hello[24] & 1, "another producer came back"
        self.producer = said

    def patched(self, patch, data):
        if patch == "producer":
            data[56:76] = self.producer
            data[-4:] = crc32c(data[16:-4]).to_bytes(4, "little")
        elif patch == "request":
            data[8:12] = self.request
            data[12:16] = crc32c(data[:12]).to_bytes(4, "little")
        return data

    def drain(self):
        while self.socket and (came := self.take()):
            assert came[0] == BYE, f"frame {came[0]} {came[2].hex()} after the last step"
        if self.socket:
            self.socket.close()


class Client:
    def __init__(self, address, options, reads):
        self.address, self.tickets, self.producer, self.reader = address, {}, None, None
        if not reads:
            self.producer = clad.Producer(address, "test", backoff=0.02, **options)

    def step(self, step):
        do, name = step["do"], step.get("ticket")
        if do == "append":
            record = {"time": 1, "severity": step.get("severity", 9), "body": {"string": step["text"]}}
            try:
                self.tickets[name] = self.producer.append(record, step["level"])
            except clad.Failed as error:
                self.tickets[name] = error
        elif do == "wait":
            ticket = self.tickets[name]
            self.outcome(step, lambda: self.check(step, ticket))
        elif do == "pending":
            assert not self.tickets[name].done.is_set(), "it has its outcome"
        elif do == "flush":
            self.outcome(step, lambda: self.producer.flush(step["level"], STEP_SECONDS))
        elif do == "close":
            threading.Thread(target=self.producer.close, daemon=True).start()
        elif do == "read":
            fields = {key: value for key, value in step.items() if key != "do"}
            self.reader = clad.Reader(self.address, backoff=0.02, **fields)
        elif do == "next":
            self.check_next(step)
        else:
            raise AssertionError(f"a client does not do {do}")

    @staticmethod
    def outcome(step, wait):
        try:
            wait()
        except clad.Failed as error:
            assert (error.code, error.maybe_written) == (step.get("code"), step.get("maybe_written")), error
        else:
            assert "code" not in step, "it went well"

    @staticmethod
    def check(step, ticket):
        if isinstance(ticket, clad.Failed):
            raise ticket
        epoch, offset = ticket.wait(STEP_SECONDS) or (None, None)
        assert offset == step.get("offset") and epoch == step.get("epoch", epoch), (epoch, offset)

    def check_next(self, step):
        try:
            event = self.reader.next()
        except (clad.Refused, clad.Wrong) as error:
            assert "error" in step or step.get("code") == error.code, error
            return
        if event is None:
            assert "end" in step, "it ends"
        elif event[0] == "gap":
            assert list(event[1:]) == step.get("gap"), event
        else:
            assert event[1:] == (step.get("offset"), {"time": 1, "severity": step.get("severity", 9), "body": {"string": step.get("text")}}), event

    def end(self):
        if self.producer:
            self.producer.close(STEP_SECONDS)
        if self.reader:
            self.reader.close()


def play(conversation):
    """Plays a conversation to its end; what goes wrong is an AssertionError."""
    wrong, server_done, client_done = [], threading.Event(), threading.Event()

    def run(side, actor, done):
        try:
            for at, step in enumerate(conversation[side]):
                try:
                    actor.step(step)
                except (AssertionError, OSError, TimeoutError) as error:
                    raise AssertionError(f"{side} step {at}: {error!r}; {step}") from error
        except BaseException as error:
            wrong.append(error)
        done.set()

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(folder, "clad.sock"))
        listener.listen()
        listener.settimeout(STEP_SECONDS)
        server = Server(listener, client_done)
        client = Client(f"unix://{folder}/clad.sock", conversation.get("options", {}), conversation["client"][0]["do"] == "read")
        for side, actor, done in (("server", server, server_done), ("client", client, client_done)):
            threading.Thread(target=run, args=(side, actor, done), daemon=True).start()
        deadline = time.monotonic() + 4 * STEP_SECONDS
        while not (server_done.wait(0.01) and client_done.wait(0.01)) and not wrong:
            assert time.monotonic() < deadline, "it hangs"
        if wrong:
            raise wrong[0]
        ending = threading.Thread(target=client.end, daemon=True)
        ending.start()
        server.drain()
        ending.join(STEP_SECONDS)
