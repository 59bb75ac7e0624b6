//! Something that ends later: a receipt, a flush, a close. One object for threads, which wait, and for asyncio, which is
//! woken.
//!
//! Invariants: it is polled by whoever asks, so no thread waits for each. A thread that waits has released Python's lock,
//! and looks for signals. What wakes an event loop never touches Python: it writes a byte to the loop's socket. A child
//! of `fork` neither polls nor drops what its parent waits for: the locks in it are as they were at that moment.

use crate::errors;
use clad_client::{AckLevel, AppendError, Receipt, SendError};
use pyo3::prelude::*;
use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// The longest wait before a look for signals of Python.
const SIGNAL_INTERVAL_MAX: Duration = Duration::from_millis(50);
/// The longest sleep before the next poll: of a ring, whose pages wake nobody.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(10);
/// The longest wait that is asked for.
const WAIT_SECONDS_MAX: f64 = 1e9;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A time in seconds, as Python has it; not a number is none.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, WAIT_SECONDS_MAX).max(0.0))
}

/// A result, once there is one.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// It is done, and there is nothing to say.
    Done,
    /// Of an append.
    Receipt(Receipt),
    /// It was handed over: its receipt is to come.
    Ticket(Arc<Mutex<State>>),
}

type Work = dyn Future<Output = Result<Outcome, SendError>> + Send;

pub(crate) enum State {
    Waiting(Pin<Box<Work>>),
    Ended(Result<Outcome, SendError>),
}

/// Wakes an event loop: the numbers of what is to be polled, and a socket that has a byte while there are some.
#[pyclass(frozen, module = "clad._clad")]
pub(crate) struct WakeQueue {
    inner: Arc<Woken>,
    near: UnixStream,
}

struct Woken {
    numbers: Mutex<Vec<u64>>,
    far: UnixStream,
}

#[pymethods]
impl WakeQueue {
    #[new]
    fn new() -> PyResult<Self> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok(Self { inner: Arc::new(Woken { numbers: Mutex::default(), far }), near })
    }

    /// The descriptor that a loop watches.
    fn fileno(&self) -> i32 {
        self.near.as_raw_fd()
    }

    /// The numbers of what is to be polled again.
    fn take(&self) -> Vec<u64> {
        let mut bytes = [0; 64];
        // Before the numbers: a byte that comes now is for a number that is taken below, or wakes once too often.
        while matches!((&self.near).read(&mut bytes), Ok(64)) {}
        std::mem::take(&mut *lock(&self.inner.numbers))
    }
}

/// Wakes a loop for one number.
struct Number(Arc<Woken>, u64);

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        let mut numbers = lock(&self.0.numbers);
        numbers.push(self.1);
        if numbers.len() == 1 {
            // A full socket has woken it already; a closed one has nobody to wake.
            let _ = (&self.0.far).write(&[0]);
        }
    }
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// See the module.
#[pyclass(frozen, module = "clad._clad")]
pub(crate) struct Pending {
    state: Arc<Mutex<State>>,
    pid: u32,
}

impl Pending {
    pub(crate) fn new<F>(work: F) -> Self
    where
        F: Future<Output = Result<Outcome, SendError>> + Send + 'static,
    {
        Self::of(Arc::new(Mutex::new(State::Waiting(Box::pin(work)))))
    }

    pub(crate) fn of_ticket(ticket: clad_client::Ticket) -> Self {
        Self::new(receipt(ticket))
    }

    fn of(state: Arc<Mutex<State>>) -> Self {
        Self { state, pid: std::process::id() }
    }

    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// One look. In a child of `fork` only what had ended is known.
    fn poll_with(&self, waker: &Waker) -> Option<Result<Outcome, SendError>> {
        if self.is_forked() {
            return Some(match self.state.try_lock().as_deref() {
                Ok(State::Ended(outcome)) => outcome.clone(),
                _ => Err(AppendError::Forked.into()),
            });
        }
        let mut state = lock(&self.state);
        let outcome = match &mut *state {
            State::Ended(outcome) => return Some(outcome.clone()),
            State::Waiting(work) => match work.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => return None,
            },
        };
        *state = State::Ended(outcome.clone());
        Some(outcome)
    }

    fn wait_for(&self, time: Duration) -> Option<Result<Outcome, SendError>> {
        let (start, waker) = (Instant::now(), Waker::from(Arc::new(Unpark(std::thread::current()))));
        loop {
            if let Some(outcome) = self.poll_with(&waker) {
                return Some(outcome);
            }
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left.min(POLL_INTERVAL_MAX));
        }
    }

    /// Waits with Python's lock released, for at most `time`; `None` when that is over.
    pub(crate) fn outcome(&self, py: Python<'_>, time: Duration) -> PyResult<Option<Result<Outcome, SendError>>> {
        let start = Instant::now();
        loop {
            let left = time.saturating_sub(start.elapsed());
            if let Some(outcome) = py.detach(|| self.wait_for(left.min(SIGNAL_INTERVAL_MAX))) {
                return Ok(Some(outcome));
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.state.clone());
        }
    }
}

/// A ticket's outcome.
pub(crate) async fn receipt(ticket: clad_client::Ticket) -> Result<Outcome, SendError> {
    Ok(Outcome::Receipt(ticket.await?))
}

/// A ticket, as an outcome of the wait for room.
pub(crate) fn handed_over(ticket: clad_client::Ticket) -> Outcome {
    Outcome::Ticket(Arc::new(Mutex::new(State::Waiting(Box::pin(receipt(ticket))))))
}

fn to_python(py: Python<'_>, outcome: Result<Outcome, SendError>) -> PyResult<Py<PyAny>> {
    match outcome {
        Ok(Outcome::Done) => Ok(py.None()),
        Ok(Outcome::Receipt(receipt)) => Ok(Py::new(py, PyReceipt::from(receipt))?.into_any()),
        Ok(Outcome::Ticket(state)) => Ok(Py::new(py, Pending::of(state))?.into_any()),
        Err(error) => Err(errors::send(py, &error)),
    }
}

#[pymethods]
impl Pending {
    /// Waits at most so long; then the work goes on, and WaitTimeout is raised.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Py<PyAny>> {
        match self.outcome(py, seconds(timeout))? {
            Some(outcome) => to_python(py, outcome),
            None => Err(errors::wait_timeout(py, &format!("no answer within {timeout} s; it may still come"))),
        }
    }

    /// The outcome in a tuple if it is there; else None, and the queue gets the number when there is something to see.
    fn poll(&self, py: Python<'_>, queue: &WakeQueue, number: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        let waker = Waker::from(Arc::new(Number(queue.inner.clone(), number)));
        self.poll_with(&waker).map(|outcome| Ok((to_python(py, outcome)?,))).transpose()
    }

    /// True once there is an outcome.
    fn done(&self) -> bool {
        self.poll_with(Waker::noop()).is_some()
    }
}

/// The daemon's word that a record has reached its level.
#[pyclass(frozen, get_all, name = "Receipt", module = "clad", eq)]
#[derive(PartialEq)]
pub(crate) struct PyReceipt {
    log_id: String,
    epoch: u32,
    offset: Option<u64>,
    count: u32,
    level: &'static str,
}

impl From<Receipt> for PyReceipt {
    fn from(receipt: Receipt) -> Self {
        Self {
            log_id: receipt.log_id.to_string(),
            epoch: receipt.epoch,
            offset: receipt.first_offset,
            count: receipt.count,
            level: AckLevel::name(receipt.level),
        }
    }
}

#[pymethods]
impl PyReceipt {
    fn __repr__(&self) -> String {
        let Self { log_id, epoch, offset, count, level } = self;
        let offset = offset.map_or_else(|| "None".to_owned(), |offset| offset.to_string());
        format!("Receipt(log_id='{log_id}', epoch={epoch}, offset={offset}, count={count}, level='{level}')")
    }
}
