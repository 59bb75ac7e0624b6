//! The client of clad for C. `include/clad.h` is made of this crate's exported items and their comments.
//!
//! Invariants:
//! - Nothing unwinds into C: every exported function runs in [`error::guard`] or [`error::guard_or`].
//! - Raw pointers are read and written in [`pointers`] alone. A NULL is an error of its caller, never a crash.
//! - Numbers of an enumeration come from C as integers; what is not in it is an error.
//! - A struct from C begins with its size: it may be of an older or a newer header ([`pointers::sized`]).
//! - No thread of this library runs a signal handler of the program, and no write of its raises SIGPIPE ([`signals`]).
#![allow(non_camel_case_types, reason = "the names are those of clad.h")]
#![allow(unsafe_code, reason = "an exported name is an unsafe attribute; pointers.rs and signals.rs say more")]

pub mod error;
pub mod filter;
mod local;
pub mod options;
mod pointers;
pub mod producer;
pub mod reader;
pub mod reader_event;
pub mod record;
mod signals;
pub mod stats;
pub mod status;
pub mod ticket;

#[cfg(test)]
mod tests;
