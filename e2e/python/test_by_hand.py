"""The plain Python client against vectors/, and against a daemon where CLAD_BIN names one."""

import copy
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import types
import unittest

import clad_by_hand as clad
import clad_wire as wire
import conversations

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "vectors"
TYPES = {name: getattr(wire, name) for name in (
    "HELLO APPEND FLUSH PING READ CANCEL_READ BYE RING WELCOME ACCEPTED WATERMARK REFUSED ERROR PONG RECORDS GAP "
    "CAUGHT_UP READ_END RING_GIVEN PROGRESS").split()}


def vectors(name):
    return json.loads((VECTORS / name).read_text())


def without_defaults(value):
    """An absent key is 0, false or empty."""
    if isinstance(value, list):
        return [without_defaults(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_defaults(one) for key, one in value.items()}
    return {key: one for key, one in kept.items() if one not in (0, "", [], None, False, "00" * 16)}


def same_payload(content):
    """Content as it is read back: values keep their defaults, which mean something there."""
    return [{key: one for key, one in record.items() if one not in (0, "", [])} for record in content]


class Payloads(unittest.TestCase):
    def test_crc(self):
        self.assertEqual((wire.crc32c(b"123456789"), wire.crc32c(b"")), (0xE3069283, 0))

    def test_valid(self):
        for entry in vectors("payloads.json")["payloads"]:
            with self.subTest(entry["name"]):
                data = wire.encode_payload(entry.get("group", {}), entry["records"])
                self.assertEqual((data.hex(), wire.crc32c(data)), (entry["hex"], entry["crc"]))
                group, records = wire.decode_payload(data, len(entry["records"]))
                self.assertEqual(records, same_payload(entry["records"]))
                self.assertEqual(wire.encode_payload(group, records), data)
                self.assertEqual(without_defaults(group), without_defaults(entry.get("group", {})))

    def test_invalid(self):
        for entry in vectors("payloads.json")["invalid"]:
            with self.subTest(entry["name"]), self.assertRaises(wire.Wrong) as caught:
                wire.decode_payload(bytes.fromhex(entry["hex"]), entry["count"])
            self.assertEqual((caught.exception.code, caught.exception.record), (entry["code"], entry["record"]), entry["name"])


class Frames(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.payloads = {entry["name"]: entry for entry in vectors("payloads.json")["payloads"]}

    def payload(self, fields):
        return bytes.fromhex(self.payloads[fields["payload"]]["hex"])

    def encode(self, kind, fields):
        if kind == wire.HELLO:
            return wire.encode_hello(**fields)
        if kind == wire.APPEND:
            return wire.encode_append(**{**fields, "payload": self.payload(fields)})
        return wire.encode_control(kind, **fields)

    def test_of_the_client(self):
        for entry in vectors("frames.json")["frames"]:
            if entry["from"] == "client" and not entry["type"].endswith("CURSOR"):  # it keeps none
                with self.subTest(entry["name"]):
                    self.assertEqual(self.encode(TYPES[entry["type"]], entry["fields"]).hex(), entry["hex"])

    def decode(self, data):
        kind, length, request_id = wire.decode_header(data[:16])
        self.assertEqual(length, len(data) - 16)
        return kind, {**wire.decode_body(kind, data[16:]), "request_id": request_id}

    def test_of_the_daemon(self):
        for entry in vectors("frames.json")["frames"]:
            if entry["from"] != "daemon" or entry["type"] == "CURSOR":
                continue
            with self.subTest(entry["name"]):
                kind, fields = self.decode(bytes.fromhex(entry["hex"]))
                expected = dict(entry["fields"])
                if kind == wire.RECORDS:
                    payload = self.payload(expected)
                    expected.update(payload=payload, payload_crc=wire.crc32c(payload))
                self.assertEqual(kind, TYPES[entry["type"]])
                self.assertEqual(without_defaults(fields), without_defaults(expected))

    def test_invalid(self):
        for entry in vectors("frames.json")["invalid"]:
            if entry["from"] != "daemon":
                continue
            data = bytes.fromhex(entry["hex"])
            with self.subTest(entry["name"]), self.assertRaises(wire.Wrong) as caught:
                kind, _, _ = wire.decode_header(data[:16])
                wire.decode_body(kind, data[16:])
            self.assertEqual(caught.exception.code, entry["code"], entry["name"])


class Conversations(unittest.TestCase):
    def test_each_is_played_to_its_end(self):
        played = 0
        for path in sorted((VECTORS / "conversations").glob("*.json")):
            with self.subTest(path.stem):
                conversations.play(json.loads(path.read_text()))
                played += 1
        print(f"conversations: {played} played")
        self.assertGreaterEqual(played, 30)

    def test_what_expects_something_else_fails(self):
        for name, side, at, key, wrong in [
                ("refused_for_good", "server", 7, "body", ".*ff"), ("next_epoch_on_the_connection", "client", 3, "offset", 8),
                ("fenced_on_an_append", "client", 1, "maybe_written", True)]:
            conversation = copy.deepcopy(vectors(f"conversations/{name}.json"))
            conversation[side][at][key] = wrong
            with self.subTest(name), self.assertRaisesRegex(AssertionError, f"{side} step {at}: "):
                conversations.play(conversation)

    def test_wrong_clients_are_caught(self):
        source = pathlib.Path(clad.__file__).read_text()
        self.addCleanup(setattr, conversations, "clad", clad)
        self.addCleanup(setattr, conversations, "STEP_SECONDS", conversations.STEP_SECONDS)
        for name, right, wrong in WRONG:
            self.assertEqual(source.count(right), 1, right)
            conversations.clad, conversations.STEP_SECONDS = types.ModuleType("wrong"), 1
            exec(source.replace(right, wrong), conversations.clad.__dict__)
            with self.subTest(name, wrong=wrong), self.assertRaises(AssertionError):
                conversations.play(vectors(f"conversations/{name}.json"))
        print(f"wrong clients: {len(WRONG)} caught")


# A conversation, and a change of clad_by_hand.py that it finds.
WRONG = [
    ("read_filtered", ">= self.least", ">= 0"),
    ("read_filtered", "kind in (CAUGHT_UP, PROGRESS)", "kind == CAUGHT_UP"),
    ("read_filter_refused", "self.filter = \"\"\n                self.close()", "self.close()"),
    ("after_none", "int(mark), ticket.payload", "0, ticket.payload"),
    ("flush", "self.unsure = True", "pass"),
    ("none_behind_an_unanswered", "mark = at == 0 and (sequence", "mark = (sequence"),
    ("watermark_is_exclusive", "kept and place < offset", "kept and place <= offset"),
    ("next_epoch_on_the_connection", "(at + 1 == epoch and place < first)", "at + 1 == epoch"),
    ("next_epoch_on_the_connection", "(at + 1 == epoch and place < first)", "False"),
    ("epoch_after_the_next", "at + 1 == epoch and place", "at < epoch and place"),
    ("epoch_after_the_next_in_welcome", "at + 1 == epoch and place", "at < epoch and place"),
    ("bye_after_all_answers", "ticket.level <= level", "True"),
    ("durable_is_written_too", "ticket.level <= level", "ticket.level == level"),
    ("window_1", "self.pending[:self.window]", "self.pending"),
    ("busy_for_now", 'max(error.get("retry_after_ms", 0) / 1000, min', "max(0, min"),
    ("resumed_producer", 'last["sequence"] + 1 if last else 0', "0"),
    ("resumed_producer", "if not self.comes_back:", "if True:"),
    ("bye_after_all_answers", "if not self.comes_back:", "if False:"),
    ("bye_after_all_answers", "if self.closing and self._idle() and not out:", "if self.closing and not out:"),
    ("fenced_when_it_comes_back", "ticket.maybe |= ticket.state in (SENT, HELD)", "pass"),
    ("welcome_acknowledges", "self._mark(level, welcome[name]", "self._mark(level, 0"),
    ("received_lost_on_the_connection", 'self.expected = error.get("expected_sequence", 0)', "pass"),
    ("forgotten", 'welcome["log_id"]) or forgotten:', 'welcome["log_id"]):'),
    ("too_long_for_the_daemon", "if len(ticket.payload) > self.limit:", "if False:"),
    ("read_a_range", 'range(fields["skip"], fields["skip"] + fields["take"])', 'range(fields["take"])'),
    ("read_resumes", 'self._at(self.connection.welcome["log_id"], epoch, offset)', "pass"),
    ("read_checks_the_payload", 'if crc32c(fields["payload"]) != fields["payload_crc"]:', "if False:"),
]


@unittest.skipUnless("CLAD_BIN" in os.environ, "CLAD_BIN names no daemon")
class Daemon(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("CLAD_E2E_DIR"))
        self.addCleanup(folder.cleanup)
        self.folder, self.socket = folder.name, pathlib.Path(folder.name) / "clad-data" / "clad.sock"
        self.address, self.daemon = f"unix://{self.socket}", None
        self.addCleanup(self.stop)
        self.start()

    def start(self):
        free = [f"--set={key}=127.0.0.1:0" for key in ("ingest.tcp.listen", "ingest.grpc.listen", "metrics.listen")]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CLAD_")}
        self.daemon = subprocess.Popen([os.environ["CLAD_BIN"], *free], cwd=self.folder, env=environment,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, how=signal.SIGTERM):
        self.daemon.send_signal(how)
        self.daemon.wait()

    def read(self, count, **fields):
        reader = clad.Reader(self.address, flags=1, backoff=0.05, **fields)
        events = [reader.next() for _ in range(count)]
        reader.close()
        return [event[2]["body"]["string"] for event in events]

    def wait_for_the_socket(self):
        while not self.socket.exists():
            self.assertIsNone(self.daemon.poll(), "the daemon ended")
            time.sleep(0.01)

    @staticmethod
    def record(text, **fields):
        return {"time": time.time_ns(), "severity": 9, "body": {"string": text}, **fields}

    def test_a_record_of_every_kind_is_read_as_it_was_appended(self):
        self.wait_for_the_socket()
        producer = clad.Producer(self.address, "by hand")
        records = [record for entry in vectors("payloads.json")["payloads"] for record in entry["records"]]
        tickets = [producer.append(record, clad.WRITTEN) for record in records]
        self.assertEqual([ticket.wait(30)[1] for ticket in tickets], list(range(len(records))))
        producer.flush(clad.WRITTEN, 30)
        producer.close(30)
        reader = clad.Reader(self.address)
        events = list(iter(reader.next, None))
        reader.close()
        self.assertEqual([event[2] for event in events], same_payload(records))

    def test_what_was_acknowledged_is_there_once_after_kills(self):
        producer = clad.Producer(self.address, "by hand", backoff=0.05)
        sent, kept = [], []

        def send():
            while not stop.is_set():
                text = f"{len(sent)}"
                sent.append((text, producer.append(self.record(text), clad.WRITTEN)))
                time.sleep(0.0005)

        stop = threading.Event()
        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(5):
            self.wait_for_the_socket()
            time.sleep(0.3)
            self.stop(signal.SIGKILL)
            self.socket.unlink(missing_ok=True)
            self.start()
        stop.set()
        sender.join()
        for text, ticket in sent:
            ticket.wait(60)
            kept.append(text)
        producer.close(30)
        self.assertEqual(self.read(len(sent)), kept, "each once, in order")
        print(f"daemon: {len(sent)} records, 5 kills, each there once")

    def test_a_resumed_producer_fences_the_one_before(self):
        self.wait_for_the_socket()
        name = os.urandom(16).hex()
        first = clad.Producer(self.address, "by hand", producer_id=name, producer_epoch=1)
        first.append(self.record("one"), clad.WRITTEN).wait(30)
        second = clad.Producer(self.address, "by hand", producer_id=name, producer_epoch=2)
        second.append(self.record("two"), clad.WRITTEN).wait(30)
        with self.assertRaises(clad.Failed) as caught:
            first.append(self.record("three"), clad.WRITTEN).wait(30)
        self.assertEqual((caught.exception.code, caught.exception.maybe_written), (12, False))
        first.close(30), second.close(30)
        self.assertEqual(self.read(2), ["one", "two"])


if __name__ == "__main__":
    unittest.main()
