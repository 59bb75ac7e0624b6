//! Bytes in line to be written: small frames are collected, large payloads are not copied.

use bytes::{Buf, Bytes, BytesMut};
use std::{collections::VecDeque, io::IoSlice};

/// A payload longer than this is written from where it lies.
const COPY_BELOW: usize = 4096;
/// So many pieces are written in one call.
const MAX_PIECES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct OutBuffer {
    pieces: VecDeque<Bytes>,
    /// Comes after the pieces.
    tail: BytesMut,
    len: usize,
}

impl OutBuffer {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes something small.
    pub(super) fn write(&mut self, writer: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        writer(&mut self.tail);
        self.len += self.tail.len().saturating_sub(before);
    }

    /// Puts bytes of any length in line.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_BELOW {
            return self.write(|tail| tail.extend_from_slice(&bytes));
        }
        self.cut_tail();
        self.len += bytes.len();
        self.pieces.push_back(bytes);
    }

    fn cut_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }

    /// The slices to write next.
    pub(super) fn slices(&mut self) -> Vec<IoSlice<'_>> {
        self.cut_tail();
        self.pieces.iter().take(MAX_PIECES).map(|piece| IoSlice::new(piece)).collect()
    }

    /// So much was written.
    pub(super) fn advance(&mut self, mut written: usize) {
        self.len = self.len.saturating_sub(written);
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order_whatever_is_written_at_once() {
        let mut expected = Vec::new();
        let mut out = OutBuffer::default();
        for n in 0..40u8 {
            let bytes = vec![n; if n % 3 == 0 { COPY_BELOW + 5 } else { usize::from(n) }];
            expected.extend_from_slice(&bytes);
            out.push(Bytes::from(bytes));
            out.write(|tail| tail.extend_from_slice(b"small"));
            expected.extend_from_slice(b"small");
        }
        assert_eq!(out.len(), expected.len());
        let mut written = Vec::new();
        let mut step = 1;
        while !out.is_empty() {
            let all: Vec<u8> = out.slices().iter().flat_map(|slice| slice.to_vec()).collect();
            let n = step.min(all.len());
            written.extend_from_slice(&all[..n]);
            out.advance(n);
            step = step * 3 + 1;
        }
        assert_eq!(written, expected);
    }
}
