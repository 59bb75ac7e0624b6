//! The head of a raw export (docs/FORMAT.md, "Exports"): behind it stand RECORDS and GAP frames with request id 0.

use crate::{LogId, crc32c};

/// Its first bytes.
pub const MAGIC: [u8; 8] = *b"CLADRAW\0";
/// The version of its form: that of the protocol whose frames it has.
const VERSION: u32 = 2;
/// Bytes of the head.
pub const HEAD_BYTES: usize = 32;

/// The head of an export of a log.
#[must_use]
pub fn head(log_id: LogId) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..28].copy_from_slice(log_id.as_bytes());
    let checksum = crc32c(&head[..28]);
    head[28..].copy_from_slice(&checksum.to_le_bytes());
    head
}
