//! Answers of the daemon, whatever the transport.

use clad_proto::{
    ErrorInfo,
    frame::{Accepted, Refused, Watermark},
};

/// Answer of the daemon.
#[derive(Debug)]
pub(crate) enum Answer {
    Accepted(Accepted),
    Watermark(Watermark),
    Refused(Refused),
    FlushRefused {
        id: u32,
        error: ErrorInfo,
    },
    /// It is alive.
    Pong,
}
