//! Life of the process: its start, its signals, its end, and the commands that look at it from outside.
//!
//! Invariant: only `cli` and `main` stand above this. Nothing in `config`, `ingest`, `read` or `fdstore` asks whether the
//! process starts or ends: they are made, stopped, and dropped from here.

mod advice;
mod bind;
pub mod check;
mod drain;
mod hint;
pub mod inherited_sockets;
mod lock_holder;
pub mod reload;
pub mod run;
mod running;
pub(crate) mod services;
mod setup;
mod signals;
mod start;
mod syslog;
pub mod systemd;
mod watchdog;
