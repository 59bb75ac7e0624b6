//! The writes of a [`super::BulkWriter`] on an io_uring of its own.
//!
//! What must hold: memory that the kernel writes from stays where it is until its completion was seen. It belongs to
//! the slot meanwhile; a ring that breaks, so that completions can no longer be had, never frees it.
//!
//! A write that makes a file longer is one that the kernel gives to a worker thread, and of those ext4 has one at a time go
//! about: several workers wait for each other's lock, and the disk for whichever wakes up next. So there is one worker,
//! which takes the next write from its queue when it is done with the last. What needs no worker (a write over space that
//! is there) is in flight beside others all the same. The number is the kernel's for all rings of a thread: it is set back
//! when the writer goes.
#![allow(unsafe_code)] // entries that point to memory, and its registration

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use super::engine::{Buf, Done, Write};
use super::target::Target;

/// The ring, and what is in flight.
pub(super) struct Ring {
    ring: IoUring,
    registered: bool,
    /// By the number of the buffer.
    slots: Vec<Option<(Write, Arc<Target>)>>,
    in_flight: usize,
    broken: bool,
    /// How many workers the kernel would take at most, for files and for anything else, where this ring made it one.
    workers: Option<[u32; 2]>,
}

impl Ring {
    /// Sets one up for these buffers; says also why they are not registered.
    ///
    /// # Errors
    /// What the kernel says where it permits no ring.
    pub(super) fn new(bufs: &[Buf], register: bool) -> io::Result<(Self, Option<String>)> {
        let entries = (bufs.len() as u32).next_power_of_two();
        let ring = IoUring::builder().dontfork().build(entries)?;
        let mut why = None;
        let mut registered = false;
        if register {
            match register_all(&ring, bufs) {
                Ok(()) => registered = true,
                Err(e) => why = Some(format!("buffers are not registered with the ring (RLIMIT_MEMLOCK?): {e}")),
            }
        }
        let slots = bufs.iter().map(|_| None).collect();
        // A kernel that does not know this (before 5.15) takes as many as it likes.
        let mut workers = [1, 0];
        let limited = ring.submitter().register_iowq_max_workers(&mut workers);
        // Where it was one before, another writer of this thread made it so, and sets it back.
        let workers = limited.ok().map(|()| workers).filter(|before| before[0] > 1);
        Ok((Self { ring, registered, slots, in_flight: 0, broken: false, workers }, why))
    }

    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn submit(&mut self, target: &Arc<Target>, write: Write) {
        // A lent file has none, and comes to no ring.
        let fd = types::Fd(target.fd(write.way).map_or(-1, |fd| fd.as_raw_fd()));
        let (index, bytes) = (write.buf.index, write.bytes());
        let (start, len) = (bytes.as_ptr(), bytes.len() as u32);
        let entry = match self.registered {
            true => opcode::WriteFixed::new(fd, start, len, index as u16).offset(write.pos).build(),
            false => opcode::Write::new(fd, start, len).offset(write.pos).build(),
        };
        // SAFETY: the memory moves into the slot with its owner, at the same address (it is on the heap), and stays
        // there until the completion with this number was seen, or for ever; the target, and with it the descriptor,
        // likewise. There is an entry for each buffer, so the queue has room.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        if pushed.is_err() {
            self.broken = true;
        }
        self.slots[index] = Some((write, target.clone()));
        self.in_flight += 1;
        // What the kernel does not take now (interrupted, short of memory) it takes when a completion is waited for.
        let _ = self.ring.submit();
    }

    pub(super) fn wait(&mut self) -> io::Result<Done> {
        loop {
            if self.broken {
                return Err(io::Error::other("the ring is broken"));
            }
            if let Some(completion) = self.ring.completion().next() {
                let slot = self.slots.get_mut(completion.user_data() as usize).and_then(Option::take);
                let Some((write, _)) = slot else { continue };
                self.in_flight -= 1;
                let code = completion.result();
                let result = if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(code as usize) };
                return Ok(Done { write, result });
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if passes(&e) => std::thread::yield_now(),
                Err(e) => {
                    self.broken = true;
                    return Err(e);
                }
            }
        }
    }
}

/// Interrupted, or short of memory for the moment.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}

fn register_all(ring: &IoUring, bufs: &[Buf]) -> io::Result<()> {
    let vectors: Vec<_> = bufs
        .iter()
        .map(|buf| libc::iovec { iov_base: buf.mem.as_ptr().cast_mut().cast(), iov_len: buf.mem.len() })
        .collect();
    // SAFETY: the kernel pins the pages for as long as the ring lives, whoever frees them; what is written from them is
    // ours while an entry that names them is in flight (see `submit`).
    unsafe { ring.submitter().register_buffers(&vectors) }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait().is_err() {
                // The kernel may read that memory yet: it is never given to anybody else.
                let _kept = ManuallyDrop::new(std::mem::take(&mut self.slots));
                break;
            }
        }
        if let Some(mut before) = self.workers {
            let _ = self.ring.submitter().register_iowq_max_workers(&mut before);
        }
    }
}
