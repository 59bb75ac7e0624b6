//! No daemon that answers, or not for long. A panic of another test would be a record here: so nothing else is tested.

mod support;

use std::time::Duration;

use clad_client::{Address, Overload, Severity};
use clad_tracing::Setup;
use support::*;
use tracing::{error, info};
use tracing_subscriber::{layer::SubscriberExt, registry};

/// Nobody there, and somebody who never answers: no call waits, and the guard waits as long as was asked for.
#[test]
fn nothing_hangs_without_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let silent = Daemon::silent();
    for address in [Address::unix(folder.path().join("nobody.sock")), silent.address.clone()] {
        let setup =
            Setup::new().server(address).max_buffered_bytes(64 * 1024).flush_timeout(Duration::from_millis(100));
        let (layer, guard) = setup.layer().expect("started");
        tracing::subscriber::with_default(registry().with(layer), || {
            (0..2000).for_each(|number| info!(number, "dropped when the room is full"));
        });
        guard.flush().expect_err("nobody answers");
        let stats = guard.producer().expect("a producer").stats();
        assert_eq!(stats.submitted - stats.drop_reports, 2000);
        assert!(stats.dropped > 1000 && stats.buffered_bytes <= 64 * 1024, "{stats:?}");
        drop(guard);
    }
}

#[test]
fn severe_records_take_the_place_of_others() {
    const SEVERE: i64 = 50;
    let daemon = Daemon::silent();
    let overload = Overload::DropBelow { severity: Severity::ERROR, wait: Duration::ZERO };
    let setup = Setup::new().server(daemon.address.clone()).max_buffered_bytes(64 * 1024).overload(overload);
    let (layer, guard) = setup.flush_timeout(SOON).layer().expect("started");
    tracing::subscriber::with_default(registry().with(layer), || {
        for number in 0..SEVERE {
            error!(number, "severe");
            (0..20).for_each(|_| info!(number, "around it"));
        }
    });
    let producer = guard.producer().expect("a producer");
    assert!(producer.stats().dropped > 0);
    daemon.serve(true);
    // What was dropped for others is an error of the first flush.
    let _ = guard.flush();
    guard.flush().expect("stored");
    let severe: Vec<_> = daemon.records().iter().filter(|r| body(r) == "severe").map(|r| int(r, "number")).collect();
    assert_eq!(severe, Vec::from_iter(0..SEVERE));
    drop(guard);
}
