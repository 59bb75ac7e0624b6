//! Kernels that refuse what an engine wants. Filters hold for the thread that sets them and for those that it starts, so
//! each case has a thread of its own; limits hold for the process, so that case has a process of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_journal::io::{Access, Durability, Engine, EngineWish, Fallback, FallbackReason, IoBuf, LatchedFile, Storage};
use clad_journal::{Append, Event, Journal, JournalConfig, Level, Policy};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::{TEST_TIMEOUT, folder, open};

/// Runs with a kernel that answers one call with an error.
fn without(call: libc::c_long, errno: i32, case: impl FnOnce(&Path) + Send + 'static) {
    without_all(vec![(call, errno)], case);
}

/// The same for several calls, each with an error of its own.
fn without_all(calls: Vec<(libc::c_long, i32)>, case: impl FnOnce(&Path) + Send + 'static) {
    let ran = std::thread::spawn(move || {
        for (call, errno) in calls {
            let rules = BTreeMap::from([(call, Vec::new())]);
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let refuse = SeccompAction::Errno(errno as u32);
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
            let program: BpfProgram = filter.try_into().unwrap();
            seccompiler::apply_filter(&program).unwrap();
        }
        let dir = folder();
        case(dir.path());
    });
    ran.join().unwrap();
}

fn append(journal: &Journal, sequence: u64) {
    let payload = [sequence as u8; 100];
    let append = Append {
        producer: [1; 16],
        owner: 1,
        producer_epoch: 1,
        first_sequence: sequence,
        count: 1,
        gap: false,
        level: Level::Durable,
        min_time_ns: 1,
        max_time_ns: 1,
        peer_meta: &[],
        payload: &payload,
        payload_checksum: clad_journal::format::checksum::plain(&payload),
        permit: None,
    };
    let accepted = append.submit(journal).unwrap();
    let began = Instant::now();
    while journal.watermarks().durable <= accepted.first_offset {
        assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", journal.watermarks());
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A journal that asks for a ring, works all the same, and says what it had to do without.
fn journal_without(dir: &Path, config: JournalConfig) -> (Journal, Vec<Fallback>) {
    let fallbacks = Arc::new(Mutex::new(Vec::new()));
    let its = fallbacks.clone();
    let observer = Arc::new(move |event: &Event| {
        if let Event::Fallback(fallback) = event {
            its.lock().unwrap().push(fallback.clone());
        }
    });
    let config = JournalConfig { segment_bytes: 1 << 20, max_append_bytes: 64 << 10, reserve_free: 0, ..config };
    let journal = Journal::open_dir(dir, config, observer).unwrap();
    (0..5).for_each(|i| append(&journal, i));
    let fallbacks = fallbacks.lock().unwrap().clone();
    assert_eq!(journal.status().engine.fallbacks, fallbacks, "what was reported is what the status says");
    (journal, fallbacks)
}

#[test]
fn a_ring_that_is_refused_is_done_without_and_said() {
    let (setup, enter, register) = (libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register);
    for (call, errno, reason) in [
        (setup, libc::EPERM, FallbackReason::UringDenied),
        (setup, libc::EACCES, FallbackReason::UringDenied),
        (setup, libc::ENOSYS, FallbackReason::UringUnsupported),
        (setup, libc::ENOMEM, FallbackReason::Memlock),
        (enter, libc::EPERM, FallbackReason::UringDenied),
        (enter, libc::ENOSYS, FallbackReason::UringUnsupported),
        (register, libc::EPERM, FallbackReason::UringDenied),
    ] {
        without(call, errno, move |dir| {
            let config = JournalConfig { io_engine: EngineWish::Uring, ..JournalConfig::default() };
            let (journal, fallbacks) = journal_without(dir, config);
            assert_eq!(fallbacks.iter().map(|f| f.reason).collect::<Vec<_>>(), [reason], "{call} {errno}");
            let engine = journal.status().engine;
            assert_eq!(engine.engine, Engine::Blocking);
            assert!(engine.why.contains(&fallbacks[0].text), "{}", engine.why);
            assert!(fallbacks[0].text.contains("threads write instead"), "{}", fallbacks[0].text);
            assert!(journal.close(TEST_TIMEOUT));
        });
    }
}

#[test]
fn engines_that_do_not_want_a_ring_do_not_ask_for_one() {
    for io_engine in [EngineWish::Blocking, EngineWish::Auto] {
        without(libc::SYS_io_uring_setup, libc::EPERM, move |dir| {
            let (journal, fallbacks) = journal_without(dir, JournalConfig { io_engine, ..JournalConfig::default() });
            assert_eq!((fallbacks, journal.status().engine.engine), (vec![], Engine::Blocking));
        });
    }
    without(libc::SYS_io_uring_setup, libc::EPERM, |dir| {
        let (journal, fallbacks) =
            journal_without(dir, JournalConfig { policy: Policy::PerMessage, ..JournalConfig::default() });
        assert_eq!((fallbacks, journal.status().engine.engine), (vec![], Engine::Blocking));
    });
}

#[test]
fn a_write_that_cannot_sync_itself_is_followed_by_a_sync() {
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
        without(libc::SYS_pwritev2, errno, |dir| {
            let (storage, fallbacks) = open(dir, EngineWish::Blocking, 1);
            let file = LatchedFile::new(storage.create("a", Access::WriteDirect).unwrap());
            assert_eq!(*fallbacks.lock().unwrap(), []);
            for i in 0..3u64 {
                file.write_at_sync(IoBuf::zeroed(4096), i * 4096).1.unwrap();
            }
            let reasons: Vec<_> = fallbacks.lock().unwrap().iter().map(|f| f.reason).collect();
            assert_eq!(reasons, [FallbackReason::WriteSync], "said once");
            assert_eq!(Storage::engine(storage.as_ref()).fallbacks.len(), 1);
        });
    }
    without(libc::SYS_pwritev2, libc::EOPNOTSUPP, |dir| {
        let config = JournalConfig { policy: Policy::PerMessage, ..JournalConfig::default() };
        let (journal, _) = journal_without(dir, JournalConfig { io_engine: EngineWish::Blocking, ..config });
        assert_eq!(journal.status().engine.fallbacks[0].reason, FallbackReason::WriteSync);
    });
}

/// Calls that a write makes, found by the errors of those that are refused: a sync that does nothing is found without
/// a device to count on.
#[test]
fn a_synced_write_is_synced_by_the_kernel_and_others_are_not() {
    let (synced, data, all) = (libc::SYS_pwritev2, libc::SYS_fdatasync, libc::SYS_fsync);
    let file = |dir: &Path| {
        let (storage, _) = open(dir, EngineWish::Blocking, 1);
        LatchedFile::new(storage.create("a", Access::WriteDirect).unwrap())
    };
    let code = |done: std::io::Result<()>| done.map_err(|e| e.raw_os_error().unwrap());
    let block = || IoBuf::zeroed(4096);
    // It is the flag on the write that syncs, and only a synced write has it.
    without(synced, libc::EIO, move |dir| {
        assert_eq!(code(file(dir).write_at(block(), 0).1), Ok(()));
        assert_eq!(code(file_again(dir).write_at_sync(block(), 0).1), Err(libc::EIO));
        assert_eq!(
            code(file_again(dir).write_at_sync(IoBuf::with_capacity(0), 0).1),
            Ok(()),
            "an empty one asks nothing"
        );
    });
    // No other sync is made beside it.
    without_all(vec![(data, libc::EIO), (all, libc::EIO)], move |dir| {
        assert_eq!(code(file(dir).write_at_sync(block(), 0).1), Ok(()));
        assert_eq!(code(file_again(dir).sync()), Err(libc::EIO), "a sync asks the kernel");
    });
    // And where the flag is refused, the sync that takes its place is made: its error is the write's.
    without_all(vec![(synced, libc::EOPNOTSUPP), (data, libc::EIO)], move |dir| {
        let file = file(dir);
        assert_eq!(code(file.write_at(block(), 0).1), Ok(()));
        assert_eq!(code(file.write_at_sync(IoBuf::with_capacity(0), 0).1), Ok(()));
        assert_eq!(code(file.write_at_sync(block(), 0).1), Err(libc::EIO));
    });
}

/// The file of the test before, without what latched.
fn file_again(dir: &Path) -> LatchedFile {
    let (storage, _) = open(dir, EngineWish::Blocking, 1);
    LatchedFile::new(storage.open("a", Access::WriteDirect).unwrap())
}

const CHILD: &str = "CLAD_ENGINES_MEMLOCK_CHILD";

/// Little memory that may be locked, as an ordinary user has it in a container, is enough for a ring: only the ring itself
/// counts, and not with every kernel.
#[test]
fn little_memory_that_may_be_locked_is_enough_for_a_ring() {
    if std::env::var_os(CHILD).is_some() {
        return with_little_memlock();
    }
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "refused::little_memory_that_may_be_locked_is_enough_for_a_ring", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
}

fn with_little_memlock() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use rustix::process::{Uid, geteuid};
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_res_uid};
    let limit = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
    setrlimit(Resource::Memlock, limit).unwrap();
    // What is locked is counted over all processes of the real user, and root's may have more than the limit.
    if geteuid().is_root() {
        set_thread_res_uid(Uid::from_raw(61_234), None, None).unwrap();
    }
    // Root is above the limit by this capability; an ordinary user has none to lose.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).unwrap();
    let dir = folder();
    let (storage, fallbacks) = open(dir.path(), EngineWish::Uring, 2);
    assert_eq!(*fallbacks.lock().unwrap(), []);
    let ring = storage.ring().expect("a ring");
    let file = storage.create("a", Access::WriteDirect).unwrap();
    let ticket = clad_journal::io::uring::Ticket::default();
    let fill = |mut buf: IoBuf| {
        buf.extend_from_slice(&[5; 8192]);
        buf
    };
    let write =
        clad_journal::io::uring::Operation::write(file.clone(), 0, Durability::Synced, 8192, fill, ticket.done());
    ring.submit(write);
    ticket.wait().unwrap();
    assert_eq!(file.read_at(IoBuf::with_capacity(8192), 0, 8192).0[..], [5; 8192]);
}
