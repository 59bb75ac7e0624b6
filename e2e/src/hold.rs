//! Threads of a program that are held: where they ask a device to flush, or wherever they are.
//!
//! Invariants: a held thread is stopped by the kernel (ptrace), inside of its call and before the device hears of it,
//! which is what a device that does not answer looks like from within; no other thread is touched, nothing in the program
//! knows of it, and what is held goes on when the holder says so or is dropped. The calls are the ones of threads: what a
//! ring does is not seen here. A program's first thread is not to be held, because who waits for the program's end would
//! hear of each stop.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::TEST_TIMEOUT;

/// Between two looks at what the threads do: what it adds to each of their calls.
const THREAD_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Until threads that did not all wait are stopped again.
const FREEZE_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The threads of a process whose names a test picks, with their names.
///
/// # Panics
/// When the process is gone.
#[must_use]
pub fn threads(pid: u32, pick: impl Fn(&str) -> bool) -> Vec<(i32, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let named = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned();
        Some((task.file_name().to_str()?.parse().ok()?, name))
    });
    named.filter(|(_, name)| pick(name)).collect()
}

/// What the holder does with its threads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Calls that flush, while they are to be held.
    Flushes,
    /// Stop, and stay so.
    Everything,
}

#[derive(Debug, Default)]
struct Shared {
    holding: AtomicBool,
    held: AtomicUsize,
    /// Those of them that were stopped in a call that waits.
    waiting: AtomicUsize,
    over: AtomicBool,
}

/// Threads of a program that can be held.
#[derive(Debug)]
pub struct Holder {
    shared: Arc<Shared>,
    tracer: Option<JoinHandle<()>>,
}

impl Holder {
    /// Over these threads, at their calls that flush (`fsync`, `fdatasync`, `sync_file_range`, writes with `RWF_DSYNC`
    /// or `RWF_SYNC`). Nothing is held at first.
    ///
    /// # Panics
    /// When they cannot be traced.
    #[must_use]
    pub fn of_flushes(threads: &[(i32, String)]) -> Self {
        Self::start(threads, What::Flushes)
    }

    /// Stops these threads until it is dropped, while each waits for something to do: a thread that is stopped with a
    /// lock in its hand stops everybody who wants that lock, which is another fault.
    ///
    /// # Panics
    /// When they cannot be traced, or never wait all at once.
    #[must_use]
    pub fn freeze(threads: &[(i32, String)]) -> Self {
        let began = Instant::now();
        loop {
            let holder = Self::start(threads, What::Everything);
            holder.wait_held(threads.len());
            let waiting = holder.shared.waiting.load(Ordering::SeqCst);
            if waiting == threads.len() {
                return holder;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{waiting} of {} threads wait", threads.len());
            drop(holder);
            thread::sleep(FREEZE_RETRY_INTERVAL);
        }
    }

    fn start(threads: &[(i32, String)], what: What) -> Self {
        assert!(!threads.is_empty(), "nobody to hold");
        let shared = Arc::new(Shared::default());
        let (ready, is_ready) = mpsc::sync_channel(1);
        let (its, tids) = (shared.clone(), threads.iter().map(|(tid, _)| Pid::from_raw(*tid)).collect::<Vec<_>>());
        // What is traced is traced by one thread, and goes on when that ends.
        let tracer = thread::spawn(move || {
            let seized = tids.iter().try_for_each(|tid| {
                ptrace::seize(*tid, Options::PTRACE_O_TRACESYSGOOD)?;
                ptrace::interrupt(*tid)
            });
            let good = seized.is_ok();
            ready.send(seized).expect("somebody waits");
            if good {
                trace(&its, tids, what);
            }
        });
        is_ready.recv().expect("it says how it went").expect("the threads can be traced");
        Self { shared, tracer: Some(tracer) }
    }

    /// From now on, calls that flush do not reach the device.
    pub fn hold(&self) {
        self.shared.holding.store(true, Ordering::SeqCst);
    }

    /// What is held goes on, and what comes is not held.
    pub fn release(&self) {
        self.shared.holding.store(false, Ordering::SeqCst);
    }

    /// Threads that are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Waits until so many threads are held.
    ///
    /// # Panics
    /// When it never comes to that.
    pub fn wait_held(&self, threads: usize) {
        let began = Instant::now();
        while self.held() < threads {
            assert!(began.elapsed() < TEST_TIMEOUT, "{} of {threads} threads are held", self.held());
            thread::sleep(THREAD_POLL_INTERVAL);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

/// Where a traced thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    /// In a call.
    Inside,
    /// Stopped by us: in a call that waits for something to do, or elsewhere.
    Held {
        waits: bool,
    },
}

fn trace(shared: &Shared, tids: Vec<Pid>, what: What) {
    let mut places: HashMap<Pid, Place> = tids.into_iter().map(|tid| (tid, Place::Outside)).collect();
    while !shared.over.load(Ordering::SeqCst) && !places.is_empty() {
        let holding = shared.holding.load(Ordering::SeqCst) || what == What::Everything;
        places.retain(|tid, place| look(*tid, place, what, holding).is_ok());
        let held = || places.values().filter(|place| matches!(place, Place::Held { .. }));
        shared.waiting.store(held().filter(|place| **place == Place::Held { waits: true }).count(), Ordering::SeqCst);
        shared.held.store(held().count(), Ordering::SeqCst);
        thread::sleep(THREAD_POLL_INTERVAL);
    }
}

/// One look at one thread; an error where there is no such thread any more.
fn look(tid: Pid, place: &mut Place, what: What, holding: bool) -> Result<(), Errno> {
    if matches!(place, Place::Held { .. }) && !holding {
        *place = Place::Inside;
        ptrace::syscall(tid, None)?;
    }
    match waitpid(tid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL))? {
        WaitStatus::StillAlive => Ok(()),
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => Err(Errno::ESRCH),
        WaitStatus::PtraceSyscall(_) => {
            let entered = *place == Place::Outside;
            *place = if entered { Place::Inside } else { Place::Outside };
            if entered && holding && flushes(tid)? {
                *place = Place::Held { waits: false };
                return Ok(());
            }
            ptrace::syscall(tid, None)
        }
        WaitStatus::PtraceEvent(..) if what == What::Everything => {
            *place = Place::Held { waits: waits(tid)? };
            Ok(())
        }
        WaitStatus::Stopped(_, signal) => ptrace::syscall(tid, signal),
        _ => ptrace::syscall(tid, None),
    }
}

/// Whether the call that a thread has just entered asks a device to flush.
fn flushes(tid: Pid) -> Result<bool, Errno> {
    let (call, sixth) = call(tid)?;
    let synced = libc::RWF_DSYNC as u64 | libc::RWF_SYNC as u64;
    Ok(match call {
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range => true,
        libc::SYS_pwritev2 => sixth & synced != 0,
        _ => false,
    })
}

/// Whether a thread was stopped in a call that waits for something to do. Outside of calls the number is negative.
fn waits(tid: Pid) -> Result<bool, Errno> {
    #[cfg(target_arch = "x86_64")]
    if call(tid)?.0 == libc::SYS_epoll_wait {
        return Ok(true);
    }
    Ok(matches!(
        call(tid)?.0,
        libc::SYS_futex | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 | libc::SYS_io_uring_enter
    ))
}

/// The number of a call, and its sixth argument.
#[cfg(target_arch = "x86_64")]
fn call(tid: Pid) -> Result<(i64, u64), Errno> {
    ptrace::getregs(tid).map(|regs| (regs.orig_rax as i64, regs.r9))
}

/// The number of a call, and its sixth argument.
#[cfg(target_arch = "aarch64")]
fn call(tid: Pid) -> Result<(i64, u64), Errno> {
    ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(tid).map(|regs| (regs.regs[8] as i64, regs.regs[5]))
}
