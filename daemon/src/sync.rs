//! What the parts that every thread shares are made of, where a model puts a scheduler's in its place (`models/`).

pub(crate) use std::sync::{Mutex, MutexGuard};
