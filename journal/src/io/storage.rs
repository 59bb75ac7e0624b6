//! The folder of a log.

use std::io;
use std::sync::Arc;

use super::engine::{Engine, EngineReport};
use super::file::{Access, File};
use super::uring;

/// One name in the folder of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, relative to the folder.
    pub name: String,
    /// Bytes, as the file system reports them; 0 for anything but a plain file.
    pub len: u64,
    /// Plain file, folder, or anything else (sockets live in the same folder by default).
    pub kind: EntryKind,
}

/// Kind of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A folder.
    Dir,
    /// A socket, a pipe, a link, a device.
    Other,
}

/// Result of [`Storage::take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// It has the new name, and no other open file leads to it.
    Done,
    /// It still has its old name: its bytes might be seen to change.
    Refused(Witness),
}

/// Evidence that a change of a file's bytes might be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Witness {
    /// Another open file leads to it, of this process or another one.
    #[error("somebody has it open")]
    Open,
    /// It has another name.
    #[error("it has another link")]
    Linked,
    /// Some blocks are not written space of its own: shared with a copy or a snapshot, missing, or reserved only.
    #[error("its blocks are not all its own")]
    Shared,
    /// The file system does not report it.
    #[error("this file system cannot prove that nobody has it open")]
    Unproven,
}

/// The folder of one log on some disk. Names are relative, at most one folder deep (`quarantine/…`).
pub trait Storage: Send + Sync + 'static {
    /// Lists a folder (`""` is the log's own), in no particular order.
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>>;
    /// Opens an existing file. Each call is an open file description of its own.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>>;
    /// Creates a file that must not exist yet, mode 0600, and opens it.
    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>>;
    /// Makes a folder if it is missing, mode 0750.
    fn create_dir(&self, name: &str) -> io::Result<()>;
    /// Renames a file over whatever has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file whose bytes are about to be replaced, if no other reader can ever see them change. It has one
    /// link, every block of its length is written and not shared, and no other open file leads to it, before the rename
    /// and after. The caller made its mode private, so that it is not opened meanwhile, and has it open nowhere.
    ///
    /// The new name is durable after [`Storage::sync_dir`], as with [`Storage::rename`].
    ///
    /// # Errors
    /// The kernel's error; the file then has either name.
    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Gives a file its sealed mode (0640) or its private one (0600).
    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()>;
    /// Bytes that this user may still allocate in the file system, and its size.
    fn space(&self) -> io::Result<Space>;
    /// The block that a direct write must cover whole: never below the physical block, and never below 4096.
    fn block_size(&self) -> u32;
    /// Returns true if `*Direct` accesses really go around the page cache here.
    fn is_direct(&self) -> bool;
    /// Returns true if written zeroes make later overwrites cheaper (ext4, xfs); else they only double the work.
    fn zeroing_pays(&self) -> bool;
    /// The thread that has several operations in flight, where the engine has one.
    fn ring(&self) -> Option<&uring::Ring> {
        None
    }
    /// The engine that issues the writes, and its fallbacks.
    fn engine(&self) -> EngineReport {
        EngineReport { engine: Engine::Blocking, why: "the only one here".to_owned(), fallbacks: Vec::new() }
    }
}

/// Room in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes free for this user.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Files that can still be made (inodes); `u64::MAX` where the file system has no bound for them.
    pub files: u64,
}
