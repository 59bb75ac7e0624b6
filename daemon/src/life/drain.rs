//! The end: nothing new is taken, taken appends are answered and synced, and the log gets its end.
//!
//! Invariants: no part takes the time that the next needs; anything left behind is reported, as lost only where it is.

use std::time::{Duration, Instant};

use clad_journal::{Accepting, Watermarks};
use tokio::sync::watch;

use super::services::Services;
use crate::exit::Exit;
use crate::life::running::Running;
use crate::life::systemd::Notifier;

/// Latest end of each part of a drain: none may take the time that the next needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadlines {
    /// Appends in rings were taken: by half of the time.
    rings: Instant,
    /// Connections were answered: by three quarters of it.
    answers: Instant,
    /// The log has its end.
    all: Instant,
}

impl Deadlines {
    fn of(began: Instant, drain_timeout: Duration) -> Self {
        Self { rings: began + drain_timeout / 2, answers: began + drain_timeout / 4 * 3, all: began + drain_timeout }
    }
}

/// Stops taking, answers what was taken, seals, and marks a clean end.
pub(super) async fn drain(running: &mut Running, stop: &watch::Sender<bool>) -> Exit {
    let rings = running.served.rings.clone();
    let drain_timeout = running.services.config.daemon.drain_timeout;
    let began = Instant::now();
    let Deadlines { rings: rings_until, answers: answers_until, all: until } = Deadlines::of(began, drain_timeout);
    running.notifier.stopping("draining");
    running.notifier.extend_timeout(drain_timeout + Duration::from_secs(5));
    running.services.health.not_ready("stop", "clad is stopping");
    tracing::info!(?drain_timeout, "stopping: no new connections, draining");
    let before = running.services.journal.watermarks();
    let _ = stop.send(true);
    running.served.sockets.remove();
    // Datagrams that came before are taken before the journal closes: their senders wait for no answer.
    running.served.syslog.read_out(rings_until).await;
    // Appends in the rings are taken before the journal closes.
    let stopping = rings.clone();
    let left_over = tokio::task::spawn_blocking(move || stopping.stop(rings_until)).await.unwrap_or_default();
    running.services.journal.begin_close();
    while running.served.connection_slots.open() > 0 && Instant::now() < answers_until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let journal = running.services.journal.clone();
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
    match tokio::task::spawn_blocking(move || journal.close(left)).await {
        Ok(true) if left_over == 0 => {
            tracing::info!("clean end");
            Exit::Done
        }
        Ok(true) => {
            tracing::error!(
                ?drain_timeout,
                rings = left_over,
                "the log was closed cleanly, but not every posted record in rings was taken: systemd's store has the rest for \
                 a restart, and `systemctl stop` drops it; a client that lives hands its ring to the next start"
            );
            Exit::Failed
        }
        _ => {
            let (now, rings) = (running.services.journal.watermarks(), rings.clone());
            let kept =
                tokio::task::spawn_blocking(move || rings.unwritten_in_rings(now.written)).await.unwrap_or_default();
            let lost = not_kept(&before, &now, kept);
            tracing::error!(?drain_timeout, "the log could not be closed cleanly in time: {lost}");
            Exit::Failed
        }
    }
}

/// Acknowledged records that an unclean end leaves behind, by the watermarks when it began and now. `in_rings` is the
/// number of unwritten ones in rings, which are stored: nothing where that is not known.
fn not_kept(before: &Watermarks, now: &Watermarks, in_rings: Option<u64>) -> String {
    let failed = [before, now].iter().any(|watermarks| watermarks.accepting == Accepting::Failed);
    let range = |from: u64, to: u64| format!("{} records, offsets {from} to {}", to - from, to - 1);
    let mut words = Vec::new();
    if now.received > now.written {
        let (records, all) = (range(now.written, now.received), now.received - now.written);
        let what = match in_rings {
            Some(0) => "is lost".to_owned(),
            Some(stored) if stored >= all => "is in rings, which are stored for the next start".to_owned(),
            Some(stored) => format!("is lost, except {stored} records in rings, which are stored for the next start"),
            None => "is lost, except its part in rings, which are stored for the next start".to_owned(),
        };
        words.push(format!("what was acknowledged as `received` and not written yet {what} ({records})"));
    }
    if (failed || now.failures != before.failures) && now.written > now.durable {
        let records = range(now.durable, now.written);
        words.push(format!(
            "what was `written` and not durable yet may be lost: the kernel may still have it ({records})"
        ));
        words.push("nothing that was acknowledged as `durable` is lost".to_owned());
    } else {
        words.push("nothing that was acknowledged as `written` or `durable` is lost".to_owned());
    }
    words.join("; ")
}

impl Services {
    /// The start has failed, and said why. Listeners that were there before may have taken something.
    pub(super) async fn end_failed(&self, exit: Exit, stop: &watch::Sender<bool>, notifier: &Notifier) -> Exit {
        let _ = stop.send(true);
        self.close_log(notifier).await;
        exit
    }

    async fn close_log(&self, notifier: &Notifier) {
        let drain_timeout = self.config.daemon.drain_timeout;
        notifier.stopping("closing the log");
        notifier.extend_timeout(drain_timeout + Duration::from_secs(5));
        let (journal, before) = (self.journal.clone(), self.journal.watermarks());
        let closed = tokio::task::spawn_blocking(move || journal.close(drain_timeout)).await;
        if !matches!(closed, Ok(true)) {
            let lost = not_kept(&before, &self.journal.watermarks(), None);
            tracing::error!(?drain_timeout, "the log could not be closed cleanly in time: {lost}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_drain_takes_what_the_next_needs() {
        let (began, drain_timeout) = (Instant::now(), Duration::from_secs(20));
        let Deadlines { rings, answers, all } = Deadlines::of(began, drain_timeout);
        assert_eq!(all - began, drain_timeout);
        assert!(
            rings > began && rings - began <= drain_timeout / 2,
            "the log and its connections have as long as the rings"
        );
        assert!(answers - rings >= drain_timeout / 4 && all - answers >= drain_timeout / 4);
        let none = Deadlines::of(began, Duration::ZERO);
        assert_eq!(none, Deadlines { rings: began, answers: began, all: began });
    }

    #[test]
    fn an_end_that_is_not_clean_says_what_it_leaves_behind() {
        let watermarks =
            |received, written, durable| Watermarks { received, written, durable, ..Watermarks::default() };
        let all = "nothing that was acknowledged as `written` or `durable` is lost";
        assert_eq!(not_kept(&watermarks(5, 5, 5), &watermarks(5, 5, 5), Some(0)), all);
        // A slow disk has the written records.
        let before = watermarks(5, 5, 5);
        let what = "what was acknowledged as `received` and not written yet";
        for (in_rings, is) in [
            (Some(0), "is lost"),
            (Some(1), "is lost, except 1 records in rings, which are stored for the next start"),
            (Some(2), "is in rings, which are stored for the next start"),
            (None, "is lost, except its part in rings, which are stored for the next start"),
        ] {
            assert_eq!(
                not_kept(&before, &watermarks(9, 7, 5), in_rings),
                format!("{what} {is} (2 records, offsets 7 to 8); {all}")
            );
        }
        // One that has failed may have it.
        let failed = Watermarks { accepting: Accepting::Failed, failures: 1, ..watermarks(9, 7, 5) };
        let text = not_kept(&failed, &Watermarks { accepting: Accepting::Closing, ..failed }, Some(0));
        assert!(
            text.contains("(2 records, offsets 7 to 8); what was `written` and not durable yet may be lost"),
            "{text}"
        );
        assert!(
            text.ends_with("(2 records, offsets 5 to 6); nothing that was acknowledged as `durable` is lost"),
            "{text}"
        );
        assert_eq!(not_kept(&before, &failed, Some(0)), text, "it failed on the way down");
    }
}
