//! What a connection's buffers may take.
//!
//! What must hold: each connection has some of its own, with which it always gets on; more is a part of a budget for all
//! connections (of which an owner has no more than he leaves for others), and is given back as soon as it is not needed: a crowd that reads no answers
//! holds its own and that part. Nobody waits for it: an answer is never late for want of a buffer.

use crate::ingest::quota::{Part, QuotaGuard};

/// Output that waits for the peer at most, before its input is left alone,
pub(super) const OUT_LIMIT: usize = 256 * 1024;
/// and what of it needs no part of the budget: more than the answers to a full window.
pub(super) const OUT_OWN: usize = 16 * 1024;
/// What is read at once,
pub(super) const CHUNK_MIN: usize = 4 * 1024;
const CHUNK_MAX: usize = 128 * 1024;
/// and what of it needs no part of the budget.
const CHUNK_OWN: usize = 16 * 1024;

/// Room for answers. The buffer grows by doubling: each byte counts twice.
pub(super) struct OutRoom {
    part: Part,
    limit: usize,
    held: Vec<QuotaGuard>,
}

impl OutRoom {
    pub(super) fn new(part: Part) -> Self {
        Self { part, limit: OUT_OWN, held: Vec::new() }
    }

    /// Whether more may be added behind so many bytes.
    pub(super) fn has_room_behind(&mut self, bytes: usize) -> bool {
        while bytes >= self.limit {
            if self.limit >= OUT_LIMIT {
                return false;
            }
            let Some(held) = self.part.try_take(2 * self.limit) else { return false };
            self.held.push(held);
            self.limit *= 2;
        }
        true
    }

    /// Whether it takes of the budget.
    pub(super) fn is_shared(&self) -> bool {
        !self.held.is_empty()
    }

    /// Gives back what was taken; whether there was anything.
    pub(super) fn give_back(&mut self) -> bool {
        self.limit = OUT_OWN;
        let some = self.is_shared();
        self.held.clear();
        some
    }
}

/// How much is read at once.
pub(super) struct Chunk {
    part: Part,
    bytes: usize,
    held: Option<QuotaGuard>,
}

impl Chunk {
    pub(super) fn new(part: Part) -> Self {
        Self { part, bytes: CHUNK_MIN, held: None }
    }

    /// More is coming than was expected.
    pub(super) fn grow(&mut self) {
        if self.bytes >= CHUNK_OWN && self.held.is_none() {
            self.held = self.part.try_take(CHUNK_MAX);
        }
        let most = if self.held.is_some() { CHUNK_MAX } else { CHUNK_OWN };
        self.bytes = (self.bytes * 2).min(most);
    }

    /// Nothing comes any more.
    pub(super) fn shrink(&mut self) {
        (self.bytes, self.held) = (CHUNK_MIN, None);
    }

    /// Free bytes that a read finds at least.
    pub(super) fn step(&self) -> usize {
        self.bytes / 2
    }

    pub(super) fn is_least(&self) -> bool {
        self.bytes == CHUNK_MIN
    }

    /// Whether it takes of the budget.
    pub(super) fn is_shared(&self) -> bool {
        self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::quota::{Owner, Quota};

    #[test]
    fn output_grows_while_there_is_room_and_gives_all_of_it_back() {
        let budget = Quota::new(4 * OUT_LIMIT);
        let mut one = OutRoom::new(budget.part(Owner::Uid(1)));
        assert!(one.has_room_behind(OUT_OWN - 1) && one.held.is_empty(), "nothing for what is its own");
        assert!(one.has_room_behind(OUT_LIMIT - 1));
        assert!(!one.has_room_behind(OUT_LIMIT));
        assert_eq!(budget.in_use(), 2 * (OUT_LIMIT - OUT_OWN));
        let mut second = OutRoom::new(budget.part(Owner::Uid(1)));
        assert!(!second.has_room_behind(2 * OUT_OWN), "what is left of the owner's half is one step");
        let mut other = OutRoom::new(budget.part(Owner::Network));
        assert!(other.has_room_behind(OUT_LIMIT / 2 - 1), "and another has his own part");
        assert!(one.give_back() && !one.give_back());
        assert!(second.has_room_behind(2 * OUT_OWN));
        let held = budget.in_use();
        assert!(one.has_room_behind(OUT_OWN), "it begins anew");
        assert_eq!(budget.in_use(), held + 2 * OUT_OWN);
        drop((one, second, other));
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn a_stream_has_large_reads_while_there_is_room_and_small_ones_else() {
        let budget = Quota::new(2 * CHUNK_MAX);
        let grown = || {
            let mut chunk = Chunk::new(budget.part(Owner::Uid(1)));
            (0..8).for_each(|_| chunk.grow());
            chunk
        };
        let mut one = grown();
        assert_eq!((one.bytes, budget.in_use()), (CHUNK_MAX, CHUNK_MAX));
        let second = grown();
        assert_eq!((second.bytes, second.is_shared()), (CHUNK_OWN, false));
        one.shrink();
        assert!(one.is_least() && budget.in_use() == 0);
        assert_eq!(grown().bytes, CHUNK_MAX);
    }
}
