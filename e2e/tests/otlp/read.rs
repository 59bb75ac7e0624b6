//! What the log holds, as a user reads it.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Json, TEST_TIMEOUT, json};

/// All records of a log, in its order.
pub(crate) fn records(daemon: &Daemon) -> Vec<Json> {
    let said = clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "json"], b"").stdout;
    said.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(json).collect()
}

/// The same, once there are so many.
pub(crate) fn wait_records(daemon: &Daemon, count: usize) -> Vec<Json> {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        let records = records(daemon);
        if records.len() >= count {
            return records;
        }
        assert!(Instant::now() < until, "{count} records were waited for, and {} came", records.len());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The number of a record of an agent.
pub(crate) fn number(record: &Json) -> u64 {
    record["attributes"]["n"].as_u64().unwrap_or_else(|| panic!("a record without a number: {record}"))
}

/// How often each number is there.
pub(crate) fn numbers(records: &[Json]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for record in records {
        *counts.entry(number(record)).or_default() += 1;
    }
    counts
}
