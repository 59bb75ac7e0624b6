//! The bytes of a batch's chunks: in memory of their own, or where they were read.
//!
//! Invariant: the bytes do not change while any reference exists. A batch that was read is not copied out of its piece
//! of the file. The piece is shared, and is read into again only when no part of it is referenced
//! ([`Window`](crate::read::window::Window)). So a stored batch holds its whole piece; a caller that stores many has read as
//! much.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::io::IoBuf;

/// The bytes of a batch's chunks.
#[derive(Clone)]
pub struct Body(Memory);

#[derive(Clone)]
enum Memory {
    Own(Vec<u8>),
    Piece(Arc<IoBuf>, Range<usize>),
}

impl Body {
    /// Part of a piece that was read.
    pub(crate) fn part(piece: &Arc<IoBuf>, range: Range<usize>) -> Self {
        Self(Memory::Piece(piece.clone(), range))
    }

    /// Its memory, where it is its own.
    pub(crate) fn into_own(self) -> Option<Vec<u8>> {
        match self.0 {
            Memory::Own(bytes) => Some(bytes),
            Memory::Piece(..) => None,
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self(Memory::Own(Vec::new()))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Own(bytes))
    }
}

impl Deref for Body {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            Memory::Piece(piece, range) => &piece[range.clone()],
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}
