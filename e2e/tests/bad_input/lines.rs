//! Lines of any bytes, through `clactl append` and back through `clactl query -o cat`.

use clad_e2e::raw::{hello_reader, payload};
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw};
use clad_proto::{AckLevel, AnyValue, Group, PayloadBuilder, Record};

/// Appends an input over each transport and reads it back; the last line gets its newline.
fn round_trip(input: &[u8]) {
    let daemon = Daemon::start();
    let mut expected = input.to_vec();
    if !input.is_empty() && !input.ends_with(b"\n") {
        expected.push(b'\n');
    }
    let lines = expected.iter().filter(|&&byte| byte == b'\n').count();
    for transport in ["unix", "tcp", "grpc"] {
        let server = daemon.address(transport);
        let said = clactl_ends(0, &["append", "--server", &server, "--component", transport, "-o", "json"], input);
        let said: clad_e2e::Json = clad_e2e::json(&said.stdout);
        assert_eq!(said["acked"], lines, "{transport}: {said}");
        assert_eq!(said["level"], "durable");
        let reading = daemon.address("unix");
        let output = clactl_ends(0, &["query", "--server", &reading, "-t", transport, "-o", "cat"], b"");
        assert!(output.stdout == expected, "{transport}: what came back is not what was sent");
    }
}

#[test]
fn carriage_returns_belong_to_their_lines() {
    round_trip(b"dos\r\nmac\rmac again\r\n\r\n\runix\n");
}

#[test]
fn empty_lines_are_records() {
    round_trip(b"\n\n\nafter three\n\n");
}

#[test]
fn zeroes_and_other_controls() {
    round_trip(b"\0\n\0\0 between \0\n\x1b[31mred\x07\x08\x7f\n");
}

#[test]
fn bytes_that_are_no_text() {
    round_trip(b"\xff\xfe\nlatin \xe9\xe8\n\xc3\n\xed\xa0\x80 a surrogate\n\xf4\x90\x80\x80 beyond the last\n");
}

#[test]
fn no_newline_at_the_end() {
    round_trip(b"first\nlast without");
    round_trip(b"only");
}

#[test]
fn a_line_of_a_mebibyte() {
    let mut input = vec![b'l'; 1 << 20];
    input.extend_from_slice(b"\nshort\n");
    input.extend((0..1 << 20).map(|index: u32| if index.is_multiple_of(251) { b'\r' } else { 0x80 | index as u8 }));
    round_trip(&input);
}

#[test]
fn every_byte_there_is() {
    let all: Vec<u8> = (0..=255).collect();
    round_trip(&all);
}

/// Absent, empty, and an empty text are three things, and all are valid.
#[test]
fn bodies_without_content() {
    let daemon = Daemon::start();
    let mut builder = PayloadBuilder::new(&Group::component_named("e2e")).expect("a group");
    for body in [None, Some(AnyValue::Empty), Some(AnyValue::String(String::new())), Some(AnyValue::Bytes(Vec::new()))]
    {
        builder.push(&Record { body, ..Record::default() }).expect("a record");
    }
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_payload(0, AckLevel::Durable, false, &builder.finish());
    let accepted = raw.accepted();
    assert_eq!(accepted.count, 4);
    raw.wait_watermark(AckLevel::Durable, accepted.epoch, 3);
    raw.append_payload(4, AckLevel::Durable, false, &payload(&[b""]));
    raw.accepted();
    raw.wait_watermark(AckLevel::Durable, accepted.epoch, 4);
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&hello_reader()).expect("WELCOME");
    let (got, _) = reader.read_from(0, AckLevel::Written).expect("a read");
    let bodies: Vec<_> = got.iter().map(|got| got.body.as_deref()).collect();
    assert_eq!(bodies, [None, None, Some(&b""[..]), Some(b""), Some(b"")]);
    let output = clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "cat"], b"");
    // A value that is there and empty is no text: it is shown as JSON has it.
    assert_eq!(output.stdout, b"\nnull\n\n\n\n");
}
