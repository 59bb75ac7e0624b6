//! The least that a ring for several threads must do: take space by an exchange, copy, commit by a store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const HEADER: usize = 4096;
const COMMITTED: u64 = 1 << 63;

/// A ring that is filled once: head, then entries of a commit word (length) and a payload, at multiples of 8.
pub(crate) struct Ring {
    base: *mut u8,
    data: usize,
    file: OwnedFd,
}

impl Ring {
    pub(crate) fn create(data: usize) -> Self {
        let file = rustix::fs::memfd_create("limit", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
        rustix::fs::ftruncate(&file, (HEADER + data) as u64).expect("its size");
        let ring = Self::attach(file, data);
        for page in (0..HEADER + data).step_by(4096) {
            ring.word(page).store(0, Ordering::Relaxed);
        }
        ring
    }

    pub(crate) fn attach(file: OwnedFd, data: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags};
        let (len, access) = (HEADER + data, ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel picks.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, &file, 0) };
        Self { base: base.expect("a mapping").cast(), data, file }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= HEADER + self.data);
        // SAFETY: inside the mapping, aligned, and reached as an atomic only.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// One call. Nothing is checked but that it fits.
    #[inline]
    pub(crate) fn push(&self, payload: &[u8], sum: Option<(u64, u32)>) {
        let extra = if sum.is_some() { 16 } else { 0 };
        let need = (8 + extra + payload.len() as u64).next_multiple_of(8);
        let mut head = self.word(0).load(Ordering::Relaxed);
        loop {
            assert!(head + need <= self.data as u64, "the burst fits");
            match self.word(0).compare_exchange_weak(head, head + need, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let at = HEADER + head as usize;
        if let Some((time, sum)) = sum {
            self.word(at + 8).store(time, Ordering::Relaxed);
            self.word(at + 16).store(u64::from(sum), Ordering::Relaxed);
        }
        // SAFETY: reserved by the exchange, inside the mapping by the assertion; nobody else writes there.
        unsafe {
            std::ptr::copy_nonoverlapping(payload.as_ptr(), self.base.add(at + 8 + extra as usize), payload.len());
        };
        self.word(at).store(COMMITTED | extra << 32 | payload.len() as u64, Ordering::Release);
    }

    /// Reads all entries, and takes their commit words away.
    pub(crate) fn read(&self, mut entry: impl FnMut(&[u8])) {
        let end = self.word(0).load(Ordering::Acquire);
        let (mut at, mut bytes) = (0, Vec::new());
        while at < end {
            let word = self.word(HEADER + at as usize).swap(0, Ordering::Acquire);
            assert!(word & COMMITTED != 0, "an entry that is not committed");
            let (extra, len) = ((word & !COMMITTED) >> 32, word as u32 as usize);
            bytes.resize(len, 0);
            // SAFETY: the writer has committed these bytes, which lie inside the mapping, and is idle now.
            unsafe {
                let from = self.base.add(HEADER + (at + 8 + extra) as usize);
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
            };
            entry(&bytes);
            at += (8 + extra + len as u64).next_multiple_of(8);
        }
    }

    pub(crate) fn reset(&self) {
        self.word(0).store(0, Ordering::Release);
    }
}
