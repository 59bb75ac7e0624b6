//! A wall clock that jumps, made by libfaketime (`CLAD_E2E_FAKETIME` is its path); the boot clock stays true.

use std::fs;

use clad_e2e::Setup;

use crate::server::{Prometheus, given};

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn jumps_under_retention_by_age() {
    let setup = Setup::new().set("retention.max_age", "2h");
    let clock = setup.dir().with_extension("clock");
    // In one step: a file that is half there would be any time.
    let set = |offset: &str| {
        let next = clock.with_extension("next");
        fs::write(&next, format!("{offset}\n")).expect("written");
        fs::rename(next, &clock).expect("in its place");
    };
    set("+0");
    let preload = format!("LD_PRELOAD={}", given("CLAD_E2E_FAKETIME").display());
    let file = format!("FAKETIME_TIMESTAMP_FILE={}", clock.display());
    let daemon =
        setup.under(&["env", &preload, &file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]).start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladRetentionPaused"]);
    set("+30d");
    prometheus.wait_firing(&["CladRetentionPaused"]);
    prometheus.wait_over(&["CladRetentionPaused"]);
}
