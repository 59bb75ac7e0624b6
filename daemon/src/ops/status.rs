//! The line that `systemctl status` shows.
//!
//! Invariants: it says what is wrong before all else. On a log that rests it does not change, and the service manager
//! gets no message.

use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clad_journal::Status;

use crate::ops::health::State;

/// Time between two lines, while nothing is wrong.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Inputs of the line, and its last text.
#[derive(Debug)]
pub(crate) struct Statement {
    /// `group_commit to durable`
    promise: String,
    /// Findings of the start.
    recovered: String,
    last: String,
    last_health: String,
    /// When the rate was last taken, and the end of the log then.
    since: (Instant, u64),
    rate: u64,
}

impl Statement {
    pub(crate) fn new(promise: String, recovered: String, received: u64, now: Instant) -> Self {
        Self { promise, recovered, last: String::new(), last_health: String::new(), since: (now, received), rate: 0 }
    }

    /// The line, if it is time for one and it is another than the last.
    pub(crate) fn next(&mut self, s: &Status, connections: usize, health: &State, now: Instant) -> Option<String> {
        let elapsed = now.saturating_duration_since(self.since.0);
        let summary = health.summary();
        if elapsed < STATUS_INTERVAL && self.last_health == summary {
            return None;
        }
        if elapsed >= STATUS_INTERVAL {
            let records = s.watermarks.received.saturating_sub(self.since.1);
            self.rate = (records as f64 / elapsed.as_secs_f64()).round() as u64;
            self.since = (now, s.watermarks.received);
        }
        self.last_health = summary;
        let line = self.line(s, connections, health);
        (line != self.last).then(|| {
            self.last.clone_from(&line);
            line
        })
    }

    /// The line as of now.
    pub(crate) fn line(&self, s: &Status, connections: usize, health: &State) -> String {
        let wrong = match health.summary() {
            ok if ok == "ok" => String::new(),
            wrong => format!("{wrong} | "),
        };
        let m = &s.watermarks;
        format!(
            "{wrong}{}, {} records/s | received {}, written {}, durable {} | {} segments, {} | {connections} connections | {}",
            self.promise,
            self.rate,
            m.received,
            m.written,
            m.durable,
            s.segments,
            ByteSize(s.bytes),
            self.recovered
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clad_journal::Watermarks;
    use clad_journal::io::{Engine, EngineReport, Space};

    use super::*;

    fn status(received: u64) -> Status {
        Status {
            log_id: [0; 16],
            watermarks: Watermarks { received, written: received, durable: 7, ..Watermarks::default() },
            lowest_offset: 0,
            segments: 2,
            recycled: 0,
            origins: Vec::new(),
            resend_entries: 0,
            resend_evicted_early: 0,
            bytes: 128 << 20,
            failure: None,
            unopened: None,
            in_flight_bytes: 0,
            oldest_undurable: None,
            disk_busy: None,
            producers: 0,
            owners: Vec::new(),
            space: Space::default(),
            prepared: true,
            oldest_segment_ns: None,
            engine: EngineReport { engine: Engine::Blocking, why: String::new(), fallbacks: Vec::new() },
            inline_batches: 0,
        }
    }

    #[test]
    fn it_reports_the_rate_when_it_is_due_and_what_is_wrong_at_once() {
        let began = Instant::now();
        let mut statement = Statement::new("group_commit to durable".into(), "new log".into(), 0, began);
        let mut health = State { not_ready: None, degraded: BTreeMap::new() };
        let at = |s| began + Duration::from_secs(s);
        // The first look says that all is well; then nothing for a while.
        assert!(statement.next(&status(0), 0, &health, at(1)).is_some());
        assert_eq!(statement.next(&status(50), 1, &health, at(2)), None);
        let line = statement.next(&status(100), 1, &health, at(5)).unwrap();
        assert_eq!(
            line,
            "group_commit to durable, 20 records/s | received 100, written 100, durable 7 | 2 segments, 128.0 MiB | 1 \
             connections | new log"
        );
        health.degraded.insert("disk", "slow".into());
        let line = statement.next(&status(100), 1, &health, at(6)).unwrap();
        assert!(line.starts_with("degraded: slow | group_commit"), "{line}");
        // A log that rests: one line with the rate 0, and then no more.
        health.degraded.clear();
        assert!(statement.next(&status(100), 1, &health, at(11)).unwrap().contains(" 0 records/s"));
        assert_eq!(statement.next(&status(100), 1, &health, at(30)), None);
    }
}
