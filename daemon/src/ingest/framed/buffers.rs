//! Memory of a connection's buffers.
//!
//! Invariants: each connection has some memory of its own, which is always enough to make progress. More is part of a
//! budget for all connections; an owner has no more of it than it leaves for others. It is given back as soon as it is
//! not needed: many connections that read no answers hold their own and that part. No connection waits for it: an
//! answer is never late for want of a buffer.

use crate::ingest::quota::{QuotaGuard, QuotaHandle};

/// Output that waits for the peer at most, before its input is left alone,
pub(super) const OUT_BYTES_MAX: usize = 256 * 1024;
/// and what of it needs no part of the budget: more than the answers to a full window.
pub(super) const OUT_UNSHARED_BYTES_MAX: usize = 16 * 1024;
/// Bytes that are read at once,
pub(super) const CHUNK_BYTES_MIN: usize = 4 * 1024;
const CHUNK_BYTES_MAX: usize = 128 * 1024;
/// and what of it needs no part of the budget.
const CHUNK_UNSHARED_BYTES_MAX: usize = 16 * 1024;

/// Room for answers. The buffer grows by doubling: each byte counts twice.
pub(super) struct OutRoom {
    quota: QuotaHandle,
    limit: usize,
    granted: Vec<QuotaGuard>,
}

impl OutRoom {
    pub(super) fn new(quota: QuotaHandle) -> Self {
        Self { quota, limit: OUT_UNSHARED_BYTES_MAX, granted: Vec::new() }
    }

    /// Returns true if more may be added behind so many bytes.
    pub(super) fn has_room_behind(&mut self, bytes: usize) -> bool {
        while bytes >= self.limit {
            if self.limit >= OUT_BYTES_MAX {
                return false;
            }
            let Some(granted) = self.quota.try_take(2 * self.limit) else { return false };
            self.granted.push(granted);
            self.limit *= 2;
        }
        true
    }

    /// Returns true if it uses the budget.
    pub(super) fn is_shared(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Gives back the part of the budget; returns true if there was one.
    pub(super) fn give_back(&mut self) -> bool {
        self.limit = OUT_UNSHARED_BYTES_MAX;
        let some = self.is_shared();
        self.granted.clear();
        some
    }
}

/// Size of the next read.
pub(super) struct Chunk {
    quota: QuotaHandle,
    bytes: usize,
    granted: Option<QuotaGuard>,
}

impl Chunk {
    pub(super) fn new(quota: QuotaHandle) -> Self {
        Self { quota, bytes: CHUNK_BYTES_MIN, granted: None }
    }

    /// More is coming than was expected.
    pub(super) fn grow(&mut self) {
        if self.bytes >= CHUNK_UNSHARED_BYTES_MAX && self.granted.is_none() {
            self.granted = self.quota.try_take(CHUNK_BYTES_MAX);
        }
        let most = if self.granted.is_some() { CHUNK_BYTES_MAX } else { CHUNK_UNSHARED_BYTES_MAX };
        self.bytes = (self.bytes * 2).min(most);
    }

    /// Nothing comes any more.
    pub(super) fn shrink(&mut self) {
        (self.bytes, self.granted) = (CHUNK_BYTES_MIN, None);
    }

    /// Free bytes that a read finds at least.
    pub(super) fn step(&self) -> usize {
        self.bytes / 2
    }

    pub(super) fn is_least(&self) -> bool {
        self.bytes == CHUNK_BYTES_MIN
    }

    /// Returns true if it uses the budget.
    pub(super) fn is_shared(&self) -> bool {
        self.granted.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::quota::{Owner, Quota};

    #[test]
    fn output_grows_while_there_is_room_and_gives_all_of_it_back() {
        let budget = Quota::new(4 * OUT_BYTES_MAX);
        let mut one = OutRoom::new(budget.handle(Owner::Uid(1)));
        assert!(
            one.has_room_behind(OUT_UNSHARED_BYTES_MAX - 1) && one.granted.is_empty(),
            "nothing for what is its own"
        );
        assert!(one.has_room_behind(OUT_BYTES_MAX - 1));
        assert!(!one.has_room_behind(OUT_BYTES_MAX));
        assert_eq!(budget.in_use(), 2 * (OUT_BYTES_MAX - OUT_UNSHARED_BYTES_MAX));
        let mut second = OutRoom::new(budget.handle(Owner::Uid(1)));
        assert!(!second.has_room_behind(2 * OUT_UNSHARED_BYTES_MAX), "what is left of the owner's half is one step");
        let mut other = OutRoom::new(budget.handle(Owner::Network));
        assert!(other.has_room_behind(OUT_BYTES_MAX / 2 - 1), "and another has his own part");
        assert!(one.give_back() && !one.give_back());
        assert!(second.has_room_behind(2 * OUT_UNSHARED_BYTES_MAX));
        let granted = budget.in_use();
        assert!(one.has_room_behind(OUT_UNSHARED_BYTES_MAX), "it begins again");
        assert_eq!(budget.in_use(), granted + 2 * OUT_UNSHARED_BYTES_MAX);
        drop((one, second, other));
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn a_stream_has_large_reads_while_there_is_room_and_small_ones_else() {
        let budget = Quota::new(2 * CHUNK_BYTES_MAX);
        let grown = || {
            let mut chunk = Chunk::new(budget.handle(Owner::Uid(1)));
            (0..8).for_each(|_| chunk.grow());
            chunk
        };
        let mut one = grown();
        assert_eq!((one.bytes, budget.in_use()), (CHUNK_BYTES_MAX, CHUNK_BYTES_MAX));
        let second = grown();
        assert_eq!((second.bytes, second.is_shared()), (CHUNK_UNSHARED_BYTES_MAX, false));
        one.shrink();
        assert!(one.is_least() && budget.in_use() == 0);
        assert_eq!(grown().bytes, CHUNK_BYTES_MAX);
    }
}
