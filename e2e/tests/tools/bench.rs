//! `clactl bench`, in small: that it runs, that its counts agree, and that it floods no log by accident. Never a time.

use std::path::Path;

use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Json, Scratch, Setup, needs_word};

fn counts_agree(report: &Json) {
    let of = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
    assert!(of("acked") > 0 && of("verified") == of("acked"), "{report}");
    assert_eq!(of("failed"), 0, "{report}");
    assert!(report["records_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
    for quantile in ["p50", "p90", "p99", "p999", "max"] {
        assert!(report["latency_us"][quantile].as_f64().is_some_and(|latency| latency > 0.0), "{quantile} in {report}");
    }
}

/// The word for its daemon, where this host needs one.
fn word(folder: &Path) -> &'static [&'static str] {
    if needs_word(folder) { &["--set", "journal.power_loss_protected=true"] } else { &[] }
}

#[test]
fn with_a_daemon_of_its_own() {
    let scratch = Scratch::new();
    let dir = scratch.data().display().to_string();
    for (level, policy) in [("durable", "group_commit"), ("written", "fire_and_forget"), ("durable", "per_message")] {
        let set = format!("journal.durability={policy}");
        let arguments =
            ["bench", "--spawn", "--dir", &dir, "--duration", "0.3", "--connections", "2", "--in-flight", "8"];
        let arguments = [&arguments[..], &["--size", "128", "--ack", level, "--set", &set, "-o", "json"]].concat();
        let arguments = [&arguments[..], word(scratch.data())].concat();
        counts_agree(&clad_e2e::json(&clactl_ends(0, &arguments, b"").stdout));
    }
    let left: Vec<_> = std::fs::read_dir(scratch.data()).expect("a list").collect();
    assert!(left.is_empty(), "{left:?} is left behind");
}

#[test]
fn by_rings() {
    let scratch = Scratch::new();
    let dir = scratch.data().display().to_string();
    for (level, records) in [("durable", "1"), ("written", "7"), ("received", "1")] {
        let arguments =
            ["bench", "--spawn", "--transport", "shm", "--dir", &dir, "--duration", "0.3", "--connections", "3"];
        let arguments = [&arguments[..], &["--in-flight", "8", "--ack", level, "-o", "json"]].concat();
        let arguments = [&arguments[..], &["--records-per-append", records], word(scratch.data())].concat();
        let report = clad_e2e::json(&clactl_ends(0, &arguments, b"").stdout);
        counts_agree(&report);
        assert!(report["config"]["server"].as_str().is_some_and(|server| server.starts_with("shm://")), "{report}");
    }
    // Nobody is measured by another way in silence.
    let daemon = Setup::new().set("ingest.shm.max_rings", "1").start();
    let server = daemon.address("shm");
    let output = clactl_ends(1, &["bench", "--server", &server, "--connections", "2", "--duration", "0.2"], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("max_rings"), "{output:?}");
}

#[test]
fn by_each_transport_of_a_daemon_of_its_own() {
    let scratch = Scratch::new();
    let dir = scratch.data().display().to_string();
    for transport in ["unix", "tcp", "grpc"] {
        let arguments =
            ["bench", "--spawn", "--transport", transport, "--dir", &dir, "--duration", "0.3", "-o", "json"];
        let arguments = [&arguments[..], &["--connections", "3", "--in-flight", "8"], word(scratch.data())].concat();
        let report = clad_e2e::json(&clactl_ends(0, &arguments, b"").stdout);
        counts_agree(&report);
        let server = report["config"]["server"].as_str().expect("an address");
        assert!(server.starts_with(&format!("{transport}://")), "{report}");
    }
}

#[test]
fn beside_another_transport_each_round_is_verified_on_both() {
    let scratch = Scratch::new();
    let dir = scratch.data().display().to_string();
    let arguments =
        ["bench", "--spawn", "--transport", "shm", "--compare", "tcp", "--rounds", "3", "--duration", "0.1"];
    let arguments = [&arguments[..], &["--dir", &dir, "-o", "json"], word(scratch.data())].concat();
    let report = clad_e2e::json(&clactl_ends(0, &arguments, b"").stdout);
    counts_agree(&report);
    let compare = &report["compare"];
    assert!(compare["server"].as_str().is_some_and(|server| server.starts_with("tcp://")), "{report}");
    let rounds = compare["rounds"].as_array().expect("rounds");
    assert_eq!(rounds.len(), 3, "{report}");
    for slice in rounds.iter().flat_map(|round| round.as_array().expect("two slices")) {
        assert!(slice["acked"].as_u64() > Some(0) && slice["verified"] == slice["acked"], "{slice}");
        assert!(slice["cpu_ns_per_record"]["daemon"].as_f64() > Some(0.0), "{slice}");
    }
}

#[test]
fn on_a_daemon_that_was_named() {
    let daemon = Daemon::start();
    for transport in ["unix", "tcp", "shm", "grpc"] {
        let server = daemon.address(transport);
        let durable = || daemon.status().offsets.expect("offsets").durable;
        let before = durable();
        let arguments = ["bench", "--server", &server, "--duration", "0.2", "--in-flight", "4", "-o", "json"];
        let output = clactl_ends(0, &arguments, b"");
        let report = clad_e2e::json(&output.stdout);
        if matches!(transport, "tcp" | "grpc") {
            // It cannot read back over the network here, so it does not say that what was acked is there.
            assert!(report["verified"].is_null() && report["acked"].as_u64() > Some(0), "{report}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("nothing is verified"), "{output:?}");
        } else {
            counts_agree(&report);
            assert_eq!(durable() - before, report["acked"].as_u64().expect("a number"));
        }
    }
}

#[test]
fn never_on_a_log_that_nobody_named() {
    let daemon = Daemon::start();
    let output = clactl_ends(2, &["bench", "--duration", "0.1"], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--server"), "{output:?}");
    assert_eq!(daemon.status().offsets.expect("offsets").received, 0);
}
