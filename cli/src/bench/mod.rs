//! `clactl bench`: what a daemon does under load, and whether its acks were true.
//!
//! Invariants: it never floods a log by accident (`--server` must be given in the call itself, or `--spawn` makes a
//! log of its own); latencies are of every single append; after the run the log is read back and every acked record is
//! looked for at the offset of its ack; a run with a failed append or an ack that was not true ends in 1.
//!
//! Not its job: finding the best settings, comparing daemons, running for days.
//!
//! | module | what it is |
//! |---|---|
//! | `body`, `wire`, `flight` | prepared appends, a lean connection, what is in flight on it |
//! | `plan`, `load`, `connection`, `together` | the connections, and how a thread serves several |
//! | `sdk` | the same through the SDK: over gRPC, by rings of shared memory, and with --sdk over sockets |
//! | `check` | reading back |
//! | `spawn`, `process` | a daemon of our own, and what it takes |
//! | `direct` | the bare loop of synced writes |
//! | `stats`, `report` | numbers out of many, and how they are printed |

mod body;
mod check;
mod connection;
mod direct;
mod flight;
mod load;
mod plan;
mod process;
mod report;
mod sdk;
mod spawn;
mod stats;
mod together;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clad_client::Address;
use clad_proto::AckLevel;
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};

use self::direct::Direct;
use self::load::{Cpu, Loaded};
use self::plan::Load;
use self::report::{Report, Round, Slice};
use self::spawn::{Spawned, Transport};
use crate::admin::Form;
use crate::clock;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::format::human::{count, counted};
use crate::interrupt::Interrupt;
use crate::output::{Progress, say};

/// The load, and on whom.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("beside").multiple(true)))]
pub(crate) struct BenchArgs {
    /// Start a daemon in a new folder and measure that; else --server must be given
    #[arg(long)]
    pub(crate) spawn: bool,
    /// With --spawn: how the load reaches the daemon; grpc and shm (rings of shared memory) go through the SDK
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Transport::Unix, requires = "spawn")]
    pub(crate) transport: Transport,
    /// Through the SDK over every transport, as over grpc and shm: so that these can be compared alike
    #[arg(long)]
    pub(crate) sdk: bool,
    /// Over grpc and shm: how long a thread polls for its answer before it sleeps, in seconds
    #[arg(long, value_name = "S", default_value = "0.00005", value_parser = seconds)]
    pub(crate) spin: Duration,
    /// Over grpc and shm: a pause before each append, in seconds, long enough for all threads to sleep
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) rest: Option<Duration>,
    /// Connections
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// Appends that each connection keeps in flight
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) in_flight: u32,
    /// Bytes of a record's body, at least 16
    #[arg(long, value_name = "B", default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) size: u32,
    /// Level that each answer waits for: received, written or durable [default: the highest that the log offers]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) ack: Option<AckLevel>,
    /// Threads that serve the connections [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Seconds to run; with --baseline or --compare the length of each slice
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Records in one append
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) records_per_append: u32,
    /// Where the new folder is made; the bare loop's file too [default: the current folder]
    #[arg(long, value_name = "PARENT")]
    pub(crate) dir: Option<PathBuf>,
    /// A setting of the new daemon; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", requires = "spawn")]
    pub(crate) set: Vec<String>,
    /// Measure `durable` although the folder is in memory
    #[arg(long, requires = "spawn")]
    pub(crate) allow_tmpfs: bool,
    /// In turn with the load, measure a bare loop of synced writes of the same size in the same folder
    #[arg(long, group = "beside")]
    pub(crate) baseline: bool,
    /// In turn with the load, measure the same load by another transport of the same daemon
    #[arg(long, value_enum, value_name = "HOW", requires = "spawn", group = "beside")]
    pub(crate) compare: Option<Transport>,
    /// With --baseline or --compare, so many slices of each
    #[arg(long, value_name = "N", default_value_t = 5, requires = "beside", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub(crate) output: Form,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let duration = number.and_then(|number| Duration::try_from_secs_f64(number).ok());
    duration.filter(|duration| !duration.is_zero()).ok_or_else(|| "seconds above 0 are wanted, as 10 or 0.5".to_owned())
}

/// `clactl bench`.
pub(crate) fn run(context: &mut Context, args: &BenchArgs) -> Outcome {
    let server = target(context, args)?;
    let parent = args.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    if args.spawn {
        refuse_tmpfs(&parent, args)?;
    }
    raise_file_limit();
    let transports: Vec<_> = [args.transport].into_iter().chain(args.compare).collect();
    let interrupt = Interrupt::listen().map_err(anyhow::Error::new)?;
    let spawned = args.spawn.then(|| Spawned::start(&parent, &transports, &args.set)).transpose()?;
    let address = match (&spawned, server) {
        (Some(spawned), _) => spawned.address(context, args.transport)?,
        (None, Some(address)) => address,
        (None, None) => return Err(Stop::usage("--server ADDRESS or --spawn is wanted")),
    };
    let folder = spawned.as_ref().map_or(parent.as_path(), Spawned::folder);
    let load = Load {
        address,
        connections: args.connections,
        in_flight: args.in_flight as usize,
        threads: args.threads.map_or_else(processors, usize::from),
        size: args.size as usize,
        records: args.records_per_append,
        ack: args.ack,
        duration: args.duration,
        spin: args.spin,
        sdk: args.sdk,
        rest: args.rest,
        interrupt,
    };
    let compared = match (&spawned, args.compare) {
        (Some(spawned), Some(transport)) => {
            Some(Load { address: spawned.address(context, transport)?, ..load.clone() })
        }
        _ => None,
    };
    let rounds = rounds(args, &load, compared.as_ref(), spawned.as_ref(), folder)?;
    let report = Report {
        load: &load,
        compared: compared.as_ref(),
        rounds: &rounds,
        spawned: spawned.is_some(),
        set: &args.set,
        peak_memory: spawned.as_ref().and_then(|spawned| spawned.memory.peak()),
    };
    let exit = context.output.ends(if report.is_good() { Exit::Done } else { Exit::Failed });
    let text = match args.output {
        Form::Text => report.text(),
        Form::Json => format!("{}\n", report.json()),
    };
    context.output.write(text.as_bytes())?;
    context.output.flush()?;
    spawned.map_or(Ok(()), Spawned::stop)?;
    Ok(exit)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Whom to measure: what the call itself names, never what the environment or a folder suggests.
fn target(context: &Context, args: &BenchArgs) -> Result<Option<Address>, Stop> {
    if let Some(level) = args.ack.filter(|level| *level < AckLevel::Received) {
        return Err(Stop::usage(format!("--ack {level}: there are no answers to measure")));
    }
    match (&context.which.server, args.spawn) {
        (Some(_), true) => Err(Stop::usage("--server and --spawn exclude each other")),
        (None, false) => Err(Stop::usage(
            "bench floods a log: give --server ADDRESS, or --spawn for a separate daemon in a new folder",
        )),
        (None, true) => Ok(None),
        (Some(_), false) => Ok(Some(context.which.server(&context.around)?)),
    }
}

fn refuse_tmpfs(parent: &Path, args: &BenchArgs) -> Result<(), Stop> {
    let about_disk = args.ack.is_none_or(|level| level == AckLevel::Durable) || args.baseline;
    let tmpfs = spawn::is_tmpfs(parent).with_context(|| parent.display().to_string())?;
    if tmpfs && about_disk && !args.allow_tmpfs {
        return Err(Stop::Failed(anyhow!(
            "{} is in memory (tmpfs): what is measured there says nothing about a disk; give --dir a folder on one, or \
             --allow-tmpfs",
            parent.display()
        )));
    }
    Ok(())
}

/// A thousand connections need more than the usual soft limit of files.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What could not be raised shows as a connection that cannot be made.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The load once, or in turn with what it is measured beside.
fn rounds(
    args: &BenchArgs,
    load: &Load,
    compared: Option<&Load>,
    spawned: Option<&Spawned>,
    folder: &Path,
) -> Result<Vec<Round>, Stop> {
    let mut direct = args.baseline.then(|| Direct::prepare(folder, load.size)).transpose()?;
    let number = if args.baseline || compared.is_some() { args.rounds } else { 1 };
    let mut rounds = Vec::new();
    for round in 1..=number {
        let which = if number > 1 { format!("round {round} of {number}: ") } else { String::new() };
        let one = |load| slice(load, spawned, &which);
        // Who goes first takes turns too.
        let (of_load, of_compared) = match compared {
            None => (one(load)?, None),
            Some(other) if round % 2 == 0 => {
                let other = one(other)?;
                (one(load)?, Some(other))
            }
            Some(other) => (one(load)?, Some(one(other)?)),
        };
        let looped = direct.as_mut().map(|direct| {
            let _progress = Progress::line(&format!("{which}bare loop"));
            direct.slice(args.duration, &load.interrupt)
        });
        rounds.push(Round { load: of_load, compared: of_compared, looped: looped.transpose()? });
        if load.interrupt.came() {
            break;
        }
    }
    Ok(rounds)
}

/// One slice of load, read back.
fn slice(load: &Load, spawned: Option<&Spawned>, round: &str) -> Result<Slice, Stop> {
    let used = || Cpu { daemon: spawned.and_then(Spawned::processor_time), load: Some(process::own_processor_time()) };
    let before = used();
    let mut loaded = loaded(load, round)?;
    loaded.cpu = used().since(before);
    let checked = read_back(load, spawned, &loaded)?;
    Ok(Slice { loaded: loaded.without_flights(), checked })
}

fn loaded(load: &Load, round: &str) -> Result<Loaded, Stop> {
    let progress = Progress::line("connecting");
    let mut before = 0;
    let mut last = clock::now();
    let loaded = load.run(|acked| {
        let now = clock::now();
        let rate = stats::per_second(acked - before, now - last);
        (before, last) = (acked, now);
        progress.say(format!("{round}{} acked, {}/s", counted(acked, "record"), count(rate as u64)));
    });
    Ok(loaded?)
}

fn read_back(load: &Load, spawned: Option<&Spawned>, loaded: &Loaded) -> Result<Option<check::Checked>, Stop> {
    if spawned.is_none() && !loaded.log.may_read {
        say("clactl: reading is not allowed here, so nothing is verified");
        return Ok(None);
    }
    // Reading over the network is off by default; on its Unix socket a daemon of our own lets us.
    let from = spawned.map_or(&load.address, Spawned::unix);
    let _progress = Progress::line("reading back");
    Ok(Some(check::check(from, &loaded.flights, load.records, load.size).context("reading back")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(seconds("10"), Ok(Duration::from_secs(10)));
        assert_eq!(seconds("0.5s"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "ten", "inf", "nan", "1e30"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
