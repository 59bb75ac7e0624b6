//! Errors as exceptions of Python. The classes are in `lib/clad/_errors.py`; each has the same arguments.

use clad_client::{AppendError, ConnectError, DropReason, ErrorCode, ReadError, ReserveError, SendError, SubmitError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Contents of an exception besides its text.
#[derive(Default)]
struct Facts {
    code: Option<ErrorCode>,
    is_retryable: bool,
    maybe_written: bool,
    /// Where a reader is to resume.
    parting: Option<String>,
}

/// Makes an exception of a class of `lib/clad/_errors.py`.
fn make(py: Python<'_>, class: &str, text: String, facts: Facts) -> PyErr {
    let made = py.import("clad._errors").and_then(|module| {
        let code = facts.code.map(ErrorCode::name);
        module.getattr(class)?.call1((text, code, facts.is_retryable, facts.maybe_written, facts.parting))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// An address that is none.
pub(crate) fn address(py: Python<'_>, text: String) -> PyErr {
    make(py, "AddressError", text, Facts::default())
}

/// The time of a wait is over; what was waited for goes on.
pub(crate) fn wait_timeout(py: Python<'_>, text: &str) -> PyErr {
    let facts = Facts { is_retryable: true, maybe_written: true, ..Facts::default() };
    make(py, "WaitTimeout", text.to_owned(), facts)
}

/// This process is a fork of the one that made it.
pub(crate) fn forked(py: Python<'_>, maybe_written: bool) -> PyErr {
    let text = AppendError::Forked.to_string();
    make(py, "ForkedError", text, Facts { maybe_written, ..Facts::default() })
}

/// There is no connection.
pub(crate) fn connect(py: Python<'_>, error: &ConnectError) -> PyErr {
    let facts = Facts { code: error.code(), is_retryable: error.is_retryable(), ..Facts::default() };
    make(py, "ConnectError", error.to_string(), facts)
}

/// An append, or a flush, that did not reach its level.
pub(crate) fn append(py: Python<'_>, error: &AppendError) -> PyErr {
    let class = match error {
        AppendError::Refused { .. } => "RefusedError",
        AppendError::DeliveryTimeout { .. } => "DeliveryTimeoutError",
        AppendError::TooLarge { .. } => "TooLargeError",
        AppendError::Lost => "LostError",
        AppendError::Forked => "ForkedError",
        AppendError::Dropped { .. } => "DroppedError",
        AppendError::Closed { .. } => "ClosedError",
        _ => "AppendError",
    };
    let facts = Facts {
        code: error.code(),
        is_retryable: error.is_retryable(),
        maybe_written: error.maybe_written(),
        ..Facts::default()
    };
    make(py, class, error.to_string(), facts)
}

/// A record that has no receipt.
pub(crate) fn send(py: Python<'_>, error: &SendError) -> PyErr {
    let class = match error {
        SendError::Append(error)
        | SendError::Submit(SubmitError::Ended(error))
        | SendError::Reserve(ReserveError::Ended(error)) => return append(py, error),
        SendError::Submit(SubmitError::Forked) | SendError::Reserve(ReserveError::Forked) => return forked(py, false),
        SendError::Submit(SubmitError::Dropped(DropReason::Ended)) => "ClosedError",
        SendError::Submit(SubmitError::Record { .. } | SubmitError::Dropped(DropReason::TooLarge))
        | SendError::Reserve(ReserveError::TooLarge { .. }) => "TooLargeError",
        _ => "DroppedError",
    };
    let facts = Facts { code: error.code(), is_retryable: error.is_retryable(), ..Facts::default() };
    make(py, class, error.to_string(), facts)
}

/// A read that ended.
pub(crate) fn read(py: Python<'_>, error: &ReadError) -> PyErr {
    let (class, parting) = match error {
        ReadError::Connect(error) => return connect(py, error),
        ReadError::Filter(error) => return PyValueError::new_err(error.to_string()),
        ReadError::CursorAbandoned { parting, .. } => {
            ("CursorAbandonedError", parting.as_ref().map(ToString::to_string))
        }
        ReadError::CursorUnknown { .. } => ("CursorUnknownError", None),
        ReadError::Damaged { .. } => ("DamagedError", None),
        _ => ("ReadError", None),
    };
    let facts = Facts { code: error.code(), is_retryable: error.is_retryable(), parting, ..Facts::default() };
    make(py, class, error.to_string(), facts)
}
