//! The writes of a [`super::BulkWriter`] on an io_uring of its own.
//!
//! Invariants: memory that the kernel writes from stays where it is until its completion was seen. Meanwhile it belongs
//! to the slot. A ring that breaks, so that completions can no longer be read, never frees it.
//!
//! The kernel gives a write that makes a file longer to a worker thread, and ext4 runs one such write at a time.
//! Several workers would wait for each other's lock, and the disk for the next that wakes up. So there is one worker,
//! which takes the next write from its queue after the last. A write that needs no worker (over existing space) is
//! still in flight beside others. The kernel has one number for all rings of a thread: it is set back when the writer
//! ends.
#![allow(unsafe_code)] // entries that point to memory

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use super::target::Target;
use super::write::{Done, Write};
use crate::io::is_transient;

/// The ring, and what is in flight.
pub(super) struct Ring {
    ring: IoUring,
    /// Indexed by the number of the buffer.
    slots: Vec<Option<(Write, Arc<Target>)>>,
    in_flight: usize,
    broken: bool,
    /// The kernel's former limits of workers, for files and for anything else, where this ring set the limit to one.
    workers: Option<[u32; 2]>,
}

impl Ring {
    /// Sets up a ring for so many buffers.
    ///
    /// # Errors
    /// The kernel's error where it permits no ring.
    pub(super) fn new(buffers: usize) -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build((buffers as u32).next_power_of_two())?;
        let slots = (0..buffers).map(|_| None).collect();
        // A kernel that does not know this (before 5.15) sets its own number.
        let mut workers = [1, 0];
        let limited = ring.submitter().register_iowq_max_workers(&mut workers);
        // Where it was one before, another writer of this thread set it, and sets it back.
        let workers = limited.ok().map(|()| workers).filter(|before| before[0] > 1);
        Ok(Self { ring, slots, in_flight: 0, broken: false, workers })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn submit(&mut self, target: &Arc<Target>, write: Write) {
        // A lent file has none, and never comes to a ring.
        let fd = types::Fd(target.fd(write.way).map_or(-1, |fd| fd.as_raw_fd()));
        let (index, bytes) = (write.buf.index, write.bytes());
        let (start, len) = (bytes.as_ptr(), bytes.len() as u32);
        let entry = opcode::Write::new(fd, start, len).offset(write.pos).build();
        // SAFETY: the memory moves into the slot with its owner, at the same address (it is on the heap), and stays
        // there until the completion with this number was seen, or for ever; the target, and with it the descriptor,
        // likewise. There is an entry for each buffer, so the queue has room.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        if pushed.is_err() {
            self.broken = true;
        }
        self.slots[index] = Some((write, target.clone()));
        self.in_flight += 1;
        // The kernel takes a write that it refuses now (interrupted, short of memory) at the wait for a completion.
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
                Err(e) if is_transient(&e) => std::thread::yield_now(),
                Err(e) => {
                    self.broken = true;
                    return Err(e);
                }
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait().is_err() {
                // The kernel may still read that memory: it is never reused.
                let _kept = ManuallyDrop::new(std::mem::take(&mut self.slots));
                break;
            }
        }
        if let Some(mut before) = self.workers {
            let _ = self.ring.submitter().register_iowq_max_workers(&mut before);
        }
    }
}
