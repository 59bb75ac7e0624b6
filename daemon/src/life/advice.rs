//! Advice to an operator about an error of the data folder, or of an address, in words that go behind it.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clad_journal::io::device::{DurabilityClass, Obstacle};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, Group, Uid, User, access};

use crate::life::lock_holder::lock_holder;

/// The advice, with `; ` before it; empty where there is none to give.
pub(crate) fn on(dir: &Path, error: &io::Error) -> String {
    let shown = dir.display();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => {
            let own = user(Uid::effective().as_raw());
            // Another user's file in it, the folder itself, or the one above it that denies access.
            let at =
                others(dir).or_else(|| dir.ancestors().find_map(|path| Some((path.to_owned(), path.metadata().ok()?))));
            let Some((path, found)) = at else { return String::new() };
            let (owner, group, mode) = (user(found.uid()), group(found.gid()), found.mode() & 0o7777);
            format!(
                "; {} belongs to {owner}:{group} with mode {mode:04o}, and clad runs as {own}: give the folder to it \
                 (`chown -R {own}: {shown}`), or set journal.dir to another one",
                path.display()
            )
        }
        Some(Errno::EROFS) => format!(
            "; {shown} cannot be written by this service: mount it read-write, or, for a folder outside the unit's own, \
             add `ReadWritePaths={shown}` to the unit (`systemctl edit clad.service`)"
        ),
        Some(Errno::ENOSPC | Errno::EDQUOT) => {
            format!("; free space on the file system of {shown} (`df {shown}`); no acknowledged record is lost")
        }
        Some(Errno::ENOTDIR) => format!("; {shown} or something above it is a file: set journal.dir to a folder"),
        Some(Errno::EEXIST) if dir.is_symlink() => {
            format!(
                "; {shown} is a link to something that does not exist: mount or make its target, or set journal.dir to a folder"
            )
        }
        Some(Errno::EEXIST) => format!("; {shown} is no folder: set journal.dir to one, or to a name that is free"),
        Some(Errno::ENOENT) => missing(dir),
        _ => String::new(),
    }
}

/// The folder above `dir`, where that is not there. clad makes its data folder and nothing above it, which may be a
/// file system that is not mounted.
pub(crate) fn missing_above(dir: &Path) -> Option<&Path> {
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty())?;
    (!above.exists()).then_some(above)
}

fn missing(dir: &Path) -> String {
    let (shown, own) = (dir.display(), user(Uid::effective().as_raw()));
    match missing_above(dir) {
        Some(above) => format!(
            "; {} is not there, and clad makes nothing above its data folder: mount the file system, or make the folder \
             (`install --directory --owner={own} --mode=0750 {shown}`; for a service also `ReadWritePaths={shown}` in its unit)",
            above.display()
        ),
        None => format!("; {shown} cannot be made there: set journal.dir to a folder on a disk"),
    }
}

/// The same about a log for which no level above `written` is honest; empty where `durable` is.
pub(crate) fn on_class(class: &DurabilityClass) -> String {
    const MOVE: &str = "set journal.dir to a folder on ext4 with a journal, xfs or btrfs, on a disk";
    let DurabilityClass::Written { because } = class else { return String::new() };
    match because.iter().all(Obstacle::yields_to_word) {
        true => format!(
            "; {MOVE}; or state journal.power_loss_protected = true, if the storage keeps what it has acknowledged when the power fails"
        ),
        false => format!("; {MOVE}: journal.power_loss_protected = true does not help against this"),
    }
}

/// Reason why `durable` cannot be had here, and the same; empty where it can.
pub(crate) fn not_durable(class: &DurabilityClass) -> String {
    let DurabilityClass::Written { because } = class else { return String::new() };
    let because: Vec<_> = because.iter().map(Obstacle::to_string).collect();
    format!("{}{}", because.join("; "), on_class(class))
}

/// The same about a folder in which nothing could be made just now, by its looks; empty where there is nothing to see.
pub(crate) fn of_folder(dir: &Path) -> String {
    let seen = access(dir, AccessFlags::W_OK | AccessFlags::X_OK);
    seen.err().map_or_else(String::new, |errno| on(dir, &errno.into()))
}

/// The same about a log that another process has.
pub(crate) fn in_use(dir: &Path) -> String {
    let who = lock_holder(dir).map_or_else(|| "another process".to_owned(), |holder| holder.to_string());
    format!("; {who} uses it: stop that, or set another folder for this one (journal.dir, or --instance NAME)")
}

/// The same about an address that cannot be listened on, which this key names.
pub(crate) fn on_address(key: &str, error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EADDRINUSE) => {
            format!("; another program listens there (`ss --listening --processes` shows it): stop it, or set {key}")
        }
        Some(Errno::EADDRNOTAVAIL) => format!("; this host has no such address: set {key} to one that it has"),
        Some(Errno::EACCES) => format!("; this user may not use ports below 1024: set {key} to another one"),
        _ => String::new(),
    }
}

/// The same about a Unix socket that cannot be made, which this key names.
pub(crate) fn on_socket(key: &str, path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let own = user(Uid::effective().as_raw());
            let folders = path.ancestors().skip(1);
            let Some((folder, found)) = folders.filter_map(|above| Some((above, above.metadata().ok()?))).next() else {
                return format!("; set {key} to a name in a folder where clad may make files");
            };
            format!(
                "; {} belongs to {}:{} with mode {:04o}, and clad runs as {own}: let {own} make files there, or set {key} to a name in another folder",
                folder.display(),
                user(found.uid()),
                group(found.gid()),
                found.mode() & 0o7777
            )
        }
        io::ErrorKind::AddrInUse => format!("; stop that, or set {key} to another name"),
        io::ErrorKind::AlreadyExists => format!("; remove it, or set {key} to another name"),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            format!("; set {key} to a name in a folder where clad may make files, as in /run")
        }
        _ => String::new(),
    }
}

/// File in the folder that belongs to another user: for example after a run there as root.
fn others(dir: &Path) -> Option<(PathBuf, Metadata)> {
    let own = Uid::effective().as_raw();
    let mut entries = std::fs::read_dir(dir).ok()?.flatten();
    entries.find_map(|entry| entry.metadata().ok().filter(|meta| meta.uid() != own).map(|meta| (entry.path(), meta)))
}

fn user(id: u32) -> String {
    User::from_uid(Uid::from_raw(id)).ok().flatten().map_or_else(|| id.to_string(), |user| user.name)
}

fn group(id: u32) -> String {
    Group::from_gid(id.into()).ok().flatten().map_or_else(|| id.to_string(), |group| group.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_word_is_named_where_it_helps() {
        let journal = || Obstacle::NoJournal("ext4".to_owned());
        let memory = || Obstacle::MemoryFilesystem("tmpfs".to_owned());
        let advice = |because| on_class(&DurabilityClass::Written { because });
        let text = advice(vec![journal()]);
        assert!(text.contains("set journal.dir") && text.contains("or state journal.power_loss_protected"), "{text}");
        for because in [vec![memory()], vec![journal(), memory()]] {
            let text = advice(because);
            assert!(text.contains("set journal.dir") && text.contains("does not help"), "{text}");
        }
        let durable = DurabilityClass::Durable { by_word: vec![journal()] };
        assert_eq!((on_class(&durable), not_durable(&durable)), (String::new(), String::new()));
        let whole = not_durable(&DurabilityClass::Written { because: vec![memory()] });
        assert!(whole.starts_with("tmpfs keeps its files in memory; set journal.dir"), "{whole}");
    }

    #[test]
    fn each_error_that_an_operator_can_mend_says_how() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("not/there");
        for (errno, word) in [
            (Errno::EACCES, "chown -R"),
            (Errno::EROFS, "ReadWritePaths="),
            (Errno::ENOSPC, "free space"),
            (Errno::ENOTDIR, "journal.dir"),
            (Errno::ENOENT, "install --directory"),
            (Errno::EEXIST, "journal.dir"),
        ] {
            let text = on(&dir, &io::Error::from(errno));
            assert!(text.starts_with("; ") && text.contains(word), "{errno}: {text}");
        }
        let text = on(&dir, &io::Error::from(Errno::EACCES));
        assert!(
            text.contains(&format!("; {} belongs to", folder.path().display())),
            "the folder that is there: {text}"
        );
        assert_eq!(on(&dir, &io::Error::other("x")), "");
        assert_eq!(of_folder(folder.path()), "");
        assert!(of_folder(&dir).contains("is not there"));
        assert!(
            on(&dir, &io::Error::from(Errno::ENOENT))
                .starts_with(&format!("; {}/not is not there", folder.path().display()))
        );
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(on(&link, &io::Error::from(Errno::EEXIST)).contains("does not exist"));
        for (errno, word) in [(Errno::EADDRINUSE, "`ss "), (Errno::EADDRNOTAVAIL, "no such"), (Errno::EACCES, "1024")] {
            let text = on_address("metrics.listen", &io::Error::from(errno));
            assert!(text.contains(word) && text.contains("set metrics.listen"), "{errno}: {text}");
        }
        let socket = folder.path().join("none/clad.sock");
        for (errno, word) in [
            (Errno::EACCES, &*format!("; {} belongs to", folder.path().display())),
            (Errno::EADDRINUSE, "stop that"),
            (Errno::EEXIST, "remove it"),
            (Errno::EROFS, "/run"),
            (Errno::ENOTDIR, "/run"),
        ] {
            let text = on_socket("ingest.unix.path", &socket, &io::Error::from(errno));
            assert!(text.contains(word) && text.contains("set ingest.unix.path"), "{errno}: {text}");
        }
    }
}
