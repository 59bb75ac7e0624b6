//! The writer: it collects and sends bytes. `settle` handles completed writes.

mod settle;

use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::engine::Issuer;
use super::error::{Error, Op};
use super::options::{Engine, How, Options};
use super::ring::Ring;
use super::stats::Stats;
use super::target::{self, Opened, Target};
use super::threads::Threads;
use super::write::{self, Buf, MAX_RETRIES, Way};
use crate::io::{File, IoBuf, is_transient};

/// The longest place in a file that the kernel can name.
const MAX_POSITION: u64 = i64::MAX as u64;

/// Writes a file in bulk; made by [`Options`]. See [the module](super) for what it promises.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::io::Write;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("export");
/// let mut file = clad_journal::bulk::Options::new().create(&path)?;
/// for number in 0..100_000 {
///     writeln!(file, "line {number}")?;
/// }
/// let stats = file.finish()?; // durable from here on
/// assert_eq!(stats.bytes, std::fs::metadata(&path)?.len());
/// # Ok(()) }
/// ```
pub struct BulkWriter {
    // Before the buffers: its drop waits for those that the kernel holds.
    issuer: Issuer,
    target: Arc<Target>,
    free: Vec<Buf>,
    current: Option<Buf>,
    capacity: usize,
    /// Position of the current buffer's first byte: on a block.
    at: u64,
    /// The first byte of the buffer that is to be written.
    from: usize,
    /// One past the last.
    fill: usize,
    /// Bytes in the file once all that was sent is there.
    len: u64,
    direct: bool,
    /// True if some write, ours or possibly one from before the open, is not covered by a sync.
    dirty: bool,
    /// The length was set: `fdatasync` alone need not cover it.
    resized: bool,
    folder: Option<OwnedFd>,
    failed: Option<Error>,
    reported: bool,
    stats: Stats,
}

/// The constructors of a [`BulkWriter`].
impl Options {
    /// Makes a file that must not exist yet.
    ///
    /// # Errors
    /// The kernel's error; `InvalidInput` for options out of range; `Unsupported` where [`Engine::Ring`] is asked for
    /// and there is none.
    pub fn create_new(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::CreateNew)
    }

    /// Makes a file, or empties the one that is there.
    ///
    /// # Errors
    /// As [`Self::create_new`].
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::Create)
    }

    /// Opens a file that is there, at its first byte, and keeps what it holds.
    ///
    /// # Errors
    /// As [`Self::create_new`].
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::Open)
    }

    /// Opens a file at its end, wherever that is; makes it where it is missing.
    ///
    /// # Errors
    /// As [`Self::create_new`].
    pub fn append(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::Append)
    }

    /// Takes a file of a storage that is open already, from its first byte on; errors call it `name`. Its length may
    /// have been set before and is durable after the first [`BulkWriter::sync`].
    ///
    /// Each write is one [`File::write_at`] by the caller's own thread ([`Engine::Caller`]), whatever engine is asked
    /// for, with its promises on errors and locks. Buffers are whole blocks of `block` bytes. Where the file was opened
    /// around the page cache, the kernel refuses bytes between two flushes that are no whole blocks.
    ///
    /// # Errors
    /// When its length cannot be read; `InvalidInput` for options out of range, or a block that is no power of two.
    pub fn over(&self, file: Arc<dyn File>, name: impl Into<PathBuf>, block: u32) -> io::Result<BulkWriter> {
        BulkWriter::over(self, file, name.into(), block)
    }
}

impl BulkWriter {
    pub(super) fn new(options: &Options, path: &Path, how: How) -> io::Result<Self> {
        options.check()?;
        let opened = Target::open(path, how, options.mode, options.direct)?;
        let end = opened.len;
        let mut writer = Self::with(options, opened, how == How::Create)?;
        if how == How::Append {
            writer.stand_at(end);
        }
        Ok(writer)
    }

    pub(super) fn over(options: &Options, file: Arc<dyn File>, name: PathBuf, block: u32) -> io::Result<Self> {
        options.check()?;
        let options = options.clone().engine(Engine::Caller);
        Self::with(&options, Target::lent(file, name, block)?, true)
    }

    fn with(options: &Options, opened: Opened, resized: bool) -> io::Result<Self> {
        let capacity = options.buffer_bytes.next_multiple_of(opened.target.block);
        let row = IoBuf::row(options.buffers, capacity);
        let free: Vec<Buf> = row.into_iter().enumerate().map(|(index, mem)| Buf { index, mem }).collect();
        let mut stats = Stats { direct: opened.target.is_direct(), ..Stats::default() };
        stats.fallbacks.extend(opened.fallback);
        let issuer = issuer(options, &mut stats)?;
        Ok(Self {
            issuer,
            direct: stats.direct,
            target: Arc::new(opened.target),
            free,
            current: None,
            capacity,
            at: 0,
            from: 0,
            fill: 0,
            len: opened.len,
            dirty: true,
            resized,
            folder: opened.folder,
            failed: None,
            reported: false,
            stats,
        })
    }

    /// Position of the next byte.
    pub fn position(&self) -> u64 {
        self.at + self.fill as u64
    }

    /// Bytes in the file with everything that was handed in.
    #[allow(clippy::len_without_is_empty)] // nobody asks a file that is written whether it is empty
    pub fn len(&self) -> u64 {
        let buffered = if self.fill > self.from { self.position() } else { 0 };
        self.len.max(buffered)
    }

    /// Counters and state so far.
    pub fn stats(&self) -> Stats {
        Stats { free_buffers: self.free.len(), direct: self.direct, ..self.stats.clone() }
    }

    /// Takes the file for this writer alone (`flock`); false where another process has done so.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn try_lock(&self) -> io::Result<bool> {
        self.target.try_lock()
    }

    /// Makes all written bytes durable: data, length, and the name of a file that the writer made. Does nothing where
    /// nothing was written since the last sync.
    ///
    /// # Errors
    /// The first write or sync that failed; it is stored.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.hand_over()?;
        if self.dirty {
            self.stats.syncs += 1;
            let done = self.target.sync(self.resized);
            self.checked(Op::Sync, done)?;
            (self.dirty, self.resized) = (false, false);
        }
        if let Some(folder) = &self.folder {
            self.stats.syncs += 1;
            let done = target::sync_folder(folder);
            self.checked(Op::SyncFolder, done)?;
            self.folder = None;
        }
        Ok(())
    }

    /// Calls [`Self::sync`] and ends the writer.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn finish(mut self) -> Result<Stats, Error> {
        self.sync()?;
        Ok(self.stats())
    }

    /// Cuts the file, or extends it by zeroes, and continues at its end. Everything before goes to the kernel first.
    ///
    /// # Errors
    /// As [`Write::flush`], or when the length cannot be set; the error is stored.
    pub fn truncate(&mut self, len: u64) -> Result<(), Error> {
        self.hand_over()?;
        let done = self.target.set_len(len);
        self.len = len;
        self.checked(Op::SetLen, done)?;
        (self.dirty, self.resized) = (true, true);
        self.stand_at(len);
        Ok(())
    }

    /// Sends everything to the kernel.
    fn hand_over(&mut self) -> Result<(), Error> {
        self.check()?;
        self.send()?;
        self.drain()
    }

    fn stand_at(&mut self, position: u64) {
        let block = self.target.block as u64;
        self.at = position - position % block;
        self.from = (position - self.at) as usize;
        self.fill = self.from;
    }

    /// The slow path of `write`, where it does not only copy: takes a buffer before, sends it after.
    #[cold]
    fn put_slowly(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.check()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.current.is_none() {
            self.current = Some(self.free_buffer()?);
        }
        let taken = self.copy(bytes);
        if self.fill == self.capacity {
            self.send()?;
        }
        Ok(taken)
    }

    #[inline]
    fn copy(&mut self, bytes: &[u8]) -> usize {
        let Some(buf) = &mut self.current else { return 0 };
        let taken = bytes.len().min(self.capacity - self.fill);
        buf.mem[self.fill..self.fill + taken].copy_from_slice(&bytes[..taken]);
        self.fill += taken;
        self.stats.bytes += taken as u64;
        taken
    }

    fn free_buffer(&mut self) -> Result<Buf, Error> {
        loop {
            if let Some(buf) = self.free.pop() {
                return Ok(buf);
            }
            self.settle_one()?;
        }
    }

    /// Sends what the current buffer holds.
    fn send(&mut self) -> Result<(), Error> {
        let Some(buf) = self.current.take() else { return Ok(()) };
        let (at, buffered) = (self.at, self.from..self.fill);
        self.stand_at(at + buffered.end as u64);
        if buffered.is_empty() {
            self.free.push(buf);
            return Ok(());
        }
        self.len = self.len.max(at + buffered.end as u64);
        self.dirty = true;
        if !self.direct {
            return self.submit(buf, at, buffered, Way::Regular);
        }
        let block = self.target.block;
        let head = buffered.start.next_multiple_of(block).min(buffered.end);
        let tail = (buffered.end - buffered.end % block).max(head);
        for part in [buffered.start..head, tail..buffered.end] {
            if !part.is_empty() {
                // These blocks may have been part of a write that is still in flight.
                let done = self.drain().and_then(|()| self.write_here(&buf, at, part));
                if done.is_err() {
                    self.free.push(buf);
                    return done;
                }
            }
        }
        if head < tail {
            return self.submit(buf, at, head..tail, Way::Direct);
        }
        self.free.push(buf);
        Ok(())
    }

    fn submit(&mut self, buf: Buf, at: u64, part: Range<usize>, way: Way) -> Result<(), Error> {
        let pos = at + part.start as u64;
        let write = write::Write { buf, from: part.start, to: part.end, pos, way, retries: 0 };
        self.issuer.submit(&self.target, write);
        match self.stats.engine {
            // The write is over already: its error is returned before the next write.
            Engine::Caller => self.drain(),
            _ => Ok(()),
        }
    }

    /// Writes part of a buffer through the page cache, at once.
    fn write_here(&mut self, buf: &Buf, at: u64, mut part: Range<usize>) -> Result<(), Error> {
        let mut retries = 0;
        while !part.is_empty() {
            let pos = at + part.start as u64;
            match self.target.write(Way::Regular, &buf.mem[part.clone()], pos) {
                Ok(0) => return self.fail(Op::Write, pos, part.len(), io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.count(Way::Regular, n);
                    self.stats.short_writes += u64::from(n < part.len());
                    part.start += n;
                }
                Err(e) if is_transient(&e) && retries < MAX_RETRIES => retries += 1,
                Err(e) => return self.fail(Op::Write, pos, part.len(), e),
            }
        }
        Ok(())
    }
}

/// Text for a missing ring. Newer kernels count the ring itself, and over all processes of a user who is not root.
fn no_ring(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::OutOfMemory => format!("too little memory may be locked, RLIMIT_MEMLOCK: {error}"),
        _ => error.to_string(),
    }
}

fn issuer(options: &Options, stats: &mut Stats) -> io::Result<Issuer> {
    let buffers = options.buffers;
    if options.engine == Engine::Caller {
        stats.engine = Engine::Caller;
        return Ok(Issuer::Threads(Threads::none(buffers)));
    }
    if options.engine != Engine::Threads {
        match Ring::new(buffers) {
            Ok(ring) => {
                stats.engine = Engine::Ring;
                return Ok(Issuer::Ring(Box::new(ring)));
            }
            Err(e) if options.engine == Engine::Ring => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, format!("no io_uring: {}", no_ring(&e))));
            }
            Err(e) => stats.fallbacks.push(format!("no io_uring ({}): threads write", no_ring(&e))),
        }
    }
    let (threads, why) = Threads::new(buffers);
    stats.engine = Engine::Threads;
    stats.fallbacks.extend(why);
    Ok(Issuer::Threads(threads))
}

impl Write for BulkWriter {
    /// Takes bytes, all of them unless the buffer ends before. The error may be that of an earlier write.
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // With a current buffer, nothing has failed since it was taken, or the next call that sends returns the error.
        if self.current.is_some() && bytes.len() < self.capacity - self.fill && self.failed.is_none() {
            return Ok(self.copy(bytes));
        }
        Ok(self.put_slowly(bytes)?)
    }

    #[inline]
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.write(bytes)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Sends everything to the kernel and waits until it is taken; writing continues afterwards.
    fn flush(&mut self) -> io::Result<()> {
        Ok(self.hand_over()?)
    }
}

impl Seek for BulkWriter {
    /// Moves to another place, also beyond the end; sends everything before, unless the place is the current one.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.check()?;
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position().checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        let Some(position) = position.filter(|position| *position <= MAX_POSITION) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no place in a file"));
        };
        if position != self.position() {
            self.send()?;
            self.drain()?;
            self.stand_at(position);
        }
        Ok(position)
    }
}

impl Drop for BulkWriter {
    fn drop(&mut self) {
        let reported = self.reported;
        if self.hand_over().is_ok() {
            return;
        }
        if let Some(error) = self.failed.as_ref().filter(|_| !reported) {
            tracing::error!("a file is not what was written to it: {error}");
        }
    }
}

impl std::fmt::Debug for BulkWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BulkWriter")
            .field("path", &self.target.path)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
