//! Synchronization types of the parts that every thread shares; a model puts a scheduler's in their place (`models/`).

pub(crate) use std::sync::{Mutex, MutexGuard};
