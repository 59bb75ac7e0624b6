//! The alerts. Each has a section of its name in the runbook of docs/OPERATIONS.md.
//!
//! Severities: `critical`, somebody should look now: appends are refused, or something acknowledged is in danger;
//! `warning`, somebody should look today; `info`, worth knowing.

use super::Options;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Critical,
    Warning,
    Info,
}

impl Severity {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// An alert.
pub(super) struct Alert {
    pub(super) name: &'static str,
    pub(super) expr: String,
    /// How long the expression must hold.
    pub(super) hold: String,
    pub(super) severity: Severity,
    pub(super) summary: &'static str,
    pub(super) description: String,
}

impl Alert {
    /// The anchor of its section, as pages made from Markdown name it.
    pub(super) fn anchor(&self) -> String {
        self.name.to_lowercase()
    }
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
/// A disk that is used as it should be syncs in a hundredth of that.
const SLOW_SYNC: &str = "0.5";
/// Records that wait so long for the disk are in danger from a power cut that nobody expects.
const LAG: u64 = 30;

/// All of them.
pub(super) fn alerts(options: &Options) -> Vec<Alert> {
    let job = format!("job=\"{}\"", options.job);
    let groups: [fn(&Options, &str) -> Vec<Alert>; 6] = [process, journal, damage, records, rings, disk];
    groups.iter().flat_map(|group| group(options, &job)).collect()
}

fn process(options: &Options, job: &str) -> Vec<Alert> {
    let pace = options.pace;
    vec![
        Alert {
            name: "CladDown",
            expr: format!("up{{{job}}} == 0"),
            hold: pace.hold(2 * MINUTE),
            severity: Severity::Critical,
            summary: "clad on {{ $labels.instance }} does not answer.",
            description: "The scrape fails: the daemon is down or hangs, or its metrics cannot be reached. Programs \
                          that log there are not answered."
                .to_owned(),
        },
        Alert {
            name: "CladAbsent",
            expr: format!("absent(up{{{job}}})"),
            hold: pace.hold(5 * MINUTE),
            severity: Severity::Critical,
            summary: "Prometheus knows no clad.",
            description: "No target of the job is known: service discovery or the scrape configuration has lost it, \
                          and no other alert of this set can fire."
                .to_owned(),
        },
        Alert {
            name: "CladRestartLoop",
            expr: format!("changes(process_start_time_seconds{{{job}}}[{}]) > 2", pace.window(15 * MINUTE)),
            hold: pace.hold(0),
            severity: Severity::Warning,
            summary: "clad on {{ $labels.instance }} restarts again and again.",
            description: "It started {{ $value }} times within a quarter of an hour.".to_owned(),
        },
        Alert {
            name: "CladReloadFailed",
            expr: format!("clad_config_last_reload_successful{{{job}}} == 0"),
            hold: pace.hold(5 * MINUTE),
            severity: Severity::Warning,
            summary: "clad on {{ $labels.instance }} refused its configuration.",
            description: "The last reload changed nothing; the daemon goes on with what it had, and would not start \
                          with what is in the files now, or would start with something else than it runs."
                .to_owned(),
        },
    ]
}

fn journal(options: &Options, job: &str) -> Vec<Alert> {
    let pace = options.pace;
    let lag = pace.seconds(LAG);
    vec![
        Alert {
            name: "CladNotReady",
            expr: format!("clad_ready{{{job}}} == 0"),
            hold: pace.hold(2 * MINUTE),
            severity: Severity::Critical,
            summary: "clad on {{ $labels.instance }} refuses appends.",
            description: "Senders are told to try again later; level `none` is dropped. /readyz and `clactl status` \
                          say why."
                .to_owned(),
        },
        Alert {
            name: "CladJournalFailed",
            expr: format!("clad_journal_failed{{{job}}} == 1"),
            hold: pace.hold(MINUTE),
            severity: Severity::Critical,
            summary: "The journal of clad on {{ $labels.instance }} has failed and does not recover.",
            description: "A write or sync failed, and recovery, tried again at least once a minute, fails too. \
                          Nothing is acknowledged until it succeeds."
                .to_owned(),
        },
        Alert {
            name: "CladWriteFailed",
            expr: format!("increase(clad_sync_failures_total{{{job}}}[{}]) > 0", pace.window(15 * MINUTE)),
            hold: pace.hold(0),
            severity: Severity::Warning,
            summary: "A write or sync of clad on {{ $labels.instance }} failed.",
            description: "The journal was told of an error by the kernel and recovered, or still tries to. Nothing \
                          acknowledged is lost by that; the disk may be on its way out."
                .to_owned(),
        },
        Alert {
            name: "CladSyncSlow",
            expr: format!("instance:clad_sync_duration_seconds:p99_5m{{{job}}} > {SLOW_SYNC}"),
            hold: pace.hold(10 * MINUTE),
            severity: Severity::Warning,
            summary: "The disk under clad on {{ $labels.instance }} syncs slowly.",
            description: "One sync in a hundred takes {{ $value | humanizeDuration }} or longer; `durable` acks wait \
                          for it."
                .to_owned(),
        },
        Alert {
            name: "CladDurableLag",
            expr: format!(
                "clad_oldest_undurable_age_seconds{{{job}}} > {lag}\n  and on (job, instance)\n\
                 clad_io_info{{{job}, durability!=\"fire_and_forget\"}} == 1"
            ),
            hold: pace.hold(MINUTE),
            severity: Severity::Critical,
            summary: "Records wait for the disk under clad on {{ $labels.instance }}.",
            description: "The oldest has been waiting for {{ $value | humanizeDuration }} and would not survive a \
                          power cut. Nobody was told that it would."
                .to_owned(),
        },
    ]
}

fn damage(options: &Options, job: &str) -> Vec<Alert> {
    let pace = options.pace;
    vec![
        Alert {
            name: "CladCorruptRecords",
            expr: format!("increase(clad_corrupt_records_total{{{job}}}[{}]) > 0", pace.window(HOUR)),
            hold: pace.hold(0),
            severity: Severity::Critical,
            summary: "clad on {{ $labels.instance }} found damaged records.",
            description: "Stored records no longer have the checksum that they were written with, or acknowledged \
                          ones cannot be found. Readers are told the gap by its offsets."
                .to_owned(),
        },
        Alert {
            name: "CladRecordsLost",
            expr: format!(
                "clad_lost_records{{{job}}} > 0\n  or\nsum without (damage) (clad_broken_segments{{{job}}}) > 0"
            ),
            hold: pace.hold(0),
            severity: Severity::Critical,
            summary: "The log of clad on {{ $labels.instance }} lacks acknowledged records, or may.",
            description: "Records that were acknowledged are lost, or a segment that held some is missing or broken. \
                          It is told for as long as it is so, over restarts too."
                .to_owned(),
        },
    ]
}

fn records(options: &Options, job: &str) -> Vec<Alert> {
    let pace = options.pace;
    vec![
        Alert {
            name: "CladRecordsDropped",
            expr: format!("increase(clad_dropped_records_total{{{job}}}[{}]) > 0", pace.window(15 * MINUTE)),
            hold: pace.hold(0),
            severity: Severity::Warning,
            summary: "clad on {{ $labels.instance }} dropped records ({{ $labels.reason }}).",
            description: "About {{ $value | humanize }} records at ack level `none` were lost in a quarter of an \
                          hour, and nobody was told: their senders wanted no answer."
                .to_owned(),
        },
        Alert {
            name: "CladRecordsRejected",
            expr: format!(
                "rate(clad_rejected_records_total{{{job}, reason=~\"busy|no_space|journal_failed\"}}[{}]) > 0",
                pace.window(5 * MINUTE)
            ),
            hold: pace.hold(10 * MINUTE),
            severity: Severity::Warning,
            summary: "clad on {{ $labels.instance }} refuses records ({{ $labels.reason }}).",
            description: "{{ $value | humanize }} records a second are refused for a reason that is not their \
                          sender's. Their senders were told, and hold them until they are taken or given up."
                .to_owned(),
        },
        Alert {
            name: "CladShareExhausted",
            expr: format!("increase(clad_refused_for_share_total{{{job}}}[{}]) > 0", pace.window(5 * MINUTE)),
            hold: pace.hold(2 * MINUTE),
            severity: Severity::Warning,
            summary: "clad on {{ $labels.instance }} refuses clients for want of {{ $labels.what }}.",
            description: "About {{ $value | humanize }} times in five minutes a client was refused something that all \
                          share: a user has as much as others leave him, or there is none left."
                .to_owned(),
        },
    ]
}

fn rings(options: &Options, job: &str) -> Vec<Alert> {
    let pace = options.pace;
    vec![
        Alert {
            name: "CladRingsUnkept",
            expr: format!("clad_shm_rings_unkept{{{job}}} > 0"),
            hold: pace.hold(2 * MINUTE),
            severity: Severity::Warning,
            summary: "Rings of clad on {{ $labels.instance }} are kept by nobody else.",
            description: "{{ $value }} rings end with the daemon and their clients: what is `posted` there does not \
                          survive the death of both. The daemon looks for a keeper at least once a minute."
                .to_owned(),
        },
        Alert {
            name: "CladRingsAside",
            expr: format!("clad_shm_rings_aside{{{job}}} > 0"),
            hold: pace.hold(2 * MINUTE),
            severity: Severity::Warning,
            summary: "Rings of an earlier clad on {{ $labels.instance }} wait for an operator.",
            description: "{{ $value }} rings are kept and not drained: what is `posted` there waits, and so do their \
                          programs. `clactl status` says what would let them go on."
                .to_owned(),
        },
        Alert {
            name: "CladRingKeeperLost",
            expr: format!("increase(clad_shm_keepers_lost_total{{{job}}}[{}]) > 0", pace.window(15 * MINUTE)),
            hold: pace.hold(0),
            severity: Severity::Warning,
            summary: "The process that keeps the rings of clad on {{ $labels.instance }} ended.",
            description: "It ended, or did not answer, while it kept some; another takes its place. Had daemon and \
                          client died in between, what was `posted` would be lost."
                .to_owned(),
        },
        Alert {
            name: "CladRingCutOff",
            expr: format!("increase(clad_shm_rings_cut_off_total{{{job}}}[{}]) > 0", pace.window(15 * MINUTE)),
            hold: pace.hold(0),
            severity: Severity::Warning,
            summary: "clad on {{ $labels.instance }} cut off a ring of shared memory.",
            description: "What lay in it was nonsense: a program wrote where it must not. What it had `posted` \
                          behind that is lost, and it was told so."
                .to_owned(),
        },
    ]
}

fn disk(options: &Options, job: &str) -> Vec<Alert> {
    let pace = options.pace;
    vec![
        Alert {
            name: "CladNoSpace",
            expr: format!(
                "increase(clad_rejected_records_total{{{job}, reason=\"no_space\"}}[{w}]) > 0\n  or\n\
                 increase(clad_dropped_records_total{{{job}, reason=\"no_space\"}}[{w}]) > 0",
                w = pace.window(5 * MINUTE)
            ),
            hold: pace.hold(0),
            severity: Severity::Critical,
            summary: "The disk of clad on {{ $labels.instance }} is full: records are refused.",
            description: "There is no room for a further segment. Appends resume by themselves as soon as there is."
                .to_owned(),
        },
        Alert {
            name: "CladDiskLow",
            expr: format!(
                "instance:clad_disk_free:ratio{{{job}}} < 0.1\n  or\n\
                 clad_disk_free_bytes{{{job}}} < 2 * clad_disk_reserve_bytes{{{job}}}"
            ),
            hold: pace.hold(10 * MINUTE),
            severity: Severity::Warning,
            summary: "The disk of clad on {{ $labels.instance }} is nearly full.",
            description: "Less than a tenth of the file system is free, or less than twice the reserve at which \
                          appends are refused."
                .to_owned(),
        },
        Alert {
            name: "CladDiskFullSoon",
            expr: format!(
                "predict_linear(clad_disk_free_bytes{{{job}}}[{}], {})\n  <\nclad_disk_reserve_bytes{{{job}}}",
                pace.window(6 * HOUR),
                pace.ahead(24 * HOUR)
            ),
            hold: pace.hold(HOUR),
            severity: Severity::Warning,
            summary: "The disk of clad on {{ $labels.instance }} is full within a day.",
            description: "At the pace of the last hours its free space goes below the reserve at which appends are \
                          refused."
                .to_owned(),
        },
        Alert {
            name: "CladRetentionPaused",
            expr: format!("increase(clad_retention_pauses_total{{{job}}}[{}]) > 0", pace.window(15 * MINUTE)),
            hold: pace.hold(0),
            severity: Severity::Warning,
            summary: "The clock of {{ $labels.instance }} is not to be believed: clad removes nothing by age for now.",
            description: "Once it is synchronised, or after 10 minutes, it goes on by the clock as it is. If that is \
                          ahead of the true time, segments are removed too early, and those are gone."
                .to_owned(),
        },
        Alert {
            name: "CladSegmentsUnprepared",
            expr: format!("increase(clad_segments_unprepared_total{{{job}}}[{}]) > 0", pace.window(15 * MINUTE)),
            hold: pace.hold(15 * MINUTE),
            severity: Severity::Info,
            summary: "clad on {{ $labels.instance }} rotates faster than it prepares.",
            description: "Rotations keep finding no prepared segment and take unwritten space, which costs speed and \
                          nothing else."
                .to_owned(),
        },
        Alert {
            name: "CladIoFallback",
            expr: format!("clad_io_fallbacks_total{{{job}}} > 0"),
            hold: pace.hold(5 * MINUTE),
            severity: Severity::Info,
            summary: "clad on {{ $labels.instance }} does without a faster way ({{ $labels.reason }}).",
            description: "Kernel, file system or limits do not offer what its configuration or the fastest way asks \
                          for. It keeps every promise and is slower; its messages name the remedy."
                .to_owned(),
        },
    ]
}
