//! Remedies for a daemon that cannot be reached.

use std::io::ErrorKind;

use clad_client::ConnectError;

use crate::exit::Stop;

/// The error with what to do about it.
pub(crate) fn unreachable(error: &ConnectError) -> Stop {
    let hint = match error {
        ConnectError::Io { error, .. } => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => "; start a daemon with `clad`, or give --server",
            ErrorKind::PermissionDenied => "; the socket, or a folder above it, is not open to this user",
            _ => "",
        },
        _ => "",
    };
    Stop::Failed(anyhow::anyhow!("{error}{hint}"))
}
