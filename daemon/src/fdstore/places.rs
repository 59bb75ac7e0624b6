//! Where the holder of a daemon's rings listens, and how the next start finds it.
//!
//! Invariants: two daemons have two places, also in one folder: the place is named after the socket for records, which
//! one daemon has at a time. The rings of a data folder's daemon are found again where the next start has another socket, or
//! none: a link in that folder leads to the place that was the last one. A copy of the folder has the link, too, and not the rings:
//! which folder it is tells its inode.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The holder's socket beside `clad.sock`; in an earlier version beside a socket of any name.
pub(crate) const HOLDER_SOCKET: &str = "rings.sock";
const RECORDS_SOCKET: &str = "clad.sock";
/// The link, and the name under which it is made. A folder with names that do not end so is refused as no log's.
const LINK: &str = "holder.sock";
const NEW_LINK: &str = "holder.new.sock";
/// The links to where rings were left, for it is not sure whose they are. Each start leaves one at most, by the place that the
/// link led to.
const LEFT: [&str; 4] = ["holder.left.sock", "holder.left2.sock", "holder.left3.sock", "holder.left4.sock"];

/// The socket of the holder for the daemon with this socket for records: no two of a folder have the same.
pub(super) fn of(socket: &Path) -> io::Result<PathBuf> {
    let name = socket.file_name().unwrap_or_default();
    let holder = match (name == RECORDS_SOCKET, socket.extension().is_some_and(|extension| extension == "sock")) {
        (true, _) => OsString::from(HOLDER_SOCKET),
        (false, true) => with(socket.file_stem().unwrap_or_default().to_owned(), ".rings.sock"),
        (false, false) => with(name.to_owned(), ".rings"),
    };
    std::path::absolute(socket.with_file_name(holder))
}

fn with(mut name: OsString, end: &str) -> OsString {
    name.push(end);
    name
}

/// Which folder it is: a copy, or a backup of it that was restored, is another one.
pub(super) fn identity(folder: &Path) -> [u8; 16] {
    let (device, inode) = std::fs::metadata(folder).map_or((0, 0), |found| (found.dev(), found.ino()));
    (u128::from(device) << 64 | u128::from(inode)).to_le_bytes()
}

/// What the data folder says of the place of the rings of its daemon.
#[derive(Debug)]
pub(super) struct Link<'a>(pub(super) &'a Path);

impl Link<'_> {
    /// Where they were kept by the last daemon; nothing where that kept none, or was of an earlier version.
    pub(super) fn target(&self) -> Option<PathBuf> {
        std::fs::read_link(self.0.join(LINK)).ok()
    }

    /// Where starts before have left rings: to be asked again.
    pub(super) fn left(&self) -> Vec<PathBuf> {
        LEFT.iter().filter_map(|name| std::fs::read_link(self.0.join(name)).ok()).collect()
    }

    /// These are all of them. One that is known keeps its link, so that none is forgotten on the way; of more than there are
    /// links for the last are forgotten, and said.
    pub(super) fn set_left(&self, targets: &[PathBuf]) -> io::Result<()> {
        let mut free = Vec::new();
        for name in LEFT {
            match std::fs::read_link(self.0.join(name)) {
                Ok(known) if targets.contains(&known) => {}
                _ => free.push(name),
            }
        }
        let known = self.left();
        let mut free = free.into_iter();
        for target in targets.iter().filter(|target| !known.contains(target)) {
            match free.next() {
                Some(name) => self.put(name, Some(target))?,
                None => tracing::warn!("{}: rings that are left there are not looked for again", target.display()),
            }
        }
        free.try_for_each(|name| self.put(name, None))
    }

    /// From now on they are kept there; `None`: by no holder.
    pub(super) fn set(&self, target: Option<&Path>) -> io::Result<()> {
        self.put(LINK, target)
    }

    fn put(&self, name: &str, target: Option<&Path>) -> io::Result<()> {
        let (link, new) = (self.0.join(name), self.0.join(NEW_LINK));
        if std::fs::read_link(&link).ok().as_deref() == target {
            return Ok(());
        }
        let gone = |removed: io::Result<()>| match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        match target {
            None => gone(std::fs::remove_file(link)),
            Some(target) => {
                gone(std::fs::remove_file(&new))?;
                std::os::unix::fs::symlink(target, &new)?;
                std::fs::rename(new, link)
            }
        }
    }
}

/// Where a daemon of an earlier version, which left no link, had its holder: beside its socket for records, which by
/// default lies in the data folder. Not where somebody answers on `clad.sock`, whose holder it is.
pub(super) fn earlier(socket: Option<&Path>, data: &Path) -> impl Iterator<Item = PathBuf> {
    let beside = socket.map(|socket| socket.with_file_name(HOLDER_SOCKET));
    let places = [beside, Some(data.join(HOLDER_SOCKET))].into_iter().flatten();
    let has_no_daemon = |place: &PathBuf| UnixStream::connect(place.with_file_name(RECORDS_SOCKET)).is_err();
    places.filter_map(|place| std::path::absolute(place).ok()).filter(has_no_daemon)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_sockets_of_a_folder_have_one_place() {
        let place = |name: &str| of(&Path::new("/run/x").join(name)).expect("a place");
        assert_eq!(place("clad.sock"), Path::new("/run/x/rings.sock"), "as it always was");
        assert_eq!(place("audit.sock"), Path::new("/run/x/audit.rings.sock"));
        let sockets =
            ["clad.sock", "audit.sock", "audit", "audit.rings", "audit.rings.sock", "rings.sock", "rings", ".sock"];
        let places: BTreeSet<PathBuf> = sockets.iter().map(|name| place(name)).collect();
        assert_eq!(places.len(), sockets.len(), "{places:?}");
    }

    #[test]
    fn the_link_leads_to_the_last_place() {
        let data = tempfile::tempdir().expect("a folder");
        let link = Link(data.path());
        assert_eq!(link.target(), None);
        for place in [Some(Path::new("/run/a.sock")), Some(Path::new("/run/b.sock")), None, None] {
            // One that was left half made is in nobody's way.
            std::os::unix::fs::symlink("/nowhere", data.path().join(NEW_LINK)).expect("made");
            link.set(place).expect("set");
            assert_eq!(link.target().as_deref(), place);
            let _ = std::fs::remove_file(data.path().join(NEW_LINK));
        }
    }
}
