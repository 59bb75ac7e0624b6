//! One more hop: the peer metadata of an append that a log takes over from another.

use super::{
    origin::{FirstOrigin, ORIGIN, Origin, PATH, Path, own_part},
    peer_meta::PeerMeta,
    records::RecordsHead,
};
use crate::{
    ids::LogId,
    limits::{MAX_HOPS, MAX_OWN_PEER_META_BYTES, MAX_PEER_META_BYTES},
    wire::put_field,
};
use bytes::{BufMut, BytesMut};

/// Reason why an append is not taken over from another log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardFault {
    /// Its peer metadata is not what a daemon makes.
    #[error("its peer metadata is wrong: {0}")]
    PeerMeta(&'static str),
    /// It has come through this log already.
    #[error("it has come through log {0} already: forwarding goes in a circle")]
    Loop(LogId),
    /// It has come through as many logs as the path has room for.
    #[error("it has come through {MAX_HOPS} logs, and may come through no further one")]
    TooFar,
}

/// Peer metadata of an append that is taken over: `own`, which the daemon makes of the forwarder, then the way and the first
/// origin. `from`: the stream that is forwarded, `to` the log that takes it. `head` and `peer_meta` are of the append's
/// RECORDS.
///
/// # Errors
/// [`ForwardFault`].
pub fn forwarded_peer_meta(
    own: &[u8],
    from: &Origin,
    to: LogId,
    head: &RecordsHead,
    peer_meta: &[u8],
) -> Result<Vec<u8>, ForwardFault> {
    let wrong = ForwardFault::PeerMeta;
    let before = PeerMeta::decode(peer_meta).map_err(|_| wrong("no fields in their order"))?;
    if before.unknown_bytes.iter().any(|(tag, _)| *tag == PATH || *tag == ORIGIN) {
        return Err(wrong("no path or no origin where they should be"));
    }
    let (mut logs, origin) = match (before.path, before.origin) {
        (Some(path), Some(origin)) if path.logs.first() == Some(&origin.log_id) => {
            PeerMeta::decode(&origin.peer_meta).map_err(|_| wrong("of its first origin no fields in their order"))?;
            (path.logs, origin)
        }
        (None, None) => {
            let seen = own_part(peer_meta).filter(|seen| seen.len() <= MAX_OWN_PEER_META_BYTES);
            let origin = FirstOrigin {
                log_id: from.log_id,
                epoch: head.epoch,
                first_offset: head.first_offset,
                append_time: head.append_time,
                producer_id: head.producer_id,
                producer_epoch: head.producer_epoch,
                first_seq: head.first_seq,
                peer_meta: seen.ok_or(wrong("more than 256 bytes of a daemon's own"))?.to_vec(),
            };
            (Vec::new(), origin)
        }
        _ => return Err(wrong("a path and an origin that are not of each other")),
    };
    if let Some(again) = logs.iter().find(|id| **id == to || **id == from.log_id) {
        return Err(ForwardFault::Loop(*again));
    }
    if from.log_id == to {
        return Err(ForwardFault::Loop(to));
    }
    logs.push(from.log_id);
    if logs.len() > MAX_HOPS {
        return Err(ForwardFault::TooFar);
    }
    let mut all = BytesMut::with_capacity(MAX_PEER_META_BYTES);
    all.put_slice(own);
    put_field(&mut all, PATH, &Path { logs, stream: from.stream.clone() }.to_bytes());
    put_field(&mut all, ORIGIN, &origin.to_bytes());
    match own.len() <= MAX_OWN_PEER_META_BYTES && all.len() <= MAX_PEER_META_BYTES {
        true => Ok(all.to_vec()),
        false => Err(wrong("longer than it may be")),
    }
}
