//! Owned memory aligned for direct I/O.
//!
//! What must hold: the start is aligned to [`ALIGN`], the capacity is a multiple of it, every byte up to the capacity
//! is initialised (so that a length can be set without reading what was never written), and the memory moves with
//! the value: nobody else holds a pointer to it.
#![allow(unsafe_code)] // raw allocation with an alignment that `Vec` cannot ask for

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer: the page, which satisfies every device's `dio_mem_align`.
pub(crate) const ALIGN: usize = 4096;

/// An owned, aligned, growable byte buffer.
pub struct IoBuf {
    ptr: NonNull<u8>,
    capacity: usize,
    len: usize,
    /// Which of a ring's registered buffers this memory is. Memory that is allocated anew is none.
    registered: Option<u16>,
}

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
        Self { ptr, capacity, len: 0, registered: None }
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

    /// Which of a ring's registered buffers this is.
    pub(super) fn registered(&self) -> Option<u16> {
        self.registered
    }

    /// Notes that the ring knows this memory by a number; it goes with the memory, and not with the value.
    pub(super) fn set_registered(&mut self, index: u16) {
        self.registered = Some(index);
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
        let start = self.len;
        let len = start.next_multiple_of(block);
        self.set_len(len);
        self[start..].fill(0);
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
        // SAFETY: `ptr` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
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
}
