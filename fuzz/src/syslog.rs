//! Messages of syslog, and streams of them in its framings and in RELP's.
//!
//! What must hold of any bytes: a message becomes a record by each format, in appends that pass the daemon's check and a
//! reader's. A stream gives the same messages however it is cut into reads, and none longer than the limit.

use clad_proto::PayloadView;

/// Longest message of the streams here.
const MESSAGE_BYTES_MAX: usize = 64;

pub(crate) fn syslog(data: &[u8]) {
    let payloads = clad::take_syslog_apart(data);
    assert_eq!(payloads.iter().map(|payload| payload.count).sum::<u32>(), 8, "four formats, near and far");
    for payload in payloads {
        if let Err(error) = PayloadView::parse(&payload.bytes, payload.count) {
            panic!("a payload that no reader takes: {error}");
        }
    }
    in_pieces(data, clad::split_syslog);
}

pub(crate) fn relp(data: &[u8]) {
    in_pieces(data, clad::split_relp);
}

/// Messages of a stream, read in pieces of so many bytes, with the longest message.
type Split = fn(&[u8], usize, usize) -> (Vec<Vec<u8>>, bool);

fn in_pieces(data: &[u8], split: Split) {
    let whole = split(data, data.len().max(1), MESSAGE_BYTES_MAX);
    assert!(whole.0.iter().all(|message| message.len() <= MESSAGE_BYTES_MAX));
    for piece in [1, 3, 64] {
        assert_eq!(split(data, piece, MESSAGE_BYTES_MAX), whole, "in pieces of {piece}");
    }
}
