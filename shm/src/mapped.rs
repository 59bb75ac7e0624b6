//! A mapped file, as [`Memory`]. All `unsafe` of this crate is here.
//!
//! Invariants:
//! - The file is sealed against shrinking before it is mapped, so no access to the mapping can end in SIGBUS. (A
//!   punched hole reads as zeroes.)
//! - Nothing hands out a reference to bytes of the mapping: words are reached by atomics, bytes by copies. What the
//!   peer does meanwhile can make the values wrong, never the program undefined.
//! - After `fork` the child does not have what was mapped writable (`MADV_DONTFORK`), and [`ForkMark`] reports that.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::error::OpenError;
use crate::layout::PAGE;
use crate::memory::Memory;

/// Access of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapMode {
    ReadOnly,
    ReadWrite,
}

/// A shared mapping of a whole file, a page at least.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: NonNull<u8>,
    len: usize,
    mode: MapMode,
    mark: ForkMark,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is reached by atomics and copies only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the first `len` bytes of a file that is at least that long and cannot shrink; all pages are brought in.
    pub(crate) fn new(file: impl AsFd, len: usize, mode: MapMode) -> Result<Self, OpenError> {
        if len < PAGE {
            return Err(OpenError::Foreign);
        }
        let mark = ForkMark::new()?;
        let access = match mode {
            MapMode::ReadOnly => ProtFlags::READ,
            MapMode::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel picks touches no memory of ours.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED | MapFlags::POPULATE, file, 0)
                .map_err(OpenError::os("map a ring"))?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(OpenError::Foreign)?;
        let mapped = Self { base, len, mode, mark };
        if mode == MapMode::ReadWrite {
            // SAFETY: the range is exactly this mapping.
            let done = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) };
            done.map_err(OpenError::os("MADV_DONTFORK"))?;
        }
        Ok(mapped)
    }

    /// Makes sure that every page of the file exists now, so that no later store has to find memory.
    pub(crate) fn populate(&self) {
        // SAFETY: the range is exactly this mapping.
        let done = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) };
        if done.is_err() && self.mode == MapMode::ReadWrite {
            // Before Linux 5.14: an exchange that changes nothing faults the page in for writing.
            for at in (0..self.len).step_by(PAGE) {
                let _ = self.word(at).compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// True if this process made the mapping.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.mark.is_set()
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // (The words of the header are known to lie in the first page where this is compiled.)
        assert!(at.is_multiple_of(8) && (at <= PAGE - 8 || at + 8 <= self.len), "a word outside of the mapping");
        // SAFETY: inside the mapping by the assertion, for that has a page at least; aligned to 8, and reached as an
        // atomic only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The low half of a word, for the kernel's futex calls alone.
    pub(crate) fn futex(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a word outside of the mapping");
        // SAFETY: as in `word`; the kernel alone reads through it.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.is_ours() {
            return; // a fork: the mapping may not be here, and something else may lie at its address
        }
        // SAFETY: the range is exactly this mapping, and nothing of it has been handed out beyond our own life.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

impl Memory for Mapped {
    #[inline(always)]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    #[inline(always)]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        assert!(self.mode == MapMode::ReadWrite, "a store through a mapping that is read-only");
        self.word(at).store(value, order);
    }

    #[inline(always)]
    fn exchange(&self, at: usize, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.word(at).compare_exchange(old, new, success, failure)
    }

    fn add(&self, at: usize, value: u64) -> u64 {
        self.word(at).fetch_add(value, Ordering::SeqCst)
    }

    fn set_bits(&self, at: usize, bits: u64) -> u64 {
        self.word(at).fetch_or(bits, Ordering::SeqCst)
    }

    #[inline(always)]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn fence_of(&self, order: Ordering) {
        fence(order);
    }

    #[inline(always)]
    fn fence_after_exchange(&self) {
        if cfg!(target_arch = "x86_64") {
            // A locked exchange is a full barrier of the processor; only the compiler must keep the order.
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    #[inline(always)]
    fn write(&self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.len) && self.mode == MapMode::ReadWrite,
            "a write outside of the mapping"
        );
        // SAFETY: inside the mapping by the assertion; the source is private memory, so the two do not overlap. Other
        // threads and processes that go by the protocol do not touch this range until it is committed.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    #[cfg(feature = "stop-points")]
    fn point(&self, name: &'static str) {
        crate::stop::reached(name);
    }

    fn append_to(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        let end = at.checked_add(len.next_multiple_of(8));
        assert!(at.is_multiple_of(8) && end.is_some_and(|end| end <= self.len), "a read outside of the mapping");
        out.reserve(len);
        let blocks = if cfg!(target_arch = "x86_64") { len / BLOCK } else { 0 };
        let (from, whole) = (out.len(), blocks * BLOCK);
        // SAFETY: so many blocks lie inside the mapping by the assertion, and there is room for `len` more bytes; the
        // two do not overlap. The bytes are initialised behind it.
        unsafe {
            copy_blocks(self.base.as_ptr().add(at), out.as_mut_ptr().add(from), blocks);
            out.set_len(from + whole);
        }
        out.resize(from + len, 0);
        self.read(at + whole, &mut out[from + whole..]);
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        let end = at.checked_add(bytes.len().next_multiple_of(8));
        assert!(at.is_multiple_of(8) && end.is_some_and(|end| end <= self.len), "a read outside of the mapping");
        // SAFETY: inside the mapping by the assertion, which counts whole words.
        let from = unsafe { self.base.as_ptr().add(at).cast::<u64>() };
        let mut words = bytes.chunks_exact_mut(8);
        let mut index = 0;
        for out in &mut words {
            // SAFETY: below `end`, aligned; atomic because the peer may write there right now.
            let word = unsafe { AtomicU64::from_ptr(from.add(index)) }.load(Ordering::Relaxed);
            out.copy_from_slice(&word.to_ne_bytes());
            index += 1;
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            // SAFETY: as above: the last word is counted whole.
            let word = unsafe { AtomicU64::from_ptr(from.add(index)) }.load(Ordering::Relaxed);
            rest.copy_from_slice(&word.to_ne_bytes()[..rest.len()]);
        }
    }
}

/// Bytes that [`copy_blocks`] copies at a time.
const BLOCK: usize = 64;

/// Copies memory that others may write meanwhile: each byte is read once, and of what is read the compiler knows
/// nothing. Atomic loads of words, one after the other, take four times as long.
///
/// # Safety
/// `from` can be read and `to` written for so many blocks, and the two do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, blocks: usize) {
    if blocks == 0 {
        return;
    }
    // SAFETY: goes over `blocks` blocks of both, as the caller guarantees; SSE2 is part of every x86-64. Others may
    // write to `from` meanwhile: to the compiler this block is one thing that it cannot look into, to the processor
    // these are loads.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, xmmword ptr [{from}]",
            "movdqu {b}, xmmword ptr [{from} + 16]",
            "movdqu {c}, xmmword ptr [{from} + 32]",
            "movdqu {d}, xmmword ptr [{from} + 48]",
            "movdqu xmmword ptr [{to}], {a}",
            "movdqu xmmword ptr [{to} + 16], {b}",
            "movdqu xmmword ptr [{to} + 32], {c}",
            "movdqu xmmword ptr [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {blocks}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            blocks = inout(reg) blocks => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Elsewhere there are no blocks: words do it all.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_blocks(_: *const u8, _: *mut u8, blocks: usize) {
    assert_eq!(blocks, 0, "there are none");
}

/// A page that a fork finds wiped.
#[derive(Debug)]
pub struct ForkMark(NonNull<AtomicU32>);

// SAFETY: the page belongs to the process, not to a thread; its word is reached as an atomic only.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// A mark of this process.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn new() -> Result<Self, OpenError> {
        // SAFETY: a new private mapping at an address that the kernel picks.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .map_err(OpenError::os("map a mark"))?
        };
        let mark = Self(NonNull::new(page.cast()).ok_or(OpenError::Foreign)?);
        // SAFETY: the range is exactly the page just mapped.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork).map_err(OpenError::os("MADV_WIPEONFORK"))? };
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped for as long as this value lives, in a fork as well (as zeroes).
        unsafe { self.0.as_ref() }
    }

    /// True if this process made it. A load: neither a lock nor a system call.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: exactly the page that `new` mapped; a fork has its own copy of it at the same address.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}
