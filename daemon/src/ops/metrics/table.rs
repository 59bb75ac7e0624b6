//! Every metric: its name, kind, label and meaning. Dashboards lean on the names.
//!
//! Invariants: this is the only place where a name stands; each is registered, and so shown at 0, as
//! soon as [`Meters::new`] has run.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use super::cursors::{CursorLag, Cursors, Described};
use super::damaged::Damaged;
use super::histogram::{BYTES, Buckets, DURATIONS, Histogram, RECORDS};
use super::labels::{
    Broken, Dropped, Fallback, Handshake, Label, Level, OtlpCode, Recovery, Refused, Rejected, Rule, Share,
    SyslogFormat, Transport, Trigger, Watermark,
};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Name of its label; a comma between two; empty for none.
    pub(super) label: &'static str,
    pub(super) help: &'static str,
}

/// Defines the table with a constant for each name.
macro_rules! metrics_table {
    ($($constant:ident = $name:literal, $kind:ident, $label:expr, $help:literal;)+) => {
        $(pub(super) const $constant: &str = $name;)+

        /// The table.
        pub(super) const METRICS: &[Metric] = &[
            $(Metric { name: $name, kind: Kind::$kind, label: $label, help: $help },)+
        ];
    };
}

metrics_table! {
    BUILD_INFO = "clad_build_info", Gauge, "version", "The running version; always 1.";
    IO_INFO = "clad_io_info", Gauge, "engine,durability", "1 for the engine and policy in use.";
    APPENDED_RECORDS = "clad_appended_records_total", Counter, Transport::NAME, "Records that were given an offset.";
    APPENDED_BYTES = "clad_appended_bytes_total", Counter, "", "Bytes of those records as their senders encoded them.";
    ACKED_RECORDS = "clad_acked_records_total", Counter, Level::NAME, "Records whose ack was released, by the level asked for.";
    REJECTED_RECORDS = "clad_rejected_records_total", Counter, Rejected::NAME, "Records refused with an answer to their sender.";
    DROPPED_RECORDS = "clad_dropped_records_total", Counter, Dropped::NAME, "Records dropped without an answer to their sender.";
    REFUSED_FOR_SHARE = "clad_refused_for_share_total", Counter, Share::NAME, "Refusals of a shared resource, because the owner's share was used up or nothing was free.";
    DEDUPLICATED_RECORDS = "clad_deduplicated_records_total", Counter, "", "Resent records that were stored already.";
    OTLP_REQUESTS = "clad_otlp_requests_total", Counter, OtlpCode::NAME, "Requests of OTLP, by their answer.";
    JOURNAL_UPLOADS = "clad_journal_uploads_total", Counter, OtlpCode::NAME, "Requests of systemd-journal-upload, by their answer.";
    SYSLOG_MESSAGES = "clad_syslog_messages_total", Counter, SyslogFormat::NAME, "Messages of syslog and RELP, by the format that they were read by.";
    SYSLOG_UNPARSED = "clad_syslog_unparsed_total", Counter, "", "Messages of syslog that could not be taken apart, and are stored whole, with clad.parse_error.";
    SYSLOG_TRUNCATED = "clad_syslog_truncated_total", Counter, "", "Messages of syslog that were cut, at [ingest.syslog.NAME] max_message or at the end of a connection.";
    RESEND_WINDOW = "clad_resend_window_appends", Gauge, "", "Appends of OTLP and systemd-journal-upload that are known if they are sent again.";
    RESEND_FORGOTTEN = "clad_resend_window_forgotten_total", Counter, "", "Such appends that were forgotten before their time, for want of room.";
    ORIGINS = "clad_origins", Gauge, "", "Origins: streams of other logs that are forwarded to this one.";
    APPEND_DURATION = "clad_append_duration_seconds", Histogram, Level::NAME, "From decoding an append to the release of its ack.";
    SYNC_DURATION = "clad_sync_duration_seconds", Histogram, "", "One sync, or one write that syncs.";
    SYNC_FAILURES = "clad_sync_failures_total", Counter, "", "Writes or syncs that failed; each latches the journal.";
    BATCH_RECORDS = "clad_batch_records", Histogram, "", "Records in a batch.";
    BATCH_BYTES = "clad_batch_bytes", Histogram, "", "Bytes of a batch.";
    INLINE_BATCHES = "clad_inline_batches_total", Counter, "", "Batches written by the thread that took them, with nothing in flight.";
    INFLIGHT_BYTES = "clad_inflight_bytes", Gauge, "", "Bytes of appends held in memory.";
    INFLIGHT_LIMIT = "clad_inflight_limit_bytes", Gauge, "", "Limit of clad_inflight_bytes; beyond it, senders wait.";
    RINGS = "clad_shm_rings", Gauge, "", "Rings of shared memory that a client has, or that are not fully drained.";
    RING_BYTES = "clad_shm_ring_bytes", Gauge, "", "Memory of the rings.";
    RINGS_STALLED = "clad_shm_rings_stalled", Gauge, "", "Stored rings of an earlier daemon that this one does not drain: what is posted there waits.";
    RINGS_CUT_OFF = "clad_shm_rings_cut_off_total", Counter, "", "Rings cut off because an entry in them was invalid.";
    RINGS_UNPROTECTED = "clad_shm_rings_unprotected", Gauge, "", "Rings that systemd's descriptor store should have and does not: `posted` is not offered there.";
    RING_WAKEUPS = "clad_shm_wakeups_total", Counter, "", "Times that a client woke the drain of the rings.";
    CONNECTION_BUFFERS = "clad_connection_buffer_bytes", Gauge, "", "Bytes of shared buffers in use by connections, for answers that wait and for incoming frames.";
    CONNECTIONS = "clad_connections", Gauge, Transport::NAME, "Open connections.";
    OFFSET = "clad_offset", Gauge, Watermark::NAME, "End of the log at each watermark: all offsets below.";
    LOWEST_OFFSET = "clad_lowest_offset", Gauge, "", "Lowest offset in the log; retention removed the records below it.";
    OLDEST_SEGMENT = "clad_oldest_segment_timestamp_seconds", Gauge, "", "Time at which the newest record of the oldest sealed segment was appended; every later record is in the log. 0 before one is sealed.";
    OLDEST_UNDURABLE = "clad_oldest_undurable_age_seconds", Gauge, "", "Age of the oldest record that is not on stable storage; 0 if all are.";
    ROTATIONS = "clad_segment_rotations_total", Counter, Trigger::NAME, "Segments sealed.";
    SEGMENTS = "clad_segments", Gauge, "", "Segments of the log, the prepared one included.";
    PREPARED = "clad_segment_prepared", Gauge, "", "1 while the next segment is ready.";
    UNPREPARED = "clad_segments_unprepared_total", Counter, "", "Rotations that found no prepared segment.";
    RECYCLED = "clad_segments_recycled_total", Counter, "", "Segments written over a file that retention removed.";
    POWER_LOSS_PROTECTED = "clad_power_loss_protected", Gauge, "", "1 if the operator states that every disk keeps its data when the power fails.";
    JOURNAL_BYTES = "clad_journal_bytes", Gauge, "", "Bytes that the log takes on the disk.";
    DISK_FREE = "clad_disk_free_bytes", Gauge, "", "Free space of its file system.";
    DISK_SIZE = "clad_disk_size_bytes", Gauge, "", "Size of its file system.";
    DISK_RESERVE = "clad_disk_reserve_bytes", Gauge, "", "Free space that no new segment may use; appends are refused first.";
    READY = "clad_ready", Gauge, "", "1 while appends are accepted, as in /readyz.";
    JOURNAL_FAILED = "clad_journal_failed", Gauge, "", "1 while the journal has failed and recovers.";
    IO_FALLBACKS = "clad_io_fallbacks_total", Counter, Fallback::NAME, "Times that a slower way of writing was used because the faster is not available here.";
    RECOVERIES = "clad_recoveries_total", Counter, Recovery::NAME, "Recoveries in the running process, and failed attempts.";
    RECOVERY_TRUNCATED = "clad_recovery_truncated_bytes_total", Counter, "", "Bytes of unconfirmed tail that recovery moved to quarantine.";
    RECOVERY_DURATION = "clad_recovery_duration_seconds", Gauge, "", "Duration of the recovery at the start.";
    CORRUPT_RECORDS = "clad_corrupt_records_total", Counter, "", "Records found damaged or lost since the start, by the start, a recovery or a reader; each counts once.";
    LOST_RECORDS = "clad_lost_records", Gauge, "", "Acknowledged records known to be lost, by their offsets, until retention has passed them. A restart does not change it.";
    BROKEN_SEGMENTS = "clad_broken_segments", Gauge, Broken::NAME, "Segments that are missing, or whose header or footer is lost; the number of lost records is unknown.";
    RELOAD_SUCCESSFUL = "clad_config_last_reload_successful", Gauge, "", "1 if the last reload was accepted, or none was tried; 0 after a refused reload.";
    RELOAD_TIME = "clad_config_last_reload_success_timestamp_seconds", Gauge, "", "Time at which the configuration in use was loaded.";
    ACCESS_REFUSED = "clad_access_refused_total", Counter, Refused::NAME, "Refusals by a rule of [access], or of a token.";
    TLS_HANDSHAKES = "clad_tls_handshakes_total", Counter, Handshake::NAME, "Handshakes of TLS, by their end.";
    TLS_EXPIRY = "clad_tls_certificate_expiry_timestamp_seconds", Gauge, "", "End of the first certificate of [tls] cert that ends; 0 without one.";
    TLS_RELOAD_FAILED = "clad_tls_reload_failed", Gauge, "", "1 while the files of [tls] are refused, and what was read before stays in force.";
    CURSOR_LAG_RECORDS = "clad_cursor_lag_records", Gauge, "cursor", "Records that are written and that the named cursor has not read.";
    CURSOR_LAG_BYTES = "clad_cursor_lag_bytes", Gauge, "cursor", "Bytes of the segments with records that the named cursor has not read.";
    CURSOR_LAG_SECONDS = "clad_cursor_lag_seconds", Gauge, "cursor", "Age of the oldest record that the named cursor has not read; 0 if it has read all.";
    CURSOR_HELD = "clad_cursor_held_bytes", Gauge, "", "Bytes that retention would have removed, and that named cursors hold.";
    CURSORS_LOST = "clad_cursor_lost_total", Counter, "", "Times that retention removed records that a holding cursor had not read.";
    RETAINED_AWAY = "clad_retention_removed_segments_total", Counter, Rule::NAME, "Segments removed by the operator's rule.";
    RETENTION_PAUSES = "clad_retention_pauses_total", Counter, "", "Times that retention by age paused because the wall clock jumped, or was not synchronised at a start.";
}

/// A counter that can be read as well: counted here, and handed to the exporter when it is asked.
pub(super) struct Total {
    count: AtomicU64,
    shown: Counter,
}

impl Total {
    pub(super) fn increment(&self, by: u64) {
        self.count.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn publish(&self) {
        self.shown.absolute(self.get());
    }
}

/// Makes totals, and knows each that it made: none can be forgotten where they are published.
#[derive(Default)]
struct Totals(RefCell<Vec<Count>>);

impl Totals {
    fn total(&self, shown: Counter) -> Count {
        let total = Arc::new(Total { count: AtomicU64::new(0), shown });
        self.0.borrow_mut().push(Arc::clone(&total));
        total
    }

    fn family<L: Label>(&self, name: &'static str) -> Family<L, Count> {
        Family::new(|value| self.total(counter!(name, L::NAME => value)))
    }
}

/// One handle for each value of a label.
pub(super) struct Family<L, H> {
    handles: Vec<H>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label, H> Family<L, H> {
    fn new(make: impl Fn(&'static str) -> H) -> Self {
        Self { handles: L::ALL.iter().map(|value| make(value.as_str())).collect(), label: std::marker::PhantomData }
    }

    pub(super) fn of(&self, value: L) -> &H {
        &self.handles[value.index()]
    }

    /// Each value of the label with its handle.
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, &H)> {
        L::ALL.iter().map(|value| value.as_str()).zip(&self.handles)
    }
}

/// A [`Total`] that is counted in one place and published in another.
type Count = Arc<Total>;

/// Defines the handles and makes them: what is counted on the way of a record must not look names up.
macro_rules! meters {
    ($totals:ident: $($field:ident: $type:ty = $make:expr;)+) => {
        pub(super) struct Meters {
            $(pub(super) $field: $type,)+
            totals: Vec<Count>,
        }

        impl Meters {
            fn registered() -> Self {
                let $totals = Totals::default();
                Self { $($field: $make,)+ totals: $totals.0.into_inner() }
            }
        }
    };
}

meters! { totals:
    appended_records: Family<Transport, Count> = totals.family(APPENDED_RECORDS);
    appended_bytes: Count = totals.total(counter!(APPENDED_BYTES));
    acked_records: Family<Level, Count> = totals.family(ACKED_RECORDS);
    rejected_records: Family<Rejected, Count> = totals.family(REJECTED_RECORDS);
    dropped_records: Family<Dropped, Count> = totals.family(DROPPED_RECORDS);
    refused_for_share: Family<Share, Count> = totals.family(REFUSED_FOR_SHARE);
    deduplicated_records: Count = totals.total(counter!(DEDUPLICATED_RECORDS));
    otlp_requests: Family<OtlpCode, Count> = totals.family(OTLP_REQUESTS);
    journal_uploads: Family<OtlpCode, Count> = totals.family(JOURNAL_UPLOADS);
    syslog_messages: Family<SyslogFormat, Count> = totals.family(SYSLOG_MESSAGES);
    syslog_unparsed: Count = totals.total(counter!(SYSLOG_UNPARSED));
    syslog_truncated: Count = totals.total(counter!(SYSLOG_TRUNCATED));
    resend_window: Gauge = gauge!(RESEND_WINDOW);
    resend_forgotten: Counter = counter!(RESEND_FORGOTTEN);
    origins: Gauge = gauge!(ORIGINS);
    append_duration: Family<Level, Histogram> = Family::new(|_| histogram(DURATIONS));
    sync_duration: Histogram = histogram(DURATIONS);
    sync_failures: Count = totals.total(counter!(SYNC_FAILURES));
    batch_records: Histogram = histogram(RECORDS);
    batch_bytes: Histogram = histogram(BYTES);
    inline_batches: Counter = counter!(INLINE_BATCHES);
    inflight_bytes: Gauge = gauge!(INFLIGHT_BYTES);
    inflight_limit: Gauge = gauge!(INFLIGHT_LIMIT);
    rings: Gauge = gauge!(RINGS);
    ring_bytes: Gauge = gauge!(RING_BYTES);
    rings_stalled: Gauge = gauge!(RINGS_STALLED);
    rings_cut_off: Count = totals.total(counter!(RINGS_CUT_OFF));
    rings_unprotected: Gauge = gauge!(RINGS_UNPROTECTED);
    ring_wakeups: Count = totals.total(counter!(RING_WAKEUPS));
    connection_buffers: Gauge = gauge!(CONNECTION_BUFFERS);
    connections: Family<Transport, Gauge> = gauges(CONNECTIONS);
    offset: Family<Watermark, Gauge> = gauges(OFFSET);
    lowest_offset: Gauge = gauge!(LOWEST_OFFSET);
    oldest_segment: Gauge = gauge!(OLDEST_SEGMENT);
    oldest_undurable: Gauge = gauge!(OLDEST_UNDURABLE);
    rotations: Family<Trigger, Count> = totals.family(ROTATIONS);
    segments: Gauge = gauge!(SEGMENTS);
    prepared: Gauge = gauge!(PREPARED);
    unprepared: Count = totals.total(counter!(UNPREPARED));
    recycled: Count = totals.total(counter!(RECYCLED));
    power_loss_protected: Gauge = gauge!(POWER_LOSS_PROTECTED);
    journal_bytes: Gauge = gauge!(JOURNAL_BYTES);
    disk_free: Gauge = gauge!(DISK_FREE);
    disk_size: Gauge = gauge!(DISK_SIZE);
    disk_reserve: Gauge = gauge!(DISK_RESERVE);
    ready: Gauge = gauge!(READY);
    journal_failed: Gauge = gauge!(JOURNAL_FAILED);
    io_fallbacks: Family<Fallback, Count> = totals.family(IO_FALLBACKS);
    recoveries: Family<Recovery, Count> = totals.family(RECOVERIES);
    recovery_truncated: Count = totals.total(counter!(RECOVERY_TRUNCATED));
    recovery_duration: Gauge = gauge!(RECOVERY_DURATION);
    corrupt_records: Count = totals.total(counter!(CORRUPT_RECORDS));
    damaged: Damaged = Damaged::default();
    lost_records: Gauge = gauge!(LOST_RECORDS);
    broken_segments: Family<Broken, Gauge> = gauges(BROKEN_SEGMENTS);
    reload_successful: Gauge = gauge!(RELOAD_SUCCESSFUL);
    reload_time: Gauge = gauge!(RELOAD_TIME);
    access_refused: Family<Refused, Count> = totals.family(ACCESS_REFUSED);
    tls_handshakes: Family<Handshake, Count> = totals.family(TLS_HANDSHAKES);
    tls_expiry: Gauge = gauge!(TLS_EXPIRY);
    tls_reload_failed: Gauge = gauge!(TLS_RELOAD_FAILED);
    cursors: Cursors = Cursors::default();
    cursor_held: Gauge = gauge!(CURSOR_HELD);
    cursors_lost: Count = totals.total(counter!(CURSORS_LOST));
    retained_away: Family<Rule, Count> = totals.family(RETAINED_AWAY);
    retention_pauses: Count = totals.total(counter!(RETENTION_PAUSES));
}

fn gauges<L: Label>(name: &'static str) -> Family<L, Gauge> {
    Family::new(|value| gauge!(name, L::NAME => value))
}

fn histogram(buckets: Buckets) -> Histogram {
    Histogram::new(buckets)
}

impl Meters {
    /// Describes and registers everything with the recorder that is current.
    pub(super) fn new() -> Self {
        for metric in METRICS {
            match metric.kind {
                Kind::Counter => describe_counter!(metric.name, metric.help),
                Kind::Gauge if metric.label != "cursor" => describe_gauge!(metric.name, metric.help),
                // Rendered here, with their help.
                Kind::Gauge | Kind::Histogram => {}
            }
        }
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Self::registered()
    }

    /// Hands what was counted to the exporter.
    pub(super) fn publish(&self) {
        self.totals.iter().for_each(|total| total.publish());
    }

    /// The histograms and the cursors in the text format.
    pub(super) fn render(&self, out: &mut String) {
        for metric in METRICS {
            let value: fn(&CursorLag) -> String = match metric.name {
                CURSOR_LAG_RECORDS => |lag| lag.records.to_string(),
                CURSOR_LAG_BYTES => |lag| lag.bytes.to_string(),
                CURSOR_LAG_SECONDS => |lag| lag.age.as_secs_f64().to_string(),
                _ => continue,
            };
            let gauge = Described { name: metric.name, label: metric.label, help: metric.help };
            self.cursors.render(&gauge, value, out);
        }
        for metric in METRICS.iter().filter(|metric| metric.kind == Kind::Histogram) {
            let name = metric.name;
            let kind = metric.kind.as_str();
            out.push_str(&format!("# HELP {name} {}\n# TYPE {name} {kind}\n", metric.help));
            match name {
                APPEND_DURATION => {
                    for level in Level::ALL {
                        let label = format!("{}=\"{}\"", metric.label, level.as_str());
                        self.append_duration.of(*level).render(name, &label, out);
                    }
                }
                SYNC_DURATION => self.sync_duration.render(name, "", out),
                BATCH_RECORDS => self.batch_records.render(name, "", out),
                BATCH_BYTES => self.batch_bytes.render(name, "", out),
                // The test over all names fails on one that is forgotten here.
                _ => {}
            }
            out.push('\n');
        }
    }
}
