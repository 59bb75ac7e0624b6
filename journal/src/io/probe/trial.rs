//! A trial file, and the trials.
#![allow(unsafe_code)] // entries of a ring that point to memory

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::method::{Method, Space, Way};
use crate::clock::Clock;
use crate::io::os::{sync_file_range, write_all};
use crate::io::{IoBuf, is_transient};

/// Bytes of each write.
pub const BLOCK: usize = 4096;
/// Bytes of the trial file.
const FILE_BYTES: u64 = 16 << 20;
/// Bytes of one write of zeroes.
const CHUNK: usize = 1 << 20;
const BLOCKS: u64 = FILE_BYTES / BLOCK as u64;

/// Why a folder, or a method on it, cannot be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// It is no folder.
    #[error("{} is no folder", path.display())]
    NotAFolder {
        /// The given path.
        path: PathBuf,
    },
    /// No file can be made in it.
    #[error("cannot write in {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The method is not offered here.
    #[error("not offered here: {source}")]
    NotOffered {
        /// The kernel's error.
        source: io::Error,
    },
    /// An operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A file without a name in the folder that is tried.
pub struct Trial<'a> {
    cached: OwnedFd,
    direct: Option<OwnedFd>,
    space: Option<Space>,
    clock: &'a dyn Clock,
    stop: &'a AtomicBool,
}

impl<'a> Trial<'a> {
    /// Makes the file. `stop`, once true, ends a measurement at its next operation.
    ///
    /// # Errors
    /// [`ProbeError::NotAFolder`], [`ProbeError::Folder`].
    pub fn new(dir: &Path, clock: &'a dyn Clock, stop: &'a AtomicBool) -> Result<Self, ProbeError> {
        let path = || dir.to_owned();
        let folder = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let folder = folder.map_err(|e| match e {
            Errno::NOTDIR => ProbeError::NotAFolder { path: path() },
            e => ProbeError::Folder { path: path(), source: e.into() },
        })?;
        let (cached, direct) = nameless(&folder)
            .or_else(|_| named(&folder))
            .map_err(|source| ProbeError::Folder { path: path(), source })?;
        Ok(Self { cached, direct, space: None, clock, stop })
    }

    /// Returns true if the file could be opened for direct I/O.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Tries one method for about so many nanoseconds and gives `each` the nanoseconds of every operation. Returns the
    /// time in which they were done, without preparations.
    ///
    /// # Errors
    /// [`ProbeError::NotOffered`] where this kernel or file system has no such thing, [`ProbeError::Io`] for any other
    /// failure.
    pub fn run(&mut self, method: Method, nanos: u64, each: &mut (dyn FnMut(u64) + Send)) -> Result<u64, ProbeError> {
        if method.way.is_direct() && self.direct.is_none() {
            return Err(ProbeError::NotOffered { source: Errno::INVAL.into() });
        }
        let mut spent = 0;
        loop {
            self.prepare(method.space)?;
            if method.way.is_direct() {
                // A segment that is written directly has no pages in the cache, which each write would have to drop.
                let _ = rustix::fs::fadvise(&self.cached, 0, None, rustix::fs::Advice::DontNeed);
            }
            let left = nanos.saturating_sub(spent);
            let (took, used_up) = match method.way {
                Way::Threads(threads) => self.threads(threads, left, each)?,
                Way::Ring(depth) => self.ring(depth, left, each)?,
                way => self.one_by_one(way, left, each)?,
            };
            spent += took;
            // Space that was written once no longer fits the method.
            if method.space != Space::Zeroed {
                self.space = None;
            }
            if !used_up || spent >= nanos || self.stopped() {
                return Ok(spent);
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn prepare(&mut self, space: Space) -> Result<(), ProbeError> {
        if self.space == Some(space) {
            return Ok(());
        }
        self.space = None;
        let io = |what| move |e: Errno| ProbeError::Io { what, source: e.into() };
        rustix::fs::ftruncate(&self.cached, 0).map_err(io("cut the trial file"))?;
        if space == Space::Truncated {
            rustix::fs::ftruncate(&self.cached, FILE_BYTES).map_err(io("set the length of the trial file"))?;
        } else if space != Space::Append {
            match rustix::fs::fallocate(&self.cached, FallocateFlags::empty(), 0, FILE_BYTES) {
                Err(Errno::OPNOTSUPP) if space == Space::Fallocated => {
                    return Err(ProbeError::NotOffered { source: Errno::OPNOTSUPP.into() });
                }
                Err(e) if e != Errno::OPNOTSUPP => return Err(io("reserve space for the trial file")(e)),
                _ => {}
            }
        }
        if space == Space::Zeroed {
            let zeroes = IoBuf::zeroed(CHUNK);
            for at in (0..FILE_BYTES).step_by(CHUNK) {
                write_all(&self.cached, &zeroes, at, ReadWriteFlags::empty())
                    .map_err(|source| ProbeError::Io { what: "write zeroes", source })?;
            }
        }
        rustix::fs::fsync(&self.cached).map_err(io("sync the trial file"))?;
        self.space = Some(space);
        Ok(())
    }

    /// Nanoseconds taken, and true if the space was used up.
    fn one_by_one(&self, way: Way, nanos: u64, each: &mut (dyn FnMut(u64) + Send)) -> Result<(u64, bool), ProbeError> {
        let block = filled();
        let begun = self.clock.boot_ns();
        let mut before = begun;
        for number in 0..BLOCKS {
            if before - begun >= nanos || self.stopped() {
                return Ok((before - begun, false));
            }
            self.operation(way, &block, number * BLOCK as u64).map_err(|e| failed(way, e, number == 0))?;
            let after = self.clock.boot_ns();
            each(after - before);
            before = after;
        }
        Ok((before - begun, true))
    }

    fn operation(&self, way: Way, block: &[u8], at: u64) -> io::Result<()> {
        match way {
            Way::Written => write_all(&self.cached, block, at, ReadWriteFlags::empty()),
            Way::Fdatasync => {
                write_all(&self.cached, block, at, ReadWriteFlags::empty())?;
                Ok(rustix::fs::fdatasync(&self.cached)?)
            }
            Way::Dsync => write_all(&self.cached, block, at, ReadWriteFlags::DSYNC),
            Way::SyncFileRange => {
                // As the journal does it: around the page cache where that can be.
                let file = self.direct.as_ref().unwrap_or(&self.cached);
                write_all(file, block, at, ReadWriteFlags::empty())?;
                sync_file_range(file, at, block.len() as u64)
            }
            Way::DirectDsync | Way::Threads(_) | Way::Ring(_) => {
                let direct = self.direct.as_ref().unwrap_or(&self.cached);
                write_all(direct, block, at, ReadWriteFlags::DSYNC)
            }
        }
    }

    fn threads(&self, threads: u32, nanos: u64, each: &mut (dyn FnMut(u64) + Send)) -> Result<(u64, bool), ProbeError> {
        let next = AtomicU64::new(0);
        let each = Mutex::new(each);
        let begun = self.clock.boot_ns();
        let work = || -> Result<(), ProbeError> {
            let block = filled();
            // Each does at least one: its start may take longer than the given time.
            for done in 0u64.. {
                let before = self.clock.boot_ns();
                if done > 0 && before - begun >= nanos || self.stopped() {
                    break;
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                let at = number % BLOCKS * BLOCK as u64;
                self.operation(Way::DirectDsync, &block, at).map_err(|e| failed(Way::DirectDsync, e, number == 0))?;
                let took = self.clock.boot_ns() - before;
                if let Ok(mut each) = each.lock() {
                    each(took);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let spawn = |_| {
                let thread = thread::Builder::new().name("clad-probe".to_owned());
                thread.spawn_scoped(scope, work).map_err(|source| ProbeError::Io { what: "start a thread", source })
            };
            let workers: Vec<_> = (0..threads).map(spawn).collect::<Result<_, _>>()?;
            let gone = || ProbeError::Io { what: "a thread", source: io::Error::other("it ended by itself") };
            workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| gone())?)
        })?;
        Ok((self.clock.boot_ns() - begun, false))
    }

    fn ring(&self, depth: u32, nanos: u64, each: &mut (dyn FnMut(u64) + Send)) -> Result<(u64, bool), ProbeError> {
        let mut ring = IoUring::new(depth).map_err(|source| ProbeError::NotOffered { source })?;
        let fd = types::Fd(self.direct.as_ref().unwrap_or(&self.cached).as_raw_fd());
        // One block for all: every write has the same bytes, and none is ever read. It outlives the ring's writes,
        // because this function returns only once each of them has come back.
        let block = filled();
        let mut sent = vec![0; depth as usize];
        let (mut number, mut in_flight) = (0u64, 0u32);
        let mut failure = None;
        let begun = self.clock.boot_ns();
        let mut idle: Vec<u32> = (0..depth).collect();
        loop {
            let now = self.clock.boot_ns();
            let more = (number == 0 || now - begun < nanos) && !self.stopped() && failure.is_none();
            while let Some(slot) = if more { idle.pop() } else { None } {
                let at = number % BLOCKS * BLOCK as u64;
                number += 1;
                let entry = opcode::Write::new(fd, block.as_ptr(), BLOCK as u32).offset(at).rw_flags(libc::RWF_DSYNC);
                sent[slot as usize] = self.clock.boot_ns();
                // SAFETY: `block` lives until the loop ends, which it does when nothing is in flight; the descriptor
                // likewise. A slot is used once at a time, so the queue has room.
                let pushed = unsafe { ring.submission().push(&entry.build().user_data(slot.into())) };
                debug_assert!(pushed.is_ok());
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            if let Err(source) = ring.submit_and_wait(1)
                && !is_transient(&source)
            {
                // The kernel may still use it: the memory is never reused.
                let _kept = ManuallyDrop::new(block);
                return Err(ProbeError::Io { what: "wait for the ring", source });
            }
            for completion in ring.completion() {
                in_flight -= 1;
                let slot = completion.user_data() as u32;
                idle.push(slot);
                each(self.clock.boot_ns().saturating_sub(sent[slot as usize]));
                if completion.result() != BLOCK as i32 {
                    let code = -completion.result().min(0);
                    let source =
                        if code == 0 { io::ErrorKind::WriteZero.into() } else { io::Error::from_raw_os_error(code) };
                    failure = Some(failed(Way::Ring(depth), source, true));
                }
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None => Ok((self.clock.boot_ns() - begun, false)),
        }
    }
}

/// Maps an error: a method whose first operation is refused is not offered; anything else is a failure.
fn failed(way: Way, source: io::Error, first: bool) -> ProbeError {
    let refused = [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS].map(|e| Some(e.raw_os_error()));
    match first && refused.contains(&source.raw_os_error()) {
        true => ProbeError::NotOffered { source },
        false => ProbeError::Io { what: way.name(), source },
    }
}

fn filled() -> IoBuf {
    let mut block = IoBuf::zeroed(BLOCK);
    block.fill(0xC1);
    block
}

type Opened = (OwnedFd, Option<OwnedFd>);

/// A file that never has a name. Through `/proc` it is opened once more, around the page cache.
fn nameless(folder: &OwnedFd) -> io::Result<Opened> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let cached = rustix::fs::openat(folder, ".", flags, Mode::from_raw_mode(0o600))?;
    let again = format!("/proc/self/fd/{}", cached.as_fd().as_raw_fd());
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = rustix::fs::open(again, flags, Mode::empty()).ok();
    Ok((cached, direct))
}

/// A file that loses its name as soon as it was opened twice.
fn named(folder: &OwnedFd) -> io::Result<Opened> {
    let name = format!(".clad-probe-{}", std::process::id());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let cached = rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(0o600))?;
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = rustix::fs::openat(folder, &name, flags, Mode::empty()).ok();
    rustix::fs::unlinkat(folder, &name, AtFlags::empty())?;
    Ok((cached, direct))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::io::probe::METHODS;

    /// Where files must have names (FUSE, NFS, vfat), the name is gone before anything is measured.
    #[test]
    fn a_file_that_needed_a_name_has_lost_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        let (cached, direct) = named(&folder).expect("a file");
        assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0);
        let (clock, stop) = (SystemClock::shared(), AtomicBool::new(false));
        let mut trial = Trial { cached, direct, space: None, clock: clock.as_ref(), stop: &stop };
        let mut done = 0;
        let method = Method { space: Space::Append, way: Way::Fdatasync };
        trial.run(method, 1_000_000, &mut |_| done += 1).expect("measured");
        assert!(done > 0);
    }

    #[test]
    fn every_operation_is_given_and_a_stop_is_heard() {
        let dir = tempfile::tempdir().expect("a folder");
        let (clock, stop) = (SystemClock::shared(), AtomicBool::new(false));
        let mut trial = Trial::new(dir.path(), clock.as_ref(), &stop).expect("a trial");
        for method in METHODS {
            let (mut done, mut sum) = (0u64, 0u64);
            let took = trial.run(method, 2_000_000, &mut |nanos| {
                done += 1;
                sum += nanos;
            });
            match took {
                // One after the other, all of them together take as long as the whole.
                Ok(took) if method.way.in_flight() == 1 => assert!(done > 0 && sum <= took, "{method:?}"),
                Ok(_) => assert!(done > 0, "{method:?}"),
                Err(ProbeError::NotOffered { .. }) => {}
                Err(e) => panic!("{method:?}: {e}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut done = 0;
        let method = Method { space: Space::Zeroed, way: Way::Fdatasync };
        trial.run(method, u64::MAX, &mut |_| done += 1).expect("stopped");
        assert_eq!(done, 0);
    }
}
