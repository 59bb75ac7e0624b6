"""Bytes of the framed protocol in plain Python, made from docs/PROTOCOL.md alone: payloads and frames."""

import struct

NONE, POSTED, RECEIVED, WRITTEN, DURABLE = range(5)
HELLO, APPEND, FLUSH, PING, READ, CANCEL_READ, BYE, RING = range(1, 9)
(WELCOME, ACCEPTED, WATERMARK, REFUSED, ERROR, PONG, RECORDS, GAP, CAUGHT_UP, READ_END, RING_GIVEN, PROGRESS) = range(0x41, 0x4D)
MALFORMED, BAD_CHECKSUM, FRAME_TOO_LARGE, APPEND_TOO_LARGE, BAD_RECORD, SEQUENCE_GAP, FILTER_UNSUPPORTED = 2, 3, 4, 6, 7, 9, 29


class Wrong(Exception):
    """Bytes that break a rule, with the code of section 7."""

    def __init__(self, code, what, record=None):
        super().__init__(what)
        self.code, self.record = code, record


# Section 1: numbers, tagged fields, CRC-32C.

def _table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


CRC = list(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def leb(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def zigzag(number):
    return leb(number << 1 if number >= 0 else (-number << 1) - 1)


def with_length(data):
    return leb(len(data)) + data


def field(tag, data):
    return bytes([tag]) + with_length(data)


class In:
    """Bytes that are read from the front; what breaks a rule is `Wrong` with this code."""

    def __init__(self, data, code):
        self.data, self.at, self.code = data, 0, code

    def wrong(self, what):
        return Wrong(self.code, what)

    def rest(self):
        return len(self.data) - self.at

    def take(self, length):
        if length > self.rest():
            raise self.wrong("it ends too early")
        self.at += length
        return self.data[self.at - length:self.at]

    def unpack(self, form):
        values = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))
        return values if len(values) > 1 else values[0]

    def leb(self, bits=64):
        number, shift = 0, 0
        while True:
            byte = self.unpack("B")
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if number >> bits or (byte == 0 and shift):
            raise self.wrong("not a number in its shortest form")
        return number

    def zigzag(self, bits=64):
        number = self.leb(bits)
        return number >> 1 ^ -(number & 1)

    def counted(self):
        return self.take(self.leb())

    def text(self, data=None):
        try:
            return bytes(self.counted() if data is None else data).decode()
        except UnicodeDecodeError:
            raise self.wrong("not UTF-8") from None

    def tagged(self, repeats=()):
        last = 0
        while self.rest():
            tag = self.unpack("B")
            if tag < last or tag == 0 or (tag == last and tag not in repeats):
                raise self.wrong("tags do not ascend")
            last = tag
            yield tag, self.counted()

    def inner(self, data):
        return In(data, self.code)

    def end(self):
        if self.rest():
            raise self.wrong("bytes are left over")

    def whole(self, data, read):
        """All of `data`, by one read."""
        inner = self.inner(data)
        value = read(inner)
        inner.end()
        return value

    def zeros(self, count):
        if any(self.take(count)):
            raise self.wrong("reserved bytes are set")


# Section 3: values are `{kind: content}` with the names of vectors/, records and groups are dicts without defaults.

KINDS = ["absent", "empty", "string", "bytes", "false", "true", "int", "double", "array", "pairs", "string_index"]


def value_content(value):
    (kind, content), = value.items()
    if kind == "bool":
        return 5 if content else 4, b""
    number = KINDS.index(kind)
    return number, {
        "empty": lambda: b"", "string": lambda: content.encode(), "bytes": lambda: bytes.fromhex(content),
        "int": lambda: zigzag(content), "double": lambda: bytes.fromhex(content)[::-1],
        "array": lambda: b"".join(map(encode_value, content)), "pairs": lambda: encode_pairs(content),
        "string_index": lambda: zigzag(content)}[kind]()


def encode_value(value):
    if value is None:
        return b"\0"
    kind, content = value_content(value)
    return bytes([kind]) + (with_length(content) if kind in (2, 3, 8, 9) else content)


def encode_pairs(pairs):
    return b"".join(
        with_length(pair["key"].encode()) + (b"\x0b" + zigzag(pair["key_index"]) if pair.get("key_index") else b"")
        + encode_value(pair.get("value")) for pair in pairs)


def decode_content(inn, kind, depth):
    """The content of a value, which is all that `inn` has, or as much as its kind takes."""
    if kind in (8, 9) and depth >= 30:
        raise inn.wrong("nested too deep")
    if kind == 1:
        return {"empty": True}
    if kind == 2:
        return {"string": inn.text(inn.take(inn.rest()))}
    if kind == 3:
        return {"bytes": inn.take(inn.rest()).hex()}
    if kind in (4, 5):
        return {"bool": kind == 5}
    if kind == 6:
        return {"int": inn.zigzag()}
    if kind == 7:
        return {"double": inn.take(8)[::-1].hex()}
    if kind == 8:
        values = []
        while inn.rest():
            values.append(decode_value(inn, depth + 1))
        return {"array": values}
    if kind == 9:
        return {"pairs": decode_pairs(inn, depth + 1)}
    if kind == 10:
        return {"string_index": inn.zigzag(32)}
    raise inn.wrong(f"there is no value of kind {kind}")


def decode_value(inn, depth, kind=None):
    kind = inn.unpack("B") if kind is None else kind
    if kind in (2, 3, 8, 9):
        return inn.whole(inn.counted(), lambda inner: decode_content(inner, kind, depth))
    return decode_content(inn, kind, depth)


def decode_pairs(inn, depth=0):
    pairs = []
    while inn.rest():
        pair = {"key": inn.text()}
        kind = inn.unpack("B")
        if kind == 11:
            pair["key_index"] = inn.zigzag(32)
            if not pair["key_index"]:
                raise inn.wrong("a string index of 0")
            kind = inn.unpack("B")
        if kind:
            pair["value"] = decode_value(inn, depth, kind)
        pairs.append(pair)
    return pairs


def some(tag, data):
    return field(tag, data) if data else b""


def encode_record(record):
    severity, body = record.get("severity", 0), record.get("body")
    kind, content = value_content(body) if body is not None else (0, b"")
    fits = 0 <= severity <= 255
    head = struct.pack("<BBHQQII", severity if fits else 0, kind, 0, record.get("time", 0),
                       record.get("observed_time", 0), record.get("flags", 0), len(content))
    fields = (b"" if fits else field(1, struct.pack("<i", severity))) + some(2, record.get("severity_text", "").encode())
    fields += some(3, encode_pairs(record.get("attributes", [])))
    fields += field(4, leb(record["dropped"])) if record.get("dropped") else b""
    fields += some(5, bytes.fromhex(record.get("trace_id", ""))) + some(6, bytes.fromhex(record.get("span_id", "")))
    fields += some(7, record.get("event_name", "").encode())
    fields += b"".join(field(one["tag"], bytes.fromhex(one.get("content", ""))) for one in record.get("unknown", []))
    data = head + content + fields
    return struct.pack("<I", len(data) + 4) + data


def decode_record(inn):
    length = inn.unpack("I")
    if length < 32:
        raise inn.wrong("a record has at least 32 bytes")
    inn = inn.inner(inn.take(length - 4))
    severity, kind, reserved, time_, observed, flags, body = inn.unpack("BBHQQII")
    if reserved:
        raise inn.wrong("reserved bits are set")
    record = {"time": time_, "observed_time": observed, "flags": flags, "severity": severity}
    content = inn.take(body)
    if kind:
        record["body"] = inn.whole(content, lambda inner: decode_content(inner, kind, 0))
    elif content:
        raise inn.wrong("no body has no content")
    for tag, data in inn.tagged(range(8, 256)):
        if tag == 1:
            record["severity"] = inn.whole(data, lambda inner: inner.unpack("i"))
            if severity or 0 <= record["severity"] <= 255:
                raise inn.wrong("this severity is one byte")
        elif tag >= 8:
            record.setdefault("unknown", []).append({"tag": tag, "content": data.hex()})
        elif not data:
            raise inn.wrong("an empty field is left out")
        elif tag == 3:
            record["attributes"] = decode_pairs(inn.inner(data))
        elif tag == 4:
            record["dropped"] = dropped(inn, data)
        elif tag in (5, 6):
            record[("trace_id", "span_id")[tag - 5]] = data.hex()
        else:
            record["severity_text" if tag == 2 else "event_name"] = inn.text(data)
    return {key: content for key, content in record.items() if content not in (0, "")}


def dropped(inn, data):
    number = inn.whole(data, lambda inner: inner.leb(32))
    if not number:
        raise inn.wrong("0 is left out")
    return number


def texts(all_):
    return leb(len(all_)) + b"".join(with_length(text.encode()) for text in all_)


def encode_group(group):
    data, resource, scope = b"", group.get("resource"), group.get("scope")
    if resource is not None:
        data += field(1, encode_pairs(resource.get("attributes", [])))
        data += field(2, leb(resource["dropped"])) if resource.get("dropped") else b""
        for entity in resource.get("entities", []):
            data += field(3, with_length(entity["schema_url"].encode()) + with_length(entity["type"].encode())
                          + texts(entity["id_keys"]) + texts(entity["description_keys"]))
    data += some(4, group.get("resource_schema_url", "").encode())
    if scope is not None:
        data += field(5, scope.get("name", "").encode()) + some(6, scope.get("version", "").encode())
        data += some(7, encode_pairs(scope.get("attributes", [])))
        data += field(8, leb(scope["dropped"])) if scope.get("dropped") else b""
    data += some(9, group.get("scope_schema_url", "").encode())
    data += b"".join(field(one["tag"], bytes.fromhex(one.get("content", ""))) for one in group.get("unknown", []))
    return struct.pack("<I", len(data) + 4) + data


def decode_entity(inn):
    keys = lambda: [inn.text() for _ in range(inn.leb())]
    return {"schema_url": inn.text(), "type": inn.text(), "id_keys": keys(), "description_keys": keys()}


def decode_group(inn):
    length = inn.unpack("I")
    if length > 1 << 20:
        raise Wrong(APPEND_TOO_LARGE, "a group has at most 1 MiB")
    if length < 4:
        raise inn.wrong("a group has at least 4 bytes")
    inn, group = inn.inner(inn.take(length - 4)), {}
    for tag, data in inn.tagged([3, *range(10, 256)]):
        part = group.get("resource" if tag <= 3 else "scope")
        if (tag in (2, 3) or 6 <= tag <= 8) and part is None:
            raise inn.wrong(f"field {tag} of nothing")
        if not data and tag not in (1, 5) and tag < 10:
            raise inn.wrong("an empty field is left out")
        if tag == 1:
            group["resource"] = {"attributes": decode_pairs(inn.inner(data))} if data else {}
        elif tag in (2, 8):
            part["dropped"] = dropped(inn, data)
        elif tag == 3:
            part.setdefault("entities", []).append(inn.whole(data, decode_entity))
        elif tag in (4, 9):
            group["resource_schema_url" if tag == 4 else "scope_schema_url"] = inn.text(data)
        elif tag == 5:
            group["scope"] = {"name": inn.text(data)} if data else {}
        elif tag == 6:
            part["version"] = inn.text(data)
        elif tag == 7:
            part["attributes"] = decode_pairs(inn.inner(data))
        else:
            group.setdefault("unknown", []).append({"tag": tag, "content": data.hex()})
    return group


def encode_payload(group, records):
    return encode_group(group) + b"".join(map(encode_record, records))


def decode_payload(data, count):
    inn, records = In(data, BAD_RECORD), []
    if not count:
        raise inn.wrong("an append of no records")
    group = decode_group(inn)
    for index in range(count):
        try:
            records.append(decode_record(inn))
        except Wrong as wrong:
            raise Wrong(wrong.code, str(wrong), index) from None
    inn.end()
    return group, records


# Section 2: frames. A control body is fixed fields, then tagged fields, then its CRC-32C.

CURSOR = ["log_id", "epoch", "offset"]
LAYOUT = {
    HELLO: ("HH16sIB3x", ["min_version", "max_version", "producer_id", "producer_epoch", "intent"]),
    FLUSH: ("B3x", ["level"]), PING: ("", []), CANCEL_READ: ("", []), BYE: ("", []), PONG: ("", []),
    READ: ("BBBxQ16sIQqq", ["start", "flags", "level", "limit", *CURSOR, "since", "until"]),
    RING: ("16s8xI4x", ["ring_id", "bytes"]),
    WELCOME: ("HBBB3x16sIIQ16sIII4xQQQ", [
        "version", "policy", "highest_ack", "flags", "log_id", "epoch", "window", "epoch_first_offset", "producer_id",
        "producer_epoch", "max_append_bytes", "max_record_bytes", "received", "written", "durable"]),
    ACCEPTED: ("QQIIB3x", ["first_seq", "first_offset", "count", "epoch", "flags"]),
    WATERMARK: ("QQIB3x", ["offset", "epoch_first_offset", "epoch", "level"]),
    REFUSED: ("QIHBx", ["first_seq", "count", "code", "flags"]), ERROR: ("HBx", ["code", "flags"]),
    GAP: ("QQIB3x", ["from", "to", "epoch", "reason"]), CAUGHT_UP: ("16sIQ4x", CURSOR), PROGRESS: ("16sIQ4x", CURSOR),
    READ_END: ("16sIQB3x", [*CURSOR, "reason"]), RING_GIVEN: ("16sIIB3x", ["ring_id", "bytes", "max_payload_bytes", "flags"]),
}
RECORDS_FORM, RECORDS_FIELDS = "<IIQQ16sIIQIIHH", [
    "epoch", "count", "first_offset", "append_time", "producer_id", "producer_epoch", "payload_crc", "first_seq", "skip", "take"]
ALLOWED = {"level": range(5), "policy": range(1, 5), "highest_ack": range(5), "window": range(1, 65537), "version": range(1, 2)}
FLAGS = {WELCOME: 1, ACCEPTED: 1, RING_GIVEN: 3, REFUSED: 255, ERROR: 255}
REASONS = {GAP: (1, 2), READ_END: (1, 2, 3)}
ERROR_TAGS = {2: ("expected_sequence", "Q"), 3: ("record_index", "I"), 4: ("limit", "Q"), 6: ("retry_after_ms", "I")}


def frame(kind, body, request_id=0):
    head = struct.pack("<BBHII", 0xC1, kind, 0, len(body), request_id)
    return head + struct.pack("<I", crc32c(head)) + body


def encode_control(kind, request_id=0, tagged=b"", **fields):
    form, names = LAYOUT[kind]
    tagged += some(1, bytes.fromhex(fields.get("filter", "")))  # of READ
    default = lambda name: bytes(16) if name.endswith("_id") else 0
    values = [fields.get(name, default(name)) for name in names]
    values = [bytes.fromhex(value) if isinstance(value, str) else value for value in values]
    body = struct.pack("<" + form, *values) + tagged
    return frame(kind, body + struct.pack("<I", crc32c(body)), request_id)


def encode_hello(name="", secret="", **fields):
    tagged = some(1, name.encode()[:128]) + some(2, bytes.fromhex(secret))
    return encode_control(HELLO, tagged=tagged, **{"min_version": 1, "max_version": 1, **fields})


def encode_append(first_seq, count, level, flags, payload):
    head = struct.pack("<QIBBHI", first_seq, count, level, flags, 0, crc32c(payload))
    return frame(APPEND, head + struct.pack("<I", crc32c(head)) + payload)


def decode_header(head):
    magic, kind, reserved, length, request_id, crc = struct.unpack("<BBHIII", head)
    if magic != 0xC1:
        raise Wrong(MALFORMED, "not a frame")
    if crc != crc32c(head[:12]):
        raise Wrong(BAD_CHECKSUM, "a header's checksum")
    if kind not in LAYOUT and kind != RECORDS:
        raise Wrong(MALFORMED, f"frame type {kind}")
    if reserved and kind != ERROR:
        raise Wrong(MALFORMED, "reserved bits are set")
    least, most = (72, 328 + (256 << 20)) if kind == RECORDS else (4, 4096)
    if length > most:
        raise Wrong(FRAME_TOO_LARGE, "a frame is too long")
    if length < least:
        raise Wrong(MALFORMED, "a frame is too short")
    return kind, length, request_id


def decode_body(kind, body):
    """The fields of a frame of the daemon."""
    if kind == RECORDS:
        return decode_records(body)
    if struct.unpack("<I", body[-4:])[0] != crc32c(body[:-4]):
        raise Wrong(BAD_CHECKSUM, "a body's checksum")
    inn, (form, names) = In(body[:-4], MALFORMED), LAYOUT[kind]
    fixed = inn.take(struct.calcsize("<" + form))
    values = struct.unpack("<" + form, fixed)
    if struct.pack("<" + form, *values) != fixed and kind != ERROR:
        raise inn.wrong("reserved bytes are set")
    fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in zip(names, values)}
    if any(fields.get(name, some_[0]) not in some_ for name, some_ in ALLOWED.items()):
        raise inn.wrong("a value that does not exist")
    if fields.get("flags", 0) & ~FLAGS.get(kind, 0) or fields.get("reason") not in REASONS.get(kind, (None,)):
        raise inn.wrong("a flag or reason that does not exist")
    if kind == GAP and fields["from"] >= fields["to"]:
        raise inn.wrong("a gap of nothing")
    if kind in (CAUGHT_UP, PROGRESS, READ_END):
        fields["cursor"] = {name: fields.pop(name) for name in CURSOR}
    error = {name: fields.pop(name) for name in ("code", "flags")} if kind in (REFUSED, ERROR) else None
    for tag, data in inn.tagged():
        if error is not None:
            decode_error_field(inn, error, tag, data)
        elif kind == WELCOME and tag == 1:
            fields["secret"] = data.hex()
        elif kind == WELCOME and tag == 2:
            fields["last"] = dict(zip(("sequence", "offset", "level"), inn.whole(data, lambda inner: inner.unpack("QQB"))))
        elif kind == WELCOME and tag == 3:
            starts = inn.whole(data, lambda inner: [inner.unpack("IQ") for _ in range(len(data) // 12)])
            fields["earlier"] = [dict(zip(("epoch", "first_offset"), start)) for start in starts]
    if error is not None:
        fields["error"] = error
    return fields


def decode_error_field(inn, error, tag, data):
    if tag == 1:
        error["text"] = inn.text(data)
    elif tag == 5:
        log_id, epoch, offset = inn.whole(data, lambda inner: inner.unpack("16sIQ"))
        error["cursor"] = {"log_id": log_id.hex(), "epoch": epoch, "offset": offset}
    elif tag in ERROR_TAGS:
        name, form = ERROR_TAGS[tag]
        error[name] = inn.whole(data, lambda inner: inner.unpack(form))


def decode_records(body):
    *values, length, reserved = struct.unpack_from(RECORDS_FORM, body)
    end = 68 + length
    if end + 4 > len(body) or length > 256:
        raise Wrong(MALFORMED, "peer metadata that is too long")
    if struct.unpack_from("<I", body, end)[0] != crc32c(body[:end]):
        raise Wrong(BAD_CHECKSUM, "a checksum in front of a payload")
    fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in zip(RECORDS_FIELDS, values)}
    if reserved or not fields["take"] or fields["skip"] + fields["take"] > fields["count"]:
        raise Wrong(MALFORMED, "reserved bytes are set, or records that are not there")
    meta, fields["peer_meta"] = In(body[68:end], MALFORMED), []
    while meta.rest():
        fields["peer_meta"].append({"tag": meta.unpack("B"), "number": meta.leb()})
    return {**fields, "payload": body[end + 4:]}
