//! `clactl query` and `clactl tail`: records back out, with journalctl's flags where they mean the same.
//!
//! Invariants: records come in the order of their offsets (`-r`: in the reverse), each once, also where `-n` or a
//! cursor is followed by `-f`; whatever is missing is said on stderr; damage ends in 1, a torn tail or what retention
//! removed does not.

mod archive;
pub(crate) mod filter;
pub(crate) mod piece;
pub(crate) mod served;
mod show;
pub(crate) mod source;
pub(crate) mod stored;
mod walk;
pub(crate) mod when;

use std::path::PathBuf;
use std::str::FromStr;

use clad_client::Start;
use clad_proto::{AckLevel, Cursor, LogId};
use clap::Args;
use jiff::Zoned;
use jiff::tz::TimeZone;

use self::filter::{Filter, Priorities};
use self::served::Served;
use self::show::Show;
use self::source::Source;
use self::stored::Files;
use self::walk::Part;
use crate::clock;
use crate::context::Context;
use crate::exit::{Outcome, Stop};
use crate::format::{Format, times};

/// Records that `tail` shows by default.
const TAIL_RECORDS_DEFAULT: u64 = 10;

/// Which records, and how they are shown.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Continue with records that are appended later
    #[arg(short, long, conflicts_with = "reverse")]
    pub(crate) follow: bool,
    /// Only the last N of the selected records (10 without a number), or `all`
    #[arg(short = 'n', long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    pub(crate) lines: Option<Lines>,
    /// Newest first; the log is read in pieces, so memory stays bounded
    #[arg(short, long)]
    pub(crate) reverse: bool,
    /// Which of them.
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Form of a record
    #[arg(short, long, value_enum, default_value_t = Format::Short, value_name = "FORM")]
    pub(crate) output: Format,
    /// Start after this cursor, from --show-cursor
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after_cursor: Option<Cursor>,
    /// At the end print the cursor where the reading stopped
    #[arg(long)]
    pub(crate) show_cursor: bool,
    /// Show times in UTC
    #[arg(long)]
    pub(crate) utc: bool,
}

/// Which records.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Not before this time: `2026-01-01 10:00`, `today`, `-5min`, `1 hour ago`, `@UNIX`
    ///
    /// A record's own time counts; without one, its observed time; without that, the time of its append.
    #[arg(short = 'S', long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) since: Option<String>,
    /// Not after this time
    #[arg(short = 'U', long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) until: Option<String>,
    /// This severe or more (err, warning, 0..7, OpenTelemetry's names), or a range FROM..TO
    #[arg(short, long, value_name = "PRIORITY")]
    pub(crate) priority: Option<Priorities>,
    /// From this component (service.name); may be repeated
    #[arg(short = 't', long, value_name = "NAME")]
    pub(crate) component: Vec<String>,
    /// From a sender with this name in its certificate; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) identity: Vec<String>,
    /// Forwarded, and first in the log with this id; may be repeated
    #[arg(long, value_name = "LOG-ID")]
    pub(crate) origin: Vec<LogId>,
    /// With a body that this regular expression finds; without capitals it ignores case
    #[arg(short, long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub(crate) grep: Option<String>,
}

/// `clactl query`.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// Which records, and how.
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Read the files in this data folder; no daemon is needed, and none is disturbed
    #[arg(long, value_name = "DIR", conflicts_with = "follow")]
    pub(crate) dir: Option<PathBuf>,
}

/// A number of last records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Every one.
    All,
    /// So many.
    Last(u64),
}

impl FromStr for Lines {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "all" => Ok(Self::All),
            number => number.parse().map(Self::Last).map_err(|_| "a number or `all` is wanted"),
        }
    }
}

/// `clactl query`.
pub(crate) fn query(context: &mut Context, args: &QueryArgs) -> Outcome {
    if args.dir.is_some() && (context.which.server.is_some() || context.which.instance.is_some()) {
        return Err(Stop::usage("--dir reads files: no --server or --instance goes with it"));
    }
    run(context, &args.read, args.dir.as_ref(), None)
}

/// `clactl tail`.
pub(crate) fn tail(context: &mut Context, args: &ReadArgs) -> Outcome {
    // Who says where to start wants all from there.
    let says_where = args.filter.since.is_some() || args.after_cursor.is_some();
    run(context, args, None, (!says_where).then_some(TAIL_RECORDS_DEFAULT))
}

fn run(context: &mut Context, args: &ReadArgs, dir: Option<&PathBuf>, default: Option<u64>) -> Outcome {
    let last = match args.lines {
        Some(Lines::All) => None,
        Some(Lines::Last(number)) => Some(number),
        None => default,
    };
    let now = times::timestamp(clock::unix_nanos()).to_zoned(TimeZone::system());
    let filter = args.filter.filter(&now)?;
    let source = match dir {
        Some(dir) => Source::Files(Box::new(Files::open(dir)?)),
        None => {
            let served = Served::new(context.which.server(&context.around)?, &filter, AckLevel::Written);
            Source::Served(served.asking(&filter))
        }
    };
    let zone = if args.utc { TimeZone::UTC } else { context.zone.clone() };
    let mut show = Show::new(&mut context.output, args.output, zone, filter);
    if let Source::Files(files) = &source {
        for (note, damage) in files.notes() {
            show.note(&note, damage)?;
        }
    }
    context.runtime.block_on(read(args, &source, last, &mut show))?;
    show.end(args.show_cursor)
}

async fn read(args: &ReadArgs, source: &Source, last: Option<u64>, show: &mut Show<'_>) -> Result<(), Stop> {
    let standing = source.standing().await?;
    if let Some(cursor) = args.after_cursor {
        // A cursor of another log or of a given-up history is refused, whatever else was asked for.
        source.judge(cursor).await?;
    }
    let part = Part { standing, lower: args.after_cursor.map_or(0, |cursor| cursor.offset) };
    show.begin(standing, args.after_cursor);
    if args.reverse {
        return show.backward(source, part, last).await;
    }
    let start = match (last, args.after_cursor) {
        (None, None) => Start::Offset(0),
        (None, Some(cursor)) => Start::Cursor(cursor),
        (Some(n), _) => Start::Offset(walk::nth_last(source, &part, show.filter(), n).await?),
    };
    show.forward(source, start, args.follow).await
}

impl FilterArgs {
    /// The filter that they ask for.
    pub(crate) fn filter(&self, now: &Zoned) -> Result<Filter, Stop> {
        let time = |text: &Option<String>, flag: &str| {
            let parsed = text.as_deref().map(|text| when::parse(text, now)).transpose();
            parsed.map_err(|error| Stop::usage(format!("{flag}: {error}")))
        };
        let pattern = self.grep.as_deref().map(filter::pattern).transpose();
        let (since, until) = (time(&self.since, "--since")?, time(&self.until, "--until")?);
        if since.zip(until).is_some_and(|(since, until)| since > until) {
            return Err(Stop::usage("--since is after --until: no record is between them"));
        }
        Ok(Filter {
            since,
            until,
            priorities: self.priority,
            components: self.component.clone(),
            identities: self.identity.clone(),
            origins: self.origin.clone(),
            pattern: pattern.map_err(|error| Stop::usage(format!("--grep: {error}")))?,
        })
    }
}
