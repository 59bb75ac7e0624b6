//! systemd's descriptor store: what a service leaves there is handed to its next start.
//!
//! Each part of a ring is stored under a name of its own, `clad-ring-<note>-<part>`, the note in hexadecimal digits: what
//! comes back is told apart, and known, by its name alone. The unit says how many there may be (`FileDescriptorStoreMax=`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use super::{Kept, Note, PARTS};
use crate::{fds, systemd};

const PREFIX: &str = "clad-ring-";
const NAMES: [&str; PARTS] = ["ring", "bell"];

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
pub(crate) struct Store(UnixDatagram);

impl Store {
    /// The store of this process, where a service manager runs it.
    pub(super) fn of_process() -> Option<Self> {
        // Others speak the notification protocol too; only systemd gives its services an invocation id.
        std::env::var_os("INVOCATION_ID")?;
        systemd::notify_socket().ok().flatten().map(Self)
    }

    pub(super) fn keep(&self, ring: &Kept) -> io::Result<()> {
        for (name, part) in names(&ring.note).iter().zip(ring.parts()) {
            // Not polled: a store that looks for hang-ups would drop them when it sees one.
            let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
            fds::send(&self.0, text.as_bytes(), &[part])?;
        }
        Ok(())
    }

    pub(super) fn forget(&self, note: &Note) -> io::Result<()> {
        for name in names(note) {
            let text = format!("FDSTOREREMOVE=1\nFDNAME={name}\n");
            fds::send(&self.0, text.as_bytes(), &[])?;
        }
        Ok(())
    }

    /// What came back, by ring. Of a ring that is not whole the rest is let go.
    pub(super) fn sort(&self, stored: Stored) -> Vec<Kept> {
        let (whole, rest) = sort(stored.0);
        for note in rest {
            tracing::warn!(ring = %note.id, "a ring came back from the descriptor store in part: it is let go");
            let _ = self.forget(&note);
        }
        whole
    }
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
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_stored_comes_back_by_ring_in_whatever_order() {
        let fd = || io::stderr().as_fd().try_clone_to_owned().unwrap();
        let (one, two) = (Note { uid: 1000, pid: 7, ..Note::default() }, Note { uid: 1, ..Note::default() });
        let ([ring, bell], [half, _]) = (names(&one), names(&two));
        assert!(ring.len() <= 255, "the longest name that the store takes");
        let stored = [bell, half, ring.clone(), "other".into()];
        let (whole, rest) = sort(stored.into_iter().map(|name| (name, fd())).collect());
        assert_eq!(whole.iter().map(|k| (k.note, k.fds.len())).collect::<Vec<_>>(), [(one, PARTS)]);
        assert_eq!(rest, [two], "in part");
        for bad in ["clad-ring-", "clad-ring-a-ring", "clad-ring-é-ring", &ring.replace("-ring", "-heart"), "ring"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
