//! Frames at the front of a slice, found without an allocation: the daemon's ingest reads appends in this way and copies
//! payloads straight to where they will be written.

use super::header::{FrameError, FrameHeader, KnownHeader, MAGIC};
use crate::limits::FRAME_HEADER_BYTES;

/// A whole frame at the front of some bytes, its body not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// Its header.
    pub header: FrameHeader,
    /// Its body.
    pub body: &'a [u8],
}

impl RawFrame<'_> {
    /// The number of bytes of the frame.
    #[must_use]
    pub const fn total_len(&self) -> usize {
        FRAME_HEADER_BYTES + self.body.len()
    }
}

/// The frame at the front of some bytes; nothing while it is not whole.
///
/// # Errors
/// When the bytes are not a frame, as soon as 16 of them say so.
pub fn peek(bytes: &[u8], max_append_bytes: u32) -> Result<Option<RawFrame<'_>>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        // A peer of another protocol gets the error at the first byte, not after 16 that may never come.
        return match bytes.first() {
            Some(&first) if first != MAGIC => Err(FrameError::BadMagic(first)),
            _ => Ok(None),
        };
    };
    let header = FrameHeader::decode(head, max_append_bytes)?;
    Ok(rest.get(..header.body_len as usize).map(|body| RawFrame { header, body }))
}

/// As [`peek`], for a stream of frames: a header that is the same 16 bytes as the last good one was checked then. In a
/// flood nearly all are.
///
/// # Errors
/// As [`peek`].
#[inline]
pub fn peek_known<'a>(
    bytes: &'a [u8],
    max_append_bytes: u32,
    known: &mut KnownHeader,
) -> Result<Option<RawFrame<'a>>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return peek(bytes, max_append_bytes);
    };
    let header = FrameHeader::decode_known(head, max_append_bytes, known)?;
    Ok(rest.get(..header.body_len as usize).map(|body| RawFrame { header, body }))
}
