//! What one operation does, whoever makes it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clad_journal::io::uring::{MAX_IN_FLIGHT, Next, Operation, Source, Ticket};
use clad_journal::io::{Access, Durability, Engine, EngineWish, File, IoBuf, Latched, LatchedFile, OsStorage, Storage};

use super::{TEST_TIMEOUT, folder, open};

const BLOCK: usize = 4096;

/// A way to make an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A blocking call on the calling thread.
    Call,
    /// Through the ring.
    Ring,
}

struct Bench {
    way: Way,
    storage: Arc<OsStorage>,
    access: Access,
}

impl Bench {
    fn begin(&self, file: &Arc<dyn File>, pos: u64, bytes: Vec<u8>, durability: Durability) -> Ticket {
        let ticket = Ticket::default();
        let done = ticket.done();
        match self.way {
            Way::Call => done(file.write_at(IoBuf::copy_of(&bytes), pos, durability).1),
            Way::Ring => {
                let len = bytes.len();
                let fill = move |mut buf: IoBuf| {
                    assert!(buf.is_empty() && buf.capacity() >= bytes.len());
                    buf.extend_from_slice(&bytes);
                    buf
                };
                let ring = self.storage.ring().unwrap();
                ring.submit(Operation::write(file.clone(), pos, durability, len, fill, done));
            }
        }
        ticket
    }

    fn write(&self, file: &Arc<dyn File>, pos: u64, bytes: Vec<u8>, durability: Durability) -> io::Result<()> {
        self.begin(file, pos, bytes, durability).wait()
    }

    fn sync(&self, file: &Arc<dyn File>) -> io::Result<()> {
        match self.way {
            Way::Call => file.sync_data(),
            Way::Ring => {
                let ticket = Ticket::default();
                self.storage.ring().unwrap().submit(Operation::sync_data(file.clone(), ticket.done()));
                ticket.wait()
            }
        }
    }

    fn create(&self, name: &str) -> Arc<dyn File> {
        Arc::new(LatchedFile::new(self.storage.create(name, self.access).unwrap()))
    }
}

/// Runs a case in every way, around the page cache and through it.
fn in_every_way(case: impl Fn(&Bench)) {
    for (way, wish) in [(Way::Call, EngineWish::Blocking), (Way::Ring, EngineWish::Uring)] {
        for access in [Access::WriteDirect, Access::WriteCached] {
            let dir = folder();
            let (storage, fallbacks) = open(dir.path(), wish, 4);
            let engine = if way == Way::Ring { Engine::Uring } else { Engine::Blocking };
            assert_eq!(storage.engine().engine, engine, "{:?}", fallbacks.lock().unwrap());
            assert_eq!(storage.ring().is_some(), way == Way::Ring);
            case(&Bench { way, storage, access });
        }
    }
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn writes_of_all_sizes_are_found_at_their_places() {
    in_every_way(|b| {
        let file = b.create("a");
        let mut expected = vec![0; 8 << 20];
        // Descending, so that none extends the file behind another.
        let sizes = [3 << 20, (1 << 20) + BLOCK, 1 << 20, 64 << 10, 2 * BLOCK, BLOCK];
        let mut at = expected.len();
        for (i, size) in sizes.into_iter().enumerate() {
            at -= size + BLOCK;
            let bytes = pattern(i as u8, size);
            let durability = if i % 2 == 0 { Durability::Synced } else { Durability::Written };
            expected[at..at + size].copy_from_slice(&bytes);
            b.write(&file, at as u64, bytes, durability).unwrap();
        }
        b.sync(&file).unwrap();
        let end = expected.len() - BLOCK;
        let (read, done) = file.read_at(IoBuf::with_capacity(end), 0, end);
        done.unwrap();
        assert!(read[..] == expected[..end], "{:?} {:?}", b.way, b.access);
    });
}

#[test]
fn many_in_flight_at_once_all_end_and_keep_their_bytes_apart() {
    in_every_way(|b| {
        let file = b.create("a");
        let count = 3 * MAX_IN_FLIGHT;
        file.allocate((count * BLOCK) as u64).unwrap();
        let tickets: Vec<_> = (0..count)
            .map(|i| b.begin(&file, (i * BLOCK) as u64, pattern(i as u8, BLOCK), Durability::Synced))
            .collect();
        tickets.into_iter().for_each(|t| t.wait().unwrap());
        let (read, done) = file.read_at(IoBuf::with_capacity(count * BLOCK), 0, count * BLOCK);
        done.unwrap();
        for (i, block) in read.chunks(BLOCK).enumerate() {
            assert!(block == pattern(i as u8, BLOCK), "block {i}");
        }
        if let Some(ring) = b.storage.ring() {
            assert_eq!(ring.begun(), count as u64);
            assert!((2..=MAX_IN_FLIGHT).contains(&ring.most_in_flight()), "{}", ring.most_in_flight());
        }
    });
}

#[test]
fn an_empty_write_is_none() {
    in_every_way(|b| {
        let file = b.create("a");
        b.write(&file, 1 << 20, Vec::new(), Durability::Synced).unwrap();
        assert_eq!(file.len().unwrap(), 0);
    });
}

#[test]
fn a_failure_latches_until_the_file_is_opened_again() {
    in_every_way(|b| {
        drop(b.create("a"));
        // Open for reading only: the kernel refuses the write, whoever asks for it.
        let open = |access| Arc::new(LatchedFile::new(b.storage.open("a", access).unwrap())) as Arc<dyn File>;
        let read_only = open(Access::ReadCached);
        let first = b.write(&read_only, 0, pattern(1, BLOCK), Durability::Synced).unwrap_err();
        assert_eq!(first.raw_os_error(), Some(libc::EBADF));
        assert_eq!(Latched::of(&first), None, "the first error is the kernel's own");
        let again = b.write(&read_only, 0, pattern(1, BLOCK), Durability::Written).unwrap_err();
        assert_eq!(Latched::of(&again).unwrap().first, first.to_string());
        // A sync of what failed would answer success: the kernel has nothing to sync.
        assert!(Latched::of(&b.sync(&read_only).unwrap_err()).is_some());
        assert!(Latched::of(&read_only.sync_all().unwrap_err()).is_some());
        // The one engine sees the latch that the other has set.
        assert!(
            Latched::of(&read_only.write_at(IoBuf::zeroed(BLOCK), 0, Durability::Written).1.unwrap_err()).is_some()
        );
        let opened_again = open(b.access);
        b.write(&opened_again, 0, pattern(1, BLOCK), Durability::Synced).unwrap();
        b.sync(&opened_again).unwrap();
    });
}

#[test]
fn write_at_sync_is_the_same_by_its_own_name() {
    in_every_way(|b| {
        drop(b.create("a"));
        let file = LatchedFile::new(b.storage.open("a", b.access).unwrap());
        file.write_at_sync(IoBuf::copy_of(&pattern(3, BLOCK)), 0).1.unwrap();
        file.write_at(IoBuf::copy_of(&pattern(4, BLOCK)), BLOCK as u64).1.unwrap();
        file.write_at_sync(IoBuf::with_capacity(0), 1 << 20).1.unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 2 * BLOCK as u64);
        let broken = LatchedFile::new(b.storage.open("a", Access::ReadCached).unwrap());
        broken.write_at_sync(IoBuf::zeroed(BLOCK), 0).1.unwrap_err();
        assert!(Latched::of(&broken.sync().unwrap_err()).is_some());
    });
}

#[test]
fn a_ring_that_rests_does_not_wake() {
    let dir = folder();
    let (storage, _) = open(dir.path(), EngineWish::Uring, 2);
    let bench = Bench { way: Way::Ring, storage: storage.clone(), access: Access::WriteDirect };
    let file = bench.create("a");
    bench.write(&file, 0, pattern(1, BLOCK), Durability::Synced).unwrap();
    let ring = storage.ring().unwrap();
    ring.wait_done();
    // Its thread may see the bell of that only when it is run.
    let began = std::time::Instant::now();
    let mut before = ring.wakes();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        match ring.wakes() {
            now if now == before => break,
            now => before = now,
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "it never comes to rest");
    }
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(ring.wakes(), before, "nothing was asked of it");
    assert!(before <= 8, "{before} wake-ups for one operation");
}

/// Asked only when there is a reason to, and nothing is reported to it twice.
#[test]
fn a_source_is_asked_when_it_is_woken_and_when_an_operation_ends() {
    struct Counting {
        asked: AtomicUsize,
        left: AtomicUsize,
        file: Arc<dyn File>,
        ended: mpsc::SyncSender<usize>,
    }
    impl Source for Counting {
        fn next(&self) -> Next {
            self.asked.fetch_add(1, Ordering::Relaxed);
            match self.left.load(Ordering::Relaxed) {
                0 => Next::Wait(None),
                usize::MAX => Next::Done,
                n => {
                    self.left.store(n - 1, Ordering::Relaxed);
                    let (ended, fill) = (self.ended.clone(), |mut b: IoBuf| {
                        b.extend_from_slice(&[7; BLOCK]);
                        b
                    });
                    let pos = (n * BLOCK) as u64;
                    let done = move |r: io::Result<()>| ended.send(r.map(|()| n).unwrap()).unwrap();
                    Next::Begin(Operation::write(self.file.clone(), pos, Durability::Synced, BLOCK, fill, done))
                }
            }
        }
    }
    let dir = folder();
    let (storage, _) = open(dir.path(), EngineWish::Uring, 2);
    let file = storage.create("a", Access::WriteDirect).unwrap();
    let (ended, ends) = mpsc::sync_channel(8);
    let source = Arc::new(Counting { asked: AtomicUsize::new(0), left: AtomicUsize::new(5), file, ended });
    let ring = storage.ring().unwrap();
    ring.attach(source.clone());
    let mut all: Vec<_> = (0..5).map(|_| ends.recv_timeout(TEST_TIMEOUT).unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4, 5]);
    let asked = source.asked.load(Ordering::Relaxed);
    assert!((6..=16).contains(&asked), "asked {asked} times for five operations");
    source.left.store(usize::MAX, Ordering::Relaxed);
    ring.wait_done();
    assert_eq!(Arc::strong_count(&source), 1, "it was let go");
}

#[test]
fn what_is_in_flight_when_the_ring_goes_is_completed_all_the_same() {
    let dir = folder();
    let (storage, _) = open(dir.path(), EngineWish::Uring, 2);
    let bench = Bench { way: Way::Ring, storage: storage.clone(), access: Access::WriteDirect };
    let file = bench.create("a");
    let tickets: Vec<_> =
        (0..100).map(|i| bench.begin(&file, (i * BLOCK) as u64, pattern(1, BLOCK), Durability::Synced)).collect();
    drop(bench);
    drop(storage);
    tickets.into_iter().for_each(|t| t.wait().unwrap());
    assert_eq!(file.len().unwrap(), 100 * BLOCK as u64);
}
