//! Errors: a status, and the thread's last error with what else a program may ask.
//!
//! Invariants: a call that answers with an error sets the thread's last error, any other call leaves it. No other thread
//! sees it.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use clad_client::{
    AppendError, ConnectError, DropReason, EncodeError, ErrorCode, ReadError, ReserveError, SendError, SubmitError,
};

use crate::status::clad_status::{self, *};

/// An error of a call. It is behind a pointer, so that the result of what went well is passed in registers.
#[derive(Debug, Clone)]
pub(crate) struct Failure(Box<Details>);

#[derive(Debug, Clone)]
pub(crate) struct Details {
    pub(crate) status: clad_status,
    pub(crate) code: u16,
    pub(crate) retryable: bool,
    pub(crate) maybe_written: bool,
    pub(crate) text: String,
}

/// The last failure, with its text for C.
struct Last {
    failure: Failure,
    text: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

impl Deref for Failure {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl Failure {
    #[cold]
    pub(crate) fn new(status: clad_status, text: impl Into<String>) -> Self {
        Self(Box::new(Details { status, code: 0, retryable: false, maybe_written: false, text: text.into() }))
    }

    /// Nobody has answered in time: it is under way.
    pub(crate) fn unanswered(text: impl Into<String>) -> Self {
        Self::new(CLAD_ERR_TIMEOUT, text).coded(None, true, true)
    }

    /// The caller's mistake.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(CLAD_ERR_ARGUMENT, text)
    }

    pub(crate) fn null(name: &str) -> Self {
        Self::argument(format!("{name} is NULL"))
    }

    pub(crate) fn forked() -> Self {
        Self::new(CLAD_ERR_FORKED, "this process was forked from the one that made the handle; make another one here")
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        // Nobody knows how far it came.
        Self::new(CLAD_ERR_INTERNAL, text).coded(None, false, true)
    }

    pub(crate) fn coded(mut self, code: Option<ErrorCode>, retryable: bool, maybe_written: bool) -> Self {
        self.0.code = code.map_or(0, ErrorCode::number);
        self.0.retryable = retryable;
        self.0.maybe_written = maybe_written;
        self
    }

    /// Makes it the thread's last error.
    fn set(self) -> clad_status {
        let status = self.status;
        let text = CString::new(self.text.replace('\0', "\u{fffd}")).unwrap_or_default();
        // A thread that ends has none any more.
        let _ = LAST.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = Some(Last { failure: self, text });
            }
        });
        status
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let status = match &error {
            ConnectError::Refused { .. } => CLAD_ERR_REFUSED,
            ConnectError::Group(_) => CLAD_ERR_TOO_LARGE,
            ConnectError::ProducerShared { .. } => CLAD_ERR_FAILED,
            _ => CLAD_ERR_CONNECT,
        };
        Self::new(status, error.to_string()).coded(error.code(), error.is_retryable(), false)
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        let status = match &error {
            AppendError::Refused { error, .. } if error.code == ErrorCode::LevelUnreachable => CLAD_ERR_LEVEL,
            AppendError::Refused { .. } => CLAD_ERR_REFUSED,
            AppendError::DeliveryTimeout { .. } => CLAD_ERR_TIMEOUT,
            AppendError::TooLarge { .. } => CLAD_ERR_TOO_LARGE,
            AppendError::Forgotten | AppendError::LogChanged { .. } => CLAD_ERR_UNKNOWN,
            AppendError::Lost => CLAD_ERR_LOST,
            AppendError::Failed { .. } => CLAD_ERR_FAILED,
            AppendError::Forked => CLAD_ERR_FORKED,
            AppendError::Dropped { .. } => CLAD_ERR_DROPPED,
            AppendError::Closed { .. } => CLAD_ERR_CLOSED,
            _ => CLAD_ERR_INTERNAL,
        };
        Self::new(status, error.to_string()).coded(error.code(), error.is_retryable(), error.maybe_written())
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let status = match &error {
            SendError::Append(error) | SendError::Reserve(ReserveError::Ended(error)) => return error.clone().into(),
            SendError::Submit(SubmitError::Ended(error)) => return error.clone().into(),
            SendError::Reserve(ReserveError::Forked) | SendError::Submit(SubmitError::Forked) => CLAD_ERR_FORKED,
            SendError::Reserve(ReserveError::TooLarge { .. }) => CLAD_ERR_TOO_LARGE,
            SendError::Submit(SubmitError::Record { error, .. }) => return (*error).into(),
            SendError::Submit(SubmitError::Empty) => CLAD_ERR_ARGUMENT,
            SendError::Submit(SubmitError::Dropped(DropReason::TooLarge)) => CLAD_ERR_TOO_LARGE,
            SendError::Submit(SubmitError::Dropped(DropReason::Ended)) => CLAD_ERR_CLOSED,
            _ => CLAD_ERR_DROPPED,
        };
        Self::new(status, error.to_string()).coded(error.code(), error.is_retryable(), error.maybe_written())
    }
}

impl From<EncodeError> for Failure {
    fn from(error: EncodeError) -> Self {
        let status = match error {
            EncodeError::RecordTooLarge { .. } | EncodeError::AppendFull { .. } => CLAD_ERR_TOO_LARGE,
            _ => CLAD_ERR_ARGUMENT,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let status = match &error {
            ReadError::Connect(ConnectError::Refused { .. }) | ReadError::Refused(_) => CLAD_ERR_REFUSED,
            ReadError::CursorAbandoned { .. } | ReadError::CursorUnknown { .. } => CLAD_ERR_CURSOR,
            ReadError::Damaged { .. } => CLAD_ERR_DAMAGED,
            ReadError::Filter(_) => CLAD_ERR_ARGUMENT,
            _ => CLAD_ERR_CONNECT,
        };
        Self::new(status, error.to_string()).coded(error.code(), error.is_retryable(), false)
    }
}

/// Runs a call from C. A panic ends here.
pub(crate) fn guard(call: impl FnOnce() -> Result<clad_status, Failure>) -> clad_status {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.set(),
        Err(_) => Failure::internal("a defect of libclad: a call has panicked").set(),
    }
}

/// The same of a call that answers with a value.
pub(crate) fn guard_or<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

fn last<T>(otherwise: T, get: impl FnOnce(&Last) -> T) -> T {
    let mut get = Some(get);
    let found = LAST.try_with(|last| {
        let last = last.try_borrow().ok()?;
        Some(get.take()?(last.as_ref()?))
    });
    found.ok().flatten().unwrap_or(otherwise)
}

/// The last error of this thread, for a person: what is wrong, where, and if the record may be in the log. "" before
/// the first one. It is valid until the next call of this thread that fails. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn clad_error_text() -> *const c_char {
    guard_or(c"".as_ptr(), || last(c"".as_ptr(), |last| last.text.as_ptr()))
}

/// The daemon's code of the last error of this thread (docs/PROTOCOL.md lists them); 0 where the daemon has not refused.
#[unsafe(no_mangle)]
pub extern "C" fn clad_error_code() -> u32 {
    guard_or(0, || last(0, |last| last.failure.code.into()))
}

/// True if the same call, later and unchanged, can succeed. Of the last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn clad_error_is_retryable() -> bool {
    guard_or(false, || last(false, |last| last.failure.retryable))
}

/// True if a reader may find the records all the same; false: they are certainly not in the log. Of the last error of
/// this thread.
#[unsafe(no_mangle)]
pub extern "C" fn clad_error_maybe_written() -> bool {
    guard_or(true, || last(false, |last| last.failure.maybe_written))
}
