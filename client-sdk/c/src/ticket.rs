//! Tickets and receipts.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use clad_client::{AppendError, Receipt, Ticket};

use crate::error::{Failure, guard};
use crate::pointers::{self, Handle};
use crate::status::{clad_status, clad_status::*, number};

/// The longest sleep between two looks.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(10);

type Outcome = Result<Receipt, AppendError>;

/// The outcome of an append, when it comes. One thread at a time uses it.
pub struct clad_ticket {
    mark: AtomicU64,
    state: Mutex<State>,
}

enum State {
    Waits(Ticket),
    Known(Outcome),
}

/// The daemon's word that records have reached a level.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct clad_receipt {
    /// The log that has them.
    pub log_id: [u8; 16],
    /// Offset of the first record; the others follow.
    pub first_offset: u64,
    /// The epoch in which the offsets hold.
    pub epoch: u32,
    /// The number of records.
    pub count: u32,
    /// The clad_level that they have reached.
    pub level: u32,
    /// 1 if there is an offset: levels below CLAD_LEVEL_RECEIVED have none.
    pub has_offset: u32,
}

impl Handle for clad_ticket {
    const MARK: u64 = 0x636c_6164_7469_636b;

    fn mark(&self) -> &AtomicU64 {
        &self.mark
    }
}

impl clad_ticket {
    pub(crate) fn new(ticket: Ticket) -> Self {
        Self { mark: Self::MARK.into(), state: Mutex::new(State::Waits(ticket)) }
    }
}

impl clad_receipt {
    /// Writes the receipt of an outcome to C, if it is one and is wanted.
    pub(crate) fn write(at: *mut Self, outcome: Outcome) -> Result<clad_status, Failure> {
        let receipt = outcome?;
        if !at.is_null() {
            let made = Self {
                log_id: receipt.log_id.to_bytes(),
                first_offset: receipt.first_offset.unwrap_or(0),
                epoch: receipt.epoch,
                count: receipt.count,
                level: number(receipt.level),
                has_offset: u32::from(receipt.first_offset.is_some()),
            };
            pointers::write("receipt", at, made)?;
        }
        Ok(CLAD_OK)
    }
}

/// Waits for the outcome, for at most `timeout_ms`; 0 only looks. CLAD_PENDING: not yet. CLAD_OK: the records have
/// reached their level; `receipt` may be NULL. Any error is the outcome. The outcome stays the same until
/// clad_ticket_free().
#[unsafe(no_mangle)]
pub extern "C" fn clad_ticket_wait(
    ticket: *mut clad_ticket,
    timeout_ms: u64,
    receipt: *mut clad_receipt,
) -> clad_status {
    guard(|| {
        let ticket = pointers::handle("ticket", ticket)?;
        let mut state = match ticket.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(_)) => return Err(Failure::internal("a call with this ticket has panicked")),
            Err(TryLockError::WouldBlock) => return Err(Failure::argument("another thread waits with this ticket")),
        };
        if let State::Waits(waiting) = &mut *state {
            match wait_for(waiting, Duration::from_millis(timeout_ms)) {
                Some(outcome) => *state = State::Known(outcome),
                None => return Ok(CLAD_PENDING),
            }
        }
        match &*state {
            State::Known(outcome) => clad_receipt::write(receipt, outcome.clone()),
            State::Waits(_) => Ok(CLAD_PENDING),
        }
    })
}

/// Frees a ticket; NULL is nothing. The append goes on: if it ends with an error, clad_flush() says so.
#[unsafe(no_mangle)]
pub extern "C" fn clad_ticket_free(ticket: *mut clad_ticket) -> clad_status {
    guard(|| {
        drop(pointers::take("ticket", ticket)?);
        Ok(CLAD_OK)
    })
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The outcome, unless `time` is over first. Waits in the calling thread.
pub(crate) fn wait_for(ticket: &mut Ticket, time: Duration) -> Option<Outcome> {
    if time.is_zero() {
        return ticket.try_wait();
    }
    let start = Instant::now();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = Pin::new(&mut *ticket).poll(&mut cx) {
            return Some(outcome);
        }
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left.min(LOOK_INTERVAL_MAX));
    }
}
