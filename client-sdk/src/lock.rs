//! Locks of plain state.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// Takes a lock whose state is whole at every step: nothing panics between two states of it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
