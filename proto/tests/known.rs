//! What is not checked again because it was checked just now: the answers are those of the full check.

use bytes::BytesMut;
use clad_proto::frame::{AppendHead, KnownHeader, encode_append, peek, peek_known};
use clad_proto::{AckLevel, Body, Group, KnownGroup, PayloadBuilder, Severity, scan, scan_known};

fn payload(component: &str, body: &str) -> Vec<u8> {
    let mut builder = PayloadBuilder::new(&Group::component_named(component)).unwrap();
    builder.push_body(5, 6, Severity::INFO.0, Body::Text(body)).unwrap();
    builder.finish().bytes.to_vec()
}

#[test]
fn a_known_header_is_only_that_of_the_same_bytes_and_limit() {
    let mut frame = BytesMut::new();
    let head = AppendHead { first_seq: 1, count: 1, level: AckLevel::Written, gap: false, payload_crc: 0 };
    encode_append(&mut frame, &head, &payload("a", "b"));
    let good = frame.to_vec();
    let mut known = KnownHeader::default();
    for len in 0..=good.len() {
        assert_eq!(peek_known(&good[..len], 1 << 20, &mut known), peek(&good[..len], 1 << 20), "{len}");
    }
    for at in 0..16 {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(peek(&bad, 1 << 20).is_err());
        assert_eq!(peek_known(&bad, 1 << 20, &mut known), peek(&bad, 1 << 20), "byte {at}");
        assert!(peek_known(&good, 1 << 20, &mut known).unwrap().is_some(), "the good one is still good");
    }
    assert!(peek(&good, 8).is_err());
    assert_eq!(peek_known(&good, 8, &mut known), peek(&good, 8), "another limit");
}

#[test]
fn a_known_group_changes_no_answer() {
    let mut all = Vec::new();
    for payload in [payload("a", "b"), payload("a", "longer"), payload("another", "b"), payload("a", "b")] {
        for at in 0..payload.len() {
            let mut bad = payload.clone();
            bad[at] ^= 0x81;
            all.extend([bad, payload[..at].to_vec(), payload.clone()]);
        }
    }
    let mut known = KnownGroup::default();
    for (n, payload) in all.iter().enumerate() {
        for count in [1, 0, 2, u32::MAX] {
            assert_eq!(scan_known(payload, count, 1 << 20, &mut known), scan(payload, count, 1 << 20), "{n}, {count}");
        }
    }
}
