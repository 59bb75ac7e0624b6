//! The bytes of an object that is built.
//!
//! Invariant: no byte is copied to make room for others, however large the object grows.

use std::io::{self, Write};

use bytes::Bytes;
use object_store::PutPayload;
use sha2::{Digest, Sha256};

/// Bytes of a piece of an object.
const PIECE_BYTES: usize = 1 << 20;

/// A piece of memory after the other, and the checksum of all.
#[derive(Default)]
pub(super) struct Pieces {
    full: Vec<Bytes>,
    open: Vec<u8>,
    hash: Sha256,
    bytes: u64,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.open.len() >= PIECE_BYTES {
            self.full.push(std::mem::take(&mut self.open).into());
        }
        if self.open.capacity() == 0 && !self.full.is_empty() {
            self.open.reserve_exact(PIECE_BYTES);
        }
        let part = &bytes[..bytes.len().min(PIECE_BYTES - self.open.len())];
        self.open.extend_from_slice(part);
        self.hash.update(part);
        self.bytes += part.len() as u64;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Pieces {
    /// The number of bytes so far, and their checksum.
    pub(super) fn sum(&self) -> (u64, String) {
        (self.bytes, hex(self.hash.clone()))
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn into_payload(mut self) -> PutPayload {
        self.full.push(self.open.into());
        self.full.into_iter().collect()
    }
}

/// A checksum as text.
pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_any_size_is_kept_whole() {
        let mut pieces = Pieces::default();
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 17).map(|at| (at % 251) as u8).collect();
        let (head, rest) = bytes.split_at(100);
        pieces.write_all(head).expect("written");
        pieces.write_all(rest).expect("written");
        assert_eq!(pieces.sum(), (bytes.len() as u64, hex(Sha256::new_with_prefix(&bytes))));
        assert!(pieces.full.iter().all(|piece| piece.len() == PIECE_BYTES));
        let whole: Bytes = pieces.into_payload().into();
        assert!(whole == bytes);
    }
}
