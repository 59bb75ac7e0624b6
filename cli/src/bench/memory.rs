//! How much memory a process takes at its peak: RssAnon + RssShmem, what is its own and cannot be dropped.

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
