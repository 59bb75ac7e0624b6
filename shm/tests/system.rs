//! The part of the kernel: seals, a punched hole, forks, system calls and page faults that are counted, and the order
//! between rings of processes that talk to each other.
#![allow(unsafe_code)] // fork, and mappings that a hostile client would make

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use clad_shm::{Drain, Peek, Producer, PushError, Shape, WaitError, clock};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};

fn pair(data: u32, slots: u32) -> (Drain, Producer) {
    let drain = Drain::create(Shape::new(data, slots).expect("a shape"), 1, [0; 16], 1).expect("a ring");
    let producer = attach(&drain);
    (drain, producer)
}

fn own(fd: impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().expect("a descriptor")
}

fn attach(drain: &Drain) -> Producer {
    let fds = drain.client_fds();
    Producer::attach(&own(fds.ring), &own(fds.completion_page), own(fds.waker)).expect("attached")
}

fn take_all(drain: &mut Drain) -> Vec<Vec<u8>> {
    let before = clock::now();
    let mut all = Vec::new();
    while let Peek::Ready = drain.peek(before).expect("a sound ring") {
        let mut payload = Vec::new();
        drain.take(&mut payload).expect("a sound ring");
        all.push(payload);
    }
    drain.release(drain.next());
    all
}

#[test]
fn the_client_can_neither_resize_nor_unseal_nor_write_to_the_completion_page() {
    let (mut drain, producer) = pair(4096, 16);
    let (ring, completion_page) = (own(drain.client_fds().ring), own(drain.client_fds().completion_page));
    for file in [&ring, &completion_page] {
        let size = rustix::fs::fstat(file).expect("a file").st_size as u64;
        assert_eq!(rustix::fs::ftruncate(file, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, size * 2), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM));
        // A new description of the same file, as anybody with the same user id can have it.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
            assert!(again.set_len(0).is_err());
        }
    }
    assert_eq!(rustix::io::pwrite(&completion_page, b"x", 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&completion_page, punch, 0, 4096), Err(Errno::PERM));
    // SAFETY: new mappings at addresses that the kernel picks; the one that succeeds is read-only and never reached.
    unsafe {
        let writable =
            mmap(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &completion_page, 0);
        assert_eq!(writable.err(), Some(Errno::PERM));
        let readable = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &completion_page, 0)
            .expect("read-only");
        assert_eq!(mprotect(readable, 4096, MprotectFlags::READ | MprotectFlags::WRITE), Err(Errno::ACCESS));
    }
    assert_eq!(producer.push(&[b"still sound"], 1), Ok(0));
    assert_eq!(take_all(&mut drain), [b"still sound"]);
}

#[test]
fn a_punched_hole_under_the_drain_reads_as_zeroes_and_ends_that_ring_alone() {
    // What was committed and not taken is gone, and no more can be known: the ring is corrupt or empty, never a signal.
    for (from, len) in [(0, 4096), (4096, 4096), (8192, 4096), (0, 12288)] {
        let (mut drain, producer) = pair(4096, 512);
        for n in 0..10_u8 {
            assert!(producer.push(&[&[n; 50]], 1).is_ok());
        }
        assert_eq!(take_all(&mut drain).len(), 10);
        for n in 0..10_u8 {
            assert!(producer.push(&[&[n; 50]], 1).is_ok());
        }
        let ring = own(drain.client_fds().ring);
        rustix::fs::fallocate(&ring, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len)
            .expect("the ring's own client may do that to it");
        let before = clock::now();
        let mut taken = Vec::new();
        let end = loop {
            match drain.peek(before) {
                Ok(Peek::Ready) => match drain.take(&mut taken) {
                    Ok(_) => {}
                    Err(corrupt) => break Err(corrupt),
                },
                Ok(_) => break Ok(()),
                Err(corrupt) => break Err(corrupt),
            }
        };
        // Only a punched hole in the header alone leaves what was committed: the drain's own place is its own.
        let whole = taken.len() == 500;
        assert!(
            whole == (from == 0 && len == 4096) && (whole || taken.is_empty()),
            "{from}+{len}: {} bytes",
            taken.len()
        );
        assert!(end.is_err() || taken.is_empty() || whole, "{from}+{len}: {end:?}");
        drain.cut_off(1);
        drain.release(drain.next());
    }
}

#[test]
fn a_fork_gets_an_error_and_never_the_ring_of_its_parent() {
    let (mut drain, producer) = pair(4096, 16);
    assert_eq!(producer.push(&[b"parent"], 1), Ok(0));
    let soon = clock::now() + 1_000_000;
    // SAFETY: the child makes calls that take no lock and allocate nothing, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sound = producer.push(&[b"child"], 1) == Err(PushError::Forked)
            && producer.wait_space(1, soon) == Err(WaitError::Forked)
            && producer.wait_level(0, clad_shm::Level::Durable, soon) == Err(WaitError::Forked)
            && producer.is_closed();
        drop(producer);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!sound)) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw something else than Forked, or was killed");
    assert_eq!(producer.push(&[b"parent again"], 1), Ok(1));
    assert_eq!(take_all(&mut drain), [b"parent".to_vec(), b"parent again".to_vec()]);
}

/// A million calls in a process to which the kernel allows `exit_group` alone; page faults are counted beside.
#[test]
fn no_system_call_and_no_page_fault_for_each_append() {
    const CALLS: u64 = 1_000_000;
    let (mut drain, producer) = pair(1 << 20, 1 << 14);
    let payload = [7; 128];
    // The first lap is over, and what is bound late is bound.
    for _ in 0..20_000 {
        if producer.push(&[&payload], 1).is_err() {
            take_all(&mut drain);
        }
    }
    take_all(&mut drain);
    let (from, waker) = (drain.next(), own(drain.waker()));
    let (ring, completion_page) = (own(drain.client_fds().ring), own(drain.client_fds().completion_page));
    let filter = no_system_calls();
    // SAFETY: this process has other threads; the child allocates (the C library takes care of its own locks) and leaves
    // by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match Producer::attach(&ring, &completion_page, waker) {
            // Never dropped: unmapping is a system call.
            Ok(producer) => quiet(&std::mem::ManuallyDrop::new(producer), &filter, &payload, CALLS),
            Err(_) => 1,
        };
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0);
    let (mut status, mut taken) = (0, 0);
    let mut bytes = Vec::new();
    loop {
        // SAFETY: our own child, and a place for its status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child;
        let before = clock::now();
        while let Peek::Ready = drain.peek(before).expect("a sound ring") {
            bytes.clear();
            drain.take(&mut bytes).expect("a sound ring");
            assert_eq!(bytes, payload);
            taken += 1;
        }
        drain.release(drain.next());
        if ended {
            break;
        }
    }
    assert!(!libc::WIFSIGNALED(status), "a system call in the middle: killed by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "2: a push failed; 3: page faults");
    assert_eq!((taken, drain.next() - from), (CALLS, CALLS));
    assert_eq!(rustix::io::read(drain.waker(), &mut [0; 8]), Err(Errno::AGAIN), "nobody was woken");
}

fn no_system_calls() -> seccompiler::BpfProgram {
    use seccompiler::{SeccompAction, SeccompFilter};
    // getrusage twice, to count page faults; everything else ends the process.
    let allowed = [libc::SYS_exit_group, libc::SYS_getrusage].into_iter().map(|call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().expect("a known processor");
    let filter = SeccompFilter::new(allowed, SeccompAction::KillProcess, SeccompAction::Allow, arch);
    filter.and_then(TryInto::try_into).expect("a filter")
}

/// Pushes under the filter. 0: all went well.
fn quiet(producer: &Producer, filter: &seccompiler::BpfProgram, payload: &[u8], calls: u64) -> i32 {
    if producer.push(&[payload], 1).is_err() || seccompiler::apply_filter(filter).is_err() {
        return 1;
    }
    let faults = minor_faults();
    let mut done = 1;
    while done < calls {
        match producer.push(&[payload], 1) {
            Ok(_) => done += 1,
            Err(PushError::Full) => std::hint::spin_loop(),
            Err(_) => return 2,
        }
    }
    // A handful for what the program itself touches for the first time; a ring has 256 pages, and went around 150 times.
    if minor_faults() - faults > 16 { 3 } else { 0 }
}

fn minor_faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a place for what the kernel returns; zeroes are a valid value of it.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_minflt
    }
}

/// Takes and gives back all that is there; the content of each append.
fn drain_all(ring: &mut Drain, out: &mut Vec<u64>) {
    while let Peek::Ready = ring.peek(clock::now()).expect("a sound ring") {
        let mut bytes = Vec::new();
        ring.take(&mut bytes).expect("a sound ring").expect("it was seen");
        out.push(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        ring.release(ring.next());
    }
}

/// Four threads pass a token around: who has it logs by the one ring, then hands it on. Four more log all the time
/// beside, so that there are entries in the making behind which others are committed.
#[test]
fn what_happened_before_stays_before_in_a_ring() {
    const TURNS: u64 = 1_000;
    const NOISE: u64 = 1 << 63;
    let (mut ring, producer) = pair(1 << 16, 1 << 10);
    ring.set_commit_timeout_ns(500_000);
    let turn = AtomicU64::new(0);
    let mut order = Vec::new();
    std::thread::scope(|threads| {
        let mut writers = Vec::new();
        for index in 0..4 {
            let (turn, producer) = (&turn, &producer);
            let push = move |n: u64| while producer.push(&[&n.to_le_bytes()], 1).is_err() {};
            writers.push(threads.spawn(move || {
                loop {
                    let now = turn.load(Ordering::Acquire);
                    if now >= TURNS {
                        return;
                    }
                    if now % 4 == index {
                        push(now);
                        turn.store(now + 1, Ordering::Release);
                    } else {
                        std::thread::yield_now();
                    }
                }
            }));
            writers.push(threads.spawn(move || {
                let mut n = NOISE;
                while turn.load(Ordering::Relaxed) < TURNS {
                    push(n);
                    n += 1;
                    std::thread::yield_now();
                }
            }));
        }
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            drain_all(&mut ring, &mut order);
        }
    });
    drain_all(&mut ring, &mut order);
    let turns: Vec<u64> = order.iter().copied().filter(|n| n & NOISE == 0).collect();
    let wrong = turns.iter().enumerate().find(|(at, n)| *at as u64 != **n);
    assert_eq!(wrong, None, "what came after was taken before");
    assert_eq!(turns.len() as u64, TURNS);
    assert!(order.len() as u64 > TURNS, "there was noise");
}
