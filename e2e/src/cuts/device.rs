//! The recording device: files that this process serves, each of which is a disk.
//!
//! Invariants: no page cache lies between the loop device and the record (direct I/O); a write is readable from when
//! it is taken; its answer is recorded before it is sent, and so is that of a flush. A word of the workload is recorded
//! under the same lock: whatever the daemon did before it answered, it did before the word.
//!
//! A recorder can be slow, as disks are: what is taken is then answered some time later, while more is taken. That
//! opens the gaps in which a program that does not wait would be caught. And it can be broken, for as long as a test
//! wants; no power cut is made of what is recorded around that.

use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use clad_sim::Rng;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};

use super::trace::Word;
use super::{CutResult, Event, Pages, Trace};

/// Nothing changes behind the kernel's back but the content, which it does not keep.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);
/// The longest write that is taken in one piece.
const MAX_WRITE: u32 = 1 << 20;
/// Requests that the kernel sends before it waits for answers.
const REQUESTS: u16 = 64;

/// One disk: its content, and the requests to it.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to be answered, or it is over.
    later: Condvar,
}

#[derive(Debug, Default)]
struct State {
    below: Arc<Pages>,
    over: Pages,
    events: Vec<Event>,
    /// Microseconds that a write and a flush take, at most; 0 is at once.
    slow: (u64, u64),
    rng: Option<Rng>,
    waiting: BinaryHeap<Waiting>,
    /// The disk is broken: a request is refused, and not recorded.
    broken: bool,
    /// Flushes are not answered until somebody says so; those that wait for it.
    holding: bool,
    held: Vec<(Event, Answer)>,
    /// What the device was asked and does not do.
    strange: Vec<String>,
    over_and_out: bool,
}

/// An answer that is due later.
#[derive(Debug)]
struct Waiting {
    due: Instant,
    event: Event,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Write(ReplyWrite, u32),
    Flush(ReplyEmpty),
}

impl Answer {
    fn refuse(self) {
        match self {
            Self::Write(reply, _) => reply.error(Errno::EIO),
            Self::Flush(reply) => reply.error(Errno::EIO),
        }
    }

    fn send(self) {
        match self {
            Self::Write(reply, length) => reply.written(length),
            Self::Flush(reply) => reply.ok(),
        }
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due.cmp(&self.due) // the earliest on top
    }
}

impl Recorder {
    fn new() -> Self {
        let recorder = Self(Arc::new(Shared { state: Mutex::default(), later: Condvar::new() }));
        let answering = recorder.clone();
        thread::spawn(move || answering.answer_later());
        recorder
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another disk from now on: these pages over those. Nobody may have it mounted.
    pub fn insert(&self, below: Arc<Pages>, over: Pages) {
        let mut state = self.lock();
        assert!(state.waiting.is_empty(), "the disk is taken away under somebody's request");
        (state.below, state.over) = (below, over);
        state.events.clear();
    }

    /// What is on it now.
    #[must_use]
    pub fn pages(&self) -> Pages {
        let state = self.lock();
        state.below.under(&state.over)
    }

    /// How long it takes from now on: up to so many microseconds for a write and for a flush.
    pub fn slow(&self, write: u64, flush: u64, rng: Rng) {
        let mut state = self.lock();
        (state.slow, state.rng) = ((write, flush), Some(rng));
    }

    /// From now on every write and flush fails with EIO, or none does any more. What was taken before is answered as it
    /// would have been; reading goes on.
    pub fn fail(&self, broken: bool) {
        self.lock().broken = broken;
    }

    /// From now on flushes are not answered, until what this returns is dropped.
    #[must_use]
    pub fn hold_flushes(&self) -> Held {
        self.lock().holding = true;
        Held(self.clone())
    }

    /// Flushes that are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Flushes that were answered since the disk was inserted.
    #[must_use]
    pub fn flushes(&self) -> usize {
        self.lock().events.iter().filter(|event| matches!(event, Event::Flushed(_))).count()
    }

    /// Records a word of the workload; how many events there are now.
    pub fn say(&self, word: Word) -> usize {
        let mut state = self.lock();
        state.events.push(Event::Word(word));
        state.events.len()
    }

    /// Takes what was recorded since the disk was inserted. `base` is what was on it then.
    #[must_use]
    pub fn take(&self, base: &Pages) -> Trace {
        let events = std::mem::take(&mut self.lock().events);
        Trace { base: base.clone(), events }
    }

    /// What the device was asked and does not do; one line each.
    #[must_use]
    pub fn strange(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().strange)
    }

    fn take_in(&self, event: Event, answer: Answer) {
        let mut state = self.lock();
        if state.broken {
            drop(state);
            return answer.refuse();
        }
        let at = state.events.len();
        let (done, slow) = match &event {
            Event::Write { offset, data } => {
                let below = state.below.clone();
                state.over.write(&below, *offset, data);
                (Event::Done(at), state.slow.0)
            }
            _ => (Event::Flushed(at), state.slow.1),
        };
        state.events.push(event);
        if state.holding && matches!(answer, Answer::Flush(_)) {
            state.held.push((done, answer));
            return;
        }
        if slow == 0 {
            state.events.push(done);
            drop(state);
            answer.send();
            return;
        }
        let time = slow / 4 + state.rng.as_mut().map_or(0, |rng| rng.below(slow - slow / 4));
        let due = Instant::now() + Duration::from_micros(time);
        state.waiting.push(Waiting { due, event: done, answer });
        self.0.later.notify_one();
    }

    fn answer_later(&self) {
        let mut state = self.lock();
        while !state.over_and_out {
            let now = Instant::now();
            let wait = match state.waiting.peek() {
                None => ATTRIBUTE_TTL,
                Some(first) if first.due > now => first.due - now,
                Some(_) => {
                    let first = state.waiting.pop().expect("it was just seen");
                    state.events.push(first.event);
                    drop(state);
                    first.answer.send();
                    state = self.lock();
                    continue;
                }
            };
            state = self.0.later.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end(&self) {
        self.lock().over_and_out = true;
        self.0.later.notify_one();
    }
}

/// While it is there, a disk does not answer flushes.
#[derive(Debug)]
pub struct Held(Recorder);

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.holding = false;
        for (event, answer) in std::mem::take(&mut state.held) {
            state.events.push(event);
            answer.send();
        }
    }
}

/// A folder in which each file is a disk.
#[derive(Debug)]
pub struct Device {
    disks: Vec<(String, Recorder)>,
    session: Option<BackgroundSession>,
}

impl Device {
    /// Serves disks of these names and sizes in a folder.
    ///
    /// # Errors
    /// When there is no FUSE, or no right to mount.
    pub fn serve(folder: &Path, disks: &[(String, u64)]) -> CutResult<Self> {
        let files: Vec<_> = disks.iter().map(|(name, size)| (name.clone(), *size, Recorder::new())).collect();
        let disks = files.iter().map(|(name, _, recorder)| (name.clone(), recorder.clone())).collect();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("clad-cuts".to_owned()), MountOption::DefaultPermissions];
        let session = fuser::spawn_mount(Files(files), folder, &config);
        let session = session.map_err(|e| format!("FUSE at {}: {e}", folder.display()))?;
        Ok(Self { disks, session: Some(session) })
    }

    /// The recorder of a disk.
    ///
    /// # Panics
    /// When there is none of that name.
    #[must_use]
    pub fn recorder(&self, name: &str) -> Recorder {
        let (_, recorder) = self.disks.iter().find(|(known, _)| known == name).expect("a disk of that name");
        recorder.clone()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            eprintln!("the recording device stays: {error}");
        }
        self.disks.iter().for_each(|(_, recorder)| recorder.end());
    }
}

/// The file system of the device: the folder is 1, the files follow.
struct Files(Vec<(String, u64, Recorder)>);

impl Files {
    fn file(&self, ino: INodeNo) -> Option<&(String, u64, Recorder)> {
        self.0.get(usize::try_from(ino.0).ok()?.checked_sub(2)?)
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, size, perm) = match self.file(ino) {
            Some((_, size, _)) => (FileType::RegularFile, *size, 0o600),
            None if ino == INodeNo::ROOT => (FileType::Directory, 0, 0o700),
            None => return None,
        };
        let (atime, blocks) = (UNIX_EPOCH, size / 512);
        Some(FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime: atime,
            ctime: atime,
            crtime: atime,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(REQUESTS);
        // Several direct requests at a time, as a disk takes them.
        let _ = config.add_capabilities(fuser::InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let at = self.0.iter().position(|(known, ..)| OsStr::new(known) == name);
        match at.and_then(|at| self.attributes(INodeNo(at as u64 + 2))) {
            Some(attributes) => reply.entry(&ATTRIBUTE_TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((_, end, recorder)) = self.file(ino) else { return reply.error(Errno::ENOENT) };
        let length = u64::from(size).min(end.saturating_sub(offset)) as usize;
        let state = recorder.lock();
        let data = state.over.read(&state.below, offset, length);
        drop(state);
        reply.data(&data);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some((_, _, recorder)) = self.file(ino) else { return reply.error(Errno::ENOENT) };
        let length = data.len() as u32;
        recorder.take_in(Event::Write { offset, data: Bytes::copy_from_slice(data) }, Answer::Write(reply, length));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some((_, _, recorder)) = self.file(ino) else { return reply.error(Errno::ENOENT) };
        recorder.take_in(Event::Flush, Answer::Flush(reply));
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if let Some((_, _, recorder)) = self.file(ino) {
            recorder.lock().strange.push(format!("fallocate {mode:#x} of {length} at {offset}"));
        }
        // Whoever discards or zeroes this way writes zeroes then.
        reply.error(Errno::EOPNOTSUPP);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // close(2), no flush of the disk
    }
}
