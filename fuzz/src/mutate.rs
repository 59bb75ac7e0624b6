//! Seeded mutations of kept inputs, for the stable tests: what a fuzzer without coverage does.

use clad_sim::Rng;

/// Numbers at the edges of what a length or a count may be.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 32,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    u64::MAX - 1,
    u64::MAX,
];

/// Makes inputs.
pub struct Mutator {
    rng: Rng,
    max_len: usize,
}

impl Mutator {
    /// Inputs of at most so many bytes; the same seed makes the same ones.
    #[must_use]
    pub fn new(seed: u64, max_len: usize) -> Self {
        Self { rng: Rng::new(seed), max_len }
    }

    /// The next input.
    pub fn input(&mut self, corpus: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = match corpus {
            [] => Vec::new(),
            _ if self.rng.chance(1, 16) => Vec::new(),
            some => some[self.rng.index(some.len())].1.clone(),
        };
        bytes.truncate(self.max_len);
        if bytes.is_empty() {
            let len = self.rng.index(self.max_len.min(512)) + 1;
            bytes.extend((0..len).map(|_| self.rng.number() as u8));
        }
        for _ in 0..=self.rng.below(6) {
            self.once(&mut bytes, corpus);
        }
        bytes.truncate(self.max_len);
        bytes
    }

    fn once(&mut self, bytes: &mut Vec<u8>, corpus: &[(String, Vec<u8>)]) {
        let at = self.rng.index(bytes.len().max(1));
        match self.rng.below(10) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << self.rng.below(8),
            2 if !bytes.is_empty() => bytes[at] = self.rng.number() as u8,
            3 | 4 => {
                let edge = EDGES[self.rng.index(EDGES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][self.rng.index(4)];
                for (byte, new) in bytes.iter_mut().skip(at).zip(&edge[..width]) {
                    *byte = *new;
                }
            }
            5 => bytes.truncate(at),
            6 => {
                let end = (at + 1 + self.rng.index(64)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            7 => {
                let len = 1 + self.rng.index(32);
                let more: Vec<u8> = (0..len).map(|_| self.rng.number() as u8).collect();
                let at = at.min(bytes.len());
                bytes.splice(at..at, more);
            }
            8 if !corpus.is_empty() => {
                let other = &corpus[self.rng.index(corpus.len())].1;
                let from = self.rng.index(other.len().max(1)).min(other.len());
                let to = (from + self.rng.index(256)).min(other.len());
                let at = at.min(bytes.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let end = (at + 1 + self.rng.index(64)).min(bytes.len());
                let again: Vec<u8> = bytes[at.min(end)..end].to_vec();
                bytes.splice(end..end, again);
            }
        }
    }
}
