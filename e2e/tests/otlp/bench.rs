//! The bench `otlp_load`, for its counts alone: what is said to be sent is what the daemon has counted.

use clad_benches::otlp_load::Plan;
use clad_e2e::{Daemon, Setup};

/// Each protocol of the bench, and its name in the metrics of the daemon.
const PROTOCOLS: [(&str, &str); 3] = [("grpc", "otlp_grpc"), ("http", "otlp_http"), ("ingest", "grpc")];

/// The second plan has requests that the daemon cuts into several appends.
#[test]
fn what_the_bench_says_is_what_is_stored() {
    let daemon = Daemon::start();
    let counted =
        |transport: &str| daemon.metric(&format!("clad_appended_records_total{{transport=\"{transport}\"}}")) as u64;
    for (protocol, transport) in PROTOCOLS {
        for (connections, requests, records, size) in [(3, 20, 50, 100), (2, 3, 700, 1000)] {
            let before = counted(transport);
            let (to, receiver) = (format!("{protocol}://{}", daemon.port("grpc")), Some(daemon.pid()));
            let plan = Plan { to, connections, requests, records, size, receiver };
            let sent = plan.run().unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
            assert_eq!(sent.records, connections * requests * u64::from(records), "{plan:?}");
            assert_eq!(counted(transport) - before, sent.records, "{plan:?}");
            assert!(sent.per_processor_second.is_some_and(|rate| rate > 0.0), "{sent:?}");
            assert!(sent.answered.min > 0.0 && sent.answered.max >= sent.answered.p99, "{sent:?}");
        }
    }
    assert_eq!(daemon.metric("clad_deduplicated_records_total"), 0.0, "equal requests were sent");
}

#[test]
fn a_bench_that_was_refused_has_no_figures() {
    let daemon = Setup::new().set("journal.max_record_bytes", "8KiB").start();
    for (protocol, _) in PROTOCOLS {
        let to = format!("{protocol}://{}", daemon.port("grpc"));
        let plan = Plan { to, connections: 1, requests: 1, records: 1, size: 9 << 10, receiver: None };
        let said = plan.run().map(|sent| format!("{sent:?}"));
        let error = said.expect_err("a record that is too large");
        assert!(format!("{error:#}").contains("8192"), "{protocol}: {error:#}");
    }
}
