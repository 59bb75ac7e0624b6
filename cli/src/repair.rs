//! `clactl repair DIR`: brings a damaged log back to where a daemon starts on it, with no daemon running.
//!
//! Invariants: each change is named, and nothing else is changed; a dry run names the same changes and makes none;
//! behind a repair everything is checked as `verify` does it, and behind a dry run that finds nothing to do; 0 means
//! that nothing is lost and nothing is left to do: a dry run that finds something to do ends in 1.

use std::path::PathBuf;

use clad_journal::repair::{Action, Left, RepairReport};
use clad_journal::{OpenError, VerifyReport};
use clad_proto::LogId;
use clap::Args;
use serde_json::{Value, json};

use crate::admin::Form;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::verify;

/// Arguments of `repair`.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// The data folder of a log that no daemon uses
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub(crate) output: Form,
}

/// `clactl repair`.
pub(crate) fn run(context: &mut Context, args: &RepairArgs) -> Outcome {
    let report = clad_journal::repair::repair(&args.dir, args.dry_run).map_err(refused)?;
    // What was changed is printed first, whatever becomes of the check behind it.
    let report_json = match args.output {
        Form::Text => context.output.write(text(&report).as_bytes()).and_then(|()| context.output.flush()),
        Form::Json => Ok(()),
    };
    // A dry run that finds something to do leaves it undone: a check would report that, and nothing behind it.
    let checked = match args.dry_run && !report.actions.is_empty() {
        true => Ok(None),
        false => verify::check(&args.dir).map(Some),
    };
    let checked = match checked {
        Ok(checked) => checked,
        Err(stop) => {
            if matches!(args.output, Form::Json) {
                let mut report_json = json(&report, None);
                report_json["failure"] = format!("the check behind it: {stop}").into();
                context.output.fail();
                context.output.write(format!("{report_json}\n").as_bytes())?;
            }
            return Err(stop);
        }
    };
    let exit = context.output.ends(exit(&report, checked.as_ref().map(|(checked, _)| checked)));
    report_json?;
    let text = match (args.output, checked) {
        (Form::Text, None) => String::new(),
        (Form::Text, Some((checked, took))) => {
            format!("{}{}", nothing(&report, &checked), verify::text(&checked, took))
        }
        (Form::Json, checked) => format!("{}\n", json(&report, checked.map(|(checked, _)| checked).as_ref())),
    };
    context.output.write(text.as_bytes())?;
    Ok(exit)
}

/// `MetaLost` sends a daemon's operator here: who is here already reads why it does not help.
fn refused(error: OpenError) -> Stop {
    match error {
        OpenError::MetaLost { dir, segments } if segments > 0 => anyhow::anyhow!(
            "{dir} holds {segments} segments, and neither clad.meta nor most of their headers say which log it is: \
             nothing was touched; restore clad.meta from a backup, or move the segments of all logs but one away"
        )
        .into(),
        OpenError::Locked { dir } => anyhow::anyhow!(
            "the log in {dir} is in use by a clad (its clad.lock is held): stop that first; nothing was touched"
        )
        .into(),
        other => anyhow::Error::new(other).into(),
    }
}

fn exit(report: &RepairReport, checked: Option<&VerifyReport>) -> Exit {
    let undone = report.dry_run && !report.actions.is_empty();
    let damaged = checked.is_some_and(|checked| !checked.problems.is_empty());
    if undone || damaged || !report.left.is_empty() { Exit::Failed } else { Exit::Done }
}

fn text(report: &RepairReport) -> String {
    let mut out = String::new();
    let done = if report.dry_run { "would be done" } else { "done" };
    for action in &report.actions {
        out.push_str(&format!("{done}: {action}\n"));
    }
    for what in &report.left {
        out.push_str(&format!("CANNOT BE REPAIRED: {what}\n"));
    }
    out
}

/// Said where nothing was done: with what the check behind it finds.
fn nothing(report: &RepairReport, checked: &VerifyReport) -> &'static str {
    match (report.actions.is_empty() && report.left.is_empty(), checked.problems.is_empty()) {
        (false, _) => "",
        (true, true) => "nothing to repair\n",
        (true, false) => {
            "nothing that a repair changes: records that are lost are in a backup only, and where the newest segment has \
             lost its footer, the next start seals what is left\n"
        }
    }
}

fn json(report: &RepairReport, checked: Option<&VerifyReport>) -> Value {
    json!({
        "log_id": LogId::from_bytes(report.log_id).to_string(),
        "dry_run": report.dry_run,
        "actions": report.actions.iter().map(action).collect::<Vec<_>>(),
        "left": report.left.iter().map(left).collect::<Vec<_>>(),
        "verify": checked.map(verify::json),
    })
}

/// Its kind, its fields, and the sentence.
fn action(action: &Action) -> Value {
    let mut value = match action {
        Action::QuarantinedForeign { name } => json!({ "action": "quarantined_foreign", "name": name }),
        Action::QuarantinedOtherLog { segment, log_id } => json!({
            "action": "quarantined_other_log",
            "segment": segment,
            "log_id": LogId::from_bytes(*log_id).to_string(),
        }),
        Action::QuarantinedOtherMeta { log_id } => {
            json!({ "action": "quarantined_other_meta", "log_id": LogId::from_bytes(*log_id).to_string() })
        }
        Action::RewroteSlot => json!({ "action": "rewrote_slot" }),
        Action::NamedSegments { said, highest } => {
            json!({ "action": "named_segments", "last_segment_before": said, "last_segment": highest })
        }
        Action::QuarantinedCopy { segment, of } => {
            json!({ "action": "quarantined_copy", "segment": segment, "of": of })
        }
        Action::QuarantinedNoHeader { segment } => json!({ "action": "quarantined_no_header", "segment": segment }),
        Action::QuarantinedUnreadable { segment } => json!({ "action": "quarantined_unreadable", "segment": segment }),
        Action::PutBack { segment, to } => json!({ "action": "put_back", "segment": segment, "to": to }),
        Action::CorrectedHeader { segment, byte } => {
            json!({ "action": "corrected_header", "segment": segment, "position": byte })
        }
        Action::RebuiltMeta { segments: (first, last), lowest_offset, epoch } => json!({
            "action": "rebuilt_meta",
            "first_segment": first,
            "last_segment": last,
            "lowest_offset": lowest_offset,
            "epoch": epoch,
        }),
        Action::Resealed { segments: (first, last), lost } => json!({
            "action": "resealed",
            "first_segment": first,
            "last_segment": last,
            "lost": lost.iter().map(|lost| json!({ "first_offset": lost.from, "end_offset": lost.to })).collect::<Vec<_>>(),
        }),
    };
    value["text"] = action.to_string().into();
    value
}

fn left(left: &Left) -> Value {
    let (kind, segment) = match left {
        Left::Missing(segment) => ("missing", segment),
        Left::NoHeader(segment) => ("no_header", segment),
    };
    json!({ "left": kind, "segment": segment, "text": left.to_string() })
}

#[cfg(test)]
mod tests {
    use clad_journal::Problem;
    use clad_journal::format::footer::Damage;

    use super::*;

    fn report(dry_run: bool) -> RepairReport {
        let lost = vec![Damage { from: 10, to: 20 }];
        RepairReport {
            log_id: [0xAB; 16],
            dry_run,
            actions: vec![
                Action::QuarantinedForeign { name: "notes.txt".into() },
                Action::Resealed { segments: (3, 3), lost },
            ],
            left: vec![Left::Missing(5)],
        }
    }

    #[test]
    fn it_says_what_was_done_and_what_would_be() {
        assert_eq!(
            text(&report(true)),
            "would be done: `notes.txt` is no part of a log: moved to quarantine/\n\
             would be done: segment 3 had lost its footer: sealed again, without offsets 10 to 19\n\
             CANNOT BE REPAIRED: segment 5 is missing: only a backup of 00000000000000000005.clog can help\n"
        );
        assert!(text(&report(false)).starts_with("done: `notes.txt`"));
        let value = json(&report(true), None);
        assert_eq!((&value["dry_run"], &value["verify"]), (&true.into(), &Value::Null));
        assert_eq!(value["actions"][1]["lost"][0]["end_offset"], 20);
        assert_eq!(value["left"][0]["segment"], 5);
        let checked = VerifyReport::default();
        assert_eq!(json(&report(false), Some(&checked))["verify"]["damaged"], false);
    }

    #[test]
    fn nothing_to_repair_is_said_where_nothing_is_wrong() {
        let problem = Problem { segment: Some(3), position: None, offsets: None, text: "has lost its footer".into() };
        let bad = VerifyReport { problems: vec![problem], ..VerifyReport::default() };
        let (untouched, good) = (RepairReport::default(), VerifyReport::default());
        assert_eq!((text(&untouched).as_str(), nothing(&untouched, &good)), ("", "nothing to repair\n"));
        assert!(nothing(&untouched, &bad).starts_with("nothing that a repair changes: "));
        assert_eq!((nothing(&report(false), &good), nothing(&report(false), &bad)), ("", ""));
    }

    #[test]
    fn zero_means_that_nothing_is_lost_and_nothing_is_left() {
        let acted = |dry_run| RepairReport { left: Vec::new(), ..report(dry_run) };
        let good = VerifyReport::default();
        let problem = Problem { segment: None, position: None, offsets: Some((1, 2)), text: "lost".into() };
        let bad = VerifyReport { problems: vec![problem], ..VerifyReport::default() };
        for (report, checked, expected) in [
            (RepairReport::default(), Some(&good), Exit::Done),
            (RepairReport { dry_run: true, ..RepairReport::default() }, None, Exit::Done),
            (acted(false), Some(&good), Exit::Done),
            (acted(false), Some(&bad), Exit::Failed),
            (acted(true), None, Exit::Failed),
            (report(false), Some(&good), Exit::Failed),
            (RepairReport::default(), Some(&bad), Exit::Failed),
        ] {
            assert_eq!(exit(&report, checked), expected, "{report:?} {checked:?}");
        }
    }
}
