//! The file of a writer: one description through the page cache, and one around it where possible; or a lent file of a
//! storage.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::options::How;
use super::write::{Buf, Done, Way, Write};
use crate::io::{Durability, File, IoBuf, Lock};

/// The least block that a direct write covers, whatever the file system reports.
const MIN_BLOCK: usize = 4096;
/// File systems that accept `O_DIRECT` and still use the page cache: tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58F6];

/// An open file.
pub(super) struct Target {
    pub(super) path: PathBuf,
    place: Place,
    /// Block that a direct write covers whole and that a buffer starts on: at least a page, so that direct and regular
    /// writes never meet in one.
    pub(super) block: usize,
}

/// Place of the bytes.
enum Place {
    Opened { regular: OwnedFd, direct: Option<OwnedFd> },
    Lent(Arc<dyn File>),
}

/// Result of opening.
pub(super) struct Opened {
    pub(super) target: Target,
    /// Bytes in the file.
    pub(super) len: u64,
    /// The folder, where this call made the file: its name is not durable yet.
    pub(super) folder: Option<OwnedFd>,
    /// The reason why there is no direct I/O.
    pub(super) fallback: Option<String>,
}

impl Target {
    pub(super) fn open(path: &Path, how: How, mode: u32, direct: bool) -> io::Result<Opened> {
        let (regular, made) = open_regular(path, how, Mode::from_raw_mode(mode))?;
        let stat = rustix::fs::fstat(&regular)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let page = rustix::param::page_size();
        let found = match direct {
            true if is_file => open_direct(path, &regular),
            true => Err("it is no plain file: no direct I/O".to_owned()),
            false => Err(String::new()),
        };
        let (direct, align, fallback) = match found {
            Ok((fd, align)) => (Some(fd), align, None),
            Err(why) => (None, 0, (!why.is_empty()).then_some(why)),
        };
        let folder = match made {
            Made::Here if is_file => Some(open_folder(path)?),
            Made::ThroughLink if is_file => Some(folder_behind(path, &regular)?),
            _ => None,
        };
        let block = MIN_BLOCK.max(page).max(align.next_power_of_two());
        let len = if is_file { stat.st_size as u64 } else { 0 };
        let place = Place::Opened { regular, direct };
        Ok(Opened { target: Self { path: path.to_owned(), place, block }, len, folder, fallback })
    }

    pub(super) fn lent(file: Arc<dyn File>, name: PathBuf, block: u32) -> io::Result<Opened> {
        let block = match block.is_power_of_two() {
            true => MIN_BLOCK.max(block as usize),
            false => return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{block} bytes are no block"))),
        };
        let len = file.len()?;
        Ok(Opened { target: Self { path: name, place: Place::Lent(file), block }, len, folder: None, fallback: None })
    }

    pub(super) fn is_direct(&self) -> bool {
        matches!(&self.place, Place::Opened { direct: Some(_), .. })
    }

    /// The kernel's descriptor, of a file that is not lent.
    pub(super) fn fd(&self, way: Way) -> Option<BorrowedFd<'_>> {
        match (&self.place, way) {
            (Place::Opened { direct: Some(direct), .. }, Way::Direct) => Some(direct.as_fd()),
            (Place::Opened { regular, .. }, _) => Some(regular.as_fd()),
            (Place::Lent(_), _) => None,
        }
    }

    /// One write, which may be short.
    pub(super) fn write(&self, way: Way, bytes: &[u8], pos: u64) -> io::Result<usize> {
        match (&self.place, self.fd(way)) {
            (Place::Lent(file), _) => {
                file.write_at(IoBuf::copy_of(bytes), pos, Durability::Written).1.map(|()| bytes.len())
            }
            (Place::Opened { regular, .. }, fd) => {
                Ok(rustix::io::pwrite(fd.unwrap_or_else(|| regular.as_fd()), bytes, pos)?)
            }
        }
    }

    /// The same with the buffer, which a lent file takes and returns.
    pub(super) fn attempt(&self, write: Write) -> Done {
        match &self.place {
            Place::Lent(file) if write.from == 0 => {
                let Write { buf: Buf { index, mut mem }, from, to, pos, way, retries } = write;
                let whole = mem.len();
                mem.set_len(to);
                let (mut mem, done) = file.write_at(mem, pos, Durability::Written);
                mem.set_len(whole);
                let write = Write { buf: Buf { index, mem }, from, to, pos, way, retries };
                Done { write, result: done.map(|()| to) }
            }
            _ => {
                let result = self.write(write.way, write.bytes(), write.pos);
                Done { write, result }
            }
        }
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.place {
            Place::Opened { regular, .. } => Ok(rustix::fs::ftruncate(regular, len)?),
            Place::Lent(file) => file.set_len(len),
        }
    }

    /// `fsync` where more than the data and the metadata it needs must be durable, else `fdatasync`.
    pub(super) fn sync(&self, all: bool) -> io::Result<()> {
        match (&self.place, all) {
            (Place::Opened { regular, .. }, true) => Ok(rustix::fs::fsync(regular)?),
            (Place::Opened { regular, .. }, false) => Ok(rustix::fs::fdatasync(regular)?),
            (Place::Lent(file), true) => file.sync_all(),
            (Place::Lent(file), false) => file.sync_data(),
        }
    }

    /// Takes the file for this writer alone; false where another has it.
    pub(super) fn try_lock(&self) -> io::Result<bool> {
        match &self.place {
            Place::Opened { regular, .. } => match rustix::fs::flock(regular, FlockOperation::NonBlockingLockExclusive)
            {
                Ok(()) => Ok(true),
                Err(Errno::WOULDBLOCK) => Ok(false),
                Err(e) => Err(e.into()),
            },
            Place::Lent(file) => file.try_lock(Lock::Exclusive),
        }
    }
}

pub(super) fn sync_folder(folder: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(folder)?)
}

/// Result of a create: if the file is new, and where it lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    No,
    /// Under the given name.
    Here,
    /// At the target of a link of that name.
    ThroughLink,
}

fn open_regular(path: &Path, how: How, mode: Mode) -> io::Result<(OwnedFd, Made)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::open(path, flags, mode);
    // The creator must know that it made the file, to make its name durable: `O_EXCL` first, then without it.
    let create = |otherwise: OFlags| match open(flags | OFlags::CREATE | OFlags::EXCL) {
        Ok(fd) => Ok((fd, Made::Here)),
        Err(Errno::EXIST) => match open(flags | otherwise) {
            Ok(fd) => Ok((fd, Made::No)),
            // A link that leads nowhere yet.
            Err(Errno::NOENT) => Ok((open(flags | OFlags::CREATE)?, Made::ThroughLink)),
            // A file that permits writes only (a pipe's end, a device).
            Err(Errno::ACCESS) => Ok((open(OFlags::WRONLY | OFlags::CLOEXEC | otherwise)?, Made::No)),
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    };
    Ok(match how {
        How::CreateNew => (open(flags | OFlags::CREATE | OFlags::EXCL)?, Made::Here),
        How::Create => create(OFlags::TRUNC)?,
        How::Append => create(OFlags::empty())?,
        How::Open => (open(flags)?, Made::No),
    })
}

/// Opens a second description around the page cache, returned with its alignment; or the reason why there is none.
fn open_direct(path: &Path, regular: &OwnedFd) -> Result<(OwnedFd, usize), String> {
    let refused = |what: &str| format!("{what}: no direct I/O, the page cache is used");
    let magic = rustix::fs::fstatfs(regular).map(|s| s.f_type as u64 & 0xFFFF_FFFF);
    if magic.is_ok_and(|magic| IN_MEMORY.contains(&magic)) {
        return Err(refused("the file system is in memory"));
    }
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| refused(&io::Error::from(e).to_string()))?;
    let stat = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|s| (s.st_dev, s.st_ino)).ok();
    if stat(&fd) != stat(regular) {
        return Err(refused("the file was replaced while it was opened"));
    }
    let direct_io = rustix::fs::statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    match direct_io.filter(|s| s.stx_mask & StatxFlags::DIOALIGN.bits() != 0) {
        Some(s) if s.stx_dio_offset_align == 0 => Err(refused("the file system says that it has none")),
        Some(s) => Ok((fd, s.stx_dio_offset_align as usize)),
        // The alignment is unknown: the first write finds it, and a refused write goes the other way.
        None => Ok((fd, 0)),
    }
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Ok(rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The folder of a file that was made at the target of a link: the link's own folder has no new name.
fn folder_behind(link: &Path, made: &OwnedFd) -> io::Result<OwnedFd> {
    let path = link.canonicalize()?;
    let folder = open_folder(&path)?;
    let stat = rustix::fs::fstat(made)?;
    let name = path.file_name().unwrap_or_default();
    match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino) => Ok(folder),
        _ => Err(io::Error::other(format!("{}: the link was changed while it was opened", link.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::io::real_folder;

    /// The new name is in the folder that the link leads to, also through further links; that folder is synced.
    #[test]
    fn the_folder_of_a_file_made_through_a_link_is_that_of_the_file() {
        let root = real_folder();
        let (here, there) = (root.path().join("here"), root.path().join("there"));
        std::fs::create_dir(&here).unwrap();
        std::fs::create_dir(&there).unwrap();
        symlink("../there/file", here.join("relative")).unwrap();
        symlink("relative", here.join("twice")).unwrap();
        symlink(there.join("file"), here.join("absolute")).unwrap();
        let inode = |path: &Path| rustix::fs::stat(path).map(|s| s.st_ino).unwrap();
        let opened = |name: &str, how| {
            let opened = Target::open(&here.join(name), how, 0o600, false).unwrap();
            opened.folder.map(|folder| rustix::fs::fstat(&folder).unwrap().st_ino)
        };
        for name in ["relative", "twice", "absolute"] {
            for how in [How::Create, How::Append] {
                assert_eq!(opened(name, how), Some(inode(&there)), "{name}, {how:?}");
                assert_eq!(opened(name, how), None, "{name}, {how:?}: it is there");
                std::fs::remove_file(there.join("file")).unwrap();
            }
        }
        assert_eq!(opened("plain", How::Create), Some(inode(&here)));
    }
}
