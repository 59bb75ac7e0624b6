//! Events of a reader.

use crate::RawRecords;
use bytes::Bytes;
use clad_proto::{
    Cursor, GroupView, PayloadView, ProducerId, RecordView,
    frame::{GapReason, PeerMeta, RecordsHead},
    parse_group,
};

/// Event of a reader.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// Records of one append.
    Records(Chunk),
    /// Offsets that cannot be read; the read continues after them.
    Gap(Gap),
    /// A following reader has given all there is so far. Comes again each time it has.
    CaughtUp {
        /// Where it stands.
        cursor: Cursor,
    },
    /// A reader with a filter or times has come to a place: all before it was given, or does not match. Comes about once
    /// in a MiB of the log that is passed over, so that a saved cursor does not stay behind.
    Progress {
        /// Where it stands.
        cursor: Cursor,
    },
}

/// Offsets that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// First offset that is missing.
    pub from: u64,
    /// The offset after the last that is missing.
    pub to: u64,
    /// Why.
    pub reason: GapReason,
}

/// Records of one append, those that were asked for and match filter and times. Their bytes were checked.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Of the whole append.
    pub(super) head: RecordsHead,
    pub(super) payload: Bytes,
    /// As the daemon gave it; nothing over gRPC.
    pub(super) raw_peer_meta: Option<Bytes>,
    pub(super) peer_meta: Box<PeerMeta>,
    /// Where filter or times drop records between the first and the last: those that match, by their place in the append.
    pub(super) matching: Option<Box<[u32]>>,
}

impl Chunk {
    /// The records with their offsets, ascending; without filter and times there is none missing between.
    pub fn records(&self) -> impl Iterator<Item = (u64, RecordView<'_>)> {
        let records = PayloadView::parse(&self.payload, self.head.count).ok();
        let records = (0u32..).zip(records.into_iter().flat_map(|view| view.records()));
        let records = records.skip(self.head.skip as usize).take(self.head.take as usize);
        let matching = self.matching.as_deref();
        let matching = records.filter(move |(at, _)| matching.is_none_or(|all| all.binary_search(at).is_ok()));
        matching.map(|(at, record)| (self.head.first_offset + u64::from(at), record))
    }

    /// Resource and scope that the records share.
    #[must_use]
    pub fn group(&self) -> Option<GroupView<'_>> {
        parse_group(&self.payload).ok()
    }

    /// The component (`service.name`) that the records are from.
    #[must_use]
    pub fn component(&self) -> Option<&str> {
        self.group()?.component()
    }

    /// The whole append as its client made it: what stands before its payload, the peer metadata, and the payload under
    /// the client's checksum. The records of this chunk are those behind `skip`, `take` of them; with a filter or
    /// times, those that match among them.
    #[must_use]
    pub fn into_append(self) -> (RecordsHead, PeerMeta, Bytes) {
        (self.head, *self.peer_meta, self.payload)
    }

    /// The whole append as the daemon gave it, to be handed on to another log ([`Forwarder`](crate::Forwarder)). Nothing
    /// over gRPC, which has it in another form.
    #[must_use]
    pub fn raw(&self) -> Option<RawRecords> {
        let peer_meta = self.raw_peer_meta.as_ref()?;
        Some(RawRecords::new(self.head, peer_meta, self.payload.clone()))
    }

    /// The number of records; at least one.
    #[must_use]
    pub const fn count(&self) -> u32 {
        match &self.matching {
            Some(matching) => matching.len() as u32,
            None => self.head.take,
        }
    }

    /// Offset of the first record.
    #[must_use]
    pub const fn first_offset(&self) -> u64 {
        self.head.first_offset + self.head.skip as u64
    }

    /// The offset after the last record.
    #[must_use]
    pub const fn end_offset(&self) -> u64 {
        self.first_offset() + self.head.take as u64
    }

    /// The producer's sequence of the first record.
    #[must_use]
    pub const fn first_sequence(&self) -> u64 {
        self.head.first_seq.wrapping_add(self.head.skip as u64)
    }

    /// The epoch in which the records got their offsets.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.head.epoch
    }

    /// When the daemon took the append, or an earlier one that was written with it, Unix nanoseconds: a batch has one
    /// time, that of its first append.
    #[must_use]
    pub const fn append_time(&self) -> u64 {
        self.head.append_time
    }

    /// The producer that appended it.
    #[must_use]
    pub const fn producer_id(&self) -> ProducerId {
        self.head.producer_id
    }

    /// The producer's epoch.
    #[must_use]
    pub const fn producer_epoch(&self) -> u32 {
        self.head.producer_epoch
    }

    /// The peer metadata: what the daemon saw of the sender itself.
    #[must_use]
    pub const fn peer_meta(&self) -> &PeerMeta {
        &self.peer_meta
    }

    /// The time to file a record of this chunk under, Unix nanoseconds: when it happened, else when it was seen, else
    /// when the daemon took it.
    #[must_use]
    pub fn time(&self, record: &RecordView<'_>) -> u64 {
        record.time().unwrap_or(self.head.append_time)
    }
}
