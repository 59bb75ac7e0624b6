//! Owned memory aligned for direct I/O.
//!
//! Invariants: the start is aligned to [`ALIGN`] and the capacity is a multiple of it. Every byte up to the capacity is
//! initialised, so a length can be set without a read of uninitialised memory. The memory moves with the value: nothing
//! else holds a pointer to it.
#![allow(unsafe_code)] // raw allocation with an alignment that `Vec` cannot ask for

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer: the page, which satisfies every device's `dio_mem_align`.
pub(crate) const ALIGN: usize = 4096;
/// A huge page: a buffer at least this large that begins on one may be one piece of memory to the device.
const HUGE: usize = 2 << 20;

/// An owned, aligned, growable byte buffer.
pub struct IoBuf {
    ptr: NonNull<u8>,
    capacity: usize,
    len: usize,
    /// The arena that this memory is a part of; `None` where the memory is its own.
    arena: Option<Arc<Arena>>,
}

/// Memory that several buffers share, each with its own part; the last of them frees it.
struct Arena {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it only frees the memory; the parts are the buffers', each of which has its own exclusively.
unsafe impl Send for Arena {}
// SAFETY: nothing can be done with a shared reference.
unsafe impl Sync for Arena {}

// SAFETY: the buffer owns its memory exclusively, as `Vec<u8>` does; moving it between threads moves that ownership.
unsafe impl Send for IoBuf {}
// SAFETY: shared references only read, as with `Vec<u8>`.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// An empty buffer that can hold at least `capacity` bytes. Aborts as `Vec` does when there is no memory.
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(ALIGN);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { ptr, capacity, len: 0, arena: None }
    }

    /// `number` buffers of `capacity` zeroes each, side by side in one piece of memory, in huge pages where the kernel
    /// has them. Each buffer is then one piece to the device, instead of one for every page.
    pub(crate) fn row(number: usize, capacity: usize) -> Vec<Self> {
        let capacity = capacity.max(1).next_multiple_of(ALIGN);
        let all = capacity.checked_mul(number.max(1)).expect("less than the memory there is");
        let (size, align) = if all >= HUGE { (all.next_multiple_of(HUGE), HUGE) } else { (all, ALIGN) };
        let layout = Layout::from_size_align(size, align).expect("a capacity below isize::MAX");
        // SAFETY: the layout's size is not zero.
        let Some(ptr) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        let arena = Arc::new(Arena { ptr, layout });
        if align == HUGE {
            // SAFETY: these are whole pages of ours; the advice changes no byte. Where it is refused, small pages do.
            unsafe { libc::madvise(ptr.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
        }
        let part = |number: usize| {
            // SAFETY: `number * capacity + capacity <= size`, and no two parts overlap.
            let ptr = unsafe { ptr.add(number * capacity) };
            // SAFETY: these bytes are allocated, and nobody else's yet.
            unsafe { ptr.write_bytes(0, capacity) };
            Self { ptr, capacity, len: capacity, arena: Some(arena.clone()) }
        };
        (0..number).map(part).collect()
    }

    /// A buffer of `len` zeroes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::with_capacity(len);
        buf.len = len;
        buf
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::with_capacity(bytes.len());
        buf.extend_from_slice(bytes);
        buf
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("a capacity below isize::MAX")
    }

    /// Bytes that fit without a new allocation.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets the content, keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Makes room for `more` further bytes.
    pub fn reserve(&mut self, more: usize) {
        let want = self.len + more;
        if want <= self.capacity {
            return;
        }
        let mut grown = Self::with_capacity(want.max(self.capacity * 2));
        grown.extend_from_slice(self);
        *self = grown;
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let start = self.len;
        self.len += bytes.len();
        self[start..].copy_from_slice(bytes);
    }

    /// Sets the length; bytes that come into view by this are zeroes or what the buffer held before.
    pub fn set_len(&mut self, len: usize) {
        if len > self.capacity {
            self.reserve(len - self.len);
        }
        self.len = len;
    }

    /// Appends zeroes until the length is a multiple of `block`.
    pub fn pad_to(&mut self, block: usize) {
        self.zero_to(self.len.next_multiple_of(block));
    }

    /// Appends zeroes until there are `len` bytes; a buffer that has more stays as it is.
    pub(crate) fn zero_to(&mut self, len: usize) {
        let start = self.len;
        if start < len {
            self.set_len(len);
            self[start..].fill(0);
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes from `ptr` are allocated, initialised (zeroed at birth) and ours.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if self.arena.is_none() {
            // SAFETY: `ptr` came from `alloc_zeroed` with this very layout and is freed once.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `ptr` came from `alloc` with this very layout and is freed once, after the last buffer in it.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} of {})", self.len, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_keeps_content_when_it_grows_and_pads_with_zeroes() {
        let mut buf = IoBuf::with_capacity(10);
        assert_eq!(buf.as_ptr() as usize % ALIGN, 0);
        buf.extend_from_slice(b"abc");
        buf.extend_from_slice(&vec![7; 10_000]);
        assert_eq!(buf.as_ptr() as usize % ALIGN, 0);
        assert_eq!(&buf[..4], b"abc\x07");
        buf.pad_to(4096);
        assert_eq!(buf.len(), 12_288);
        assert!(buf[10_003..].iter().all(|b| *b == 0));
        buf.clear();
        buf.set_len(5);
        buf.pad_to(512);
        assert!(buf[5..].iter().all(|b| *b == 0), "old content never shows in a pad");
    }

    #[test]
    fn a_row_of_buffers_shares_memory_and_nothing_else() {
        for (number, capacity) in [(4, 512 << 10), (3, 700_000), (1, 1), (2, 3 << 20)] {
            let mut row = IoBuf::row(number, capacity);
            assert_eq!(row.len(), number);
            for (at, buf) in (1u8..).zip(&mut row) {
                assert_eq!((buf.as_ptr() as usize % ALIGN, buf.capacity()), (0, buf.len()));
                assert!(buf.len() >= capacity);
                assert!(buf.iter().all(|b| *b == 0), "{number} of {capacity}");
                buf.fill(at);
            }
            let side_by_side = row.windows(2).all(|two| two[0].as_ptr().wrapping_add(two[0].len()) == two[1].as_ptr());
            assert!(side_by_side);
            assert_eq!(row[0].as_ptr() as usize % if number * capacity < HUGE { ALIGN } else { HUGE }, 0);
            // One that grows has memory of its own; the others outlive the first, and the last frees it all.
            let mut grown = row.remove(0);
            grown.extend_from_slice(&[9]);
            assert!(grown[..grown.len() - 1].iter().all(|b| *b == 1) && grown.ends_with(&[9]));
            drop(grown);
            for (at, buf) in (2u8..).zip(&row) {
                assert!(buf.iter().all(|b| *b == at));
            }
        }
    }

    /// Page faults of this thread so far.
    fn faults() -> i64 {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel fills the structure that it is given, and all zeroes are a value of it too.
        unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init().ru_minflt
        }
    }

    /// Counted, because the faults make the difference: the device gets one piece for each page that stands alone.
    #[test]
    fn a_row_of_buffers_is_in_huge_pages_where_the_kernel_has_them() {
        let said = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if !said.contains("[madvise]") && !said.contains("[always]") {
            eprintln!("could not run: this kernel has no huge pages for whom it is asked by ({said:?})");
            return;
        }
        const BYTES: usize = 8 * HUGE;
        // Memory may be in pieces at the moment: then some of them are small ones, but hardly all of them each time.
        let least = (0..5)
            .map(|_| {
                let before = faults();
                let row = IoBuf::row(16, BYTES / 16);
                assert!(row.iter().all(|buf| buf[0] == 0));
                faults() - before
            })
            .min();
        assert!(least < Some((BYTES / ALIGN / 2) as i64), "{least:?} faults for {} pages", BYTES / ALIGN);
    }
}
