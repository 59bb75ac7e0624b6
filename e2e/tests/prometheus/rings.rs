//! Faults of rings of shared memory: nonsense in one, nobody who keeps them, and one that a start cannot go on with.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use clad_e2e::{Daemon, Setup};
use clad_proto::AckLevel;
use clad_proto::frame::Hello;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::server::Prometheus;
use clad_e2e::by_hand::{ByHand, push};

/// A program with a ring.
fn program(daemon: &Daemon, name: &str) -> ByHand {
    let hello = Hello { name: name.to_owned(), ..clad_e2e::raw::hello() };
    ByHand::at(&daemon.socket(), &hello)
}

/// The process that keeps this daemon's rings: the path of its socket is among its words.
fn holder(daemon: &Daemon) -> Pid {
    let folder = daemon.socket().parent().expect("a folder").display().to_string();
    let processes = fs::read_dir("/proc").expect("proc").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split('\0').skip(1);
        words.next() == Some("hold") && words.next().is_some_and(|path| path.starts_with(&folder))
    };
    Pid::from_raw(pids.find(is_it).expect("a holder"))
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn are_cut_off_and_kept_by_nobody() {
    const ALERTS: [&str; 3] = ["CladRingCutOff", "CladRingKeeperLost", "CladRingsUnprotected"];
    let daemon = Setup::new().start();
    let _good = program(&daemon, "good");
    let mut wild = program(&daemon, "wild");
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&ALERTS);
    let ring = File::from(wild.fds.remove(1));
    let bytes = ring.metadata().expect("a file").len() as usize;
    ring.write_all_at(&vec![0xFF; bytes], 0).expect("written");
    prometheus.wait_firing(&["CladRingCutOff"]);
    prometheus.is_silent(&["CladRingKeeperLost", "CladRingsUnprotected"]);
    // The holder dies, and no other can listen in its place.
    let place = daemon.socket().with_file_name("rings.sock");
    let holder = holder(&daemon);
    fs::remove_file(&place).expect("it was there");
    fs::create_dir_all(place.join("in the way")).expect("a folder");
    kill(holder, Signal::SIGKILL).expect("killed");
    prometheus.wait_firing(&["CladRingKeeperLost", "CladRingsUnprotected"]);
    fs::remove_dir_all(&place).expect("out of the way");
    prometheus.wait_over(&ALERTS);
}

/// Posted to a daemon with larger segments than the next one has.
#[test]
#[ignore = "cargo xtask ci prometheus"]
fn wait_for_larger_segments() {
    const ALERTS: [&str; 1] = ["CladRingsStalled"];
    const SMALL: &str = "[journal]\nsegment_bytes = \"192KiB\"\nmax_record_bytes = \"32KiB\"\n\
        [journal.group_commit]\nmax_bytes = \"32KiB\"\n\
        [limits]\nmax_append_bytes = \"64KiB\"\nmax_connection_inflight_bytes = \"64KiB\"\n";
    let keys = ["journal.segment_bytes", "limits.max_append_bytes", "journal.max_record_bytes"];
    let setup = keys.into_iter().fold(Setup::new().fixed_ports(), Setup::unset);
    let config = setup.config().to_owned();
    let mut daemon = setup.start();
    let long = program(&daemon, "long");
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&ALERTS);
    daemon.signal(Signal::SIGSTOP);
    push(&long.attach(), AckLevel::Posted, &"y".repeat(240_000));
    daemon.kill9();
    fs::write(&config, SMALL).expect("written");
    daemon.restart();
    prometheus.wait_firing(&ALERTS);
    assert_eq!(prometheus.value("clad_shm_rings_stalled"), Some(1.0));
    assert_eq!(daemon.term(), Some(1), "something is left");
    fs::write(&config, "").expect("written");
    daemon.restart();
    prometheus.wait_over(&ALERTS);
}
