//! Appends of another log, as a daemon takes them over.
//!
//! Of any bytes this must hold:
//! - reading them ends and never panics;
//! - peer metadata that is made of them is within its bounds, is read back, and names the way and the first origin;
//! - an append that is handed on again keeps its first origin, and its path grows by one; the log that it came from, and each
//!   that it came through, refuse it.

use clad_proto::frame::{ForwardFault, ForwardView, Origin, PeerMeta, RecordsHead, StreamName, forwarded_peer_meta};
use clad_proto::limits::{FORWARD_HEADER_BYTES, MAX_HOPS, MAX_PEER_META_BYTES, RECORDS_FIXED_BYTES};
use clad_proto::{LogId, crc32c};

/// The forwarder as a daemon sees it: transport 12, user 0.
const OWN: [u8; 4] = [1, 12, 4, 0];

/// The body of a FORWARD, as it is and with both of its checksums right; and peer metadata by itself.
pub(crate) fn forward(data: &[u8]) {
    body(data);
    body(&resealed(data));
    hop(&RecordsHead::default(), data);
    // A whole frame, as the golden files hold it.
    if let Some(data) = data.get(16..) {
        body(&resealed(data));
    }
}

fn resealed(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let put = |bytes: &mut Vec<u8>, from: usize, to: usize| {
        if let Some(part) = bytes.get(from..to) {
            let crc = crc32c(part).to_le_bytes();
            if let Some(place) = bytes.get_mut(to..to + 4) {
                place.copy_from_slice(&crc);
            }
        }
    };
    put(&mut bytes, 0, FORWARD_HEADER_BYTES - 4);
    let meta = bytes.get(FORWARD_HEADER_BYTES + 64..FORWARD_HEADER_BYTES + 66);
    let meta = meta.map_or(0, |meta| usize::from(u16::from_le_bytes([meta[0], meta[1]])));
    put(&mut bytes, FORWARD_HEADER_BYTES, FORWARD_HEADER_BYTES + RECORDS_FIXED_BYTES + meta);
    bytes
}

fn body(data: &[u8]) {
    let Ok(view) = ForwardView::parse(data) else { return };
    let first = view.records.head.first_offset;
    assert_eq!(first > view.head.previous, view.head.skip.is_some());
    hop(&view.records.head, view.records.peer_meta);
}

fn log(number: u8) -> LogId {
    LogId::from_bytes([number; 16])
}

fn stream(number: u8) -> Origin {
    Origin { log_id: log(number), stream: StreamName::new("main").expect("a name") }
}

/// Hands an append on, from log to log, as far as it goes.
fn hop(head: &RecordsHead, peer_meta: &[u8]) {
    let (from, to) = (stream(1), log(2));
    let Ok(first) = forwarded_peer_meta(&OWN, &from, to, head, peer_meta) else { return };
    let mut before = checked(&first);
    let mut meta = first;
    for number in 2.. {
        match forwarded_peer_meta(&OWN, &stream(number), log(number + 1), head, &meta) {
            Ok(next) => {
                let after = checked(&next);
                assert_eq!(before.origin, after.origin, "the first origin stays");
                let (was, is) = (before.path.expect("a path"), after.path.clone().expect("a path"));
                assert_eq!(is.logs[..is.logs.len() - 1], was.logs);
                for again in &is.logs {
                    let back = forwarded_peer_meta(&OWN, &stream(100), *again, head, &next);
                    let full = is.logs.len() == MAX_HOPS;
                    assert!(back == Err(ForwardFault::Loop(*again)) || full && back == Err(ForwardFault::TooFar));
                }
                (before, meta) = (after, next);
            }
            Err(ForwardFault::TooFar) => return assert_eq!(before.path.map(|path| path.logs.len()), Some(MAX_HOPS)),
            Err(ForwardFault::Loop(again)) => {
                return assert!(before.path.is_some_and(|path| path.logs.contains(&again)));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

fn checked(peer_meta: &[u8]) -> PeerMeta {
    assert!(peer_meta.len() <= MAX_PEER_META_BYTES && peer_meta.starts_with(&OWN));
    let read = PeerMeta::decode(peer_meta).expect("what a daemon makes");
    assert!(read.path.is_some() && read.origin.is_some() && read.unknown_bytes.is_empty());
    assert_eq!(read.to_bytes(), peer_meta);
    read
}
