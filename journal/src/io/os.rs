//! The operating system as a [`Storage`]: blocking calls relative to an open folder, and a ring beside them where the
//! engine is `uring`. Both work on the same open files.
//!
//! Invariants beyond the trait:
//! - Names are resolved against the folder's descriptor, so that a rename of the folder under a running daemon
//!   changes nothing, and links are never followed.
//! - Direct I/O is tested, not assumed: a file without a name is opened and one block is written. A storage that only
//!   reads tries it with the first block of the first file that is read, and writes nothing. A start on a full disk
//!   does the same; otherwise it would use the page cache for as long as it runs.
//! - `RWF_DSYNC` promises the bytes of its call alone. A file system may refuse the flag (`EOPNOTSUPP`, or `ENOSYS`
//!   where an intermediate layer does not know the call). Then a plain write and `fdatasync` keep the same promise, and
//!   a fallback is reported.

use std::io;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::engine::{Fallback, FallbackReason, Fallbacks, Grounds, OnFallback, choose};
use super::extents;
use super::lease::{self, Lease};
use super::uring::{self, Ring};
use super::{
    Access, Durability, Engine, EngineReport, EngineWish, Entry, EntryKind, File, IoBuf, Lock, Space, Storage,
    TakeOver, Witness,
};

/// A folder on a real file system.
pub struct OsStorage {
    dir: OwnedFd,
    block_size: u32,
    /// True if direct I/O works here; unset before the first file was read, where nothing may be written.
    direct: OnceLock<bool>,
    zeroing: bool,
    ring: Option<Ring>,
    why: String,
    sync: Arc<WriteSync>,
    fallbacks: Arc<Fallbacks>,
}

/// Grounds for the choice of the engine, and the callback for fallbacks.
#[derive(Clone)]
pub struct EngineOptions {
    /// The engine that is asked for.
    pub wish: EngineWish,
    /// Writes that will be in flight at once, at most.
    pub in_flight: usize,
    /// Called with each fallback, also with one that is found later; must not block.
    pub on_fallback: OnFallback,
}

/// Way to sync a write: shared by all files of one storage, because the file system decides it.
struct WriteSync {
    refused: AtomicBool,
    fallbacks: Arc<Fallbacks>,
}

impl OsStorage {
    /// Opens a folder that exists.
    ///
    /// `block_size` is the result of [`super::device::discover`]; `zeroing` is true if zero-written space pays there.
    ///
    /// # Errors
    /// The kernel's error when the folder cannot be opened.
    pub fn open(dir: &Path, block_size: u32, zeroing: bool) -> io::Result<Self> {
        let wish = EngineWish::Blocking;
        let options = EngineOptions { wish, in_flight: 1, on_fallback: Arc::new(|_| {}) };
        Self::open_with(dir, block_size, zeroing, &options)
    }

    /// The same for a storage that only reads: nothing is written, not even as a trial.
    ///
    /// # Errors
    /// The kernel's error when the folder cannot be opened.
    pub(crate) fn to_read(dir: &Path, block_size: u32) -> io::Result<Self> {
        let fallbacks = Arc::new(Fallbacks::new(Arc::new(|_| {})));
        let sync = Arc::new(WriteSync { refused: AtomicBool::new(false), fallbacks: fallbacks.clone() });
        let (direct, why) = (OnceLock::new(), "nothing is written".to_owned());
        Ok(Self { dir: folder(dir)?, block_size, direct, zeroing: false, ring: None, why, sync, fallbacks })
    }

    /// The same with an engine: the requested one, or that which was measured faster, or threads where that is not available.
    ///
    /// # Errors
    /// The kernel's error when the folder cannot be opened, or no thread can be started.
    pub fn open_with(dir: &Path, block_size: u32, zeroing: bool, options: &EngineOptions) -> io::Result<Self> {
        let fd = folder(dir)?;
        let fallbacks = Arc::new(Fallbacks::new(options.on_fallback.clone()));
        let refused = try_direct(&fd, block_size).err();
        let no_room = matches!(refused, Some(Errno::NOSPC | Errno::DQUOT));
        let refused = refused.filter(|_| !no_room || Self::found_direct(dir, block_size) != Some(true));
        let direct = refused.is_none();
        if let Some(errno) = refused {
            fallbacks.add(Fallback::new(FallbackReason::Direct, no_direct(errno)));
        }
        let grounds = Grounds { wish: options.wish, direct, in_flight: options.in_flight };
        let (engine, why) = choose(&grounds);
        let mut why = why.to_owned();
        let mut ring = None;
        if engine == Engine::Uring {
            match start_ring(&fd, direct, block_size, &fallbacks) {
                Ok(started) => ring = Some(started),
                Err(fallback) => {
                    why = format!("io_uring is not to be had: {fallback}");
                    fallbacks.add(fallback);
                }
            }
        }
        let sync = Arc::new(WriteSync { refused: AtomicBool::new(false), fallbacks: fallbacks.clone() });
        Ok(Self { dir: fd, block_size, direct: direct.into(), zeroing, ring, why, sync, fallbacks })
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<Arc<dyn File>> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(0o600))?;
        Ok(Arc::new(OsFile { fd, sync: self.sync.clone() }))
    }

    fn flags(&self, access: Access) -> OFlags {
        let direct = if self.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
        match access {
            Access::ReadDirect => OFlags::RDONLY | direct,
            Access::ReadCached => OFlags::RDONLY,
            Access::WriteDirect => OFlags::RDWR | direct,
            Access::WriteCached => OFlags::RDWR,
        }
    }

    /// Reads the first block of a file past the page cache; `None` where the file gives no answer.
    fn reads_direct(&self, name: &str) -> Option<bool> {
        let refused = |e: &io::Error| matches!(Errno::from_io_error(e), Some(Errno::INVAL | Errno::OPNOTSUPP));
        match self.file(name, OFlags::RDONLY | OFlags::DIRECT) {
            Ok(file) => {
                let block = self.block_size as usize;
                let (_, read) = file.read_at(IoBuf::with_capacity(block), 0, block);
                Some(read.err().is_none_or(|e| !refused(&e)))
            }
            Err(e) => refused(&e).then_some(false),
        }
    }

    /// Returns true if existing files are read past the page cache: the trial for a full disk, which has no space for a
    /// file without a name. `None` where there is no such file.
    fn found_direct(dir: &Path, block_size: u32) -> Option<bool> {
        let reading = Self::to_read(dir, block_size).ok()?;
        let entries = reading.list("").ok()?;
        let blocks = entries.into_iter().filter(|e| e.kind == EntryKind::File && e.len >= u64::from(block_size));
        blocks.into_iter().find_map(|entry| reading.reads_direct(&entry.name))
    }

    fn subdir(&self, dir: &str) -> io::Result<OwnedFd> {
        let name = if dir.is_empty() { "." } else { dir };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, name, flags, Mode::empty())?)
    }
}

fn folder(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

fn start_ring(dir: &OwnedFd, direct: bool, block: u32, fallbacks: &Arc<Fallbacks>) -> Result<Ring, Fallback> {
    let style = uring::available(dir, direct, block, fallbacks).map_err(|refused| refused.0)?;
    let setup = uring::Setup { style, fallbacks: fallbacks.clone() };
    Ring::start(setup).map_err(|e| uring::Refused::from_error("io_uring cannot be set up", &e).0)
}

fn try_direct(dir: &OwnedFd, block_size: u32) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, ".", flags, Mode::from_raw_mode(0o600))?;
    let block = IoBuf::zeroed(block_size as usize);
    match rustix::io::pwrite(&fd, &block, 0)? {
        n if n == block.len() => Ok(()),
        _ => Err(Errno::NOSPC), // a part is written only where there is no room for the rest
    }
}

/// Text for a refusal: of direct I/O, or of its trial (no permission to write, no space).
fn no_direct(errno: Errno) -> String {
    match errno {
        Errno::INVAL | Errno::OPNOTSUPP | Errno::ISDIR => {
            "the file system has no direct I/O: writes go through the page cache; ext4, xfs or btrfs would have it"
                .into()
        }
        errno => {
            let why = io::Error::from(errno);
            format!("whether there is direct I/O could not be tried ({why}): writes go through the page cache")
        }
    }
}

impl Storage for OsStorage {
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        let fd = self.subdir(dir)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                return Err(io::Error::other(format!("a name that is not UTF-8: {:?}", entry.file_name())));
            };
            if name == "." || name == ".." {
                continue;
            }
            let stat = match rustix::fs::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue, // removed since the folder was read
                Err(e) => return Err(e.into()),
            };
            let kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
                rustix::fs::FileType::RegularFile => EntryKind::File,
                rustix::fs::FileType::Directory => EntryKind::Dir,
                _ => EntryKind::Other,
            };
            let len = if kind == EntryKind::File { stat.st_size as u64 } else { 0 };
            entries.push(Entry { name: name.to_owned(), len, kind });
        }
        Ok(entries)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        if access == Access::ReadDirect
            && self.direct.get().is_none()
            && let Some(direct) = self.reads_direct(name)
        {
            let _ = self.direct.set(direct);
        }
        self.file(name, self.flags(access))
    }

    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        self.file(name, self.flags(access) | OFlags::CREATE | OFlags::EXCL)
    }

    fn create_dir(&self, name: &str) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, from, &self.dir, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.dir, from, flags, Mode::empty())?;
        match lease::take(&fd)? {
            Lease::Held => {}
            Lease::Busy => return Ok(TakeOver::Refused(Witness::Open)),
            Lease::Unknown => return Ok(TakeOver::Refused(Witness::Unproven)),
        }
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_nlink != 1 {
            return Ok(TakeOver::Refused(Witness::Linked));
        }
        if !extents::overwrites_in_place(&fd, stat.st_size as u64)? {
            return Ok(TakeOver::Refused(Witness::Shared));
        }
        self.rename(from, to)?;
        // A process that found it by its old name and waits for the end of the lease would see it change.
        if lease::is_whole(&fd)? {
            return Ok(TakeOver::Done);
        }
        self.rename(to, from)?;
        Ok(TakeOver::Refused(Witness::Open))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.subdir(dir)?)?)
    }

    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()> {
        let mode = Mode::from_raw_mode(if sealed { 0o640 } else { 0o600 });
        Ok(rustix::fs::chmodat(&self.dir, name, mode, AtFlags::empty())?)
    }

    fn space(&self) -> io::Result<Space> {
        let s = rustix::fs::fstatvfs(&self.dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
        // btrfs, for one, makes them on demand and counts none.
        let files = if s.f_files == 0 { u64::MAX } else { s.f_favail };
        Ok(Space { free: bytes(s.f_bavail), total: bytes(s.f_blocks), files })
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn is_direct(&self) -> bool {
        self.direct.get().is_some_and(|direct| *direct)
    }

    fn zeroing_pays(&self) -> bool {
        self.zeroing
    }

    fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    fn engine(&self) -> EngineReport {
        let engine = if self.ring.is_some() { Engine::Uring } else { Engine::Blocking };
        EngineReport { engine, why: self.why.clone(), fallbacks: self.fallbacks.all() }
    }
}

struct OsFile {
    fd: OwnedFd,
    sync: Arc<WriteSync>,
}

/// Writes all of `bytes`; a short write continues.
pub(super) fn write_all(fd: &OwnedFd, mut bytes: &[u8], mut pos: u64, flags: ReadWriteFlags) -> io::Result<()> {
    while !bytes.is_empty() {
        let wrote = match flags.is_empty() {
            // A system that refuses the newer call may still know the older one.
            true => rustix::io::pwrite(fd, bytes, pos),
            false => rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], pos, flags),
        };
        let n = match wrote {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => n,
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        };
        bytes = &bytes[n..];
        pos += n as u64;
    }
    Ok(())
}

impl OsFile {
    fn write_synced(&self, bytes: &[u8], pos: u64) -> io::Result<()> {
        if !self.sync.refused.load(Ordering::Relaxed) {
            match write_all(&self.fd, bytes, pos, ReadWriteFlags::DSYNC) {
                Err(e) if is_refusal(&e) => {
                    self.sync.refused.store(true, Ordering::Relaxed);
                    self.sync.fallbacks.add(Fallback::write_sync_refused(&e));
                }
                done => return done,
            }
        }
        write_all(&self.fd, bytes, pos, ReadWriteFlags::empty())?;
        self.sync_data()
    }
}

/// The flag is unknown to the file system, or the whole call to the kernel: nothing was written.
fn is_refusal(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::OPNOTSUPP | Errno::NOSYS))
}

/// All three steps: wait for pages on their way, write the dirty pages, wait for them.
#[allow(unsafe_code)] // no wrapper has it
pub(super) fn sync_file_range(fd: &OwnedFd, pos: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(()); // to the kernel 0 means "to the end"
    }
    let [Ok(pos), Ok(len)] = [i64::try_from(pos), i64::try_from(len)] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes integers and an open descriptor, and touches no memory of ours.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), pos, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl File for OsFile {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        let done = match durability {
            // An empty write is no write: it must not sync anything either.
            _ if buf.is_empty() => Ok(()),
            Durability::Written => write_all(&self.fd, &buf, pos, ReadWriteFlags::empty()),
            Durability::Synced => self.write_synced(&buf, pos),
        };
        (buf, done)
    }

    fn read_at(&self, mut buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        buf.clear();
        self.read_behind(buf, pos, want)
    }

    fn read_behind(&self, mut buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        let held = buf.len();
        buf.set_len(held + want);
        let mut got = 0;
        while got < want {
            let rest = &mut buf[held + got..];
            match rustix::io::pread(&self.fd, rest, pos + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(Errno::INTR) => {}
                Err(e) => {
                    buf.set_len(held);
                    return (buf, Err(e.into()));
                }
            }
            if got % 512 != 0 {
                break; // a direct read has a ragged end only at the end of the file, and cannot continue there
            }
        }
        buf.set_len(held + got);
        (buf, Ok(()))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        sync_file_range(&self.fd, pos, len)
    }

    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        extents::overwrites_in_place(&self.fd, len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.fd)?.st_size as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.fd, len)?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), 0, len) {
            // A file system without it: the size alone; blocks are then found as they are written.
            Err(Errno::OPNOTSUPP) => self.set_len(len),
            done => Ok(done?),
        }
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let op = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&self.fd, op) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn lock(&self, lock: Lock) -> io::Result<()> {
        let op = match lock {
            Lock::Shared => FlockOperation::LockShared,
            Lock::Exclusive => FlockOperation::LockExclusive,
        };
        loop {
            match rustix::fs::flock(&self.fd, op) {
                Err(Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn storage() -> (tempfile::TempDir, OsStorage) {
        let dir = crate::io::real_folder();
        let storage = OsStorage::open(dir.path(), 4096, true).unwrap();
        let file = storage.create("old", Access::WriteDirect).unwrap();
        file.write_at(IoBuf::zeroed(64 << 10), 0, Durability::Synced).1.unwrap();
        (dir, storage)
    }

    #[test]
    fn a_trial_that_could_not_be_made_is_not_taken_for_a_file_system_without() {
        // In a removed folder nothing can be made; kernels and file systems give different reasons.
        let dir = crate::io::real_folder();
        let fd = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        std::fs::remove_dir(dir.path()).unwrap();
        let errno = try_direct(&fd, 4096).unwrap_err();
        assert!(no_direct(errno).contains("could not be tried"), "{errno}");
        for (errno, word) in [(Errno::NOENT, "No such file"), (Errno::ACCESS, "Permission"), (Errno::ROFS, "Read-only")]
        {
            let text = no_direct(errno);
            assert!(text.contains("could not be tried") && text.contains(word) && !text.contains("ext4"), "{text}");
        }
        assert!(no_direct(Errno::INVAL).contains("ext4"));
    }

    #[test]
    fn a_full_disk_is_tried_by_reading() {
        let (dir, storage) = storage();
        assert_eq!(OsStorage::found_direct(dir.path(), 4096), Some(storage.is_direct()));
        assert_eq!(OsStorage::found_direct(crate::io::real_folder().path(), 4096), None, "no file, no answer");
    }

    #[test]
    fn who_only_reads_reads_in_the_same_way() {
        let (dir, storage) = storage();
        let reading = OsStorage::to_read(dir.path(), 4096).unwrap();
        assert!(reading.open("none", Access::ReadDirect).is_err() && reading.direct.get().is_none());
        let file = reading.open("old", Access::ReadDirect).unwrap();
        assert_eq!((reading.direct.get(), reading.is_direct()), (Some(&storage.is_direct()), storage.is_direct()));
        let (block, read) = file.read_at(IoBuf::with_capacity(4096), 0, 4096);
        assert!(read.is_ok() && block[..] == [0; 4096]);
    }

    #[test]
    fn a_file_that_nobody_sees_is_taken_over() {
        let (dir, storage) = storage();
        let before = std::fs::metadata(dir.path().join("old")).unwrap().ino();
        assert_eq!(storage.take_over("old", "new").unwrap(), TakeOver::Done);
        assert_eq!(std::fs::metadata(dir.path().join("new")).unwrap().ino(), before);
        assert!(storage.open("old", Access::ReadCached).is_err());
        assert_eq!(storage.take_over("old", "new").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn whoever_could_see_it_change_keeps_it_from_that() {
        let (dir, storage) = storage();
        let refused = |why| assert_eq!(storage.take_over("old", "new").unwrap(), TakeOver::Refused(why), "{why}");
        let reader = storage.open("old", Access::ReadCached).unwrap();
        refused(Witness::Open);
        drop(reader);
        let link = dir.path().join("link");
        std::fs::hard_link(dir.path().join("old"), &link).unwrap();
        refused(Witness::Linked);
        std::fs::remove_file(link).unwrap();
        let file = storage.open("old", Access::WriteDirect).unwrap();
        file.set_len(128 << 10).unwrap();
        drop(file);
        refused(Witness::Shared);
        assert!(dir.path().join("old").exists() && !dir.path().join("new").exists());
    }

    #[test]
    fn a_range_of_no_bytes_is_none_and_one_beyond_numbers_an_error() {
        let (_dir, storage) = storage();
        let file = storage.open("old", Access::WriteCached).unwrap();
        file.write_at(IoBuf::zeroed(4096), 0, Durability::Written).1.unwrap();
        file.sync_range(0, 0).unwrap();
        file.sync_range(0, 4096).unwrap();
        assert_eq!(file.sync_range(u64::MAX, 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
