//! The buffers of a ring: aligned, owned, registered with the kernel where it permits it.
//!
//! Invariants: a registered buffer's memory is neither moved nor freed while the ring lives, so that its number in the
//! kernel always means that memory. The buffer is here or in an operation in flight, never in both.
#![allow(unsafe_code)] // tokio-uring asks for addresses that stay

use std::cell::RefCell;
use std::io;

use tokio_uring::buf::fixed::FixedBufRegistry;
use tokio_uring::buf::{IoBuf as Stable, IoBufMut as StableMut};

use super::state::{MAX_IN_FLIGHT, REGISTERED_BYTES, Setup};
use crate::io::IoBuf;
use crate::io::buffer::ALIGN;

/// Separate buffers, for larger writes, that the pool retains for the next.
const POOLED_BUFFERS_MAX: usize = 4;
/// A separate buffer above this is freed.
const POOLED_BUFFER_BYTES_MAX: usize = 4 << 20;
/// A write repeats at most one block before its batch and pads one behind it, beside the batch's header.
const BATCH_OVERHEAD_BYTES: usize = 3 * 4096;

/// The address and size of a buffer, for the registration alone: the bytes belong to an [`IoBuf`].
struct Region {
    start: *mut u8,
    len: usize,
}

// SAFETY: the address is that of an `IoBuf` in the pool, whose memory stays where it is for as long as the ring lives:
// the pool is dropped after the runtime, and a buffer that is lent out comes back or is leaked with its operation.
unsafe impl Stable for Region {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }
    fn bytes_init(&self) -> usize {
        self.len
    }
    fn bytes_total(&self) -> usize {
        self.len
    }
}

// SAFETY: as above; the registry only asks for the address, and nothing reads or writes through it but the kernel, on
// behalf of an operation that owns the `IoBuf`.
unsafe impl StableMut for Region {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }
    unsafe fn set_init(&mut self, _: usize) {}
}

/// The buffers that are free.
pub(super) struct Pool {
    registered: RefCell<Vec<IoBuf>>,
    unregistered: RefCell<Vec<IoBuf>>,
}

impl Pool {
    /// A pool with one buffer for each write expected in flight, each for a usual write.
    pub(super) fn new(setup: &Setup) -> Self {
        let count = setup.in_flight.clamp(1, MAX_IN_FLIGHT);
        let bytes = (setup.write_bytes + BATCH_OVERHEAD_BYTES).min(REGISTERED_BYTES / count).next_multiple_of(ALIGN);
        let buffers = (0..count).map(|_| IoBuf::with_capacity(bytes)).collect();
        Self { registered: RefCell::new(buffers), unregistered: RefCell::default() }
    }

    /// Registers the buffers with the ring of this thread. Where that fails they are used unregistered.
    pub(super) fn register(&self) -> io::Result<()> {
        let mut buffers = self.registered.borrow_mut();
        let regions: Vec<_> = buffers.iter_mut().map(|b| Region { start: b.as_mut_ptr(), len: b.capacity() }).collect();
        FixedBufRegistry::new(regions).register()?;
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.set_registered(u16::try_from(index).expect("at most MAX_IN_FLIGHT"));
        }
        Ok(())
    }

    /// An empty buffer with room for `len` bytes.
    pub(super) fn take(&self, len: usize) -> IoBuf {
        let mut registered = self.registered.borrow_mut();
        let fits = registered.last().is_some_and(|b| b.capacity() >= len);
        let taken = if fits { registered.pop() } else { self.unregistered.borrow_mut().pop() };
        let mut buffer = taken.unwrap_or_else(|| IoBuf::with_capacity(len));
        buffer.clear();
        buffer.reserve(len);
        buffer
    }

    /// Takes a buffer back.
    pub(super) fn give(&self, buffer: IoBuf) {
        if buffer.registered().is_some() {
            self.registered.borrow_mut().push(buffer);
        } else if buffer.capacity() <= POOLED_BUFFER_BYTES_MAX && self.unregistered.borrow().len() < POOLED_BUFFERS_MAX
        {
            self.unregistered.borrow_mut().push(buffer);
        }
    }
}
