//! An append as a daemon gives it to a reader.

use bytes::{Bytes, BytesMut};
use clad_proto::{
    frame::{FrameError, RecordsHead, RecordsView, records_prefix},
    limits::FRAME_HEADER_BYTES,
};

/// The body of a RECORDS frame: one whole append, with what the daemon knows of it, under its client's checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecords {
    head: RecordsHead,
    /// All before the payload.
    prefix: Bytes,
    payload: Bytes,
}

impl RawRecords {
    pub(crate) fn new(head: RecordsHead, peer_meta: &[u8], payload: Bytes) -> Self {
        let mut prefix = BytesMut::new();
        records_prefix(&mut prefix, 0, &head, peer_meta, u32::try_from(payload.len()).unwrap_or(u32::MAX));
        let prefix = prefix.freeze().split_off(FRAME_HEADER_BYTES);
        Self { head, prefix, payload }
    }

    /// Takes the body of a RECORDS frame.
    ///
    /// # Errors
    /// [`FrameError`]: the part before the payload is wrong.
    pub fn parse(mut body: Bytes) -> Result<Self, FrameError> {
        let view = RecordsView::parse(&body)?;
        let (head, payload) = (view.head, view.payload.len());
        let payload = body.split_off(body.len() - payload);
        Ok(Self { head, prefix: body, payload })
    }

    /// The fields before the peer metadata.
    #[must_use]
    pub const fn head(&self) -> &RecordsHead {
        &self.head
    }

    /// The offset after its last record, in the log that it is from.
    #[must_use]
    pub const fn end_offset(&self) -> u64 {
        self.head.first_offset.saturating_add(self.head.count as u64)
    }

    /// Group and records, as their client encoded them.
    #[must_use]
    pub const fn payload(&self) -> &Bytes {
        &self.payload
    }

    pub(crate) const fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// The whole body.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        [&self.prefix[..], &self.payload].concat().into()
    }

    /// Length of its longest record.
    pub(crate) fn longest_record(&self) -> u64 {
        let mut rest = &self.payload[..];
        // The group, and then each record, begins with its length.
        let lengths = std::iter::from_fn(|| {
            let len = u32::from_le_bytes(*rest.first_chunk::<4>()?);
            rest = rest.get(len.max(4) as usize..).unwrap_or_default();
            Some(u64::from(len))
        });
        lengths.skip(1).max().unwrap_or_default()
    }
}
