//! `clad-relay`: brings to clad what is logged elsewhere, each record once; and from a clad to elsewhere.
//!
//! Invariants:
//! - The log is the checkpoint: where a relay stands is in the last record that it stored, and nowhere else. So what is
//!   stored and where it goes on cannot differ, whoever is killed when.
//! - A relay is a client like any other, without rights of its own. Its producer's id is made of its name.
//! - Memory does not grow with what waits: a source is read no faster than the log takes it.
//! - What could not be brought over is said in the log, or by the relay where the log itself refuses it for ever.
//!
//! | module | what it is |
//! |---|---|
//! | [`config`] | the file of a relay |
//! | [`log`] | the log that it writes to: its place in it, appends in their order |
//! | [`state`] | what it must know beside the log: that it has begun, and its epoch |
//! | [`journal`] | systemd's journal, through journalctl |
//! | [`files`] | files that programs write |
//! | [`out`] | from a clad to elsewhere |
//! | [`metrics`] | its metrics |

mod config;
mod files;
mod journal;
mod log;
#[cfg(test)]
mod man;
mod metrics;
mod out;
mod state;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use config::{Config, From, To};
use log::Log;
use state::State;

/// Brings to clad what is logged elsewhere, and from a clad to another, to OTLP, Kafka, NATS or object storage.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a relay until it is stopped
    Run(File),
    /// Says whether a relay's file is right, and what it means
    Check(File),
    /// Says where a relay stands
    Status(File),
    /// Lets a relay that lost its place begin again, where `start` says
    Begin {
        #[command(flatten)]
        file: File,
        /// Begin where the relay's cursor is: a new history of an archive, or behind what a topic of Kafka or a stream of NATS has
        #[arg(long)]
        at_cursor: bool,
    },
    /// Looks through an archive: gaps, overlaps, checksums; fails if anything is wrong
    Verify {
        #[command(flatten)]
        file: File,
        #[command(flatten)]
        which: out::objects::Which,
    },
}

#[derive(clap::Args)]
struct File {
    /// The relay's file: /etc/clad/relay.d/NAME.toml
    file: PathBuf,
    /// Folder for what a relay must know beside the log
    #[arg(long, env = "STATE_DIRECTORY", default_value = "/var/lib/clad-relay")]
    state: PathBuf,
}

/// Set when the relay is to end.
type Stop = watch::Receiver<bool>;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "info,async_nats=warn,librdkafka=off".into());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    subscriber.with_ansi(false).init();
    // One provider for all of this process's TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.context("no runtime").and_then(|runtime| runtime.block_on(run(Cli::parse().command)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Run(File { file, state }) => relay(&Config::read(&file)?, State::open(&state, &file)?).await,
        Command::Check(File { file, .. }) => say(&Config::read(&file)?.meaning()),
        Command::Status(File { file, .. }) => {
            let config = Config::read(&file)?;
            match (&config.from, &config.to) {
                (From::Clad(from), _) => say(&out::status(from, &config.name).await?),
                (_, To::Clad(to)) => say(&log::status(to, &config.name).await?),
                (_, To::Otlp(_) | To::Objects(_) | To::Kafka(_) | To::Nats(_)) => Ok(()),
            }
        }
        Command::Verify { file: File { file, .. }, which } => {
            let config = Config::read(&file)?;
            let (From::Clad(from), To::Objects(to)) = (&config.from, &config.to) else {
                bail!("{}: only what goes to.objects can be looked through", file.display());
            };
            let (text, is_right) = out::objects::verify(from, to, &config.name, &which).await?;
            say(&text)?;
            ensure!(is_right, "the archive is not right");
            Ok(())
        }
        Command::Begin { file: File { file, state }, at_cursor } => {
            let config = Config::read(&file)?;
            if let (From::Clad(from), To::Objects(_) | To::Kafka(_) | To::Nats(_)) = (&config.from, &config.to) {
                // Nobody writes there meanwhile.
                let _alone = State::open(&state, &file)?.of(&config.name)?;
                return say(&match &config.to {
                    To::Objects(to) => out::objects::begin(from, to, &config.name, at_cursor).await?,
                    #[cfg(feature = "kafka")]
                    To::Kafka(to) => out::kafka::begin(from, to, &config.name, at_cursor).await?,
                    #[cfg(not(feature = "kafka"))]
                    To::Kafka(_) => return Ok(()),
                    To::Nats(to) => out::nats::begin(from, to, &config.name, at_cursor).await?,
                    To::Clad(_) | To::Otlp(_) => return Ok(()),
                });
            }
            ensure!(!at_cursor, "--at-cursor is for a relay to.objects, to.kafka or to.nats");
            match &config.from {
                From::Clad(from) => out::begin(from, &config.name).await?,
                _ => State::open(&state, &file)?.forget(&config.name)?,
            }
            say(&format!("{} begins where `start` says, if the log has nothing of it", config.name))
        }
    }
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn say(text: &str) -> Result<()> {
    println!("{text}");
    Ok(())
}

async fn relay(config: &Config, state: State) -> Result<()> {
    if let Some(address) = config.metrics.listen {
        metrics::serve(address)?;
    }
    let (stop, stopped) = watch::channel(false);
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let _ = stop.send(true);
    });
    let dead_letters = state.file(&format!("{}.dead-letters", config.name));
    let mut state = state.of(&config.name)?;
    // It waits for a daemon as long as it has to: a manager does not wait for that.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let to = match (&config.from, &config.to) {
        (From::Clad(from), To::Otlp(to)) => return out::run(from, to, &config.name, &dead_letters, stopped).await,
        (From::Clad(from), To::Clad(to)) => return out::clad::run(from, to, &config.name, stopped).await,
        (From::Clad(from), To::Objects(to)) => return out::objects::run(from, to, &config.name, stopped).await,
        #[cfg(feature = "kafka")]
        (From::Clad(from), To::Kafka(to)) => {
            return out::kafka::run(from, to, &config.name, &dead_letters, stopped).await;
        }
        (From::Clad(from), To::Nats(to)) => {
            return out::nats::run(from, to, &config.name, &dead_letters, stopped).await;
        }
        (_, To::Clad(to)) => to,
        (_, To::Otlp(_) | To::Objects(_) | To::Kafka(_) | To::Nats(_)) => return Ok(()),
    };
    let mut stopping = stopped.clone();
    let (log, place) = tokio::select! {
        opened = Log::open(to, &config.name, &mut state) => opened?,
        _ = stopping.wait_for(|stop| *stop) => return Ok(()),
    };
    match &config.from {
        From::Journal(journal) => journal::run(journal, log, place, stopped).await,
        From::Files(files) => files::run(files, &config.name, log, place, stopped).await,
        From::Clad(_) => Ok(()),
    }
}
