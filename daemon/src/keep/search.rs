//! The rings of a daemon before this one, looked for at a start.
//!
//! What must hold: a start goes on without them only where there are none, or nobody to ask: the kernel says so, or the
//! operator, by ending the holder or removing its socket. A holder that does not answer (it is stopped, or the machine is
//! too busy for it) has what was posted: it is asked until it answers, and meanwhile the log, the health pages and the
//! service manager's status say what is waited for, whom, and the ways out.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::clerk::Place;
use super::holder::{Holder, PATIENCE};
use super::store::{Store, Stored};
use super::{HOLDER_SOCKET, Keeper, Kept};
use crate::health::Health;

/// Between two looks, where one failed at once.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the log is told that it still waits.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A holder that has not said what it keeps.
#[derive(Debug)]
pub(crate) struct Silence {
    why: io::Error,
    path: PathBuf,
    pid: Option<u32>,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.pid {
            Some(pid) => write!(f, "process {pid} (clad hold {path})")?,
            None => write!(f, "whoever has {path}")?,
        }
        write!(f, " keeps the rings of the daemon before this one and does not say which ({})", self.why)
    }
}

impl Silence {
    fn of(path: &Path, why: io::Error) -> Self {
        Self { why, path: path.to_owned(), pid: holder_of(path) }
    }

    /// What an operator can do.
    fn ways_out(&self) -> String {
        let pid = self.pid.map_or_else(|| "its pid".to_owned(), |pid| pid.to_string());
        format!(
            "what was posted is there, so clad waits. `kill -CONT {pid}` lets a stopped one go on. To start without what is in \
             these rings, and lose it: `kill -KILL {pid}`, or remove {}",
            self.path.display()
        )
    }
}

/// The process that was started as the holder of this socket.
fn holder_of(path: &Path) -> Option<u32> {
    use std::os::unix::ffi::OsStrExt;
    let mut pids =
        std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0).skip(1);
        words.next() == Some(b"hold") && words.next() == Some(path.as_os_str().as_bytes())
    })
}

/// Finds who keeps the rings of this process, and what it has kept for us: `folder` is that of the socket for records.
/// `tell` hears of each look that brought no answer. Cancel safe: what was kept stays kept.
///
/// # Errors
/// Where the kernel has no descriptor or thread for the keeper.
pub(crate) async fn find(
    folder: &Path,
    stored: Stored,
    health: &Health,
    mut tell: impl FnMut(&Silence),
) -> io::Result<(Keeper, Vec<Kept>)> {
    if let Some(store) = Store::of_process() {
        let kept = store.sort(stored);
        return Ok((Keeper::over(Place::Store(store), health.clone())?, kept));
    }
    let mut holder = Holder::at(folder.join(HOLDER_SOCKET), PATIENCE);
    let mut said: Option<Instant> = None;
    loop {
        let looked = tokio::task::spawn_blocking(move || {
            let found = holder.all().map_err(|why| Silence::of(holder.path(), why));
            (holder, found)
        });
        let found;
        (holder, found) = looked.await.map_err(io::Error::other)?;
        let silence = match found {
            Ok(kept) => {
                if said.is_some() {
                    tracing::info!(rings = kept.len(), "the rings of the daemon before this one are known now");
                }
                return Ok((Keeper::over(Place::Holder(holder), health.clone())?, kept));
            }
            Err(silence) => silence,
        };
        if said.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            said = Some(Instant::now());
            tracing::error!("{silence}: {}", silence.ways_out());
        }
        tell(&silence);
        tokio::time::sleep(PAUSE).await;
    }
}
