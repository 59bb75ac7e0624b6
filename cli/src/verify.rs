//! `clactl verify DIR`: checks every byte of a log that carries meaning, with no daemon running.
//!
//! Invariants: nothing is changed; damage is named by its offsets and ends in 1; a torn tail is a note and ends in 0.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clad_journal::{Problem, VerifyReport};
use clad_proto::LogId;
use clap::Args;
use serde_json::{Value, json};

use crate::admin::Form;
use crate::clock;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::format::human::{bytes, count, counted, duration};
use crate::output::Progress;
use crate::read::stored::unreadable;

/// Log to check.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The data folder of a log
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub(crate) output: Form,
}

/// `clactl verify`.
pub(crate) fn run(context: &mut Context, args: &VerifyArgs) -> Outcome {
    let (report, took) = check(&args.dir)?;
    let exit = context.output.ends(if report.problems.is_empty() { Exit::Done } else { Exit::Failed });
    let text = match args.output {
        Form::Text => text(&report, took),
        Form::Json => format!("{}\n", json(&report)),
    };
    context.output.write(text.as_bytes())?;
    Ok(exit)
}

/// Reads everything, with a bar on a terminal.
pub(crate) fn check(dir: &Path) -> Result<(VerifyReport, Duration), Stop> {
    let progress = Progress::bytes("checking", 0);
    let start = clock::now();
    let report = clad_journal::verify(dir, &mut |done, total| progress.at(done, total));
    drop(progress);
    Ok((report.map_err(|error| unreadable(dir, error))?, start.elapsed()))
}

pub(crate) fn text(report: &VerifyReport, took: Duration) -> String {
    let mut out = format!(
        "log {}: {} from offset {} to {} in {}, {} read in {}\n",
        LogId::from_bytes(report.log_id),
        counted(report.records, "record"),
        count(report.first_offset),
        count(report.end_offset),
        counted(report.segments, "segment"),
        bytes(report.bytes),
        duration(took)
    );
    for note in &report.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    for problem in &report.problems {
        out.push_str(&format!("DAMAGE: {}\n", describe(problem)));
    }
    match report.problems.len() as u64 {
        0 => out.push_str("no damage\n"),
        found => out.push_str(&format!("{}\n", counted(found, "damaged place"))),
    }
    out
}

/// `segment 3 at byte 8192, offsets 10 to 19: what is wrong`.
fn describe(problem: &Problem) -> String {
    let mut place = Vec::new();
    match (problem.segment, problem.position) {
        (Some(segment), Some(position)) => place.push(format!("segment {segment} at byte {position}")),
        (Some(segment), None) => place.push(format!("segment {segment}")),
        (None, _) => {}
    }
    if let Some((from, to)) = problem.offsets {
        place.push(format!("offsets {from} to {}", to.saturating_sub(1)));
    }
    if place.is_empty() { problem.text.clone() } else { format!("{}: {}", place.join(", "), problem.text) }
}

pub(crate) fn json(report: &VerifyReport) -> Value {
    let problem = |problem: &Problem| {
        json!({
            "segment": problem.segment,
            "position": problem.position,
            "first_offset": problem.offsets.map(|(from, _)| from),
            "end_offset": problem.offsets.map(|(_, to)| to),
            "text": problem.text,
        })
    };
    json!({
        "log_id": LogId::from_bytes(report.log_id).to_string(),
        "damaged": !report.problems.is_empty(),
        "segments": report.segments,
        "records": report.records,
        "bytes": report.bytes,
        "first_offset": report.first_offset,
        "end_offset": report.end_offset,
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
        "notes": report.notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> VerifyReport {
        VerifyReport {
            log_id: [0xAB; 16],
            segments: 2,
            records: 1,
            bytes: 1536,
            first_offset: 0,
            end_offset: 21,
            problems: vec![
                Problem {
                    segment: Some(3),
                    position: Some(8192),
                    offsets: Some((10, 20)),
                    text: "bad checksum".into(),
                },
                Problem { segment: None, position: None, offsets: None, text: "lost".into() },
            ],
            notes: vec!["torn tail: 3 bytes".into()],
        }
    }

    #[test]
    fn damage_is_named_by_offsets() {
        assert_eq!(
            text(&report(), Duration::from_micros(5)),
            "log abababababababababababababababab: 1 record from offset 0 to 21 in 2 segments, 1.5 KiB read in 5 µs\n\
             note: torn tail: 3 bytes\n\
             DAMAGE: segment 3 at byte 8192, offsets 10 to 19: bad checksum\n\
             DAMAGE: lost\n\
             2 damaged places\n"
        );
        let good = VerifyReport { problems: Vec::new(), notes: Vec::new(), ..report() };
        assert!(text(&good, Duration::ZERO).ends_with("\nno damage\n"));
        assert_eq!(json(&good)["damaged"], false);
        assert_eq!(json(&report())["problems"][0]["end_offset"], 20);
    }
}
