//! Memory of batches that are gone, for those to come: to ask the allocator for as much each time costs more than to
//! fill it, because each page of it comes from the kernel, by a fault.
//!
//! Invariant: the pooled memory is bounded ([`POOLED_BUFFERS_MAX`], [`POOLED_BYTES_MAX`]), and an idle log holds
//! nothing large. No batch gets more than twice the requested size, because holders of batches count their bytes, and
//! memory once touched is not free.

/// Most pieces in the pool.
pub(crate) const POOLED_BUFFERS_MAX: usize = 16;
/// And so many bytes: what a fast device is behind with while it syncs. All of it goes back at once when it is done.
pub(crate) const POOLED_BYTES_MAX: usize = 8 << 20;
/// An idle log retains pieces of this size as well.
const IDLE_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Empty pieces of memory, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// Number of requests to the allocator.
    #[cfg(test)]
    allocations: usize,
}

impl BufferPool {
    /// Room for a batch of about this size.
    pub(crate) fn take(&mut self, expected: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| (expected..=expected * 2).contains(&buffer.capacity());
        // The largest: growing copies what is there already.
        let found =
            (0..self.buffers.len()).filter(|at| fits(&self.buffers[*at])).max_by_key(|at| self.buffers[*at].capacity());
        match found {
            Some(at) => self.remove(at),
            None => {
                #[cfg(test)]
                {
                    self.allocations += 1;
                }
                Vec::with_capacity(expected)
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn allocations(&self) -> usize {
        self.allocations
    }

    /// Makes room for so many more bytes in a piece that turned out too small: twice as much, and as batches grow no
    /// further than to `most`, no more than that where it is enough.
    pub(crate) fn grow(&mut self, buffer: &mut Vec<u8>, more: usize, most: usize) {
        let (len, capacity) = (buffer.len(), buffer.capacity());
        if capacity - len >= more {
            return;
        }
        let mut larger = self.take((2 * capacity).min(most).max(len + more));
        larger.extend_from_slice(buffer);
        self.give(std::mem::replace(buffer, larger));
    }

    /// Returns a buffer to the pool, instead of the oldest where there are enough.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() == 0 || buffer.capacity() > POOLED_BYTES_MAX {
            return;
        }
        while self.buffers.len() >= POOLED_BUFFERS_MAX || self.bytes + buffer.capacity() > POOLED_BYTES_MAX {
            drop(self.remove(0));
        }
        buffer.clear();
        self.bytes += buffer.capacity();
        self.buffers.push(buffer);
    }

    /// Handles an idle log: no append came for a while.
    pub(crate) fn idle(&mut self) {
        self.buffers.retain(|buffer| buffer.capacity() <= IDLE_BUFFER_BYTES_MAX);
        self.bytes = self.buffers.iter().map(Vec::capacity).sum();
    }

    fn remove(&mut self, at: usize) -> Vec<u8> {
        let buffer = self.buffers.remove(at);
        self.bytes -= buffer.capacity();
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> Vec<u8> {
        Vec::with_capacity(bytes)
    }

    #[test]
    fn what_is_given_is_used_again_where_it_is_about_as_large_as_wanted() {
        let mut pool = BufferPool::default();
        [1000, 1500, 2000, 2001].into_iter().for_each(|bytes| pool.give(of(bytes)));
        assert_eq!(
            [pool.take(1000), pool.take(1000)].map(|buffer| buffer.capacity()),
            [2000, 1500],
            "the largest first"
        );
        assert_eq!((pool.take(1001).capacity(), pool.allocations()), (2001, 0));
        assert_eq!((pool.take(501).capacity(), pool.take(400).capacity()), (1000, 400));
        assert_eq!((pool.allocations(), pool.bytes, pool.buffers.len()), (1, 0, 0));
        pool.give(b"what was there".to_vec());
        assert_eq!(pool.take(10), b"", "it is empty");
    }

    #[test]
    fn a_piece_that_grows_goes_on_in_another_and_is_kept_itself() {
        let mut pool = BufferPool::default();
        [3000, 5000].into_iter().for_each(|bytes| pool.give(of(bytes)));
        let mut buffer = of(1000);
        buffer.resize(900, 7);
        pool.grow(&mut buffer, 100, 1 << 20);
        assert_eq!(buffer.capacity(), 1000, "there is room");
        pool.grow(&mut buffer, 101, 1 << 20);
        assert_eq!((buffer.len(), buffer.capacity(), pool.allocations()), (900, 3000, 0), "twice as much or more");
        assert!(buffer.iter().all(|byte| *byte == 7) && pool.buffers.iter().map(Vec::capacity).eq([5000, 1000]));
        pool.grow(&mut buffer, 4000, 4500);
        assert_eq!((buffer.len(), buffer.capacity()), (900, 5000), "as much as is needed");
        pool.grow(&mut buffer, 4200, 6000);
        assert_eq!((buffer.capacity(), pool.allocations()), (6000, 1), "no more than the most");
        pool.grow(&mut buffer, 8000, 6000);
        assert_eq!((buffer.len(), buffer.capacity()), (900, 8900), "but what is needed");
    }

    #[test]
    fn what_is_kept_is_bounded_and_nothing_large_is_kept_by_an_idle_log() {
        let mut pool = BufferPool::default();
        (1..=3 * POOLED_BUFFERS_MAX).for_each(|bytes| pool.give(of(bytes)));
        assert_eq!(pool.buffers.len(), POOLED_BUFFERS_MAX);
        assert_eq!(
            (pool.buffers[0].capacity(), pool.buffers[POOLED_BUFFERS_MAX - 1].capacity()),
            (2 * POOLED_BUFFERS_MAX + 1, 3 * POOLED_BUFFERS_MAX),
            "the newest"
        );
        pool.give(of(IDLE_BUFFER_BYTES_MAX));
        for _ in 0..20 {
            pool.give(of(1 << 20));
            assert!(
                pool.bytes <= POOLED_BYTES_MAX && pool.bytes == pool.buffers.iter().map(Vec::capacity).sum::<usize>()
            );
        }
        assert_eq!(pool.bytes, POOLED_BYTES_MAX, "as much as may be");
        pool.give(of(POOLED_BYTES_MAX + 1));
        assert_eq!(pool.bytes, POOLED_BYTES_MAX, "nothing went for what is too large itself");
        pool.give(of(IDLE_BUFFER_BYTES_MAX));
        pool.idle();
        assert_eq!((pool.buffers.len(), pool.bytes), (1, IDLE_BUFFER_BYTES_MAX));
    }
}
