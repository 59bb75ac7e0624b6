//! Operations of the protocol on shared memory, and nothing else.
//!
//! The code of both ends is written against [`Memory`]; the mapping implements it for real. The tests use memory whose
//! interleavings are enumerated (loom) and memory whose writer dies between any two stores. Offsets are bytes from the
//! start of the file; words are at multiples of 8.

pub(crate) use std::sync::atomic::Ordering;

/// One file of shared memory.
pub(crate) trait Memory {
    /// Places for abandoned regions that are used; a model does with fewer.
    const ABANDONED_REGIONS_MAX: usize = crate::layout::ABANDONED_REGIONS_MAX;

    /// An atomic load of a word.
    fn load(&self, at: usize, order: Ordering) -> u64;
    /// An atomic store of a word.
    fn store(&self, at: usize, value: u64, order: Ordering);
    /// Compare and exchange, strong; `Err` gives what was there instead.
    ///
    /// # Errors
    /// When the word was not `old`.
    fn exchange(&self, at: usize, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    /// Adds to a word, wrapping, sequentially consistent; gives what was there before.
    fn add(&self, at: usize, value: u64) -> u64;
    /// Sets bits of a word, sequentially consistent; gives what was there before.
    fn set_bits(&self, at: usize, bits: u64) -> u64;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// A fence of this order, release or acquire: no instruction where the processor keeps stores, and loads, in their
    /// order.
    fn fence_of(&self, order: Ordering);
    /// [`Memory::fence`] right behind an [`Memory::exchange`] that succeeded: free where that is a full barrier
    /// already.
    fn fence_after_exchange(&self) {
        self.fence();
    }
    /// Copies into the file, anywhere. Plain stores: a later release makes them seen.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Copies out of the file; `at` is a multiple of 8. Each byte is read once; others may write meanwhile.
    fn read(&self, at: usize, bytes: &mut [u8]);
    /// Copies out of the file, as [`Memory::read`], behind what `out` holds.
    fn append_to(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        let from = out.len();
        out.resize(from + len, 0);
        self.read(at, &mut out[from..]);
    }
    /// A named place between two stores, at which a test stops or kills.
    #[inline(always)]
    fn point(&self, name: &'static str) {
        let _ = name;
    }
}
