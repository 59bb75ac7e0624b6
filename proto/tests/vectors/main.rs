//! The files of `vectors/`, which clients in every language pass: their bytes are those of this crate's encoder.
//!
//! A person writes the fields, this test the bytes: `CLAD_UPDATE=1` writes them again. A change of bytes that were
//! there changes what clients in other languages send.

mod from_json;
mod page;

use clad_proto::frame::*;
use clad_proto::*;
use from_json::{Object, encode, frame, hex, payload, text_payload, unhex};
use page::page;
use serde_json::{Value, json};
use std::{collections::BTreeSet, env, fs, path::PathBuf};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../vectors")
}

fn read(name: &str) -> Value {
    let text = fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compares a file with what it should be, or writes that.
fn settle(name: &str, file: &Value) {
    let (path, text) = (folder().join(name), page(file));
    if env::var_os("CLAD_UPDATE").is_some() {
        let new = path.with_extension("new"); // renamed, for another test may read the file now
        fs::write(&new, &text).and_then(|()| fs::rename(&new, &path)).expect("writable");
    }
    let there = fs::read_to_string(&path).expect("readable");
    if let Some((is, should)) = there.lines().zip(text.lines()).find(|(is, should)| is != should) {
        panic!("{name} has\n  {is}\nand should have\n  {should}\nCLAD_UPDATE=1 writes it");
    }
    assert_eq!(there.len(), text.len(), "{name}: CLAD_UPDATE=1 writes it");
}

fn put(object: &mut Value, key: &str, value: Value) {
    let entries = object.as_object_mut().expect("an object");
    entries.shift_remove(key);
    entries.insert(key.to_owned(), value); // last, for it is long
}

fn elements<'a>(file: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
    file[key].as_array_mut().unwrap_or_else(|| panic!("a list of {key}"))
}

fn payload_named(name: &str) -> Payload {
    let file = read("payloads.json");
    let found = file["payloads"].as_array().expect("a list").iter().find(|entry| entry["name"] == name);
    let mut object = Object::new(found.unwrap_or_else(|| panic!("no payload is called {name}")));
    payload(&mut object).0
}

#[test]
fn payloads() {
    let mut file = read("payloads.json");
    for entry in elements(&mut file, "payloads") {
        let (payload, group, records) = payload(&mut Object::new(entry));
        let view = PayloadView::parse(&payload.bytes, payload.count).expect("good");
        assert_eq!(view.group().to_owned(), group);
        assert_eq!(view.records().map(|record| record.to_owned()).collect::<Vec<_>>(), records);
        put(entry, "crc", json!(payload.checksum()));
        put(entry, "hex", json!(hex(&payload.bytes)));
    }
    for entry in elements(&mut file, "invalid") {
        let mut object = Object::new(entry);
        let bytes = unhex(&object.text("hex"));
        let error = PayloadView::parse(&bytes, object.number("count") as u32).expect_err("it is invalid");
        put(entry, "code", json!(error.code().number()));
        put(entry, "record", json!(error.record_index()));
        put(entry, "hex", json!(hex(&bytes)));
    }
    settle("payloads.json", &file);
}

/// The bytes with changes at places, and checksums that hold again where `mend` says so.
fn changed(entry: &Value, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in entry["change"].as_array().expect("a list") {
        let at = change["at"].as_u64().expect("a place") as usize;
        let to = unhex(change["to"].as_str().expect("hex digits"));
        bytes[at..at + to.len()].copy_from_slice(&to);
    }
    mend(&mut bytes, entry["mend"].as_str().unwrap_or_default());
    bytes
}

fn mend(bytes: &mut [u8], what: &str) {
    let (mut from, to) = match what {
        "" => return,
        "header" => (0, 12),
        "body" => (16, bytes.len() - 4),
        "fixed part" => (16, 36),
        other => panic!("nothing is called {other}"),
    };
    let crc = crc32c(&bytes[from..to]).to_le_bytes();
    from = to;
    bytes[from..from + 4].copy_from_slice(&crc);
}

#[test]
fn frames() {
    let mut file = read("frames.json");
    let (mut kinds, mut good) = (BTreeSet::new(), Vec::new());
    for entry in elements(&mut file, "frames") {
        let kind = entry["type"].as_str().expect("a type").to_owned();
        let frame = frame(&kind, &entry["fields"], payload_named);
        let bytes = encode(&frame);
        let raw = peek(&bytes, limits::MAX_APPEND_BYTES).expect("good").expect("whole");
        assert_eq!(raw.decode(), Ok(frame), "{kind}");
        kinds.insert(raw.header.kind.code());
        good.push((entry["name"].clone(), bytes.to_vec()));
        put(entry, "hex", json!(hex(&bytes)));
    }
    // A client that appends and reads does not forward.
    let all = FrameType::ALL.into_iter().filter(|kind| *kind != FrameType::Forward);
    assert!(kinds.iter().copied().eq(all.map(FrameType::code)), "a frame of each type");
    for entry in elements(&mut file, "invalid") {
        let (_, of) = good.iter().find(|(name, _)| *name == entry["of"]).expect("it is made of a frame that is there");
        let bytes = changed(entry, of);
        let raw = peek(&bytes, limits::DEFAULT_MAX_APPEND_BYTES).map(|raw| raw.expect("whole").decode());
        let error = raw.flatten().expect_err("it is invalid");
        put(entry, "code", json!(error.info().code.number()));
        put(entry, "hex", json!(hex(&bytes)));
    }
    settle("frames.json", &file);
    // The bytes that PROTOCOL.md and this crate's own golden files have are all there. RING's place for a clock is 0
    // in what a client sends now.
    let all: BTreeSet<Vec<u8>> = good.into_iter().map(|(_, bytes)| bytes).collect();
    for path in
        fs::read_dir(folder().join("../proto/tests/golden")).expect("a folder").map(|entry| entry.expect("one").path())
    {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let digits: String = fs::read_to_string(&path).expect("text").split_whitespace().collect();
        let is_there = name == "frame_ring"
            || name.contains("forward")
            || !name.starts_with("frame_")
            || all.contains(&unhex(&digits));
        assert!(is_there, "{name} is in no vector");
    }
}

/// Tagged fields that no version has, at the end of a control body.
fn with_unknown(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..frame.len() - 4].to_vec();
    bytes.extend([0xFE, 3, 1, 2, 3, 0, 0, 0, 0]);
    let body = u32::try_from(bytes.len() - 16).expect("short");
    bytes[4..8].copy_from_slice(&body.to_le_bytes());
    mend(&mut bytes, "header");
    mend(&mut bytes, "body");
    bytes
}

/// A pattern for the body of a HELLO: whatever the client may choose is open.
fn hello_pattern(fields: &Value) -> String {
    let mut object = Object::new(fields);
    let id = object.text("producer_id");
    let intent = if object.number("intent") == 2 { "0[0-3]" } else { "0[13]" };
    let epoch = object.take("producer_epoch").map_or(".{8}".to_owned(), |epoch| {
        hex(&u32::try_from(epoch.as_u64().expect("a number")).expect("32 bits").to_le_bytes())
    });
    object.end();
    format!("0100.{{4}}{}{epoch}{intent}0{{6}}.*", if id.is_empty() { ".{32}" } else { &id })
}

fn body(kind: &str, fields: &Value) -> String {
    hex(&encode(&frame(kind, fields, text_payload))[16..])
}

/// A pattern for the body of a client's frame.
fn pattern(kind: &str, fields: &Value) -> String {
    if kind == "HELLO" {
        return hello_pattern(fields);
    }
    if fields["flags"] == "any" {
        let with = |flags: u8| {
            let mut fields = fields.clone();
            fields["flags"] = json!(flags);
            body(kind, &fields)
        };
        return format!("({}|{})", with(0), with(1));
    }
    body(kind, fields)
}

fn fill(step: &mut Value) {
    let (kind, fields) = (step["frame"].as_str().unwrap_or_default().to_owned(), step["fields"].clone());
    let fields = if fields.is_null() { json!({}) } else { fields };
    match step["do"].as_str().expect("what to do") {
        "expect" => put(step, "body", json!(pattern(&kind, &fields))),
        "send" => {
            let mut bytes = encode(&frame(&kind, &fields, text_payload)).to_vec();
            if step["unknown_fields"] == true {
                bytes = with_unknown(&bytes);
            }
            if step["wrong_checksum"] == true {
                bytes[12] ^= 1;
            }
            if let Some(first) = step["first_bytes"].as_u64() {
                bytes.truncate(first as usize);
            }
            put(step, "hex", json!(hex(&bytes)));
        }
        "optional" => elements(step, "steps").iter_mut().for_each(fill),
        "accept" | "cut" | "nothing" | "end" => {}
        other => panic!("a server does not do {other}"),
    }
}

#[test]
fn conversations() {
    let mut names: Vec<String> = fs::read_dir(folder().join("conversations"))
        .expect("a folder")
        .map(|entry| entry.expect("one").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert!(names.len() >= 20, "only {names:?}");
    for name in names {
        let name = format!("conversations/{name}");
        let mut file = read(&name);
        elements(&mut file, "server").iter_mut().for_each(fill);
        settle(&name, &file);
    }
}
