//! Why a program has no log.

use clad_client::{ConnectError, ParseAddressError};

/// Names the daemon.
pub(crate) const SERVER_VARIABLE: &str = "CLAD_SERVER";
/// Socket of the host's daemon. (None of the current folder: whoever can write there would get the records.)
pub(crate) const SOCKET: &str = "/run/clad/clad.sock";

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Nobody names a daemon, and none is where they are.
    #[error("no clad: {SERVER_VARIABLE} is not set, and {SOCKET} is not there")]
    NoServer,
    /// `CLAD_SERVER` is no address.
    #[error("{SERVER_VARIABLE}: {0}")]
    Address(#[from] ParseAddressError),
    /// There is no producer.
    #[error(transparent)]
    Producer(#[from] ConnectError),
}
