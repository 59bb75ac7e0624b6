//! What an exporter sends is what is read, in every field.

use std::collections::BTreeSet;
use std::process::Command;

use clad_e2e::{Daemon, Json};

use crate::agent::{Agent, Working, endpoint};
use crate::{expected, read};

/// Records of a run.
const RECORDS: u64 = 200;
/// Each run of an agent: compression, and the level that it asks for. Nothing is the highest one that is offered.
const RUNS: [(bool, Option<&str>); 4] =
    [(false, None), (true, Some("durable")), (false, Some("written")), (true, Some("received"))];

/// Now, as `clactl` writes times.
fn now() -> String {
    let said = Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%S.%NZ"]).output().expect("date").stdout;
    String::from_utf8_lossy(&said).trim().to_owned()
}

#[test]
#[ignore = "cargo xtask ci otlp"]
fn what_is_sent_is_what_is_read() {
    let agent = Agent::given();
    for (gzip, level) in RUNS {
        let daemon = Daemon::start();
        let began = now();
        let mut command = agent.command(&endpoint(daemon.port("grpc")), "simple", RECORDS, gzip, level);
        let successes = Working::start(&mut command).end();
        let ended = now();
        assert_eq!(successes, BTreeSet::from_iter(0..RECORDS), "gzip {gzip}, level {level:?}");
        // At `received` the answer is before the write.
        let records = read::wait_records(&daemon, RECORDS as usize);
        // One program's records come in its order.
        let numbers: Vec<u64> = records.iter().map(read::number).collect();
        assert_eq!(numbers, Vec::from_iter(0..RECORDS), "gzip {gzip}, level {level:?}");
        for (n, record) in (0..).zip(&records) {
            expected::compare(&agent.language, n, record, (&began, &ended));
        }
        came_by(&agent, &records);
    }
}

/// What the log says of the way that the records came.
fn came_by(agent: &Agent, records: &[Json]) {
    let transport = if agent.transport == "grpc" { "otlp_grpc" } else { "otlp_http" };
    for record in records {
        assert_eq!(record["peer_meta"]["transport"], transport, "{record}");
    }
}
