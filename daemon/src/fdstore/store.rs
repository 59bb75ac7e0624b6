//! systemd's descriptor store: it hands what a service leaves there to the service's next start.
//!
//! A ring is stored as one descriptor: a socket in whose queue lies a message with its note and its parts. Each start
//! looks at that message and leaves it there. The name is `clad-ring-` and the id of the ring, so that a ring can be
//! released by name. The unit says how many there may be (`FileDescriptorStoreMax=`).
//!
//! Invariants:
//! - A ring counts as stored only when the store has it. The service manager never answers, and drops in silence what
//!   is too many. So each ring is followed by a witness, the one end of a pipe. A barrier after it says that all of it
//!   was handled. Only our own messages free a place in the store, so what came before a witness that was taken was
//!   taken, too. A witness that was not taken is closed by then, which the other end of the pipe shows. The witness is
//!   taken out again.
//! - A systemd that has others close what it does not take (since 254) may close it later than that. It says how much
//!   room there is (`$FDSTORE`): what is stored is counted, and no more is sent. Where it says nothing there may be no
//!   room at all, and the first witness is watched for a while.
//! - It drops nothing else. A descriptor that is the same file as a stored one is one too many for it. All eventfds are
//!   the same file for an older systemd that may not ask the kernel (`kcmp`). A socket is its own. systemd before 246
//!   drops a socket that hangs up. So the other end lies in the message, too, and is open as long as the message is
//!   there.
//! - All rings come back: their names are handed over in one string of the environment. There is no start where it is
//!   longer than the kernel takes (128 KiB, which a test counts).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use clad_proto::frame::RingId;
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::note::Note;
use super::poll::{has_hung_up, is_want, wait};
use super::stored::{RING_FDS, StoredRing};
use crate::fds;
use crate::life::systemd;

/// Its name, for people.
pub(crate) const NAME: &str = "systemd's descriptor store";

const FD_NAME_PREFIX: &str = "clad-ring-";
const WITNESS_FD_NAME: &str = "clad-ring-witness";
/// Time that the service manager has to handle a ring.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after a service manager that said nothing, in which nobody else waits for it.
const SILENCE_PAUSE: Duration = Duration::from_secs(1);

/// Time for which the first witness is watched, where the room is not known.
const FIRST_WITNESS_TIMEOUT: Duration = Duration::from_millis(500);

/// Descriptors that the service manager had stored for this process.
#[derive(Debug, Default)]
pub(crate) struct InheritedFds(Vec<(String, OwnedFd)>);

impl InheritedFds {
    /// That of this process. To be asked once, before there are threads, and before the sockets are.
    ///
    /// # Errors
    /// Where it was asked before, or what was handed over cannot be taken.
    pub(crate) fn of_process() -> io::Result<Self> {
        clad_shm::inherited::claim(FD_NAME_PREFIX).map(Self)
    }

    /// Returns true if this process was handed any. A service that ends in a way after which it is not started again
    /// loses them all.
    pub(crate) fn is_there() -> bool {
        clad_shm::inherited::has(FD_NAME_PREFIX)
    }

    /// Returns true if a descriptor of this name is one of them.
    pub(crate) fn is_name(name: &str) -> bool {
        name.starts_with(FD_NAME_PREFIX)
    }
}

/// The connection to the store.
#[derive(Debug)]
pub(super) struct Store {
    line: UnixDatagram,
    barrier_timeout: Duration,
    /// The names of all that is stored, as far as our messages and what was handed over show.
    names: BTreeSet<String>,
    /// Number of descriptors that there may be, where the service manager says so.
    room: Option<usize>,
    /// Time for which the next witness is watched.
    witness_timeout: Duration,
    /// Time until which nothing is stored, for want of an answer.
    silent_until: Option<Instant>,
}

impl Store {
    fn new(line: UnixDatagram, room: Option<usize>) -> Self {
        let witness_timeout = if room.is_none() { FIRST_WITNESS_TIMEOUT } else { Duration::ZERO };
        // A release must not wait for the service manager; where it cannot be had, it is sent with waits.
        let _ = line.set_nonblocking(true);
        let (barrier_timeout, names) = (BARRIER_TIMEOUT, BTreeSet::new());
        Self { line, barrier_timeout, names, room, witness_timeout, silent_until: None }
    }

    /// The store of this process, where a service manager runs it.
    pub(super) fn of_process() -> Option<Self> {
        // Others speak the notification protocol too; only systemd gives its services an invocation id.
        std::env::var_os("INVOCATION_ID")?;
        let line = systemd::notify_socket().ok().flatten();
        if line.is_none() && systemd::runs_this_process() {
            tracing::warn!(
                "this unit has no notification socket (Type=notify), so systemd stores no rings: `posted` is not offered"
            );
        }
        let room = std::env::var("FDSTORE").ok().and_then(|room| room.parse().ok());
        line.map(|line| Self::new(line, room))
    }

    /// Stores a ring, and checks that it is stored.
    pub(super) fn put(&mut self, ring: &StoredRing) -> io::Result<()> {
        if self.silent_until.is_some_and(|until| Instant::now() < until) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it has not answered"));
        }
        let put = self.put_now(ring);
        let is_silent = |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        self.silent_until = put.as_ref().err().filter(|e| is_silent(e)).map(|_| Instant::now() + SILENCE_PAUSE);
        put
    }

    fn put_now(&mut self, ring: &StoredRing) -> io::Result<()> {
        if self.names.contains(WITNESS_FD_NAME) {
            self.remove_waiting(WITNESS_FD_NAME)?; // of a try that was cut off, for want of descriptors for example
        }
        // With its witness.
        if self.room.is_some_and(|room| self.names.len() + 2 > room) {
            return Err(is_full());
        }
        let put = self.try_put(ring);
        if put.is_err() {
            self.remove_waiting(&name(&ring.note))?;
        }
        put
    }

    fn try_put(&mut self, ring: &StoredRing) -> io::Result<()> {
        self.store(&name(&ring.note), packed(ring)?.as_fd())?;
        let (seen, witness) = io::pipe()?;
        self.store(WITNESS_FD_NAME, witness.as_fd())?;
        drop(witness);
        let (done, barrier) = io::pipe()?;
        self.send(b"BARRIER=1", &[barrier.as_fd()])?;
        drop(barrier);
        let (dealt_with, taken) =
            (has_hung_up(&done, self.barrier_timeout)?, !has_hung_up(&seen, self.witness_timeout)?);
        self.remove_waiting(WITNESS_FD_NAME)?;
        match (dealt_with, taken) {
            (true, true) => {
                self.witness_timeout = Duration::ZERO;
                Ok(())
            }
            (true, false) => Err(is_full()),
            (false, _) => {
                let text = format!("it has not said within {:?} that it does", self.barrier_timeout);
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        }
    }

    pub(super) fn forget(&mut self, note: &Note) -> io::Result<()> {
        self.remove(&name(note))
    }

    fn store(&mut self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.names.insert(name.to_owned());
        // Not polled: a store that looks for hang-ups would drop them when it sees one.
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
        self.send(text.as_bytes(), &[fd])
    }

    /// Sends a message as soon as there is room for it.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let until = Instant::now() + self.barrier_timeout;
        loop {
            match fds::send(&self.line, bytes, fds) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    wait(&self.line, PollFlags::OUT, until.saturating_duration_since(Instant::now()))?;
                }
                sent => return sent.map(drop),
            }
        }
    }

    fn remove_waiting(&mut self, name: &str) -> io::Result<()> {
        self.send(&removal(name), &[])?;
        self.names.remove(name);
        Ok(())
    }

    /// Removes one where that can be sent now.
    fn remove(&mut self, name: &str) -> io::Result<()> {
        fds::send(&self.line, &removal(name), &[])?;
        self.names.remove(name);
        Ok(())
    }

    /// Returns the rings that came back. A descriptor with a ring's name that is no ring is released; a name of another
    /// form is left alone.
    ///
    /// # Errors
    /// Where this process lacks descriptors: they stay stored.
    pub(super) fn sort(&mut self, stored: InheritedFds) -> io::Result<Vec<StoredRing>> {
        self.names.extend(stored.0.iter().map(|(name, _)| name.clone()));
        let mut kept = Vec::new();
        for (name, fd) in stored.0 {
            if name == WITNESS_FD_NAME {
                let _ = self.remove(WITNESS_FD_NAME); // of a daemon that died just then
            } else if is_name_of_ring(&name) {
                match unpacked(&fd) {
                    Ok(ring) => kept.push(ring),
                    Err(error) if is_want(&error) => return Err(error),
                    Err(error) => {
                        tracing::warn!(name, %error, "what came back from the descriptor store is no ring: it is released");
                        let _ = self.remove(&name);
                    }
                }
            }
        }
        Ok(kept)
    }
}

fn removal(name: &str) -> Vec<u8> {
    format!("FDSTOREREMOVE=1\nFDNAME={name}\n").into_bytes()
}

fn is_full() -> io::Error {
    io::Error::other(
        "its store is full: FileDescriptorStoreMax= in the unit must be one for each ring that [ingest.shm] max_rings allows, and \
         one more",
    )
}

/// The name of a ring in the store.
fn name(note: &Note) -> String {
    let hex: String = note.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{FD_NAME_PREFIX}{hex}")
}

fn is_name_of_ring(name: &str) -> bool {
    let hex = name.strip_prefix(FD_NAME_PREFIX).unwrap_or_default();
    hex.len() == 2 * RingId::default().as_bytes().len() && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// All of a ring, in one descriptor.
fn packed(ring: &StoredRing) -> io::Result<OwnedFd> {
    let (stored, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut parts = ring.parts();
    parts.push(other.as_fd());
    fds::send(&other, &ring.note.encode(), &parts)?;
    Ok(stored)
}

/// The ring, which stays in there.
fn unpacked(stored: &OwnedFd) -> io::Result<StoredRing> {
    let mut bytes = [0; Note::BYTES + 1];
    let (n, mut fds) = fds::look(stored, &mut bytes)?;
    fds.truncate(RING_FDS); // the other end, which keeps it from hanging up
    match bytes[..n].try_into() {
        Ok(note) if fds.len() == RING_FDS => Ok(StoredRing { note: Note::decode(note), fds }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::config::MAX_RINGS;

    fn pipe() -> OwnedFd {
        io::pipe().expect("a pipe").0.into()
    }

    fn eventfd() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("a descriptor")
    }

    /// A ring's memory is a file of its own; all doorbells are one.
    fn ring(uid: u32) -> StoredRing {
        let id = RingId::from_bytes([uid as u8; 16]);
        StoredRing { note: Note { id, uid, pid: 7, ..Note::default() }, fds: vec![pipe(), eventfd()] }
    }

    /// Identity of the file, as far as `fstat` and `fcntl` show.
    fn file(fd: &OwnedFd) -> (u64, rustix::fs::OFlags) {
        let stat = std::fs::File::from(fd.try_clone().expect("a descriptor")).metadata().expect("it is open");
        (stat.ino(), rustix::fs::fcntl_getfl(fd).expect("it is open"))
    }

    const END: &str = "end of the service";
    type Content = Vec<(String, OwnedFd)>;

    /// Long enough for a witness that is closed behind the barrier.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// A service manager with so much room, which may not ask the kernel which descriptors are the same. Returns the
    /// store of a service, and, at its end, what lies in it.
    pub(in crate::fdstore) fn manager(room: usize, stored: Content) -> (Store, std::thread::JoinHandle<Content>) {
        manager_that_drops(drop, room, stored)
    }

    /// The same; `drops` handles what it does not take.
    fn manager_that_drops(
        mut drops: impl FnMut(OwnedFd) + Send + 'static,
        room: usize,
        mut stored: Content,
    ) -> (Store, std::thread::JoinHandle<Content>) {
        let (line, theirs) = UnixDatagram::pair().unwrap();
        let stored = move || {
            let mut bytes = [0; 4096];
            loop {
                let (n, mut fds) = fds::receive(&theirs, &mut bytes).unwrap();
                let text = String::from_utf8(bytes[..n].to_vec()).unwrap();
                if text == END {
                    break;
                }
                let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
                match (name, fds.pop()) {
                    // Dropped in silence, as systemd does.
                    (Some(_), Some(fd)) if stored.iter().any(|(_, known)| file(known) == file(&fd)) => drops(fd),
                    (Some(name), Some(fd)) if stored.len() < room => stored.push((name.to_owned(), fd)),
                    (Some(name), None) => stored.retain(|(known, _)| known != name),
                    (Some(_), Some(fd)) => drops(fd),
                    (None, _) => assert_eq!(text, "BARRIER=1"),
                }
            }
            stored
        };
        // As one that closes at once what it does not take.
        (
            Store { barrier_timeout: TEST_TIMEOUT, witness_timeout: Duration::ZERO, ..Store::new(line, None) },
            std::thread::spawn(stored),
        )
    }

    fn end(store: &Store, stored: std::thread::JoinHandle<Content>) -> Content {
        store.line.send(END.as_bytes()).expect("it hears");
        stored.join().expect("it ends well")
    }

    /// Descriptors that the next start is handed.
    fn handed(stored: &Content) -> InheritedFds {
        InheritedFds(stored.iter().map(|(name, fd)| (name.clone(), fd.try_clone().expect("a descriptor"))).collect())
    }

    fn notes(kept: &[StoredRing]) -> Vec<Note> {
        kept.iter().map(|ring| ring.note).collect()
    }

    #[test]
    fn a_ring_counts_as_stored_only_where_it_is() {
        for room in 0..5 {
            let (mut store, stored) = manager(room, Vec::new());
            let rings = [1, 2, 3].map(ring);
            let kept = rings.each_ref().map(|ring| store.put(ring).is_ok());
            // One for each, and a place for the witness while it is looked for.
            assert_eq!(kept, [room >= 2, room >= 3, room >= 4], "room for {room}");
            let wanted: Vec<String> =
                rings.iter().zip(kept).filter(|(_, kept)| *kept).map(|(ring, _)| name(&ring.note)).collect();
            let names: Vec<String> = end(&store, stored).into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, wanted, "room for {room}: what is not kept is taken out again");
        }
    }

    /// systemd 254 and later have another process close what they do not take: it may do so at any time. Here it never
    /// does.
    #[test]
    fn what_is_not_taken_does_not_count_as_stored_however_late_it_is_closed() {
        for room in 0..6 {
            let mut never = Vec::new();
            let drops = move |fd| never.push(fd);
            let (mut store, stored) = manager_that_drops(drops, room, vec![(name(&ring(9).note), pipe())]);
            store.room = Some(room);
            let handed = InheritedFds(vec![(name(&ring(9).note), packed(&ring(9)).expect("packed"))]);
            assert_eq!(notes(&store.sort(handed).expect("there are descriptors")), notes(&[ring(9)]));
            let rings = [1, 2, 3].map(ring);
            let kept = rings.each_ref().map(|ring| store.put(ring).is_ok());
            assert_eq!(kept, [room >= 3, room >= 4, room >= 5], "room for {room}");
            // A released ring makes room, and the witness of a try that was cut off takes none.
            store.forget(&ring(9).note).expect("sent");
            store.store(WITNESS_FD_NAME, pipe().as_fd()).expect("sent");
            assert_eq!(store.put(&ring(4)).is_ok(), room >= 2, "room for {room}");
            let stored = end(&store, stored).len();
            assert_eq!(stored, kept.iter().filter(|kept| **kept).count() + usize::from(room >= 2), "room for {room}");
        }
    }

    /// A manager that has no room at all says nothing of it.
    #[test]
    fn the_first_witness_is_watched_where_nobody_says_how_much_room_there_is() {
        for room in [0, 2] {
            let later = |fd: OwnedFd| {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    drop(fd);
                });
            };
            let (mut store, stored) = manager_that_drops(later, room, Vec::new());
            store.witness_timeout = if room == 0 { TEST_TIMEOUT } else { Duration::from_millis(1) };
            for _ in 0..2 {
                assert_eq!(store.put(&ring(1)).is_ok(), room > 0, "room for {room}");
                store.forget(&ring(1).note).expect("sent");
                assert_eq!(store.witness_timeout.is_zero(), room > 0, "until one was taken");
            }
            end(&store, stored);
        }
        assert_eq!(Store::new(UnixDatagram::pair().unwrap().0, None).witness_timeout, FIRST_WITNESS_TIMEOUT);
        assert!(Store::new(UnixDatagram::pair().unwrap().0, Some(7)).witness_timeout.is_zero());
    }

    /// One start after the other, none of which releases anything. The ring's memory and doorbell are the ones that it
    /// had.
    #[test]
    fn every_ring_comes_back_whole_at_each_start() {
        let (mut store, stored) = manager(9, Vec::new());
        let rings = [1, 2, 3].map(ring);
        rings.iter().for_each(|ring| store.put(ring).expect("kept"));
        let mut stored = end(&store, stored);
        let other_name = stored[0].0.replace("01", "0g");
        for _start in 0..2 {
            let (store, next) = manager(9, stored);
            stored = end(&store, next);
            let hang_up = stored.iter().any(|(_, fd)| has_hung_up(fd, Duration::ZERO).expect("it is open"));
            assert!(!hang_up, "an older systemd drops what does");
            let mut handed = handed(&stored);
            handed.0.push((WITNESS_FD_NAME.to_owned(), pipe()));
            handed.0.push((other_name.clone(), pipe()));
            handed.0.push((name(&ring(9).note), pipe()));
            let (mut store, next) = manager(9, stored);
            let kept = store.sort(handed).expect("there are descriptors");
            stored = end(&store, next);
            assert_eq!(notes(&kept), notes(&rings));
            for (back, ring) in kept.iter().zip(&rings) {
                assert_eq!(file(&back.fds[0]), file(&ring.fds[0]));
                rustix::io::write(&back.fds[1], &1u64.to_ne_bytes()).expect("rung");
                let mut count = [0; 8];
                rustix::io::read(&ring.fds[1], &mut count).expect("heard");
                assert_eq!((back.fds.len(), u64::from_ne_bytes(count)), (RING_FDS, 1), "its own doorbell");
            }
        }
    }

    /// All names, and the sockets', are one string of the environment (execve(2), `MAX_ARG_STRLEN`).
    #[test]
    fn the_names_of_all_rings_can_be_handed_over() {
        let longest = name(&Note::default());
        assert!(is_name_of_ring(&longest) && longest.len() <= 255, "the longest that the store takes");
        let page = 4096;
        assert!((MAX_RINGS as usize + 1) * (longest.len() + 1) <= 32 * page / 2, "and as much for other names");
    }

    #[test]
    fn a_service_manager_that_says_nothing_stores_nothing() {
        let (line, _theirs) = UnixDatagram::pair().unwrap();
        let mut store = Store { barrier_timeout: Duration::from_millis(20), ..Store::new(line, Some(9)) };
        assert_eq!(store.put(&ring(1)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
