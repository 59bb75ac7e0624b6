//! Cost of a process: memory at its peak, and processor time.
//!
//! Invariants: memory is RssAnon + RssShmem, what is its own and cannot be dropped; processor time is that of all threads
//! that live, in nanoseconds, user and system.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time between two looks.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);

/// Looks at a process until dropped.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    peak: AtomicU64,
    over: AtomicBool,
}

impl Watch {
    /// Starts to look.
    pub(super) fn start(pid: u32) -> Self {
        let shared = Arc::new(Shared::default());
        let its = shared.clone();
        let look = move || {
            while !its.over.load(Relaxed) {
                let now = fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(|status| resident(&status));
                its.peak.fetch_max(now.unwrap_or(0), Relaxed);
                thread::sleep(SAMPLE_INTERVAL);
            }
        };
        // Without the thread there is no number, and that is said: the peak stays 0.
        let thread = thread::Builder::new().name("memory".to_owned()).spawn(look).ok();
        Self { shared, thread }
    }

    /// The most that was seen, bytes; nothing when nothing was.
    pub(super) fn peak(&self) -> Option<u64> {
        Some(self.shared.peak.load(Relaxed)).filter(|&peak| peak > 0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Processor time of a process; `None` where the kernel does not say it.
pub(super) fn processor_time(pid: u32) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Duration::from_nanos(tasks.flatten().filter_map(of).sum()))
}

/// Processor time of this process, that of ended threads included.
pub(super) fn own_processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// RssAnon + RssShmem of a `/proc/PID/status`, bytes.
fn resident(status: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    Some((field("RssAnon:")? + field("RssShmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_rises_with_work() {
        let before = processor_time(std::process::id()).expect("the kernel counts it");
        let spent = || processor_time(std::process::id()).expect("the kernel counts it").saturating_sub(before);
        while spent() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert_eq!(processor_time(u32::MAX), None, "there is no such process");
        assert!(own_processor_time() >= Duration::from_millis(5));
    }

    #[test]
    fn what_is_its_own() {
        let status =
            "Name:\tx\nVmRSS:\t    9000 kB\nRssAnon:\t    2000 kB\nRssFile:\t    6000 kB\nRssShmem:\t      48 kB\n";
        assert_eq!(resident(status), Some(2048 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
        let watch = Watch::start(std::process::id());
        while watch.peak().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
