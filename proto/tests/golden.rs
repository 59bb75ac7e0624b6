//! Golden vectors: the bytes of every frame and of the payloads in them, and the same bytes in docs/PROTOCOL.md.
//!
//! A change that makes this fail changes what lies on disks and what clients in other languages send. With
//! `CLAD_BLESS=1` the files are written again; that is for new vectors, not for changed ones.

mod support;

use bytes::BytesMut;
use clad_proto::frame::*;
use clad_proto::*;
use std::{collections::BTreeMap, env, fmt::Write, fs, path::PathBuf};
use support::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Sixteen bytes a line.
fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", line.join(" ")).expect("a string takes any text");
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    assert!(digits.len().is_multiple_of(2), "two digits a byte: {digits}");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits")).collect()
}

fn vectors() -> BTreeMap<String, Vec<u8>> {
    let mut vectors = BTreeMap::new();
    for (name, frame) in frames() {
        let mut buf = BytesMut::new();
        frame.encode(&mut buf);
        vectors.insert(format!("frame_{name}"), buf.to_vec());
    }
    vectors.insert("payload_plain".into(), plain_payload().bytes.to_vec());
    vectors.insert("payload_full".into(), full_payload().bytes.to_vec());
    vectors
}

fn files() -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder()).expect("the folder is there").map(|entry| entry.expect("readable").path());
    entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("readable"))
        })
        .collect()
}

#[test]
fn bytes_are_what_they_were() {
    if env::var_os("CLAD_BLESS").is_some() {
        for (name, bytes) in vectors() {
            fs::write(folder().join(format!("{name}.hex")), to_hex(&bytes)).expect("writable");
        }
    }
    let files = files();
    let vectors = vectors();
    assert!(files.keys().eq(vectors.keys()), "files without a vector, or vectors without a file");
    for (name, bytes) in vectors {
        assert_eq!(files[&name], to_hex(&bytes), "{name}");
    }
}

#[test]
fn bytes_mean_what_they_meant() {
    let files = files();
    for (name, frame) in frames() {
        let bytes = from_hex(&files[&format!("frame_{name}")]);
        let raw = peek(&bytes, limits::DEFAULT_MAX_APPEND_BYTES).expect("good").expect("whole");
        assert_eq!(raw.decode(), Ok(frame), "{name}");
    }
    let full = from_hex(&files["payload_full"]);
    let view = PayloadView::parse(&full, 3).expect("good");
    assert_eq!(view.group().to_owned(), full_group());
    assert_eq!(view.records().next().map(|record| record.to_owned()), Some(full_record()));
}

#[test]
fn the_document_shows_these_bytes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/PROTOCOL.md");
    let text = fs::read_to_string(path).expect("the document is there");
    let files = files();
    let mut shown = Vec::new();
    for block in text.split("```hex ").skip(1) {
        let (name, rest) = block.split_once('\n').expect("a name, then bytes");
        let (bytes, _) = rest.split_once("```").expect("the block ends");
        // After the bytes a line may say what they are.
        let bytes: Vec<u8> =
            bytes.lines().flat_map(|line| from_hex(line.split('#').next().unwrap_or_default())).collect();
        assert_eq!(to_hex(&bytes), files[name], "{name} in docs/PROTOCOL.md");
        shown.push(name.to_owned());
    }
    assert!(shown.len() >= 6, "the document has a worked example: {shown:?}");
}

/// A table of the document, by the first words of its header.
fn table<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let rows =
        text.lines().skip_while(|line| !line.starts_with(header)).skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_document_names_every_error_and_every_frame() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/PROTOCOL.md");
    let text = fs::read_to_string(path).expect("the document is there");
    let yes = |is| if is { "yes" } else { "no" };
    let errors: Vec<Vec<String>> = ErrorCode::all()
        .map(|code| {
            let (retry, written) = (yes(code.retryable()), yes(code.maybe_written()));
            vec![code.number().to_string(), format!("`{}`", code.name()), retry.into(), written.into()]
        })
        .collect();
    let shown: Vec<Vec<&str>> =
        table(&text, "| code | name | retryable").into_iter().map(|row| row[..4].to_vec()).collect();
    assert_eq!(shown, errors);
    let kinds: Vec<String> = FrameType::ALL.iter().map(|kind| format!("0x{:02X}", kind.code())).collect();
    let shown: Vec<&str> = table(&text, "| type | frame").into_iter().map(|row| row[0]).collect();
    assert_eq!(shown, kinds);
}
