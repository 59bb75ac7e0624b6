//! `clactl export`: records off the host, as text, as JSON lines, or as they are.
//!
//! Invariants:
//! - **Below `durable` only**, under every policy: what was copied away is never gone from the log after a power cut,
//!   where its offsets would be given to other records.
//! - **An export to a file goes on where it stopped**, whatever stopped it. What is durable of it stands in a file beside
//!   it ([`state`]), which is written when that much was synced and never before; a new start cuts off what is after
//!   and goes on there. No record is there twice, none is missing, and the file is the one that an export without a stop
//!   would have made.
//! - **A log that is not the same any more is refused**: another log, or one whose history was given up below the place
//!   to go on at.
//! - What is missing is said: gaps on stderr (in `raw` also in the stream), damage by exit code 1, also when it was met
//!   before a stop.
//!
//! | module | what it is |
//! |---|---|
//! | `form` | what a record becomes |
//! | `sink` | where it goes: the file with its state, or stdout |
//! | `state` | how far a file has come |

mod args;
mod durable;
mod form;
mod sink;
mod state;

use std::path::Path;

use anyhow::anyhow;
use clad_client::Start;
use clad_journal::format::META_NAME;
use clad_journal::io::device::{DurabilityClass, discover};
use clad_proto::frame::GapReason;
use clad_proto::{AckLevel, Cursor};
use jiff::tz::TimeZone;

pub(crate) use self::args::ExportArgs;
use self::form::Form;
use self::sink::Sink;
use self::state::State;
use crate::clock;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::format::human::{bytes, counted};
use crate::format::times;
use crate::interrupt::Interrupt;
use crate::output::Progress;
use crate::read::filter::Filter;
use crate::read::piece::{Event, Gap, Standing};
use crate::read::served::Served;
use crate::read::source::{Source, Stream};
use crate::read::stored::Files;

/// Returns true if the folder that the file is in, or would be made in, is a log's.
fn lies_in_a_log(path: &Path) -> bool {
    let file = path.canonicalize();
    let path = file.as_deref().unwrap_or(path);
    path.parent().is_some_and(|folder| folder.join(META_NAME).exists())
}

/// `clactl export`.
pub(crate) fn run(context: &mut Context, args: &ExportArgs) -> Outcome {
    if args.dir.is_some() && (context.which.server.is_some() || context.which.instance.is_some()) {
        return Err(Stop::usage("--dir reads files: no --server or --instance goes with it"));
    }
    if args.from.zip(args.to).is_some_and(|(from, to)| from > to) {
        return Err(Stop::usage("--from is after --to: no record is between them"));
    }
    if args.fresh && args.path().is_none() {
        return Err(Stop::usage("--fresh overwrites a FILE, and none is given"));
    }
    if let Some(path) = args.path().filter(|path| lies_in_a_log(path)) {
        return Err(Stop::usage(format!(
            "{} would be in the data folder of a log, and no daemon starts on a folder with foreign files: give another path",
            path.display()
        )));
    }
    let now = times::timestamp(clock::unix_nanos()).to_zoned(TimeZone::system());
    let mut filter = args.filter.filter(&now)?;
    let interrupt = Interrupt::listen().map_err(anyhow::Error::new)?;
    let earlier = match args.path() {
        Some(path) => state::find(path, &args.request(), args.fresh)?,
        None => None,
    };
    if let Some(earlier) = &earlier {
        // `-5min` meant a time when it was first said.
        (filter.since, filter.until) = (earlier.since_unix_ns, earlier.until_unix_ns);
    }
    let (source, notes) = open(context, args, &filter)?;
    let damaged = notes.iter().any(|(_, damage)| *damage);
    if damaged {
        context.output.fail();
    }
    for (note, _) in &notes {
        context.output.note(note)?;
    }
    let Context { runtime, output, .. } = context;
    runtime.block_on(async {
        let planned = interrupt.or(plan(args, filter, &source, earlier)).await;
        let plan = planned.unwrap_or_else(|| Err(Stop::Failed(anyhow!("interrupted before anything was done"))))?;
        let sink = Sink::open(args, &plan.state, plan.resumes, output)?;
        let mut export = Export { plan, sink, form: Form::new(args.output), interrupt, damaged };
        let ended = export.copy(&source).await;
        export.end(ended)
    })
}

fn open(context: &Context, args: &ExportArgs, filter: &Filter) -> Result<(Source, Vec<(String, bool)>), Stop> {
    Ok(match &args.dir {
        Some(dir) => {
            let files = Files::open(dir)?;
            let notes = kept_here(dir).map(|note| (note, false)).into_iter().chain(files.notes()).collect();
            (Source::Files(Box::new(files)), notes)
        }
        None => {
            let address = context.which.server(&context.around)?;
            (Source::Served(Served::new(address, filter, AckLevel::Durable)), Vec::new())
        }
    })
}

/// A note where a folder keeps nothing through a power cut: its files may be a copy of a log that does.
fn kept_here(dir: &Path) -> Option<String> {
    match discover(dir).durability_class(true) {
        DurabilityClass::Durable { .. } => None,
        reach @ DurabilityClass::Written { .. } => Some(format!(
            "clactl: nothing in {} is durable ({reach}): what the files call durable is so only where they were copied from",
            dir.display()
        )),
    }
}

/// The work to do.
struct Plan {
    start: Start,
    /// One past the last offset that is looked at.
    to: u64,
    filter: Filter,
    standing: Standing,
    state: State,
    resumes: bool,
}

async fn plan(args: &ExportArgs, filter: Filter, source: &Source, earlier: Option<State>) -> Result<Plan, Stop> {
    let mut standing = source.standing().await?;
    if let Source::Files(files) = source {
        standing.end.offset = files.durable_end();
    }
    let resumes = earlier.is_some();
    let state = earlier.unwrap_or_else(|| State::begin(standing.log_id, args, &filter));
    if state.log_id != standing.log_id.to_string() {
        return Err(Stop::Failed(anyhow!(
            "the file is an export of log {}, this is log {}",
            state.log_id,
            standing.log_id
        )));
    }
    let start = match (state.place()?, args.after_cursor) {
        (Some(cursor), _) => {
            source.judge(cursor).await.map_err(|stop| not_ours(stop, resumes))?;
            Start::Cursor(cursor)
        }
        (None, Some(cursor)) => {
            source.judge(cursor).await?;
            Start::Cursor(cursor)
        }
        (None, None) => Start::Offset(args.from.unwrap_or(0)),
    };
    let to = args.to.unwrap_or(u64::MAX).min(standing.end.offset);
    Ok(Plan { start, to, filter, standing, state, resumes })
}

/// A place that is no place of this log any more.
fn not_ours(stop: Stop, resumes: bool) -> Stop {
    match stop {
        Stop::Failed(error) if resumes => Stop::Failed(error.context(
            "the export cannot continue: its records are not those of this log now; keep the file, and export into another \
             one",
        )),
        other => other,
    }
}

/// An export under way.
struct Export<'a> {
    plan: Plan,
    sink: Sink<'a>,
    form: Form,
    interrupt: Interrupt,
    damaged: bool,
}

/// Why the copying came to an end without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Everything that was asked for was looked at.
    Complete,
    /// Somebody asked for an end.
    Interrupted,
}

impl Export<'_> {
    async fn copy(&mut self, source: &Source) -> Result<Ended, Stop> {
        // Also where an export was stopped after its file was made and before anything of it was durable.
        if self.plan.state.bytes == 0 {
            let head = self.form.head(self.plan.standing.log_id);
            self.sink.write(&head)?;
        }
        let first = match self.plan.start {
            Start::Cursor(cursor) => cursor.offset,
            Start::Offset(offset) => offset,
            _ => 0,
        };
        if first >= self.plan.to {
            return Ok(Ended::Complete);
        }
        let progress = Progress::records("exporting", self.plan.to - first);
        let interrupt = self.interrupt.clone();
        let Some(stream) = interrupt.or(source.read(self.plan.start, false, None)).await else {
            return Ok(Ended::Interrupted);
        };
        let mut stream = stream?;
        loop {
            let Some(event) = interrupt.or(stream.next()).await else { return Ok(Ended::Interrupted) };
            let Some(event) = event? else { break };
            if matches!(&event, Event::Records(piece) if piece.range().1 <= first) {
                continue; // of the batch that the place lies in
            }
            let done = self.take(&event, first)?;
            self.note_place(&stream, &event);
            if done {
                return Ok(Ended::Complete);
            }
            let at = self.plan.state.next;
            progress.at(at.saturating_sub(first), self.plan.to - first);
            if self.sink.is_due() {
                self.sink.checkpoint(&mut self.plan.state)?;
            }
        }
        // What the end passes over (appends outside of the times that are asked for) need not be looked at again.
        self.plan.state.pass(self.end_place(&stream));
        Ok(Ended::Complete)
    }

    fn end_place(&self, stream: &Stream<'_>) -> Cursor {
        stream
            .cursor()
            .filter(|cursor| cursor.offset <= self.plan.to)
            .unwrap_or(Cursor { offset: self.plan.to, ..self.plan.standing.end })
    }

    /// Writes what an event gives; says whether nothing behind it is wanted.
    fn take(&mut self, event: &Event, first: u64) -> Result<bool, Stop> {
        let to = self.plan.to;
        match event {
            Event::Records(piece) => {
                let (from, end) = piece.range();
                if from >= to {
                    return Ok(true);
                }
                let wanted = first.max(from)..to.min(end);
                let filter = &self.plan.filter;
                let (log_id, sink) = (self.plan.standing.log_id, &mut self.sink);
                let count =
                    self.form.piece(piece, log_id, wanted, |entry| filter.lets(entry), |out| sink.write(out))?;
                self.plan.state.records += count;
                Ok(end >= to)
            }
            Event::Gap(gap) if gap.from >= to => Ok(true),
            Event::Gap(gap) => {
                let gap = Gap { to: gap.to.min(to), ..*gap };
                if gap.reason == GapReason::Damage {
                    self.plan.state.damaged = true;
                    self.sink.fail();
                }
                self.sink.note(&gap.note())?;
                let out = self.form.gap(&gap);
                self.sink.write(&out)?;
                Ok(gap.to >= to)
            }
            Event::CaughtUp | Event::Progress(_) | Event::Parted(_) => Ok(false),
        }
    }

    fn note_place(&mut self, stream: &Stream<'_>, event: &Event) {
        let epoch = match event {
            Event::Records(piece) => piece.head.epoch,
            _ => stream.cursor().map_or(self.plan.standing.end.epoch, |cursor| cursor.epoch),
        };
        let offset = match event {
            Event::Records(piece) => piece.range().1,
            Event::Gap(gap) => gap.to,
            Event::CaughtUp | Event::Progress(_) | Event::Parted(_) => return,
        };
        let offset = offset.min(self.plan.to);
        self.plan.state.pass(Cursor { log_id: self.plan.standing.log_id, epoch, offset });
    }

    /// Keeps what was done, and says how it ended. A failed write keeps nothing: what was synced before it is noted.
    fn end(mut self, ended: Result<Ended, Stop>) -> Outcome {
        if self.plan.state.damaged || matches!(ended, Ok(Ended::Interrupted)) {
            self.sink.fail();
        }
        if !matches!(ended, Err(Stop::ReaderGone)) {
            let kept = self.sink.checkpoint(&mut self.plan.state);
            if ended.is_ok() {
                kept?;
            }
        }
        let ended = ended?;
        let state = &self.plan.state;
        let left_out = self.plan.standing.written.saturating_sub(self.plan.standing.end.offset);
        if ended == Ended::Complete && left_out > 0 && self.plan.to >= self.plan.standing.end.offset {
            let text = format!(
                "not durable yet and left out: {} at the end of the log (`clactl sync`, or a start of the daemon, makes \
                 them so)",
                counted(left_out, "record")
            );
            self.sink.note(&text)?;
        }
        let place = state.cursor.clone().map_or_else(String::new, |cursor| format!("; next after {cursor}"));
        let done = format!("{}, {}{place}", counted(state.records, "record"), bytes(state.bytes));
        let damaged = state.damaged || self.damaged;
        self.sink.summary(ended == Ended::Complete, damaged, &done)?;
        let failed = ended == Ended::Interrupted || damaged;
        Ok(if failed { Exit::Failed } else { Exit::Done })
    }
}
