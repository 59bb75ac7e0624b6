//! The rings of a daemon before this one, looked for at a start.
//!
//! Invariants: a start goes on without them only where there are none, or nobody to ask: the kernel says so, or the
//! operator, by ending the holder or removing its socket. A holder that does not answer (it is stopped, or the machine is
//! too busy for it) has what was posted: it is asked until it answers, and meanwhile the log, the health pages and the
//! service manager's status say what is waited for, whom, and the ways out. An answer that is sure is not waited out: where
//! another daemon, another user or another program has the place, or this user may not go there, or this process has no descriptor or
//! memory for what it is given, the start ends with what to do, and what is kept stays kept.
//!
//! They are looked for where this configuration has them kept, and where the last daemon of this data folder had (`places`): what is
//! found there is moved. Of a place that is not its own a start does not end: it says that it leaves what may be there, and how to
//! forget the place, and asks again at the next one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::clerk::Place;
use super::holder::{Holder, PATIENCE, Refusal, Whose};
use super::places::{self, Link};
use super::store::{InheritedFds, Store};
use super::{FdStore, StoredRing, is_want};
use crate::config::MAX_SOCKET_PATH;
use crate::ops::health::Health;

/// Between two looks, where one failed at once.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the log is told that it still waits.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How long a daemon that has the rings may take to be gone: one that was killed holds them for moments longer than its log.
const LEAVE_WAIT: Duration = Duration::from_secs(5);

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

fn is_ours(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::getuid().as_raw();
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == own)
}

/// Whose rings are looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought<'a> {
    /// The socket for records, if there is to be one: held by this process alone.
    pub(crate) socket: Option<&'a Path>,
    /// The data folder.
    pub(crate) data: &'a Path,
    /// Its log was made by this start: no daemon of it was there before.
    pub(crate) is_new: bool,
}

/// Finds who keeps the rings of this process, and what it has kept for us. Nothing where there is neither a socket nor
/// anything kept. `tell` hears of each look that brought no answer. Cancel safe: what was kept stays kept.
///
/// # Errors
/// Where somebody else has the place, or the kernel has no descriptor, memory or thread; in words that say what to do.
pub(crate) async fn find(
    sought: Sought<'_>,
    stored: InheritedFds,
    health: &Health,
    tell: impl FnMut(&Silence),
) -> io::Result<Option<(FdStore, Vec<StoredRing>)>> {
    let mut search = Search { tell, said: None };
    let own = sought.socket.map(places::of).transpose()?;
    let folder = places::identity(sought.data);
    if let Some(path) = own.as_ref().filter(|path| path.as_os_str().len() > MAX_SOCKET_PATH) {
        tracing::warn!(
            "no ring can be given out without a descriptor store: {} has more than {MAX_SOCKET_PATH} bytes; set a shorter ingest.unix.path",
            path.display()
        );
    }
    let (mut place, mut kept) = match (Store::of_process(), &own) {
        (Some(mut store), _) => {
            let kept = store.sort(stored).map_err(|e| with_advice(&"systemd's descriptor store", &e))?;
            (Some(Place::Store(store)), kept)
        }
        (None, Some(path)) => {
            let holder = Holder::at(path.clone(), folder, PATIENCE);
            let asked = search.ask(holder, Whose::Anyones).await;
            let (holder, kept) = asked.map_err(|e| with_advice(&path.display(), &e))?;
            (Some(Place::Holder(holder)), kept)
        }
        (None, None) => (None, Vec::new()),
    };
    let link = Link(sought.data);
    let (is_linked, mut left, mut is_whole) = (link.target().is_some(), Vec::new(), true);
    let mut places = elsewhere(&sought, &link).into_iter();
    while let Some(path) = places.next() {
        if place.as_ref().and_then(Place::path) == Some(&path) {
            continue;
        }
        let asked = search.ask(Holder::at(path.clone(), folder, PATIENCE), Whose::ThisFolders).await;
        let (holder, found) = match asked {
            Err(e) if Refusal::of(&e).is_some() => {
                tracing::warn!(
                    "{}: {e}: rings of this log that may be kept there are left, and asked for again at the next start; if none can \
                     be, as in a copy of a data folder, forget the place: `find '{}' -maxdepth 1 -lname '{}' -delete`",
                    path.display(),
                    sought.data.display(),
                    path.display()
                );
                left.push(path);
                continue;
            }
            asked => asked.map_err(|e| with_advice(&path.display(), &e))?,
        };
        if holder.withheld() > 0 {
            tracing::warn!(
                rings = holder.withheld(),
                "{} keeps rings for the daemon of another data folder: if this one is a copy of that, they are not its; if it was \
                 moved, start clad once with the ingest.unix.path that it had, or end that `clad hold` and give up what is in them",
                path.display()
            );
            left.push(path.clone());
        }
        if found.is_empty() {
            continue;
        }
        tracing::info!(rings = found.len(), from = %holder.path().display(), "rings that an earlier daemon had kept elsewhere");
        let Some(to) = place else {
            (place, kept) = (Some(Place::Holder(holder)), found);
            left.extend(places); // not asked: there is no place for what they keep
            break;
        };
        let moved = tokio::task::spawn_blocking(move || move_over(holder, found, to, kept)).await;
        let is_moved;
        (place, kept, is_moved) =
            moved.map(|(to, kept, is_moved)| (Some(to), kept, is_moved)).map_err(io::Error::other)?;
        is_whole &= is_moved;
    }
    // Of a place that no link led to, nothing says that it ever had rings of ours.
    left.retain(|_| is_linked);
    let linked = link.set_left(&left);
    let Some(place) = place else { return linked.map(|()| None) };
    if is_whole && let Err(error) = linked.and_then(|()| link.set(place.path())) {
        tracing::warn!(%error, "the data folder takes no link to who keeps the rings: with another ingest.unix.path the next start would not find them");
    }
    Ok(Some((FdStore::over(place, health.clone())?, kept)))
}

/// Where rings of this data folder's daemon may be but for the place that it has now.
fn elsewhere(sought: &Sought<'_>, link: &Link<'_>) -> Vec<PathBuf> {
    match link.target() {
        Some(target) => std::iter::once(target).chain(link.left()).collect(),
        None if sought.is_new => Vec::new(),
        None => places::earlier(sought.socket, sought.data).collect(),
    }
}

/// Has rings kept in another place, and let go where they were. Says whether all are: what could not be kept there stays where
/// it was, too.
fn move_over(
    mut from: Holder,
    found: Vec<StoredRing>,
    mut to: Place,
    mut kept: Vec<StoredRing>,
) -> (Place, Vec<StoredRing>, bool) {
    let mut is_whole = true;
    for ring in found {
        let note = ring.note;
        // A daemon that was killed while it did this had it kept already.
        if kept.iter().all(|known| known.note.id != note.id) {
            if let Err(error) = ring.again().and_then(|ring| to.keep(ring)) {
                tracing::warn!(ring = %note.id, %error, "a ring cannot be kept by {}: it stays where it was", to.name());
                is_whole = false;
                kept.push(ring);
                continue;
            }
            kept.push(ring);
        }
        if let Err(error) = from.forget(&note) {
            tracing::warn!(ring = %note.id, %error, "a ring that was moved is still kept where it was");
        }
    }
    (to, kept, is_whole)
}

/// Asks until there is an answer.
struct Search<F> {
    tell: F,
    said: Option<Instant>,
}

impl<F: FnMut(&Silence)> Search<F> {
    async fn ask(&mut self, mut holder: Holder, whose: Whose) -> io::Result<(Holder, Vec<StoredRing>)> {
        let began = Instant::now();
        loop {
            let looked = tokio::task::spawn_blocking(move || {
                let found = holder.all(whose);
                (holder, found)
            });
            let found;
            (holder, found) = looked.await.map_err(io::Error::other)?;
            let why = match found {
                Ok(kept) => {
                    if self.said.take().is_some() {
                        tracing::info!(rings = kept.len(), "the rings of the daemon before this one are known now");
                    }
                    return Ok((holder, kept));
                }
                Err(why) => why,
            };
            if is_sure(&why, holder.path(), began.elapsed()) {
                return Err(why);
            }
            let silence = Silence::of(holder.path(), why);
            if self.said.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
                self.said = Some(Instant::now());
                tracing::error!("{silence}: {}", silence.ways_out());
            }
            (self.tell)(&silence);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether another look would bring nothing else.
fn is_sure(why: &io::Error, path: &Path, after: Duration) -> bool {
    match Refusal::of(why) {
        Some(Refusal::Taken { .. }) => after >= LEAVE_WAIT,
        Some(Refusal::Foreign { .. } | Refusal::NoHolder) => true,
        // A folder above it was closed since: it lives, and has what was posted.
        Some(Refusal::OutOfReach { .. }) => holder_of(path).is_none_or(|pid| !is_ours(pid)),
        None => is_want(why),
    }
}

/// What an operator can do about an answer that is sure.
fn with_advice(place: &dyn fmt::Display, why: &io::Error) -> io::Error {
    let advice = match Refusal::of(why) {
        Some(Refusal::Taken { pid }) => format!(
            "each clad needs a socket of its own (ingest.unix.path): give this one another, or end process {pid}"
        ),
        Some(Refusal::Foreign { pid, .. }) => format!(
            "where it is the `clad hold` of a clad that ran as that user, start clad as that user once more, or give up what \
             lies in its rings (`kill {pid}`); else give ingest.unix.path a folder where no other user makes files"
        ),
        Some(Refusal::OutOfReach { .. }) => {
            "let this user go there; or, where it was made by a clad that ran as another one, start clad as that user once more, or \
             give up what may lie in its rings and remove it; or give ingest.unix.path another folder"
                .to_owned()
        }
        Some(Refusal::NoHolder) => "give ingest.unix.path, or the other program's socket, another name".to_owned(),
        None if is_want(why) => {
            "raise the limit of open files (LimitNOFILE= in the unit, `ulimit -n`) or make memory free; \
             what the rings hold stays kept"
                .to_owned()
        }
        None => return io::Error::new(why.kind(), format!("{place}: {why}")),
    };
    io::Error::new(why.kind(), format!("{place}: {why}; {advice}"))
}
