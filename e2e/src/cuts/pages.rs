//! The content of a disk, sparse: what was never written reads as zeroes.

use std::collections::HashMap;

use bytes::Bytes;

/// What is kept under one key.
pub const PAGE: usize = 4096;
/// What a power cut leaves whole.
pub const SECTOR: usize = 512;

static ZEROES: [u8; PAGE] = [0; PAGE];

/// Pages by number. Whole pages share the memory of the write that they came with.
#[derive(Clone, Debug, Default)]
pub struct Pages(HashMap<u64, Bytes>);

impl Pages {
    /// The page of a number, if it was ever written.
    #[must_use]
    pub fn page(&self, number: u64) -> Option<&Bytes> {
        self.0.get(&number)
    }

    /// Puts a whole page.
    ///
    /// # Panics
    /// When it is not one.
    pub fn put(&mut self, number: u64, page: Bytes) {
        assert_eq!(page.len(), PAGE, "a page");
        self.0.insert(number, page);
    }

    /// All pages, in order.
    #[must_use]
    pub fn all(&self) -> Vec<(u64, Bytes)> {
        let mut all: Vec<_> = self.0.iter().map(|(number, page)| (*number, page.clone())).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }

    /// These pages with those of another over them.
    #[must_use]
    pub fn under(&self, over: &Self) -> Self {
        let mut both = self.clone();
        both.0.extend(over.0.iter().map(|(number, page)| (*number, page.clone())));
        both
    }

    /// Writes over `below`, which stays as it is.
    pub fn write(&mut self, below: &Self, offset: u64, data: &Bytes) {
        for (number, within, from, length) in pieces(offset, data.len()) {
            if length == PAGE {
                self.0.insert(number, data.slice(from..from + PAGE));
                continue;
            }
            let old = self.page(number).or_else(|| below.page(number));
            let mut page = old.map_or_else(|| ZEROES.to_vec(), |old| old.to_vec());
            page[within..within + length].copy_from_slice(&data[from..from + length]);
            self.0.insert(number, page.into());
        }
    }

    /// Reads from these pages over `below`.
    #[must_use]
    pub fn read(&self, below: &Self, offset: u64, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(length);
        for (number, within, _, length) in pieces(offset, length) {
            let page = self.page(number).or_else(|| below.page(number));
            out.extend_from_slice(&page.map_or(&ZEROES[..], |page| page)[within..within + length]);
        }
        out
    }
}

/// A range as parts of pages: page, place in it, place in the range, length.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = offset + from as u64;
        let within = (at % PAGE as u64) as usize;
        let piece = (PAGE - within).min(length - from);
        let answer = (at / PAGE as u64, within, from, piece);
        from += piece;
        (piece > 0).then_some(answer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_over_what_lies_below() {
        let (mut below, mut over) = (Pages::default(), Pages::default());
        below.write(&Pages::default(), 0, &Bytes::from(vec![1; 3 * PAGE]));
        over.write(&below, PAGE as u64 - 512, &Bytes::from(vec![2; PAGE + 1024]));
        let mut expected = vec![1; 3 * PAGE];
        expected[PAGE - 512..2 * PAGE + 512].fill(2);
        expected.extend([0; 100]);
        assert_eq!(over.read(&below, 0, 3 * PAGE + 100), expected);
        assert_eq!(below.read(&Pages::default(), 0, 3 * PAGE), vec![1; 3 * PAGE]);
        assert_eq!(below.under(&over).read(&Pages::default(), 0, 3 * PAGE + 100), expected);
    }
}
