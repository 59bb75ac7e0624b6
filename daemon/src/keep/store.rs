//! systemd's descriptor store: what a service leaves there is handed to its next start.
//!
//! Each part of a ring is stored under a name of its own, `clad-ring-<note>-<part>`, the note in hexadecimal digits: what
//! comes back is told apart, and known, by its name alone. The unit says how many there may be (`FileDescriptorStoreMax=`).
//!
//! What must hold: a ring counts as kept only when the store has it. The service manager never answers, and drops in silence
//! what is too many. So each ring is followed by a witness, the one end of a pipe, and that by a barrier, which says that
//! all of it was dealt with: nothing frees a place in the store but messages of ours, so what came before a witness that was
//! taken was taken, too. A witness that was not is closed by then, which the other end of the pipe tells. It is taken out again.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Kept, Note, PARTS};
use crate::{fds, systemd};

const PREFIX: &str = "clad-ring-";
const NAMES: [&str; PARTS] = ["ring", "bell"];
const WITNESS: &str = "clad-ring-witness";
/// How long the service manager has to deal with a ring.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the service manager had stored for this process.
#[derive(Debug, Default)]
pub(crate) struct Stored(Vec<(String, OwnedFd)>);

impl Stored {
    /// That of this process. To be asked once, before there are threads, and before the sockets are.
    ///
    /// # Errors
    /// Where it was asked before, or what was handed over cannot be taken.
    pub(crate) fn of_process() -> io::Result<Self> {
        clad_shm::inherited::claim(PREFIX).map(Self)
    }

    /// Whether a descriptor of this name is one of them.
    pub(crate) fn is_name(name: &str) -> bool {
        name.starts_with(PREFIX)
    }
}

/// The line to the store.
#[derive(Debug)]
pub(super) struct Store {
    line: UnixDatagram,
    patience: Duration,
}

impl Store {
    /// The store of this process, where a service manager runs it.
    pub(super) fn of_process() -> Option<Self> {
        // Others speak the notification protocol too; only systemd gives its services an invocation id.
        std::env::var_os("INVOCATION_ID")?;
        let line = systemd::notify_socket().ok().flatten();
        if line.is_none() && systemd::runs_this_process() {
            tracing::warn!(
                "this unit has no notification socket (Type=notify), so systemd keeps no rings: a process of clad's does, and \
                 KillMode=control-group ends it with clad"
            );
        }
        line.map(|line| Self { line, patience: PATIENCE })
    }

    /// Has a ring kept, and sees that it is.
    pub(super) fn keep(&self, ring: &Kept) -> io::Result<()> {
        let kept = self.try_keep(ring);
        if kept.is_err() {
            self.forget(&ring.note)?;
        }
        kept
    }

    fn try_keep(&self, ring: &Kept) -> io::Result<()> {
        for (name, part) in names(&ring.note).iter().zip(ring.parts()) {
            self.store(name, part)?;
        }
        let (seen, witness) = io::pipe()?;
        self.store(WITNESS, witness.as_fd())?;
        drop(witness);
        let (done, barrier) = io::pipe()?;
        fds::send(&self.line, b"BARRIER=1", &[barrier.as_fd()])?;
        drop(barrier);
        let (dealt_with, taken) = (has_hung_up(&done, self.patience)?, !has_hung_up(&seen, Duration::ZERO)?);
        self.remove(WITNESS)?;
        match (dealt_with, taken) {
            (true, true) => Ok(()),
            (true, false) => Err(io::Error::other(
                "its store is full: FileDescriptorStoreMax= in the unit must be two for each ring that [ingest.shm] max_rings \
                 allows, and one more",
            )),
            (false, _) => {
                let text = format!("it has not said within {:?} that it does", self.patience);
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        }
    }

    pub(super) fn forget(&self, note: &Note) -> io::Result<()> {
        names(note).iter().try_for_each(|name| self.remove(name))
    }

    fn store(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Not polled: a store that looks for hang-ups would drop them when it sees one.
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
        fds::send(&self.line, text.as_bytes(), &[fd]).map(drop)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fds::send(&self.line, format!("FDSTOREREMOVE=1\nFDNAME={name}\n").as_bytes(), &[]).map(drop)
    }

    /// What came back, by ring. Of a ring that is not whole the rest is let go.
    pub(super) fn sort(&self, stored: Stored) -> Vec<Kept> {
        if stored.0.iter().any(|(name, _)| name == WITNESS) {
            let _ = self.remove(WITNESS); // of a daemon that died just then
        }
        let (whole, rest) = sort(stored.0);
        for note in rest {
            tracing::warn!(ring = %note.id, "a ring came back from the descriptor store in part: it is let go");
            let _ = self.forget(&note);
        }
        whole
    }
}

/// Whether nobody has the other end of a pipe any more, now or within some time.
fn has_hung_up(pipe: impl AsFd, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
    let within = Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos().into() };
    poll(&mut fds, Some(&within))?;
    Ok(fds[0].revents().contains(PollFlags::HUP))
}

/// The names of a ring's parts.
fn names(note: &Note) -> [String; PARTS] {
    let hex: String = note.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    NAMES.map(|part| format!("{PREFIX}{hex}-{part}"))
}

fn sort(stored: Vec<(String, OwnedFd)>) -> (Vec<Kept>, Vec<Note>) {
    let mut rings: BTreeMap<[u8; Note::BYTES], [Option<OwnedFd>; PARTS]> = BTreeMap::new();
    for (name, fd) in stored {
        if let Some((note, part)) = parse(&name) {
            rings.entry(note).or_default()[part] = Some(fd);
        }
    }
    let (mut whole, mut rest) = (Vec::new(), Vec::new());
    for (note, parts) in rings {
        let note = Note::decode(&note);
        let fds: Vec<OwnedFd> = parts.into_iter().flatten().collect();
        match fds.len() {
            PARTS => whole.push(Kept { note, fds }),
            _ => rest.push(note),
        }
    }
    (whole, rest)
}

/// The note and the part of a name.
fn parse(name: &str) -> Option<([u8; Note::BYTES], usize)> {
    let (hex, part) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let part = NAMES.iter().position(|known| *known == part)?;
    if hex.len() != 2 * Note::BYTES || !hex.is_ascii() {
        return None;
    }
    let mut bytes = [0; Note::BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some((bytes, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any_fd() -> OwnedFd {
        io::stderr().as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn what_is_stored_comes_back_by_ring_in_whatever_order() {
        let (one, two) = (Note { uid: 1000, pid: 7, ..Note::default() }, Note { uid: 1, ..Note::default() });
        let ([ring, bell], [half, _]) = (names(&one), names(&two));
        assert!(ring.len() <= 255, "the longest name that the store takes");
        let stored = [bell, half, ring.clone(), "other".into(), WITNESS.into()];
        let (whole, rest) = sort(stored.into_iter().map(|name| (name, any_fd())).collect());
        assert_eq!(whole.iter().map(|k| (k.note, k.fds.len())).collect::<Vec<_>>(), [(one, PARTS)]);
        assert_eq!(rest, [two], "in part");
        for bad in ["clad-ring-", "clad-ring-a-ring", "clad-ring-é-ring", &ring.replace("-ring", "-heart"), "ring"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    const END: &str = "end of the service";

    /// A service manager with so much room. Gives the store of a service, and, at its end, what lies in it.
    fn manager(room: usize) -> (Store, std::thread::JoinHandle<Vec<String>>) {
        let (line, theirs) = UnixDatagram::pair().unwrap();
        let stored = move || {
            let mut stored: Vec<(String, OwnedFd)> = Vec::new();
            let mut bytes = [0; 4096];
            loop {
                let (n, mut fds) = fds::receive(&theirs, &mut bytes).unwrap();
                let text = String::from_utf8(bytes[..n].to_vec()).unwrap();
                if text == END {
                    break;
                }
                let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
                match (name, fds.pop()) {
                    (Some(name), Some(fd)) if stored.len() < room => stored.push((name.to_owned(), fd)),
                    (Some(name), None) => stored.retain(|(known, _)| known != name),
                    (Some(_), Some(_)) => {} // dropped in silence, as systemd does
                    (None, _) => assert_eq!(text, "BARRIER=1"),
                }
            }
            stored.into_iter().map(|(name, _)| name).collect()
        };
        (Store { line, patience: Duration::from_secs(60) }, std::thread::spawn(stored))
    }

    #[test]
    fn a_ring_counts_as_kept_only_where_all_of_it_is() {
        for room in 0..8 {
            let (store, stored) = manager(room);
            let notes = [1, 2, 3].map(|uid| Note { uid, ..Note::default() });
            let kept = notes.map(|note| store.keep(&Kept { note, fds: vec![any_fd(), any_fd()] }).is_ok());
            // Two for each, and a place for the witness while it is looked for.
            assert_eq!(kept, [room >= 3, room >= 5, room >= 7], "room for {room}");
            store.line.send(END.as_bytes()).unwrap();
            let wanted: Vec<String> =
                notes.iter().zip(kept).filter(|(_, kept)| *kept).flat_map(|(n, _)| names(n)).collect();
            assert_eq!(stored.join().unwrap(), wanted, "room for {room}: what is not whole is taken out again");
        }
    }

    #[test]
    fn a_service_manager_that_says_nothing_keeps_nothing() {
        let (line, _theirs) = UnixDatagram::pair().unwrap();
        let store = Store { line, patience: Duration::from_millis(20) };
        let kept = store.keep(&Kept { note: Note::default(), fds: vec![any_fd(), any_fd()] });
        assert_eq!(kept.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
