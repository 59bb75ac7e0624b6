//! Entries of systemd's journal as records.
//!
//! Invariants:
//! - An entry is one record, and each of its fields is in it: body, severity, time, component, or an attribute. Bytes are
//!   kept, whatever they are; a field that comes more than once is an array.
//! - One entry is one encoding, in whatever order its fields come and whoever reads it: an entry that is sent again has the
//!   digest that it had.
//! - What is cut is marked ([`export`]).

mod entry;
mod export;

pub use entry::{CURSOR_ATTRIBUTE, JournalEntry};
pub use export::{ExportEntries, ExportFault};

#[cfg(test)]
mod tests;
