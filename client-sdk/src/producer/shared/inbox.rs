//! The inbox: what handles have put in, and the task has not taken out.

use crate::{
    AppendError,
    session::Append,
    undelivered::FlushSender,
    waiters::{Claim, Share},
};
use bytes::{Bytes, BytesMut};
use clad_proto::{AckLevel, PayloadBuilder};
use std::collections::VecDeque;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

/// Payloads that are copied or grouped share pieces of memory of this size.
pub(super) const COPY_PIECE_BYTES: usize = 64 * 1024;

/// Item that the task takes out of the inbox.
#[derive(Debug)]
pub(crate) enum Item {
    Append(Append, Claim),
    /// And since when it waits.
    Flush(Option<AckLevel>, FlushSender, Instant),
}

/// Phase of the producer's life.
#[derive(Debug, Clone)]
pub(crate) enum Life {
    Open,
    /// Nothing more is taken; what is there is brought home, until then at most.
    Closing(Option<Instant>),
    Ended(AppendError),
}

/// Items that were handed over and not taken out, in their order.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) life: Life,
    pub(super) items: VecDeque<Item>,
    pub(super) builder: PayloadBuilder,
    /// Encodes one record where records are grouped.
    pub(super) scratch: PayloadBuilder,
    /// Free memory for copied payloads.
    pub(super) piece: BytesMut,
    /// The append that is being grouped in `builder`.
    pub(super) open: Option<Open>,
    pub(super) limits: (u32, u32),
    /// A group has no more bytes: what any daemon takes, until one has said what it takes.
    pub(super) max_group_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) level: Option<AckLevel>,
    pub(super) since: Instant,
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) shares: Vec<Share>,
}

/// A copy, in memory that is shared with other copies: one allocation is enough for many.
pub(super) fn copied(piece: &mut BytesMut, bytes: &[u8]) -> Bytes {
    if bytes.len() > COPY_PIECE_BYTES / 4 {
        return Bytes::copy_from_slice(bytes);
    }
    if piece.capacity() < bytes.len() {
        piece.reserve(COPY_PIECE_BYTES); // the same again, if all in it are gone
    }
    piece.extend_from_slice(bytes);
    piece.split().freeze()
}

/// Takes appends out, oldest first, until they hold `bytes` or more; where a severity is given, only those below it.
pub(super) fn take_appends(items: &mut VecDeque<Item>, bytes: usize, below: Option<i32>) -> Vec<(u32, Claim)> {
    let (mut at, mut freed, mut taken) = (0, 0, Vec::new());
    while freed < bytes
        && let Some(item) = items.get_mut(at)
    {
        let goes = match item {
            Item::Append(append, _) => below.is_none_or(|severity| append.severity < severity),
            Item::Flush(..) => false,
        };
        if !goes {
            at += 1;
        } else if let Some(Item::Append(append, claim)) = items.remove(at) {
            freed += claim.permit.num_permits();
            taken.push((append.count, claim));
        }
    }
    taken
}
