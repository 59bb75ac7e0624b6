//! Sockets of a start: those that the service manager holds, and those that are made.
//!
//! Invariants: a socket that cannot be had ends the start, with advice. A held socket is used, and is not ours to remove.

use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener};

use super::advice;
use super::inherited_sockets::InheritedSockets;
use crate::exit::Exit;
use crate::ingest::bind_unix;

/// Reports the failure of a start.
pub(super) fn failed(what: &str, why: &dyn std::fmt::Display) -> Exit {
    tracing::error!("{what}: {why}");
    Exit::Failed
}

/// Files of the sockets that are ours to remove, at the end or where a start fails.
#[derive(Debug, Default)]
pub(super) struct Sockets(Vec<PathBuf>);

impl Sockets {
    pub(super) fn add(&mut self, path: &Path) {
        self.0.push(path.to_path_buf());
    }

    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.iter().any(|own| own == path)
    }

    pub(super) fn remove(&mut self) {
        for path in self.0.drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The socket that is held for us, or one of our own.
pub(super) fn bind_unix_of(
    key: &str,
    path: &Path,
    mode: u32,
    inherited: &mut InheritedSockets,
    sockets: &mut Sockets,
) -> Result<UnixListener, Exit> {
    let (bound, is_ours) = match inherited.unix(path) {
        Some(listener) => (UnixListener::from_std(listener), false),
        None => (bind_unix(path, mode), true),
    };
    let listener = bound.map_err(|e| {
        let advice = advice::on_socket(key, path, &e);
        failed(&format!("listen on {} ({key})", path.display()), &format!("{e}{advice}"))
    })?;
    if is_ours {
        sockets.add(path);
    }
    Ok(listener)
}

pub(super) async fn bind_tcp(
    key: &str,
    address: Option<std::net::SocketAddr>,
    inherited: &mut InheritedSockets,
) -> Result<Option<(TcpListener, String)>, Exit> {
    let Some(address) = address else { return Ok(None) };
    let bound = match inherited.tcp(address) {
        Some(listener) => TcpListener::from_std(listener),
        None => TcpListener::bind(address).await,
    };
    let listener = bound.map_err(|e| {
        let advice = advice::on_address(key, &e);
        failed(&format!("listen on {address} ({key})"), &format!("{e}{advice}"))
    })?;
    let address = listener.local_addr().map_or_else(|_| address.to_string(), |a| a.to_string());
    Ok(Some((listener, address)))
}
