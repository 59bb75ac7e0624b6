//! The latch on a file that several threads write to.
//!
//! What must hold in every order: an operation that begins when a failure was reported is refused, without asking the
//! disk; all refusals name one and the same first failure; what was under way may still end either way.

use std::io;
use std::sync::Arc;

use clad_journal::io::{Access, Durability, File, IoBuf, Latched, LatchedFile, Lock, Storage};
use clad_sim::SimDisk;
use clad_sim::disk::{Fault, OpKind};
use shuttle::sync::Mutex;
use shuttle::thread;

/// A file whose operations take a while.
struct Slow(Arc<dyn File>);

impl File for Slow {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        thread::yield_now();
        self.0.write_at(buf, pos, durability)
    }
    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        self.0.read_at(buf, pos, want)
    }
    fn sync_data(&self) -> io::Result<()> {
        thread::yield_now();
        self.0.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        self.0.sync_range(pos, len)
    }
    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.0.overwrites_in_place(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.0.allocate(len)
    }
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.0.try_lock(lock)
    }
    fn lock(&self, lock: Lock) -> io::Result<()> {
        self.0.lock(lock)
    }
}

/// The journal's own file.
pub fn right() {
    model(|file| Arc::new(LatchedFile::new(file)));
}

/// One without a latch.
pub fn wrong() {
    model(|file| file);
}

fn model(latched: fn(Arc<dyn File>) -> Arc<dyn File>) {
    let disk = SimDisk::new(1);
    let file = latched(Arc::new(Slow(disk.create("file", Access::WriteDirect).expect("a sound disk"))));
    disk.fail_next(OpKind::Write, "file", Fault::Io);
    disk.fail_next(OpKind::SyncData, "file", Fault::Io);
    // The first failure that was reported, if any.
    let reported: Arc<Mutex<Option<String>>> = Arc::default();
    let writers = [0u64, 1, 2].map(|which| {
        let (file, reported) = (file.clone(), reported.clone());
        thread::spawn(move || {
            for turn in 0..2 {
                let late = reported.lock().expect("whole").is_some();
                let done = match (which + turn) % 3 {
                    0 => file.sync_data(),
                    _ => file.write_at(IoBuf::zeroed(4096), which * 4096, Durability::Written).1,
                };
                let refusal = done.as_ref().err().and_then(Latched::of).cloned();
                assert!(!late || refusal.is_some(), "it continues after a reported failure: {done:?}");
                if let Err(error) = done {
                    let mut reported = reported.lock().expect("whole");
                    let first = refusal.map(|latched| latched.first);
                    match (&mut *reported, first) {
                        (Some(known), Some(first)) => assert_eq!(*known, first, "one failure was the first"),
                        (known @ None, first) => *known = Some(first.unwrap_or_else(|| error.to_string())),
                        (Some(_), None) => {} // under way when the first failed
                    }
                }
            }
        })
    });
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    assert!(reported.lock().expect("whole").is_some(), "something failed");
}
