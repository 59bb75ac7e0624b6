//! A wall clock that jumps, made by libfaketime (`CLAD_E2E_FAKETIME` is its path); the boot clock stays true.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clad_e2e::tool::{Running, clactl, clactl_ends};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT};
use clad_proto::AckLevel;
use nix::sys::signal::Signal;

use crate::{append, mount_point, records, stored};

/// A clock that is set by a file.
struct Clock(PathBuf);

impl Clock {
    fn new() -> Self {
        let clock = Self(mount_point().join("clock"));
        clock.set("+0");
        clock
    }

    /// In one step: a file that is half there would be any time.
    fn set(&self, offset: &str) {
        let next = self.0.with_extension("next");
        fs::write(&next, format!("{offset}\n")).expect("written");
        fs::rename(next, &self.0).expect("in its place");
    }

    fn over(&self, setup: Setup) -> Daemon {
        let library = std::env::var("CLAD_E2E_FAKETIME").expect("called by `cargo xtask ci disk`");
        let (preload, file) =
            (format!("LD_PRELOAD={library}"), format!("FAKETIME_TIMESTAMP_FILE={}", self.0.display()));
        setup.under(&["env", &preload, &file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]).start()
    }
}

/// When the daemon took each record, by its own clock.
fn append_times(daemon: &Daemon) -> Vec<String> {
    let output = clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "json"], b"").stdout;
    let lines = output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(clad_e2e::json);
    lines.map(|record| record["append_time"].as_str().expect("a time").to_owned()).collect()
}

#[test]
#[ignore = "cargo xtask ci disk"]
fn steps_back() {
    let clock = Clock::new();
    let mut daemon = clock.over(Setup::new().set("rotation.max_age", "1h").set("retention.max_age", "2h"));
    let mut command = clactl(&["tail", "-f", "-n", "all", "-o", "cat", "--server", &daemon.address("unix")]);
    let tail = Running::start(&mut command);
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    append(&mut raw, AckLevel::Durable, 0..20);
    daemon.admin().rotate().expect("rotated");
    clock.set("-1d");
    append(&mut raw, AckLevel::Durable, 20..40);
    daemon.admin().rotate().expect("rotated");
    append(&mut raw, AckLevel::Durable, 40..60);
    // Times are stored as they were observed; the order is that of the offsets.
    let times = append_times(&daemon);
    assert!(times[19] > times[20], "the clock did not step back: nothing was shown ({} {})", times[19], times[20]);
    assert_eq!(stored(&daemon), records(0..60));
    // By time, records are found on either side.
    let server = daemon.address("unix");
    let since = |time: &str| {
        let output = clactl_ends(0, &["query", "--server", &server, "-o", "cat", "--since", time], b"").stdout;
        String::from_utf8_lossy(&output).lines().count()
    };
    assert_eq!(since(&times[0]), 20, "those before the step");
    assert_eq!(since(&times[20]), 60, "all");
    // Crashes on the way, with the clock set back further.
    clock.set("-3d");
    daemon.kill9();
    daemon.restart();
    let (mut raw, again) = Raw::resume(&daemon.socket(), welcome.producer_id);
    assert_eq!(again.expected_sequence(), 60);
    append(&mut raw, AckLevel::Durable, 60..80);
    assert_eq!(stored(&daemon), records(0..80));
    assert!(tail.wait_lines(80, TEST_TIMEOUT), "{}", tail.said());
    tail.send(Signal::SIGINT);
    tail.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(tail.printed().lines().collect::<Vec<_>>(), records(0..80));
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}

/// A clock that jumps ahead must not make retention by age believe that everything is old.
#[test]
#[ignore = "cargo xtask ci disk"]
fn jumps_ahead() {
    let clock = Clock::new();
    let daemon = clock.over(Setup::new().set("retention.max_age", "2h"));
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for from in [0, 20, 40] {
        append(&mut raw, AckLevel::Durable, from..from + 20);
        daemon.admin().rotate().expect("rotated");
    }
    clock.set("+30d");
    daemon.wait_said("the wall clock jumped against boot time: retention by age is paused");
    daemon.wait_said("10 minutes at most; max_bytes and min_free still apply");
    // It rests for longer than this; time enough for it to do wrong.
    std::thread::sleep(Duration::from_secs(3));
    append(&mut raw, AckLevel::Durable, 60..70);
    assert_eq!(stored(&daemon), records(0..70));
    assert_eq!(daemon.status().lowest_offset, 0);
}
