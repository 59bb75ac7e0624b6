//! Contents that name their writer and the number of its operation.
//!
//! Invariants: making one costs next to nothing beside a write (the bytes are made once for each writer, and each
//! operation tags every sector). A block that is old, torn at a sector, in another's place, or another writer's is
//! distinguished from what should be there.

/// A tag stands at the start of each of these.
const SECTOR: usize = 512;
/// Bytes of a tag: operation, writer, number of the sector in its block.
const TAG_BYTES: usize = 16;

/// The bytes of one writer's operations.
#[derive(Clone, Debug)]
pub struct Pattern {
    writer: u32,
    body: Vec<u8>,
}

impl Pattern {
    /// For blocks of so many bytes.
    #[must_use]
    pub fn new(writer: u32, size: usize) -> Self {
        // A generator that is as good as the eye: nothing here depends on its quality.
        let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(writer);
        let body = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        Self { writer, body: body.take(size).collect() }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether a block has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// The bytes of an operation, in memory of the caller's.
    pub fn fill(&self, into: &mut [u8], op: u64) {
        into.copy_from_slice(&self.body);
        self.tag(into, op);
    }

    /// Turns the bytes of another operation of this writer into those of this one.
    pub fn tag(&self, into: &mut [u8], op: u64) {
        for (number, sector) in into.chunks_mut(SECTOR).enumerate() {
            if let Some(tag) = sector.first_chunk_mut() {
                *tag = self.tag_of(op, number);
            }
        }
    }

    fn tag_of(&self, op: u64, sector: usize) -> [u8; TAG_BYTES] {
        (u128::from(op) | u128::from(self.writer) << 64 | (sector as u128) << 96).to_le_bytes()
    }

    /// Whether they begin as those of that operation: a look that costs nothing.
    #[must_use]
    pub fn begins(&self, bytes: &[u8], op: u64) -> bool {
        bytes.first_chunk() == Some(&self.tag_of(op, 0))
    }

    /// Whether these are the bytes of that operation.
    #[must_use]
    pub fn holds(&self, bytes: &[u8], op: u64) -> bool {
        bytes.len() == self.body.len()
            && bytes.chunks(SECTOR).zip(self.body.chunks(SECTOR)).enumerate().all(|(number, (is, body))| {
                match is.split_first_chunk() {
                    Some((tag, rest)) => *tag == self.tag_of(op, number) && rest == &body[TAG_BYTES..],
                    None => is == body,
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_other_block_is_detected() {
        for size in [1, 100, 128, 512, 520, 4096, 5000] {
            let (mine, his) = (Pattern::new(1, size), Pattern::new(2, size));
            let (mut block, mut other) = (vec![0; size], vec![0; size]);
            mine.fill(&mut block, 7);
            assert!(mine.holds(&block, 7), "{size}");
            assert!(!his.holds(&block, 7) && !mine.holds(&block[..size - 1], 7), "{size}");
            if size >= TAG_BYTES {
                assert!(!mine.holds(&block, 8), "{size}");
            }
            mine.fill(&mut other, 8);
            mine.tag(&mut other, 7);
            assert_eq!(block, other, "a tag is all that differs");
            for at in 0..size {
                block[at] ^= 1;
                assert!(!mine.holds(&block, 7), "{size} {at}");
                block[at] ^= 1;
            }
        }
        let mine = Pattern::new(1, 1024);
        let (mut torn, mut old) = (vec![0; 1024], vec![0; 1024]);
        mine.fill(&mut torn, 9);
        mine.fill(&mut old, 8);
        torn[512..].copy_from_slice(&old[512..]);
        assert!(!mine.holds(&torn, 9) && !mine.holds(&torn, 8), "torn at a sector");
    }
}
