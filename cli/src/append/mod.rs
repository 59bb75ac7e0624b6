//! `clactl append`: lines become records, each followed to its ack.
//!
//! Invariants: the exit code is 0 only when every line has reached the level that was asked for; else the last line
//! up to which all did is reported. The level is never lowered: one that the log does not offer is refused before anything
//! is sent. Memory is bounded whatever the input is: see `feed`, `flow` and `lines`.

pub(crate) mod feed;
pub(crate) mod flow;
pub(crate) mod lines;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clad_client::{Address, LogInfo, Producer};
use clad_proto::limits::{MAX_GROUP_BYTES, MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use clad_proto::{AckLevel, Severity};
use clap::Args;
use serde_json::json;

use self::feed::{Input, Place};
use self::flow::{Flow, Reached, Trouble};
use self::lines::GroupSize;
use crate::admin::Form;
use crate::clock;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop, error_text};
use crate::format::human::{bytes, count, counted};
use crate::interrupt::Interrupt;
use crate::output::{Progress, say};
use crate::reach::unreachable;

/// The largest append when no size is asked for.
pub(crate) const ADAPTIVE: GroupSize = GroupSize { lines: 256, bytes: 256 * 1024, wait: false };
/// Progress is reported this often.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Room for the longest record that any daemon takes: `flow` holds far less in flight unless a line is that long.
pub(crate) const BUFFER_BYTES: usize = (MAX_RECORD_BYTES + MAX_GROUP_BYTES) as usize + (1 << 20);

/// Arguments of `append`.
#[derive(Debug, Args)]
pub(crate) struct AppendArgs {
    /// Files to read, in this order; `-` is standard input, and so is no file at all
    ///
    /// A line ends at \n only; a \r belongs to the record, an empty line is an empty record, and what follows the
    /// last \n is a line too.
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Level that each line must reach before it counts: none, posted (with shm:// only), received, written or durable
    /// [default: the highest that the log offers]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) ack: Option<AckLevel>,
    /// The component (service.name) that the lines are from
    #[arg(long, value_name = "NAME", default_value = "clactl")]
    pub(crate) component: String,
    /// Severity of the lines, by OpenTelemetry's or syslog's names
    #[arg(long, value_name = "NAME", default_value = "info")]
    pub(crate) severity: Severity,
    /// Lines in one append [default: what is already there, up to 256 lines or 256 KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) batch: Option<u32>,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub(crate) output: Form,
}

/// `clactl append`.
pub(crate) fn run(context: &mut Context, args: &AppendArgs) -> Outcome {
    let address = context.which.server(&context.around)?;
    let done = context.block_on(append(args, address))?;
    let exit = context.output.ends(if done.trouble.is_none() { Exit::Done } else { Exit::Failed });
    if let Some(why) = &done.no_ring {
        context.output.note(&format!("clactl: no ring of shared memory, the lines went over the socket: {why}"))?;
    }
    let text = done.summary();
    let printed = match (args.output, exit) {
        (Form::Json, _) => context.output.line(&done.json()),
        (Form::Text, Exit::Done) => context.output.line(&text),
        (Form::Text, _) => return context.output.note(&text).map(|()| exit),
    };
    // Who hears only that stdout is full would send all of it again.
    let printed = printed.and_then(|()| context.output.flush());
    if let Err(Stop::Failed(_)) = printed {
        say(&text);
    }
    printed.map(|()| exit)
}

/// The outcome.
#[derive(Debug)]
struct Done {
    inputs: Vec<Input>,
    log: LogInfo,
    level: AckLevel,
    reached: Reached,
    trouble: Option<Trouble>,
    /// Why there was no ring, though one was asked for.
    no_ring: Option<String>,
}

async fn append(args: &AppendArgs, address: Address) -> Result<Done, Stop> {
    let interrupt = Interrupt::listen().map_err(anyhow::Error::new)?;
    let mut builder = Producer::builder(address).component(&args.component).name("clactl append");
    // The end asks for no more than the lines did; at lower levels for where a refusal is heard of.
    if let Some(level) = args.ack {
        builder = builder.level(level.max(AckLevel::Received));
    }
    // Whoever stops it reads what became of his lines at once: nothing is brought home behind his back.
    let builder = builder.max_buffered_bytes(BUFFER_BYTES).drop_timeout(Duration::ZERO);
    let connected = interrupt.or(builder.connect()).await;
    let interrupted = || Stop::Failed(anyhow!("interrupted; nothing was sent"));
    let producer = connected.ok_or_else(interrupted)?.map_err(|error| unreachable(&error))?;
    let log = producer.log().ok_or_else(|| Stop::Failed(anyhow!("the daemon did not describe its log")))?;
    if args.ack == Some(AckLevel::Posted)
        && let Some(why) = producer.why_no_ring()
    {
        return Err(Stop::Failed(anyhow!("`posted` needs a ring of shared memory: {why}; nothing was sent")));
    }
    if args.ack == Some(AckLevel::Posted) && !producer.has_ring() {
        return Err(Stop::usage("--ack posted: that level exists with --server shm://PATH only"));
    }
    if args.ack == Some(AckLevel::Posted) && !producer.offers_posted() {
        let why = "the daemon has no descriptor store, or no room in it";
        return Err(Stop::Failed(anyhow!("`posted` needs a ring that is stored: {why}; nothing was sent")));
    }
    let level = level(args.ack, &log)?;
    let no_ring = producer.why_no_ring().map(|why| why.to_string());
    let inputs = inputs(&args.files);
    let size = args.batch.map_or(ADAPTIVE, |lines| GroupSize { lines: lines as usize, wait: true, ..ADAPTIVE_BYTES });
    // The longest append must hold the longest line with the group before it.
    let longest = log.max_record_bytes.min(log.max_append_bytes.saturating_sub(producer.batch().len_bytes() as u32));
    let limit = (longest as usize).saturating_sub(RECORD_HEADER_BYTES);
    let mut fed = feed::start(inputs.clone(), limit, size).map_err(anyhow::Error::new)?;

    let mut ticker = Ticker::new(level, &inputs);
    let mut flow = Flow::new(producer, level, args.severity);
    let mut trouble = flow.run(&mut fed, &interrupt, |reached| ticker.report(reached)).await.err();
    let (reached, producer) = flow.into_parts();
    if trouble.is_none()
        && let Some(producer) = producer
    {
        // At level `none` this is where a refusal is heard of.
        trouble = match interrupt.or(producer.close()).await {
            Some(closed) => closed.err().map(|error| Trouble::new(None, error)),
            None => Some(Trouble::new(None, anyhow!("interrupted"))),
        };
    }
    Ok(Done { inputs, log, level, reached, trouble, no_ring })
}

/// With a size in lines, bytes are bounded by what an append may have: `flow` splits there.
const ADAPTIVE_BYTES: GroupSize = GroupSize { lines: 1, bytes: 8 * 1024 * 1024, wait: true };

pub(crate) fn level(wanted: Option<AckLevel>, log: &LogInfo) -> Result<AckLevel, Stop> {
    match wanted {
        None => Ok(log.highest_ack),
        Some(level) if level <= log.highest_ack => Ok(level),
        Some(level) => Err(Stop::Failed(anyhow!(
            "this log cannot promise `{level}`: its highest ack is `{}` ({}): `clactl status` says why; nothing was sent",
            log.highest_ack,
            log.policy
        ))),
    }
}

fn inputs(files: &[PathBuf]) -> Vec<Input> {
    if files.is_empty() {
        return vec![Input::Stdin];
    }
    let input = |path: &PathBuf| if path.as_os_str() == "-" { Input::Stdin } else { Input::File(path.clone()) };
    files.iter().map(input).collect()
}

/// Shows a terminal how far it is.
#[derive(Debug)]
struct Ticker {
    progress: Option<Progress>,
    start: Instant,
    reported_at: Option<Instant>,
    level: AckLevel,
}

impl Ticker {
    fn new(level: AckLevel, inputs: &[Input]) -> Self {
        // Somebody who types lines does not want them drawn over.
        let typed = inputs.contains(&Input::Stdin) && std::io::stdin().is_terminal();
        let progress = (!typed).then(|| Progress::line("waiting for the first ack"));
        let progress = progress.filter(Progress::is_seen);
        Self { progress, start: clock::now(), reported_at: None, level }
    }

    fn report(&mut self, reached: &Reached) {
        let Some(progress) = &self.progress else { return };
        let now = clock::now();
        if self.reported_at.is_some_and(|reported_at| now - reported_at < REPORT_INTERVAL) {
            return;
        }
        self.reported_at = Some(now);
        let rate = reached.bytes as f64 / (now - self.start).as_secs_f64().max(0.001);
        let lines = counted(reached.lines, "line");
        progress.say(format!("{lines} {}, {}/s", self.level, bytes(rate as u64)));
    }
}

impl Done {
    fn name(&self, place: Place) -> String {
        match self.inputs.get(place.input) {
            Some(Input::File(path)) if place.line == 0 => path.display().to_string(),
            Some(Input::File(path)) => format!("{} line {}", path.display(), place.line),
            _ if place.line == 0 => "stdin".to_owned(),
            _ => format!("line {}", place.line),
        }
    }

    /// The result for a person.
    fn summary(&self) -> String {
        let Some(trouble) = &self.trouble else { return self.success() };
        let at = trouble.at.map_or_else(String::new, |place| format!("{}: ", self.name(place)));
        let last = match self.reached.last {
            Some(place) => format!("the last line that reached `{}` is {}", self.level, self.name(place)),
            None => format!("no line reached `{}`", self.level),
        };
        format!("clactl: {at}{}\n{last}", error_text(&trouble.error))
    }

    fn success(&self) -> String {
        let lines = counted(self.reached.lines, "line");
        match (self.reached.first_offset, self.reached.last_offset) {
            (Some(first), Some(last)) if first == last => format!("{lines} {}, offset {}", self.level, count(first)),
            (Some(first), Some(last)) => {
                format!("{lines} {}, offsets {} to {}", self.level, count(first), count(last))
            }
            _ if self.level == AckLevel::None => format!("{lines} sent; at level none nothing is promised"),
            _ if self.level == AckLevel::Posted => format!("{lines} posted; they have no offset yet"),
            _ => format!("{lines}: nothing to append"),
        }
    }

    fn json(&self) -> String {
        let reached = &self.reached;
        let acked = if self.level == AckLevel::None { 0 } else { reached.lines };
        json!({
            "acked": acked,
            "sent": reached.lines,
            "first_offset": reached.first_offset,
            "last_offset": reached.last_offset,
            "level": self.level.name(),
            "log_id": self.log.log_id.to_string(),
            "epoch": reached.epoch.unwrap_or(self.log.epoch),
            "bytes": reached.bytes,
            "last_line": reached.last.map_or(0, |place| place.line),
            "last_file": reached.last.and_then(|place| match self.inputs.get(place.input) {
                Some(Input::File(path)) => Some(path.display().to_string()),
                _ => None,
            }),
            "failure": self.trouble.as_ref().map(|trouble| error_text(&trouble.error)),
        })
        .to_string()
    }
}
