//! Findings in words: what is wrong, and what to do about it.
//!
//! Invariants: a daemon that is well gets no line; a line says what is so and what to do, and stands only once; what
//! keeps appends from being taken comes first.

use std::collections::HashMap;

use clad_proto::grpc::v1;

use super::sample::Sample;
use crate::format::human::{bytes, count, counted};

/// A disk with less free than this share is worth a word.
const DISK_FREE_PERCENT_MIN: u64 = 10;
/// Appends that fill more than this share of what they may take make senders wait.
const INFLIGHT_PERCENT_MAX: u64 = 90;
/// Reasons of a refusal that are not the sender's.
const DAEMON_REASONS: [&str; 3] = ["busy", "no_space", "journal_failed"];

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Appends are refused, or something stored is damaged.
    Grave,
    /// It works, and will not for ever.
    Mind,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) weight: Weight,
    pub(crate) text: String,
}

/// Everything that is worth a word; `sample` is of the last seconds.
pub(crate) fn words(status: &v1::StatusResponse, sample: Option<&Sample>) -> Vec<Word> {
    let mut words = Vec::new();
    let mut say = |weight, text: String| words.push(Word { weight, text });
    availability(status, &mut say);
    disk(status, &mut say);
    if let Some(counters) = &status.counters {
        damage(status, counters, &mut say);
        losses(counters, &mut say);
    }
    if let Some(sample) = sample {
        recent(status, sample, &mut say);
    }
    words.sort_by_key(|word| word.weight);
    words
}

/// The same for who has called `clactl status`: what it names is in the same answer, under `shares`.
pub(super) fn within_status(status: &v1::StatusResponse, sample: Option<&Sample>) -> Vec<String> {
    let text = |word: Word| word.text.replace("`clactl status` names", "`shares` names");
    words(status, sample).into_iter().map(text).collect()
}

fn availability(status: &v1::StatusResponse, say: &mut impl FnMut(Weight, String)) {
    if status.failed {
        let why = &status.failure;
        say(
            Weight::Grave,
            format!(
                "The journal has failed ({why}): appends are refused. It recovers by itself when the disk accepts writes again; look at `dmesg` for the cause."
            ),
        );
    } else if !status.ready {
        let what = if status.disk_free_bytes < status.reserve_free_bytes + status.segment_bytes {
            " Free space, or set a rule of [retention] and reload; appends resume by themselves."
        } else {
            ""
        };
        say(Weight::Grave, format!("Appends are refused: {}.{what}", status.not_ready_reason));
    }
    // Of space more is said below.
    let mut degraded: Vec<_> = status.degraded.iter().filter(|(cause, _)| *cause != "space").collect();
    degraded.sort();
    for (cause, line) in degraded {
        let weight = if cause == "damage" { Weight::Grave } else { Weight::Mind };
        say(weight, format!("{}.", capital(line)));
    }
    if !is_durable_offered(status) {
        let why = match status.not_durable_reason.as_str() {
            "" => "move [journal] dir to a disk that can keep it",
            why => why,
        };
        say(Weight::Mind, format!("`durable` is not offered on this log's storage: {why}."));
    }
}

/// Returns true if the log keeps `durable` where its policy promises it. (Fire-and-forget never does, so nothing is known of the disk.)
pub(super) fn is_durable_offered(status: &v1::StatusResponse) -> bool {
    let promised = status.policy() != v1::DurabilityPolicy::FireAndForget;
    !promised || status.highest_ack() == v1::AckLevel::Durable
}

fn disk(status: &v1::StatusResponse, say: &mut impl FnMut(Weight, String)) {
    let above = status.disk_free_bytes.saturating_sub(status.reserve_free_bytes);
    let further = above.checked_div(status.segment_bytes).unwrap_or(u64::MAX);
    let share = (status.disk_free_bytes.saturating_mul(100)).checked_div(status.disk_total_bytes).unwrap_or(100);
    let hint = if status.retention {
        "The rules of [retention] free only space of the log."
    } else {
        "Free space, or set a rule of [retention] and reload."
    };
    if further < 2 {
        // What is open, or prepared, takes appends still.
        let nearly = if status.ready { "nearly " } else { "" };
        say(
            Weight::Mind,
            format!(
                "The disk is {nearly}full: {} free, of which {} are the reserve; room for {} of {}. {hint}",
                bytes(status.disk_free_bytes),
                bytes(status.reserve_free_bytes),
                counted(further, "further segment"),
                bytes(status.segment_bytes),
            ),
        );
    } else if share < DISK_FREE_PERCENT_MIN {
        say(
            Weight::Mind,
            format!(
                "The disk is nearly full: {} free ({share} %), room for {}. {hint}",
                bytes(status.disk_free_bytes),
                counted(further, "further segment")
            ),
        );
    }
}

fn damage(status: &v1::StatusResponse, counters: &v1::Counters, say: &mut impl FnMut(Weight, String)) {
    let dir = &status.journal_dir;
    if counters.corrupt_records > 0 {
        say(
            Weight::Grave,
            format!(
                "Damaged records were found ({} since the start). `clactl verify {dir}` lists them; copy the folder before you try anything.",
                count(counters.corrupt_records)
            ),
        );
    }
    if counters.sync_failures > 0 && !status.failed {
        say(
            Weight::Mind,
            format!(
                "The kernel failed {} since the start; the journal recovered. Look at `dmesg` and the health of the disk.",
                counted(counters.sync_failures, "write")
            ),
        );
    }
}

fn losses(counters: &v1::Counters, say: &mut impl FnMut(Weight, String)) {
    let dropped: u64 = counters.dropped_records.values().sum();
    if dropped > 0 {
        say(
            Weight::Mind,
            format!(
                "{} dropped since the start ({}): the senders asked for no answer. What matters must not be sent at \
                 level `none`.",
                counted(dropped, "record"),
                reasons(&counters.dropped_records)
            ),
        );
    }
}

fn recent(status: &v1::StatusResponse, sample: &Sample, say: &mut impl FnMut(Weight, String)) {
    let counted_now = &sample.counted;
    let ours: HashMap<String, u64> = counted_now
        .rejected_records
        .iter()
        .filter(|(reason, count)| DAEMON_REASONS.contains(&reason.as_str()) && **count > 0)
        .map(|(reason, count)| (reason.clone(), *count))
        .collect();
    if !ours.is_empty() {
        let total = ours.values().sum();
        say(
            Weight::Mind,
            format!(
                "{} refused just now ({}), through no fault of their senders, who may try again.",
                counted(total, "record"),
                reasons(&ours)
            ),
        );
    }
    // Where none can be had that was said.
    if counted_now.segments_unprepared > 1 && status.ready {
        say(
            Weight::Mind,
            "Segments fill faster than the next one is prepared, which costs speed: raise [journal] segment_bytes."
                .to_owned(),
        );
    }
    let limit = status.inflight_limit_bytes;
    if limit > 0 && status.inflight_bytes.saturating_mul(100) / limit >= INFLIGHT_PERCENT_MAX {
        say(
            Weight::Mind,
            format!(
                "Appends fill what they may take together ({}), so senders wait: the disk is slower than they are.",
                bytes(limit)
            ),
        );
    }
}

/// `busy 3, no_space 1`, the most first.
fn reasons(counts: &HashMap<String, u64>) -> String {
    let mut all: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
    all.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let all: Vec<String> = all.into_iter().map(|(reason, n)| format!("{reason} {}", count(*n))).collect();
    all.join(", ")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
