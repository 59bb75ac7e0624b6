//! The command line.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

use crate::admin::{self, CursorsArgs, OriginsArgs, Shown, TopArgs};
use crate::append::{self, AppendArgs};
use crate::bench::{self, BenchArgs};
use crate::completions::{self, CompletionsArgs};
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::export::{self, ExportArgs};
use crate::import::{self, ImportArgs};
use crate::locate::Which;
use crate::output;
use crate::probe::{self, ProbeArgs};
use crate::read::{self, QueryArgs, ReadArgs};
use crate::repair::{self, RepairArgs};
use crate::run::{self, RunArgs};
use crate::verify::{self, VerifyArgs};

/// Operator tool of clad, the Central Logging Authority of this host.
#[derive(Debug, Parser)]
#[command(
    name = "clactl",
    version,
    about,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 it failed, or damage was found; 2 the call was wrong; of `run`: see there."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Append lines as records, and wait until they have the level asked for
    ///
    /// It ends with 1 at the first line that is longer than the daemon takes ([journal] max_record_bytes): no later line is sent, and the last one that reached its level is named. A daemon that cannot be reached at first, or that refuses the
    /// connection (too_many_connections), ends it with 1 at once: nothing was sent then, and it may be called again. Once
    /// connected, it waits for the daemon by itself, also on a full disk, 5 minutes for each line, and sends again. For a shorter wait call `timeout 30 clactl append`: it then reports whether a line may be stored.
    Append(AppendArgs),
    /// Run a program, append the lines of its stdout and stderr, and end with its exit code
    ///
    /// The program starts once the daemon is reached, and keeps stdin. A line of stdout is a record of severity info, one of stderr of severity error, with the attribute `log.iostream`. Lines of one stream keep their order; for the order of both the program writes to one (`2>&1`). A line that is longer than a record may be comes in pieces: each but the last has the attribute `clad.continues`.
    ///
    /// It ends when the program and all that hold its output have ended and the last line has its level. The exit code is the program's, or 128 and the number of the signal that ended it; 125 where the program succeeded and a line did not reach its level, or where the program was not started because the daemon cannot be reached; 126 where the program cannot be executed, 127 where it is not found. SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on, SIGINT and SIGQUIT where they come from no terminal.
    ///
    /// While the daemon is away or slow, lines wait in memory up to 16 MiB, then the program waits when it writes. After 5 minutes, or a refusal for good, the program goes on, and each line that is not known to have its level is written to stderr.
    Run(RunArgs),
    /// Show records
    Query(QueryArgs),
    /// Show the last records, and with -f those that come
    Tail(ReadArgs),
    /// Show the state of the daemon and its log
    Status(Shown),
    /// The same, again and again
    Top(TopArgs),
    /// List the segments of the log
    Segments(Shown),
    /// List the named cursors of readers, or remove one
    Cursors(CursorsArgs),
    /// List the streams of other logs that are forwarded here, or drop one
    Origins(OriginsArgs),
    /// Seal the active segment and continue in the next
    Rotate(Shown),
    /// Make everything received so far durable, and show the offset reached
    Sync(Shown),
    /// Check the files of a log, with no daemon needed
    Verify(VerifyArgs),
    /// Bring damaged files back to where a daemon starts on them; moves to quarantine/, deletes nothing
    Repair(RepairArgs),
    /// Copy records off the host, as text, JSON lines or raw; a stopped export can be continued
    Export(Box<ExportArgs>),
    /// Bring the log in a folder to a daemon, each append once: a data folder, or a raw archive
    ///
    /// The records keep their first client's checksum, and what the first daemon knew of their sender; `query --origin LOG-ID` shows them. A call that was stopped is made again, and goes on. The daemon takes it from root and its own user on its Unix socket, and from whoever a rule lets forward. What a folder does not have is stated in the daemon's log.
    Import(ImportArgs),
    /// Measure what each way of making a write durable costs in a folder, and recommend settings
    Probe(ProbeArgs),
    /// Measure a daemon under load, and check what it acknowledged
    Bench(Box<BenchArgs>),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

/// The command line as a value, for manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line and does what it says.
pub fn main(args: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            output::clap(&error);
            return if error.use_stderr() { Exit::Usage } else { Exit::Done };
        }
    };
    match run(cli) {
        Ok(exit) => exit,
        Err(stop) => {
            if !matches!(stop, Stop::ReaderGone) {
                output::say(&format!("clactl: {stop}"));
            }
            stop.exit()
        }
    }
}

fn run(cli: Cli) -> Outcome {
    let mut context = Context::of_process(cli.which)?;
    let context = &mut context;
    let exit = match cli.command {
        Command::Append(args) => append::run(context, &args),
        Command::Run(args) => run::run(context, &args),
        Command::Query(args) => read::query(context, &args),
        Command::Tail(args) => read::tail(context, &args),
        Command::Status(shown) => admin::status(context, shown),
        Command::Top(args) => admin::top(context, &args),
        Command::Segments(shown) => admin::segments(context, shown),
        Command::Cursors(args) => admin::cursors(context, args),
        Command::Origins(args) => admin::origins(context, &args),
        Command::Rotate(shown) => admin::rotate(context, shown),
        Command::Sync(shown) => admin::sync(context, shown),
        Command::Verify(args) => verify::run(context, &args),
        Command::Repair(args) => repair::run(context, &args),
        Command::Export(args) => export::run(context, &args),
        Command::Import(args) => import::run(context, &args),
        Command::Probe(args) => probe::run(context, &args),
        Command::Bench(args) => bench::run(context, &args),
        Command::Completions(args) => completions::run(context, &args, Cli::command()),
    };
    let flushed = context.output.flush();
    match exit.and_then(|exit| flushed.map(|()| exit)) {
        Err(Stop::ReaderGone) if context.output.has_failed() => Ok(Exit::Failed),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_calls_end_in_2_and_help_in_0() {
        for (args, exit) in [
            (&["--help"][..], Exit::Done),
            (&["--version"], Exit::Done),
            (&["query", "--help"], Exit::Done),
            (&[], Exit::Usage),
            (&["nonsense"], Exit::Usage),
            (&["append", "--ack", "safe"], Exit::Usage),
            (&["append", "--batch", "0"], Exit::Usage),
            (&["run"], Exit::Usage),
            (&["run", "--server", "unix:///no/such.sock", "--", "true"], Exit::Program(125)),
            (&["query", "-f", "-r"], Exit::Usage),
            (&["query", "-f", "--dir", "x"], Exit::Usage),
            (&["query", "--since", "noon", "--dir", "x"], Exit::Usage),
            (&["query", "-g", "(", "--dir", "x"], Exit::Usage),
            (&["query", "-p", "loud"], Exit::Usage),
            (&["query", "--after-cursor", "5"], Exit::Usage),
            (&["status", "--instance", "a", "--admin", "unix:///x"], Exit::Usage),
            (&["top", "--interval", "0"], Exit::Usage),
            (&["top", "--admin", "unix:///no/such.sock"], Exit::Failed),
            (&["verify"], Exit::Usage),
            (&["bench"], Exit::Usage),
            (&["query", "--dir", "no/such/folder"], Exit::Failed),
            (&["verify", "no/such/folder"], Exit::Failed),
            (&["import"], Exit::Usage),
            (&["import", "no/such/folder"], Exit::Failed),
            (&["import", "--stream", "a b", "no/such/folder"], Exit::Usage),
            (&["repair"], Exit::Usage),
            (&["repair", "no/such/folder"], Exit::Failed),
            (&["repair", "--dry-run", "no/such/folder"], Exit::Failed),
            (&["append", "--server", "unix:///no/such.sock"], Exit::Failed),
        ] {
            let args = std::iter::once("clactl").chain(args.iter().copied()).map(OsString::from);
            assert_eq!(main(args.clone()), exit, "{:?}", args.collect::<Vec<_>>());
        }
    }
}
