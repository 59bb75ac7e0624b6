//! Events of the journal, as metrics, log lines and health. Called from the journal's own threads: nothing here waits.

use clad_journal::io::FallbackReason;
use clad_journal::{Doubt, Event, Losses, Observer};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use crate::defect::end_clad;
use crate::ops::health::{Health, journal_failed};
use crate::ops::metrics::{self, Recovery, Rule, Trigger};

/// Name of the journal in the report of a panic under its lock.
const JOURNAL: &str = "the journal";

/// The observer that the journal is opened with. `phase` reports what a start is doing.
pub(crate) fn observer(health: Health, phase: watch::Sender<String>) -> Observer {
    Arc::new(move |event| match event {
        Event::WaitsForWrites { segment, over: false } => {
            let text = format!("waiting for a dead process's writes to segment {segment} to reach the disk");
            phase.send_replace(text);
            handle_event(&health, event);
        }
        Event::Scanning { segment } => drop(phase.send_replace(format!("recovering: reading segment {segment}"))),
        event => handle_event(&health, event),
    })
}

/// Reports what is known to be gone, as health: not only at the start that found it, but for as long as it is known.
pub(crate) fn losses(health: &Health, losses: &Losses, dir: &Path) {
    const CAUSE: &str = "damage";
    if !losses.are_there() {
        return health.restored(CAUSE);
    }
    let dir = dir.display();
    health.degraded(
        CAUSE,
        match losses.are_certain() {
            true => format!(
                "acknowledged records were lost: `clactl verify {dir}` lists them; a backup may have them"
            ),
            false => format!(
                "acknowledged records may have been lost at the end of a segment: how many is not known, and the next start does not report it. The readable bytes are in the log or in {dir}/quarantine; a backup may have the rest"
            ),
        },
    );
}

fn handle_event(health: &Health, event: &Event) {
    match event {
        Event::Batch { records, bytes, synced, inline, took } => {
            metrics::batch(u64::from(*records), *bytes);
            if *inline {
                metrics::inline_batch();
            }
            if *synced {
                metrics::synced(*took);
            }
        }
        Event::Fallback(fallback) => {
            metrics::io_fallback(match fallback.reason {
                FallbackReason::Direct => metrics::Fallback::Direct,
                FallbackReason::WriteSync => metrics::Fallback::WriteSync,
                FallbackReason::UringDenied => metrics::Fallback::UringDenied,
                FallbackReason::UringUnsupported => metrics::Fallback::UringUnsupported,
                FallbackReason::Memlock => metrics::Fallback::Memlock,
            });
            tracing::warn!("{fallback}");
        }
        Event::Synced { took } => metrics::synced(*took),
        Event::Sealed { segment, first_offset, end_offset, trigger } => {
            match trigger {
                clad_journal::Trigger::Size => metrics::rotated(Trigger::Size),
                clad_journal::Trigger::Age => metrics::rotated(Trigger::Age),
                clad_journal::Trigger::Command => metrics::rotated(Trigger::Command),
                clad_journal::Trigger::Recovery => metrics::rotated(Trigger::Recovery),
                clad_journal::Trigger::Close => {}
            }
            tracing::info!(segment, first_offset, end_offset, ?trigger, "segment sealed");
        }
        Event::Unprepared { segment } => {
            metrics::unprepared();
            tracing::warn!(
                segment,
                "the next segment was not prepared in time: unwritten space is used, which is slower"
            );
        }
        Event::Failed { reason } => {
            metrics::sync_failed();
            metrics::journal_failed(true);
            health.not_ready("journal", journal_failed(reason));
            tracing::error!(reason, "the journal failed: nothing is acknowledged until it has recovered");
        }
        Event::Recovered { epoch, from, to } => {
            metrics::journal_failed(false);
            metrics::recovery(Recovery::Done);
            health.ready();
            health.restored("recovery");
            tracing::warn!(epoch, from, to, "the journal recovered: these offsets were written again elsewhere");
        }
        Event::RecoveryFailed { reason, retry_in } => {
            metrics::recovery(Recovery::Failed);
            health.degraded("recovery", format!("recovery failed: {reason}"));
            tracing::error!(reason, ?retry_in, "recovery failed and will be tried again");
        }
        Event::SegmentFailed { reason } => tracing::error!(reason, "a segment could not be prepared or removed"),
        Event::NoSpace(true) => {
            health.degraded("space", "no space for another segment; appends are refused when this one is full");
            tracing::error!(
                "no space for another segment: appends are refused as retryable once this one is full. Free space on the file system (`df`, and `df -i`), or set [retention] max_bytes or min_free and reload; appends then resume by themselves"
            );
        }
        Event::NoSpace(false) => {
            health.restored("space");
            tracing::info!("there is space for another segment again");
        }
        Event::Removed { segment, first_offset, end_offset, rule } => {
            let label = match rule {
                clad_journal::Rule::MaxBytes => Rule::MaxBytes,
                clad_journal::Rule::MaxAge => Rule::MaxAge,
                clad_journal::Rule::MinFree => Rule::MinFree,
            };
            metrics::retained_away(label, 1);
            tracing::info!(segment, first_offset, end_offset, ?rule, "retention removed a segment");
        }
        Event::CursorLost { name, from, to } => {
            metrics::cursor_lost();
            tracing::error!(
                cursor = name,
                from,
                to,
                "retention removed records that this cursor holds and has not read: there was no room, or more than [retention] max_held_bytes were held"
            );
        }
        Event::WaitsForWrites { segment, over: false } => {
            health.degraded("writes", "recovery waits for a dead process's writes to the disk to end");
            tracing::warn!(segment, "recovery waits for a dead process's writes to this segment to end");
        }
        Event::WaitsForWrites { segment, over: true } => {
            health.restored("writes");
            tracing::info!(segment, "the dead process's writes to this segment have ended");
        }
        Event::Recycled { segment, as_segment } => {
            metrics::recycled();
            tracing::info!(segment, as_segment, "a segment that retention removed is used again");
        }
        Event::NotRecycled { segment, reason } => {
            tracing::info!(segment, reason, "a segment that retention removed is not used again: its file was deleted");
        }
        Event::RetentionPaused(doubt) => {
            metrics::retention_paused();
            let why = match doubt {
                Doubt::Jump => "the wall clock jumped against boot time",
                Doubt::Start => "nothing has synchronised the wall clock since the start",
            };
            let rests = "retention by age is paused until the clock is synchronised, 10 minutes at most; max_bytes and min_free still apply";
            health.degraded("clock", format!("{why}: {rests}"));
            tracing::warn!("{why}: {rests}");
        }
        Event::RetentionResumed => {
            health.restored("clock");
            tracing::info!("retention by age resumed");
        }
        Event::Scanning { .. } => {} // of a start: see `observer`
        Event::StateBroken => end_clad(JOURNAL),
        Event::Lost { from, to } => {
            metrics::damaged(*from, *to);
            tracing::error!(from, to, "acknowledged records are lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use clad_journal::{AfterRefusal, Append, Journal, JournalConfig, Level};

    use super::*;
    use crate::defect::tests::ends_by_a_panic;

    /// Everybody needs the journal's state: a process that stays without it serves nobody. It ends within a second.
    #[test]
    fn a_panic_under_the_lock_of_the_journal_ends_the_process() {
        const HERE: &str = "CLAD_TEST_PANIC_UNDER_THE_LOCK";
        if std::env::var_os(HERE).is_some() {
            let dir = tempfile::tempdir().unwrap();
            let config = JournalConfig { reserve_free: 0, segment_bytes: 8 << 20, ..JournalConfig::default() };
            let observer = observer(Health::default(), watch::Sender::default());
            let journal = Journal::open_dir(dir.path(), config, observer).unwrap();
            let append = Append {
                producer: [7; 16],
                owner: 1,
                producer_epoch: 1,
                first_sequence: 0,
                count: 1,
                gap: false,
                level: Level::Durable,
                min_time_ns: 1000,
                max_time_ns: 1000,
                peer_meta: &[],
                payload: b"x",
                payload_checksum: 0,
                permit: None,
            };
            let (from, item, _) = append.split();
            let (journal, from, now) = (&journal, &from, journal.now());
            let panics = thread::scope(|scope| {
                // An answer is given under the lock, where the journal's own asserts stand.
                let fails = move || {
                    let runs = [(from, &[item][..])];
                    drop(journal.append(runs, AfterRefusal::Judge, None, now, |_| panic!("on purpose")));
                };
                let thread = scope.spawn(fails);
                thread::sleep(Duration::from_secs(1));
                thread.join().is_err()
            });
            assert!(!panics, "a second later the process is still there");
            return;
        }
        let test = "a_panic_under_the_lock_of_the_journal_ends_the_process";
        ends_by_a_panic(module_path!(), test, HERE, JOURNAL);
    }
}
