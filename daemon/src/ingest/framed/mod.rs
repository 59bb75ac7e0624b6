//! One connection of the framed protocol, from HELLO to its end.
//!
//! ```text
//! socket ─▶ Input ─▶ frames ─▶ Appends (Burst) ─▶ Admission ─▶ journal ─▶ watermarks ─▶ Appends ─▶ Output ─▶ socket
//! ```
//! Invariants:
//! - Memory of a connection is bounded: what it reads by [`input`], what it sends by [`output`], its appends by its
//!   window and its share of bytes ([`append_room`]).
//! - A connection that is to make room for others takes no new frame, is sent its pending answers, and is notified.
//! - An error of framing is reported and ends the connection; an error of one append is reported and the connection
//!   stays.
//! - During the shutdown no new frame is taken, and taken appends are answered while the drain lasts.

mod ack_coalescer;
mod alarm;
mod append_room;
mod appends;
mod buffers;
mod burst;
mod connection;
mod frames;
mod input;
mod open_reads;
mod output;
mod ring;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use connection::serve;
pub(crate) use service::{PeerTimeouts, Service};
