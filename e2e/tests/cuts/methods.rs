//! Ways to write a block and call it safe: those that the policies stand on, and those that do not hold.
//!
//! Each writes block after block of one file (or file after file) and says so when it takes one for durable.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, IoSlice, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clad_e2e::cuts::trace::Word;
use clad_e2e::cuts::{CutResult, Filesystem, Recorder};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};

/// Blocks that a method writes.
pub(crate) const BLOCKS: u64 = 100;
pub(crate) const BLOCK: usize = 4096;

/// What the file has before the first block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Nothing.
    Appended,
    /// Zeroes that were written and synced.
    Zeroed,
    /// The same, in a file that is never copied on write (btrfs, `chattr +C`).
    ZeroedNoCow,
    /// Reserved space.
    Fallocated,
    /// A size.
    Ftruncated,
}

/// How a block is made durable, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// write, fdatasync
    Fdatasync,
    /// pwritev2 with RWF_DSYNC
    Dsync,
    /// O_DIRECT and RWF_DSYNC
    DirectDsync,
    /// O_DIRECT, and nothing more
    Direct,
    /// sync_file_range(WAIT_BEFORE|WRITE|WAIT_AFTER)
    Range,
    /// A second thread that syncs and reads how far the first was, before the sync or after.
    Thread { late: bool },
    /// A new file for each block: write, fsync; then the folder's fsync or not.
    Create { folder: bool },
    /// A file for each block: write, fsync, rename; then the folder's fsync or not.
    Rename { folder: bool },
}

/// What must come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Kept on every file system, whatever the cache.
    Kept,
    /// Lost where the cache is volatile; kept on these (ext4, xfs, btrfs) where there is none.
    Lost { but: [bool; 3] },
    /// Nobody promises anything.
    Unknown,
}

/// A way to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) space: Space,
    pub(crate) sync: Sync,
    pub(crate) expected: Expected,
}

const fn kept(name: &'static str, space: Space, sync: Sync) -> Method {
    Method { name, space, sync, expected: Expected::Kept }
}

const fn lost(name: &'static str, space: Space, sync: Sync, but: [bool; 3]) -> Method {
    Method { name, space, sync, expected: Expected::Lost { but } }
}

const EVERYWHERE: [bool; 3] = [true; 3];
const NOWHERE: [bool; 3] = [false; 3];
const NOT_BTRFS: [bool; 3] = [true, true, false];

/// All of them, and what must come out.
pub(crate) const METHODS: &[Method] = &[
    kept("append, `fdatasync`", Space::Appended, Sync::Fdatasync),
    kept("append, `RWF_DSYNC`", Space::Appended, Sync::Dsync),
    kept("zero-written, `RWF_DSYNC`", Space::Zeroed, Sync::Dsync),
    kept("fallocated, `RWF_DSYNC`", Space::Fallocated, Sync::Dsync),
    kept("ftruncated, `RWF_DSYNC`", Space::Ftruncated, Sync::Dsync),
    kept("zero-written, `O_DIRECT` + `RWF_DSYNC`", Space::Zeroed, Sync::DirectDsync),
    kept("sync thread that reads the mark before `fdatasync`", Space::Appended, Sync::Thread { late: false }),
    kept("write, `fsync`, rename, `fsync` of the folder", Space::Appended, Sync::Rename { folder: true }),
    kept("new file, `fsync`, `fsync` of the folder", Space::Appended, Sync::Create { folder: true }),
    Method {
        name: "new file, `fsync`, no `fsync` of the folder",
        space: Space::Appended,
        sync: Sync::Create { folder: false },
        expected: Expected::Unknown,
    },
    lost("write, `fsync`, rename, no `fsync` of the folder", Space::Appended, Sync::Rename { folder: false }, NOWHERE),
    lost("sync thread that reads the mark after `fdatasync`", Space::Appended, Sync::Thread { late: true }, NOWHERE),
    lost("zero-written, `sync_file_range`", Space::Zeroed, Sync::Range, NOT_BTRFS),
    lost("zero-written, no copy-on-write, `sync_file_range`", Space::ZeroedNoCow, Sync::Range, EVERYWHERE),
    lost("fallocated, `sync_file_range`", Space::Fallocated, Sync::Range, NOWHERE),
    lost("ftruncated, `sync_file_range`", Space::Ftruncated, Sync::Range, NOWHERE),
    lost("append, `sync_file_range`", Space::Appended, Sync::Range, NOWHERE),
    lost("zero-written, `O_DIRECT`, no sync", Space::Zeroed, Sync::Direct, NOT_BTRFS),
];

/// A block's content: its number, and bytes that follow from it.
pub(crate) fn block(number: u64) -> Vec<u8> {
    (0..BLOCK as u64 / 8).flat_map(|word| ((number + 1) << 16 | word).to_le_bytes()).collect()
}

fn file(folder: &Path) -> PathBuf {
    folder.join("file")
}

impl Method {
    /// Whether there is such a thing on a file system: only btrfs has a file that is not to be copied on write.
    pub(crate) fn exists_on(&self, filesystem: Filesystem) -> bool {
        self.space != Space::ZeroedNoCow || filesystem == Filesystem::Btrfs
    }

    /// Makes the space, durably.
    pub(crate) fn prepare(&self, folder: &Path) -> CutResult {
        let io = |e: std::io::Error| format!("{}: {e}", self.name);
        let file = File::create(file(folder)).map_err(io)?;
        let size = BLOCKS * BLOCK as u64;
        if self.space == Space::ZeroedNoCow {
            let status = Command::new("chattr").arg("+C").arg(self::file(folder)).status().map_err(io)?;
            if !status.success() {
                return Err(format!("chattr +C ended with {status}"));
            }
        }
        match self.space {
            Space::Appended => Ok(()),
            Space::Zeroed | Space::ZeroedNoCow => file.write_all_at(&vec![0; size as usize], 0),
            Space::Fallocated => fallocate(&file, FallocateFlags::empty(), 0, size).map_err(Into::into),
            Space::Ftruncated => file.set_len(size),
        }
        .and_then(|()| file.sync_all())
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(io)
    }

    /// Writes all blocks and says of each when it is taken for durable.
    pub(crate) fn run(&self, folder: &Path, recorder: &Recorder) -> CutResult {
        self.try_run(folder, recorder).map_err(|e| format!("{}: {e}", self.name))
    }

    fn try_run(&self, folder: &Path, recorder: &Recorder) -> std::io::Result<()> {
        let path = file(folder);
        let direct = matches!(self.sync, Sync::Direct | Sync::DirectDsync);
        let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
        let file = OpenOptions::new().write(true).custom_flags(flags).open(&path)?;
        match self.sync {
            Sync::Thread { late } => return two_threads(&file, late, recorder),
            Sync::Rename { folder: sync } => return files(folder, true, sync, recorder),
            Sync::Create { folder: sync } => return files(folder, false, sync, recorder),
            _ => {}
        }
        let mut range = (self.sync == Sync::Range).then(|| RangeSync::of(&path)).transpose()?;
        for number in 0..BLOCKS {
            let at = number * BLOCK as u64;
            let memory = aligned(&block(number));
            let bytes = &memory.0[memory.1..memory.1 + BLOCK];
            match self.sync {
                Sync::Fdatasync => file.write_all_at(bytes, at).and_then(|()| file.sync_data())?,
                Sync::Dsync | Sync::DirectDsync => synced(&file, bytes, at)?,
                Sync::Direct => file.write_all_at(bytes, at)?,
                _ => {
                    file.write_all_at(bytes, at)?;
                    range.as_mut().expect("made above").sync(at, BLOCK as u64)?;
                }
            }
            recorder.say(Word::Block(number));
        }
        Ok(())
    }

    /// Which of these blocks are not there as they were written.
    pub(crate) fn lost(&self, folder: &Path, blocks: &[u64]) -> Vec<u64> {
        let is_there = |number: u64| match self.sync {
            Sync::Create { .. } | Sync::Rename { .. } => {
                std::fs::read(folder.join(number.to_string())).ok() == Some(block(number))
            }
            _ => {
                let mut bytes = vec![0; BLOCK];
                let read = File::open(file(folder)).and_then(|f| f.read_exact_at(&mut bytes, number * BLOCK as u64));
                read.is_ok() && bytes == block(number)
            }
        };
        blocks.iter().copied().filter(|number| !is_there(*number)).collect()
    }
}

/// Bytes at an address that direct writes take, and where in the memory they begin.
fn aligned(bytes: &[u8]) -> (Vec<u8>, usize) {
    let mut memory = vec![0; bytes.len() + BLOCK];
    let from = memory.as_ptr().align_offset(BLOCK);
    memory[from..from + bytes.len()].copy_from_slice(bytes);
    (memory, from)
}

fn synced(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    match pwritev2(file.as_fd(), &[IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)? {
        length if length == bytes.len() => Ok(()),
        length => Err(std::io::Error::other(format!("{length} bytes were written"))),
    }
}

/// One thread writes, the other syncs and says what it takes for synced.
fn two_threads(file: &File, late: bool, recorder: &Recorder) -> std::io::Result<()> {
    let mark = AtomicU64::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..BLOCKS {
                file.write_all_at(&block(number), number * BLOCK as u64)?;
                mark.store(number + 1, Ordering::Release);
                thread::sleep(Duration::from_micros(400));
            }
            Ok(())
        });
        let mut said = 0;
        while said < BLOCKS && !(writer.is_finished() && mark.load(Ordering::Acquire) < BLOCKS) {
            let before = mark.load(Ordering::Acquire);
            file.sync_data()?;
            let reached = if late { mark.load(Ordering::Acquire) } else { before };
            for number in said..reached {
                recorder.say(Word::Block(number));
            }
            said = reached;
        }
        writer.join().expect("it does not panic")
    })
}

/// A file for each block, under its name at once or by a rename.
fn files(folder: &Path, rename: bool, sync: bool, recorder: &Recorder) -> std::io::Result<()> {
    let opened = File::open(folder)?;
    for number in 0..BLOCKS {
        let name = folder.join(number.to_string());
        let new = if rename { folder.join("new") } else { name.clone() };
        let mut file = File::create(&new)?;
        file.write_all(&block(number))?;
        file.sync_all()?;
        if rename {
            std::fs::rename(&new, &name)?;
        }
        if sync {
            opened.sync_all()?;
        }
        recorder.say(Word::Block(number));
    }
    Ok(())
}

/// `sync_file_range` has no safe wrapper in Rust: perl, which every Debian has, makes the call.
struct RangeSync {
    perl: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl RangeSync {
    fn of(path: &Path) -> std::io::Result<Self> {
        let number = match std::env::consts::ARCH {
            "x86_64" => 277,
            "aarch64" | "riscv64" => 84,
            other => return Err(std::io::Error::other(format!("sync_file_range has no known number on {other}"))),
        };
        let program = format!(
            "$| = 1; open(my $f, '+<', $ARGV[0]) or die $!; \
             while (<STDIN>) {{ my ($at, $length) = split; \
             print syscall({number}, fileno($f), $at + 0, $length + 0, 7) == 0 ? \"ok\\n\" : \"$!\\n\"; }}"
        );
        let mut perl = Command::new("perl");
        perl.args(["-e", &program]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut perl = perl.spawn()?;
        let answers = BufReader::new(perl.stdout.take().expect("a pipe"));
        Ok(Self { perl, answers })
    }

    fn sync(&mut self, at: u64, length: u64) -> std::io::Result<()> {
        let stdin = self.perl.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{at} {length}")?;
        stdin.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer == "ok\n" { Ok(()) } else { Err(std::io::Error::other(format!("sync_file_range: {answer:?}"))) }
    }
}

impl Drop for RangeSync {
    fn drop(&mut self) {
        drop(self.perl.stdin.take());
        let _ = self.perl.wait();
    }
}
