//! The command line of the daemon.
//!
//! Invariants: the configuration is loaded and judged before anything is touched, in the same way for
//! every command; what goes wrong ends in the exit code that `exit.rs` says; output for people and
//! programs goes to stdout, everything else to stderr.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clad_proto::{AckLevel, LogId};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::access::Asked;
use crate::config::{Config, LoadArgs, Loaded, Right};
use crate::exit::Exit;
use crate::life::check::{check, check_as};
use crate::life::reload::reload;

/// The Central Logging Authority of this host: takes log records and reports how safe each one is.
#[derive(Debug, Parser)]
#[command(
    name = "clad",
    version,
    about,
    max_term_width = 100,
    after_help = "Signals: HUP reload; USR1 sync; USR2 rotate; TERM and INT drain, sync and end.\nExit codes: 0 done; 1 it failed, or the data folder is locked, foreign or read-only; 2 the call was wrong; 78 the configuration is bad, or this disk cannot keep the promise of the policy."
)]
pub struct Cli {
    /// Command; none is `run`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Where the configuration comes from.
    #[command(flatten)]
    pub layers: LayerFlags,
}

/// Flags that every command takes.
#[derive(Args, Debug)]
pub struct LayerFlags {
    /// Read this file in place of /etc/clad/clad.toml and /etc/clad/clad.d/
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The instance that runs as clad@NAME.service: /etc/clad/NAME.toml, folders of its own, no network unless set
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "config", value_parser = instance)]
    pub instance: Option<String>,
    /// Set one key, over files and environment; may be repeated
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the daemon (also without a command)
    Run,
    /// Check the configuration and show what the daemon would do
    ///
    /// With --as: whether a peer may do ACTION, and which rule decides. Nothing else is checked then.
    #[command(
        after_help = "Exit codes with --as: 0 it may; 1 it may not; 2 nobody is named so; 78 the configuration is bad."
    )]
    Check {
        /// The peer: uid:NUMBER-OR-NAME, gid:NUMBER, cert:NAME, token:NAME or address:ADDRESS; may be repeated for one that has several
        #[arg(long = "as", value_name = "WHO", requires = "action")]
        who: Vec<String>,
        /// Action: append, read, admin or forward
        #[arg(requires = "who", value_parser = right)]
        action: Option<Right>,
        /// Component of the records that it would append
        #[arg(long, value_name = "NAME", requires = "who")]
        component: Option<String>,
        /// Level that it would ask for
        #[arg(long, value_name = "LEVEL", requires = "who")]
        level: Option<AckLevel>,
        /// Id of the log whose appends it would forward
        #[arg(long, value_name = "ID", requires = "who")]
        log: Option<LogId>,
    },
    /// Send HUP to a daemon and wait until it has taken or refused its configuration (for ExecReload=)
    ///
    /// Prints the daemon's result, with the names of the keys. Only a serving clad gets the signal: it is found by its $RUNTIME_DIRECTORY. Where that is not set here, it is read from the daemon's environment, which root and the daemon's user may do. The options below have no effect here: the daemon reads its own configuration again.
    #[command(
        after_help = "Exit codes: 0 the new configuration is in force; 78 it was refused and the old one stays in force; 1 there is no such daemon, it ended, or it reported no result within 60 s."
    )]
    Reload {
        /// Process id of the daemon
        pid: u32,
    },
    /// Print the effective configuration and where each value came from
    Config {
        /// Form of the output
        #[arg(short, long, value_enum, default_value_t = Output::Toml)]
        output: Output,
    },
}

/// Form of `clad config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A configuration file with comments
    Toml,
    /// One object for programs
    Json,
}

/// Parses the command line, loads the configuration, and does what was asked; `run` is what runs the
/// daemon.
pub fn main(args: impl IntoIterator<Item = OsString>, run: impl FnOnce(Loaded, LoadArgs) -> Exit) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; the parser knows which stream each belongs to.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Done };
        }
    };
    let args = LoadArgs::of_process(cli.layers.config, cli.layers.instance, cli.layers.set);
    let outcome = match cli.command.unwrap_or(Command::Run) {
        Command::Run => {
            // Before anybody takes what was handed over, and the word of it out of the environment.
            let rings = crate::fdstore::InheritedFds::is_there();
            Ok(unless_rings(rings, load(&args).map_or_else(|exit| exit, |loaded| run(loaded, args))))
        }
        Command::Check { who, action: Some(right), component, level, log } => load(&args).map(|loaded| {
            let (text, exit) = check_as(&loaded.config, &who, &Asked { right, component, level, log });
            say(io::stdout(), &format!("{text}\n"));
            exit
        }),
        Command::Check { .. } => load(&args).map(|loaded| {
            warn(&loaded);
            let report = check(&loaded);
            say(io::stdout(), &report.to_string());
            report.exit
        }),
        Command::Config { output } => load(&args).map(|loaded| {
            warn(&loaded);
            let text = match output {
                Output::Toml => loaded.to_toml(),
                Output::Json => format!("{:#}\n", loaded.to_json()),
            };
            say(io::stdout(), &text);
            Exit::Done
        }),
        // The daemon reads the configuration, and says what it thinks of it.
        Command::Reload { pid } => {
            let (text, exit) = reload(pid, std::env::var_os("RUNTIME_DIRECTORY").as_deref());
            say(io::stderr(), &format!("clad: {text}\n"));
            Ok(exit)
        }
    };
    outcome.unwrap_or_else(|exit| exit)
}

/// A word of `may` in a rule.
fn right(word: &str) -> Result<Right, String> {
    let right = Right::ALL.into_iter().find(|right| right.as_str() == word);
    right.ok_or_else(|| "one of append, read, admin, forward is wanted".to_owned())
}

/// A name that is part of file names and of the service manager's.
fn instance(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits) {
        true => Ok(name.to_owned()),
        false => Err("letters, digits, `_`, `.` and `-`, a letter or digit first".to_owned()),
    }
}

/// After 78 the unit is not started again, and then systemd drops what it had stored for it: rings, with records in them that
/// nobody has drained. With any of these the daemon ends in 1, and is tried again until what is wrong is mended.
fn unless_rings(stored: bool, exit: Exit) -> Exit {
    match exit {
        Exit::Config if stored => {
            say(
                io::stderr(),
                "clad: the service manager holds rings of the earlier daemon, and would drop them and their posted records after exit code 78: the exit code is 1, so that it starts again until the error is corrected\n",
            );
            Exit::Failed
        }
        exit => exit,
    }
}

fn load(args: &LoadArgs) -> Result<Loaded, Exit> {
    Config::load(args).map_err(|errors| {
        say(io::stderr(), &format!("clad: {errors}\n"));
        Exit::Config
    })
}

fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        say(io::stderr(), &format!("clad: {warning}\n"));
    }
}

/// Writes a text; a reader that has gone away is no concern of ours.
fn say(mut stream: impl Write, text: &str) {
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run(args: &[&str]) -> (Exit, Option<Loaded>) {
        let mut seen = None;
        let args = std::iter::once("clad").chain(args.iter().copied());
        let exit = main(args.map(OsString::from), |loaded, _| {
            seen = Some(loaded);
            Exit::Done
        });
        (exit, seen)
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bare_call_runs_and_flags_stand_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("clad.toml");
        std::fs::write(&file, "[limits]\nmax_producers = 3\n").unwrap();
        let file = file.to_str().unwrap();
        for args in [
            &["--config", file, "--set", "limits.max_connections=9"][..],
            &["run", "--config", file, "--set", "limits.max_connections=9"],
            &["--config", file, "run", "--set", "limits.max_connections=9"],
        ] {
            let (exit, loaded) = run(args);
            let limits = loaded.expect("the daemon was to run").config.limits;
            assert_eq!((exit, limits.max_connections, limits.max_producers), (Exit::Done, 9, 3));
        }
    }

    #[test]
    fn what_is_wrong_ends_in_its_exit_code_and_runs_nothing() {
        for (args, code) in [
            (&["--no-such-flag"][..], Exit::Usage),
            (&["start"], Exit::Usage),
            (&["--config"], Exit::Usage),
            (&["--instance", "../x"], Exit::Usage),
            (&["--instance", "a", "--config", "b"], Exit::Usage),
            (&["--instance", "no-such-instance-anywhere"], Exit::Config),
            (&["--config", "no/such/file"], Exit::Config),
            (&["check", "--set", "log.levle=info"], Exit::Config),
            (&["--set", "journal.io_engine=rings"], Exit::Config),
            (&["--help"], Exit::Done),
            (&["--version"], Exit::Done),
        ] {
            let (exit, loaded) = run(args);
            assert_eq!(exit, code, "{args:?}");
            assert!(loaded.is_none(), "{args:?}");
        }
    }

    #[test]
    fn what_does_not_work_is_not_offered() {
        let help = Cli::command().render_long_help().to_string();
        assert!(!help.contains("tls"));
    }
}
