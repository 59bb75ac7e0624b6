//! Faults of rings of shared memory: nonsense in one, a store that is full, and one that a start cannot go on with.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use clad_e2e::{Daemon, FdStore, Setup};
use clad_proto::AckLevel;
use clad_proto::frame::Hello;
use nix::sys::signal::Signal;

use crate::server::Prometheus;
use clad_e2e::by_hand::{ByHand, push};

/// A program with a ring.
fn program(daemon: &Daemon, name: &str) -> ByHand {
    let hello = Hello { name: name.to_owned(), ..clad_e2e::raw::hello() };
    ByHand::at(&daemon.socket(), &hello)
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn are_cut_off_and_not_stored() {
    const ALERTS: [&str; 2] = ["CladRingCutOff", "CladRingsUnprotected"];
    // Room for two rings, and for the check of the second.
    let daemon = Setup::new().over_fd_store(FdStore::new(3, true)).start();
    let _good = program(&daemon, "good");
    let mut wild = program(&daemon, "wild");
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&ALERTS);
    let ring = File::from(wild.fds.remove(1));
    let bytes = ring.metadata().expect("a file").len() as usize;
    ring.write_all_at(&vec![0xFF; bytes], 0).expect("written");
    prometheus.wait_firing(&["CladRingCutOff"]);
    prometheus.is_silent(&["CladRingsUnprotected"]);
    // The one that was cut off may have left its place by now: these are more than there is room for.
    let unstored = ["third", "fourth", "fifth"].map(|name| program(&daemon, name));
    prometheus.wait_firing(&["CladRingsUnprotected"]);
    drop(unstored);
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
    let setup = keys.into_iter().fold(Setup::new().with_fd_store().fixed_ports(), Setup::unset);
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
