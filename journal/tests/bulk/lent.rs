//! The writer over a file of a storage: what it asks of that file, in which order, and what becomes of a failure.

use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};

use clad_journal::bulk::{BulkWriter, Engine, Error, Op, Options};
use clad_journal::io::{Access, Durability, File, IoBuf, Lock, OsStorage, Storage};

use crate::{folder, pattern};

const BLOCK: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Write { pos: u64, len: usize },
    SyncData,
    SyncAll,
}

/// A file that remembers what it was asked for, and refuses writes from some place on.
struct Recorded {
    inner: Arc<dyn File>,
    asked: Mutex<Vec<Asked>>,
    full_at: u64,
}

impl Recorded {
    fn note(&self, asked: Asked) {
        self.asked.lock().expect("whole").push(asked);
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().expect("whole"))
    }
}

impl File for Recorded {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        self.note(Asked::Write { pos, len: buf.len() });
        match pos + buf.len() as u64 > self.full_at {
            true => (buf, Err(ErrorKind::StorageFull.into())),
            false => self.inner.write_at(buf, pos, durability),
        }
    }
    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        self.inner.read_at(buf, pos, want)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.note(Asked::SyncData);
        self.inner.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.note(Asked::SyncAll);
        self.inner.sync_all()
    }
    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        self.inner.sync_range(pos, len)
    }
    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.inner.overwrites_in_place(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.inner.try_lock(lock)
    }
    fn lock(&self, lock: Lock) -> io::Result<()> {
        self.inner.lock(lock)
    }
}

struct World {
    file: Arc<Recorded>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(access: Access, full_at: u64) -> Self {
        let folder = folder();
        let storage = OsStorage::open(folder.path(), BLOCK, true).expect("a storage");
        let inner = storage.create("file", access).expect("a file");
        Self { file: Arc::new(Recorded { inner, asked: Mutex::default(), full_at }), _folder: folder }
    }

    /// Two buffers of two blocks; an engine that a lent file does not have.
    fn writer(&self) -> BulkWriter {
        let options = Options::new().engine(Engine::Ring).buffers(2).buffer_bytes(8192);
        options.over(self.file.clone(), "its name", BLOCK).expect("a writer")
    }

    fn holds(&self, len: usize) -> Vec<u8> {
        let (buf, read) = self.file.read_at(IoBuf::with_capacity(len + 1), 0, (len + 1).next_multiple_of(4096));
        read.expect("it can be read");
        buf.to_vec()
    }
}

fn write(pos: u64, len: usize) -> Asked {
    Asked::Write { pos, len }
}

#[test]
fn each_buffer_is_one_write_by_the_caller_and_the_first_sync_covers_the_length() {
    let world = World::new(Access::WriteDirect, u64::MAX);
    world.file.allocate(32768).expect("space");
    let mut writer = world.writer();
    assert_eq!((writer.position(), writer.len()), (0, 32768));
    writer.write_all(&pattern(0, 20480)).expect("written");
    // A full buffer is at the file when the call that filled it returns: nothing is under way behind the caller's back.
    assert_eq!(world.file.asked(), [write(0, 8192), write(8192, 8192)]);
    writer.flush().expect("handed over");
    assert_eq!(world.file.asked(), [write(16384, 4096)]);
    writer.sync().expect("durable");
    writer.sync().expect("nothing to do");
    assert_eq!(world.file.asked(), [Asked::SyncAll]);
    writer.seek(SeekFrom::Start(4096)).expect("a place");
    writer.write_all(&pattern(4096, 4096)).expect("written");
    writer.sync().expect("durable");
    assert_eq!(world.file.asked(), [write(4096, 4096), Asked::SyncData]);
    let stats = writer.finish().expect("nothing to do");
    assert_eq!((stats.engine, stats.regular_writes, stats.syncs), (Engine::Caller, 4, 2));
    assert!(world.file.asked().is_empty());
    let held = world.holds(32768);
    assert!(held[..20480] == pattern(0, 20480) && held[20480..].iter().all(|byte| *byte == 0));
}

#[test]
fn pieces_that_are_no_blocks_are_for_the_page_cache_only() {
    let world = World::new(Access::WriteCached, u64::MAX);
    let mut writer = world.writer();
    writer.write_all(&pattern(0, 100)).expect("written");
    writer.flush().expect("handed over");
    writer.write_all(&pattern(100, 9000)).expect("written");
    writer.finish().expect("durable");
    assert_eq!(world.file.asked(), [write(0, 100), write(100, 8092), write(8192, 908), Asked::SyncAll]);
    assert!(world.holds(9100) == pattern(0, 9100));

    let world = World::new(Access::WriteDirect, u64::MAX);
    let mut writer = world.writer();
    writer.write_all(&pattern(0, 100)).expect("buffered");
    assert_eq!(writer.flush().expect_err("no block").kind(), ErrorKind::InvalidInput);
    let block = Options::new().over(world.file.clone(), "its name", 3000).expect_err("3000 bytes are no block");
    assert_eq!(block.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_failure_is_reported_with_its_place_and_nothing_is_asked_of_the_file_again() {
    let world = World::new(Access::WriteDirect, 16384);
    let mut writer = world.writer();
    let failed = writer.write_all(&pattern(0, 40960)).and_then(|()| writer.flush()).expect_err("it is full");
    assert_eq!(failed.kind(), ErrorKind::StorageFull);
    let error = failed.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).expect("the typed one");
    assert_eq!((error.op, error.position, error.length), (Op::Write, 16384, 8192));
    assert!(error.to_string().contains("byte 16384 of its name"), "{error}");
    let asked = world.file.asked();
    assert_eq!(asked.last(), Some(&write(16384, 8192)), "{asked:?}");
    assert!(writer.sync().is_err() && writer.flush().is_err());
    drop(writer);
    assert!(world.file.asked().is_empty(), "it was returned once, and that was it");
}
