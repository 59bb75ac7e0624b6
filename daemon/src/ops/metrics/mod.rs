//! Counting, as functions: the rest of the daemon knows no metric by name.
//!
//! Invariants: every series is there, at 0, from the start; no label takes a value from outside, but for names of cursors;
//! counting allocates nothing and looks nothing up. Before [`install`] all of this does nothing.
//!
//! *Rejected* means that the refusal was reported to the sender; *dropped* means that it was reported to no one.
//!
//! The files: `labels` the closed sets, `table` the names, `histogram` fixed buckets, `cursors` named cursors, `damaged` the
//! offsets that count as damaged, `scrape` the answer of `/metrics`, `snapshot` the part that the admin service reports.

mod cursors;
mod damaged;
mod histogram;
mod labels;
mod scrape;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use cursors::CursorLag;
pub(crate) use labels::Label;
pub use labels::{
    Broken, Dropped, Fallback, Handshake, Level, OtlpCode, Recovery, Refused, Rejected, Rule, Share, SyslogFormat,
    Transport, Trigger, Watermark,
};
use scrape::meters;
pub use scrape::{Scrape, install};
pub(crate) use snapshot::{Recent, counters};

#[expect(clippy::cast_precision_loss, reason = "gauges are floating point in the text format")]
fn float(value: u64) -> f64 {
    value as f64
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Defines functions that count on the meters, and do nothing while there are none.
macro_rules! counting {
    ($m:ident: $($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) $body:block)+) => {
        $($(#[$doc])* $vis fn $name($($arg: $type),*) {
            if let Some($m) = meters() $body
        })+
    };
}

counting! { m:
    /// An append was given its offsets.
    pub fn appended(transport: Transport, records: u64, bytes: u64) {
        m.appended_records.of(transport).increment(records);
        m.appended_bytes.increment(bytes);
    }

    /// The acks of so many appends were released, `took` after they were decoded.
    pub fn acked(level: Level, appends: u64, records: u64, took: Duration) {
        m.acked_records.of(level).increment(records);
        m.append_duration.of(level).observe(nanos(took), appends);
    }

    /// Records were refused, and that was reported to their sender.
    pub fn rejected(reason: Rejected, records: u64) { m.rejected_records.of(reason).increment(records) }

    /// Records were lost, and that was reported to no one.
    pub fn dropped(reason: Dropped, records: u64) { m.dropped_records.of(reason).increment(records) }

    /// Something was refused for want of a share.
    pub fn refused_for_share(what: Share) { m.refused_for_share.of(what).increment(1) }

    /// Resent records were stored already.
    pub fn deduplicated(records: u64) { m.deduplicated_records.increment(records) }

    /// A request of OTLP was answered.
    pub fn otlp_request(code: OtlpCode) { m.otlp_requests.of(code).increment(1) }

    /// A request of systemd-journal-upload was answered.
    pub fn journal_upload(code: OtlpCode) { m.journal_uploads.of(code).increment(1) }

    /// A message of syslog was read: whether it could not be taken apart, and whether it was cut.
    pub fn syslog_message(format: SyslogFormat, is_unparsed: bool, is_cut: bool) {
        m.syslog_messages.of(format).increment(1);
        m.syslog_unparsed.increment(u64::from(is_unparsed));
        m.syslog_truncated.increment(u64::from(is_cut));
    }

    /// Appends that are known if they are sent again, and how many were forgotten before their time.
    pub fn resend_window(appends: u64, forgotten: u64) {
        m.resend_window.set(float(appends));
        m.resend_forgotten.absolute(forgotten);
    }

    /// Streams of other logs that are forwarded here.
    pub fn origins(count: u64) { m.origins.set(float(count)) }

    /// A batch was handed to the disk.
    pub fn batch(records: u64, bytes: u64) {
        m.batch_records.observe(records, 1);
        m.batch_bytes.observe(bytes, 1);
    }

    /// A batch was written by the thread that took it, with nothing in flight beside it.
    pub fn inline_batch() { m.inline_batches.increment(1) }

    /// A sync, or a write that syncs, was done.
    pub fn synced(took: Duration) { m.sync_duration.observe(nanos(took), 1) }

    /// A write or sync failed.
    pub fn sync_failed() { m.sync_failures.increment(1) }

    /// Bytes of appends that are held in memory now.
    pub fn inflight_bytes(bytes: u64) { m.inflight_bytes.set(float(bytes)) }

    /// Bytes that buffers of connections take beyond their own.
    pub fn connection_buffers(bytes: u64) { m.connection_buffers.set(float(bytes)) }

    /// Rings of shared memory, the memory that they take, and how many of them are not drained.
    pub fn rings(count: u64, bytes: u64, stalled: u64) {
        m.rings.set(float(count));
        m.ring_bytes.set(float(bytes));
        m.rings_stalled.set(float(stalled));
    }

    /// A ring was cut off.
    pub fn ring_cut_off() { m.rings_cut_off.increment(1) }

    /// Rings that the fd store should have and does not.
    pub fn rings_unprotected(count: u64) { m.rings_unprotected.set(float(count)) }

    /// The drain of the rings was woken.
    pub fn ring_wakeup() { m.ring_wakeups.increment(1) }

    /// The end of the log at a watermark.
    pub fn offset(watermark: Watermark, end: u64) { m.offset.of(watermark).set(float(end)) }

    /// The most that appends in memory may take together.
    pub fn inflight_limit(bytes: u64) { m.inflight_limit.set(float(bytes)) }

    /// Reach of the log: the lowest offset, and the append time up to which something may be gone (Unix nanoseconds), once
    /// a segment was sealed.
    pub fn horizon(lowest_offset: u64, oldest_segment_ns: Option<i64>) {
        m.lowest_offset.set(float(lowest_offset));
        #[expect(clippy::cast_precision_loss, reason = "a time that is off by part of a microsecond")]
        m.oldest_segment.set(oldest_segment_ns.unwrap_or(0) as f64 / 1e9);
    }

    /// Age of the oldest record that is not on stable storage; zero where all are.
    pub fn oldest_undurable(age: Duration) { m.oldest_undurable.set(age.as_secs_f64()) }

    /// A segment was sealed.
    pub fn rotated(trigger: Trigger) { m.rotations.of(trigger).increment(1) }

    /// A rotation found no prepared segment.
    pub fn unprepared() { m.unprepared.increment(1) }

    /// A segment was written over one that retention removed.
    pub fn recycled() { m.recycled.increment(1) }

    /// Sets whether the operator states that the disks are protected against power loss.
    pub fn power_loss_protected(stated: bool) { m.power_loss_protected.set(f64::from(u8::from(stated))) }

    /// Size of the log, and whether its next segment is ready.
    pub fn segments(segments: u64, journal_bytes: u64, prepared: bool) {
        m.segments.set(float(segments));
        m.journal_bytes.set(float(journal_bytes));
        m.prepared.set(f64::from(u8::from(prepared)));
    }

    /// The file system: free space, size, and the reserve that no new segment may take.
    pub fn disk(free: u64, size: u64, reserve: u64) {
        m.disk_free.set(float(free));
        m.disk_size.set(float(size));
        m.disk_reserve.set(float(reserve));
    }

    /// Sets whether appends are accepted.
    pub fn ready(ready: bool) { m.ready.set(f64::from(u8::from(ready))) }

    /// Sets whether the journal has failed.
    pub fn journal_failed(failed: bool) { m.journal_failed.set(f64::from(u8::from(failed))) }

    /// A slower way was taken.
    pub fn io_fallback(reason: Fallback) { m.io_fallbacks.of(reason).increment(1) }

    /// The running process recovered, or tried to.
    pub fn recovery(outcome: Recovery) { m.recoveries.of(outcome).increment(1) }

    /// The recovery of the start is over.
    pub fn recovered(took: Duration, quarantined_bytes: u64) {
        m.recovery_duration.set(took.as_secs_f64());
        m.recovery_truncated.increment(quarantined_bytes);
    }

    /// A configuration was taken at a moment (Unix time), or refused.
    pub fn config_loaded(taken_at: Option<Duration>) {
        m.reload_successful.set(f64::from(u8::from(taken_at.is_some())));
        if let Some(at) = taken_at {
            m.reload_time.set(at.as_secs_f64());
        }
    }

    /// A handshake of TLS has ended.
    pub fn tls_handshake(result: Handshake) { m.tls_handshakes.of(result).increment(1) }

    /// A rule of access has refused something.
    pub fn access_refused(what: Refused) { m.access_refused.of(what).increment(1) }

    /// The end of the certificate in force.
    pub fn tls_certificate_expiry(at: SystemTime) {
        m.tls_expiry.set(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// The files are refused, or not any more.
    pub fn tls_reload_failed(failed: bool) { m.tls_reload_failed.set(f64::from(u8::from(failed))) }

    /// The records of these offsets were found damaged, or lost; meeting them again does not count them again.
    pub fn damaged(from: u64, to: u64) { m.corrupt_records.increment(m.damaged.note(from, to)) }

    /// Acknowledged records that are known to be gone.
    pub fn lost(records: u64, segments: [(Broken, u64); 3]) {
        m.lost_records.set(float(records));
        segments.into_iter().for_each(|(broken, count)| m.broken_segments.of(broken).set(float(count)));
    }

    /// Retention by age rests, because the wall clock has jumped.
    pub fn retention_paused() { m.retention_pauses.increment(1) }

    /// The named cursors, and the bytes that they hold against retention.
    pub fn cursors(lags: Vec<CursorLag>, held_bytes: u64) {
        m.cursors.set(lags);
        m.cursor_held.set(float(held_bytes));
    }

    /// Retention removed what a cursor holds.
    pub fn cursor_lost() { m.cursors_lost.increment(1) }

    /// Retention removed segments.
    pub fn retained_away(rule: Rule, segments: u64) { m.retained_away.of(rule).increment(segments) }
}

/// Number of refusals for want of a share, of each.
pub(crate) fn refusals_for_share() -> [u64; Share::ALL.len()] {
    let count = |what: Share| meters().map_or(0, |m| m.refused_for_share.of(what).get());
    std::array::from_fn(|at| count(Share::ALL[at]))
}

/// A connection that is counted for as long as this lives.
#[derive(Debug)]
#[must_use = "dropping it ends the connection's count"]
pub struct Connection(Transport);

impl Connection {
    /// One connection more.
    pub fn open(transport: Transport) -> Self {
        if let Some(m) = meters() {
            m.connections.of(transport).increment(1.0);
        }
        Self(transport)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(m) = meters() {
            m.connections.of(self.0).decrement(1.0);
        }
    }
}
