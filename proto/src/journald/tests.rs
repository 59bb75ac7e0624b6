use bytes::BytesMut;

use super::*;
use crate::{Group, PayloadBuilder, PayloadView, ValueRef, limits::DEFAULT_MAX_RECORD_BYTES};

const ENTRY: &[u8] =
    b"__CURSOR=s=1;i=2;b=3;m=4;t=5;x=6\n__REALTIME_TIMESTAMP=1700000000000001\n__MONOTONIC_TIMESTAMP=4\n\
_BOOT_ID=3\nPRIORITY=3\n_PID=42\nCODE_LINE=x\nSYSLOG_IDENTIFIER=web\nTAG=b\nTAG=a\n\
_SOURCE_REALTIME_TIMESTAMP=1700000000000000\nMESSAGE\n\x04\0\0\0\0\0\0\0a\n\xFFb\n\n";

/// The entries of a stream in pieces of so many bytes, and why it is none.
fn entries(stream: &[u8], piece: usize, max: usize) -> (Vec<JournalEntry>, Option<ExportFault>) {
    let (mut reader, mut buf, mut entries) = (ExportEntries::new(max), BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece) {
        buf.extend_from_slice(piece);
        loop {
            match reader.next(&mut buf) {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => break,
                Err(fault) => return (entries, Some(fault)),
            }
        }
    }
    match reader.last(&buf) {
        Ok(last) => entries.extend(last),
        Err(fault) => return (entries, Some(fault)),
    }
    (entries, None)
}

/// Severity, times, body and attributes of an entry's record.
fn record(entry: &JournalEntry) -> (i32, (u64, u64), String, Vec<String>) {
    let mut builder = PayloadBuilder::new(&entry.group()).expect("a group");
    entry.push_to(&mut builder).expect("it fits");
    let payload = builder.finish();
    let view = PayloadView::parse(&payload.bytes, 1).expect("a payload");
    let record = view.records().next().expect("a record");
    let attributes = record.attributes().iter();
    let attributes = attributes.map(|pair| format!("{}={:?}", pair.key, pair.value.unwrap_or(ValueRef::Empty)));
    let times = (record.time_unix_nano(), record.observed_time_unix_nano());
    (record.severity_number(), times, format!("{:?}", record.body()), attributes.collect())
}

#[test]
fn an_entry_is_a_record_with_each_of_its_fields() {
    let (entries, fault) = entries(ENTRY, ENTRY.len(), 4096);
    assert_eq!((entries.len(), fault), (1, None));
    let entry = &entries[0];
    assert_eq!((entry.cursor(), entry.component()), (Some("s=1;i=2;b=3;m=4;t=5;x=6"), Some("web")));
    let (severity, times, body, attributes) = record(entry);
    assert_eq!((severity, times), (17, (1_700_000_000_000_000_000, 1_700_000_000_000_001_000)));
    assert_eq!(body, format!("{:?}", Some(ValueRef::Bytes(b"a\n\xFFb"))));
    let expected = [
        "journald.CODE_LINE=String(\"x\")",
        "journald.TAG=",
        "journald._BOOT_ID=String(\"3\")",
        "process.pid=Int(42)",
        "clad.source.cursor=String(\"s=1;i=2;b=3;m=4;t=5;x=6\")",
    ];
    assert_eq!(attributes.len(), expected.len(), "{attributes:?}");
    assert!(attributes.iter().zip(expected).all(|(attribute, start)| attribute.starts_with(start)), "{attributes:?}");
}

#[test]
fn the_record_does_not_depend_on_the_order_of_fields_nor_on_pieces() {
    let reversed = b"MESSAGE=m\nB=2\nA=1\n\nA=1\nB=2\nMESSAGE=m\n";
    let (whole, fault) = entries(reversed, 1000, 4096);
    assert_eq!((whole.len(), fault), (2, None), "the last has no empty line behind it");
    assert_eq!(whole[0], whole[1]);
    for piece in 1..20 {
        assert_eq!(entries(ENTRY, piece, 4096), entries(ENTRY, ENTRY.len(), 4096));
    }
}

#[test]
fn what_is_too_long_is_cut_and_says_so_and_what_follows_it_is_kept() {
    let mut stream = b"__CURSOR=c\nCOREDUMP\n".to_vec();
    stream.extend(100_000u64.to_le_bytes());
    stream.extend(vec![7; 100_000]);
    stream.extend(b"\nMESSAGE=it crashed\nLINE=");
    stream.extend(vec![b'l'; 50_000]);
    stream.extend(b"\n\nMESSAGE=next\n\n");
    let (entries, fault) = entries(&stream, 777, 4096);
    assert_eq!((entries.len(), fault), (2, None));
    assert_eq!(entries[0].field("MESSAGE"), Some(&b"it crashed"[..]));
    let (_, _, _, attributes) = record(&entries[0]);
    assert!(attributes.contains(&"log.truncated=Bool(true)".to_owned()), "{attributes:?}");
    assert!(attributes.contains(&format!("log.original_length=Int({})", 150_000 + 1 + 10)), "{attributes:?}");
    assert_eq!(record(&entries[1]).3, Vec::<String>::new());
}

#[test]
fn what_is_no_entry_says_why() {
    let mut lies = b"A\n".to_vec();
    lies.extend(3u64.to_le_bytes());
    lies.extend(b"abcdefgh");
    let long = vec![b'N'; 300];
    for (stream, fault) in [
        (&b"=value\n"[..], ExportFault::Name),
        (b"with blank=1\n", ExportFault::Name),
        (b"\xFF=1\n", ExportFault::Name),
        (&long, ExportFault::Name),
        (&lies, ExportFault::ValueEnd),
        (b"A=1\nMESSAGE=half", ExportFault::Truncated),
        (b"A\n\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFabc", ExportFault::Truncated),
        (b"A\n\x01", ExportFault::Truncated),
    ] {
        for piece in [1, 1000] {
            assert_eq!(entries(stream, piece, 4096), (Vec::new(), Some(fault)), "{stream:?}");
        }
    }
    assert_eq!(entries(b"\n\n\n", 1, 4096), (Vec::new(), None));
}

/// As many fields as there can be, each as short or as long as can be, in the smallest record.
#[test]
fn an_entry_fits_a_record_of_twice_its_bytes() {
    for (name, value, count) in [("N", 0, 5000), ("N", 1, 5000), ("N", 4000, 3), ("LONG", 100_000, 20)] {
        for max in [512, 4096, DEFAULT_MAX_RECORD_BYTES as usize / 2] {
            let field = |n| format!("{name}{n}={}\n", "v".repeat(value));
            let stream = (0..count).map(field).collect::<String>();
            let (entries, _) = entries(stream.as_bytes(), 100_000, max);
            let limit = u32::try_from(2 * max).expect("small");
            let mut builder = PayloadBuilder::with_limits(&Group::default(), 1 << 24, limit).expect("a group");
            entries[0].push_to(&mut builder).unwrap_or_else(|e| panic!("{name} {value} {count} {max}: {e}"));
        }
    }
}
