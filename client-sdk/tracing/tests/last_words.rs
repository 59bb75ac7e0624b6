//! The guard and the panic hook, which gets each panic of the process: so nothing else is tested here.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clad_client::AckLevel;
use clad_tracing::Setup;
use support::*;
use tracing::info;
use tracing_subscriber::{layer::SubscriberExt, registry};

/// What is written and not yet on the disk is enough for who asked for `written`, and for nobody else.
#[test]
fn guard_and_panic_hook_wait_for_the_level_that_was_asked_for() {
    for level in [AckLevel::Written, AckLevel::Durable] {
        let daemon = Daemon::new();
        daemon.sync(false);
        let setup = |timeout| Setup::new().server(daemon.address.clone()).level(level).flush_timeout(timeout);
        let timeout = if level == AckLevel::Durable { Duration::from_millis(100) } else { SOON };
        let (layer, guard) = setup(timeout).layer().expect("started");
        tracing::subscriber::with_default(registry().with(layer), || info!("guarded"));
        match level {
            AckLevel::Durable => drop(guard.flush().expect_err("it is not durable")),
            _ => guard.flush().expect("it is written"),
        }
        daemon.sync(true);
        guard.producer().expect("a producer").flush(level, SOON).expect("it is durable");
        drop(guard);

        daemon.sync(false);
        let (layer, guard) = setup(SOON).layer().expect("started");
        let is_synced = AtomicBool::new(false);
        let has_panic = || daemon.records().iter().any(|record| body(record).contains("panicked: at"));
        std::thread::scope(|scope| {
            if level == AckLevel::Durable {
                scope.spawn(|| {
                    while !has_panic() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    // A hook that does not wait has time to be the first.
                    std::thread::sleep(Duration::from_millis(50));
                    is_synced.store(true, Ordering::Release);
                    daemon.sync(true);
                });
            }
            let panics = || {
                tracing::subscriber::with_default(registry().with(layer), || info!("before the panic"));
                panic!("at {level:?}");
            };
            assert!(scope.spawn(panics).join().is_err());
            assert_eq!(is_synced.load(Ordering::Acquire), level == AckLevel::Durable, "it waits for {level:?}");
        });
        assert!(has_panic());
        drop(guard);
        let bodies: Vec<_> = daemon.records().iter().map(|record| body(record).to_owned()).collect();
        assert!(bodies.contains(&"before the panic".to_owned()), "{bodies:?}");
    }
}
