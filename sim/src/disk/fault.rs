//! Faults that can be asked for, and counters.

use std::{error, fmt};

/// Result of an operation, other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// EIO. Of a write any part may have landed; a sync leaves what it did not write clean and readable.
    Io,
    /// ENOSPC, with the same effects.
    NoSpace,
    /// The kernel writes nothing and says so.
    WriteZero,
    /// The kernel writes a part; the rest is written by a second operation. No failure by itself.
    ShortWrite,
    /// A sync or synced write that says yes and makes nothing durable.
    FalseSync,
    /// The power goes in the middle of it.
    PowerCut,
    /// The process dies in the middle of it.
    Kill,
}

/// Kinds of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// [`clad_journal::io::Storage::list`]
    List,
    /// [`clad_journal::io::Storage::open`]
    Open,
    /// [`clad_journal::io::Storage::create`]
    Create,
    /// [`clad_journal::io::Storage::create_dir`]
    CreateDir,
    /// [`clad_journal::io::Storage::rename`]; its name is the old one
    Rename,
    /// [`clad_journal::io::Storage::remove`]
    Remove,
    /// [`clad_journal::io::Storage::sync_dir`]
    SyncDir,
    /// [`clad_journal::io::Storage::set_sealed_mode`]
    Mode,
    /// [`clad_journal::io::Storage::space`]
    Space,
    /// A write that promises nothing.
    Write,
    /// A write with its sync.
    SyncedWrite,
    /// [`clad_journal::io::File::read_at`]
    Read,
    /// [`clad_journal::io::File::sync_data`]
    SyncData,
    /// [`clad_journal::io::File::sync_all`]
    SyncAll,
    /// [`clad_journal::io::File::sync_range`]
    SyncRange,
    /// [`clad_journal::io::File::overwrites_in_place`]
    InPlace,
    /// [`clad_journal::io::Storage::take_over`]; its name is the old one
    TakeOver,
    /// [`clad_journal::io::File::len`]
    Len,
    /// [`clad_journal::io::File::set_len`]
    SetLen,
    /// [`clad_journal::io::File::allocate`]
    Allocate,
    /// Either way to take a lock.
    Lock,
}

/// One operation, for a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its number.
    pub number: u64,
    /// The process that asked.
    pub process: u64,
    /// The operation asked for.
    pub kind: OpKind,
    /// The name, as the file was last called.
    pub name: String,
    /// Where in the file, or the new size.
    pub pos: u64,
    /// Bytes asked for.
    pub len: u64,
    /// The fault that it was made to end in.
    pub fault: Option<Fault>,
}

/// Counters of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations of every kind.
    pub ops: u64,
    /// Writes, synced or not.
    pub writes: u64,
    /// Writes with their own sync.
    pub synced_writes: u64,
    /// Bytes of all writes.
    pub bytes_written: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes that reads gave.
    pub bytes_read: u64,
    /// `sync_data` and `sync_all`.
    pub syncs: u64,
    /// `sync_range`.
    pub range_syncs: u64,
    /// `sync_dir`.
    pub dir_syncs: u64,
}

/// The error of everything that a dead process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead;

impl Dead {
    /// True if an error is this one, and not a fault of the disk.
    pub fn is(e: &std::io::Error) -> bool {
        e.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl fmt::Display for Dead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this process of the simulation is dead")
    }
}

impl error::Error for Dead {}

impl From<Dead> for std::io::Error {
    fn from(dead: Dead) -> Self {
        Self::other(dead)
    }
}
