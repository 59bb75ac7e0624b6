//! Writes that outlive the process that began them.
//!
//! A write that a ring has in flight goes on after `kill -9`, and after the process was reaped: on a slow disk it lands
//! seconds later. A start that does not wait for it puts a footer where it will land, acknowledges, and is overwritten by
//! the dead one. What is waited for is the lock that the description of the file holds until its last write is over; the
//! lock on the folder is free long before.
//!
//! The disk is made slow for the first daemon alone, by a control group; once the second waits, it is made fast again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clad_e2e::tool::{OutputStream, Running, clactl_ends};
use clad_e2e::{Daemon, Raw};
use clad_proto::AckLevel;

use crate::{mount_point, small, stored};

const DEAD_WRITES_TIMEOUT: Duration = Duration::from_secs(30);

/// A control group whose writes to one device are few bytes a second. Gone when dropped.
struct Slow {
    group: PathBuf,
    /// The file that takes the limit, its text for a rate, and without one.
    limit: (PathBuf, String, String),
}

impl Slow {
    fn new(on: &Path) -> Self {
        let name = format!("clad-e2e-{}", std::process::id());
        let dev = fs::metadata(on).expect("the mount").dev();
        let device = format!("{}:{}", (dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00));
        let old = Path::new("/sys/fs/cgroup/blkio");
        let (group, limit) = if old.is_dir() {
            let group = old.join(name);
            let file = group.join("blkio.throttle.write_bps_device");
            (group, (file, format!("{device} 16384"), format!("{device} 0")))
        } else {
            let root = Path::new("/sys/fs/cgroup");
            fs::write(root.join("cgroup.subtree_control"), "+io").expect("the io controller");
            let group = root.join(name);
            let file = group.join("io.max");
            (group, (file, format!("{device} wbps=16384"), format!("{device} wbps=max")))
        };
        fs::create_dir(&group).expect("a control group");
        Self { group, limit }
    }

    fn take(&self, pid: u32) {
        fs::write(self.group.join("cgroup.procs"), pid.to_string()).expect("the daemon into the group");
        fs::write(&self.limit.0, &self.limit.1).expect("a limit");
    }

    fn release(&self) {
        let _ = fs::write(&self.limit.0, &self.limit.2);
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.release();
        let began = Instant::now();
        // The last write that it still counts must be over.
        while fs::remove_dir(&self.group).is_err() && began.elapsed() < DEAD_WRITES_TIMEOUT {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn body(i: u64) -> Vec<u8> {
    format!("record {i} ").repeat(9_000).into_bytes()
}

#[test]
#[ignore = "cargo xtask ci disk"]
fn are_waited_for() {
    let setup = small().set("journal.io_engine", "uring").set("journal.group_commit.in_flight", "4");
    let mut daemon = setup.start();
    assert_eq!(daemon.status().io_engine, "uring", "{}", daemon.said());
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for sequence in 0..3 {
        raw.append_acked(sequence, AckLevel::Durable, &[&body(sequence)]);
    }
    // A thread that blocks in a write could not die: the next segment is made, and the idle log has its commit marker.
    daemon.wait_until("the prepared segment", |s| s.segments == 2);
    std::thread::sleep(Duration::from_millis(500));
    let slow = Slow::new(&mount_point());
    slow.take(daemon.pid());
    let before = daemon.status();
    // Each is worth a write of its own, so it is the ring's and nobody blocks in it.
    for sequence in 3..6 {
        raw.append(sequence, AckLevel::Durable, &[&body(sequence)]);
        raw.accepted();
    }
    daemon.wait_until("all are taken", |s| s.offsets.is_some_and(|o| o.received == 6));
    // With the kernel, which does not show writes that its group holds back: at worst the test has less to wait for.
    std::thread::sleep(Duration::from_millis(500));
    let at_death = daemon.status();
    assert_eq!(at_death.inline_batches, before.inline_batches, "nothing of it is in a blocking call");
    assert!(at_death.offsets.is_some_and(|o| o.durable == 3), "nothing of it has landed: {at_death:?}");
    daemon.kill9();

    // The next one at once, and not in the group.
    let next = Running::start(&mut daemon.setup().command());
    let began = Instant::now();
    let logged = |words: &str| next.said().contains(words);
    while !logged("waits for a dead process's writes") && !logged("listening") && began.elapsed() < DEAD_WRITES_TIMEOUT
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    let waits = logged("waits for a dead process's writes");
    slow.release();
    assert!(next.wait_for(OutputStream::Stderr, "listening", DEAD_WRITES_TIMEOUT), "{}", next.said());
    next.kill();
    next.wait_end(DEAD_WRITES_TIMEOUT).expect("it is gone");
    // Whatever the dead one had in flight is over when its group can go.
    drop(slow);

    daemon.restart();
    let found = stored(&daemon);
    assert!(found.len() >= 3, "what was acknowledged is there");
    for (i, text) in (0..).zip(&found) {
        assert!(text.as_bytes() == body(i), "record {i}, byte for byte");
    }
    append_one(&daemon, found.len() as u64);
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
    assert!(waits, "the start did not wait for the dead one's writes:\n{}", next.said());
}

fn append_one(daemon: &Daemon, sequence: u64) {
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[&body(sequence)]);
}
