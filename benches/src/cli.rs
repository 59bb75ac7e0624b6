//! The command line: one contender (`durable`, `bulk`), or a bench that lets several take turns.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::durable::{self, Engine};
use crate::fleet::{Fleet, Measured};
use crate::outcome::Outcome;
use crate::place::{On, Place};
use crate::results::{Aim, Results};
use crate::writers::Limit;
use crate::{
    append, bulk, cells, cursor_load, device_bytes, file_writer, logging_call, otlp_load, read, speed, syslog_load,
    write_sync,
};

/// Storage benches of clad's journal. Figures want `chrt -f 10` and a folder on a disk
#[derive(Parser)]
#[command(name = "clad-benches", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// One contender whose writers want each write durable; prints one line of JSON
    Durable(Durable),
    /// One contender that writes a large file in small chunks; prints one line of JSON
    Bulk(Bulk),
    /// Space and sync method for one writer
    #[command(name = "append")]
    Append(AppendArgs),
    /// Sync methods, engines, writers and sizes
    #[command(name = "write_sync")]
    WriteSync(WriteSync),
    /// The file writer beside `std::io::BufWriter`
    #[command(name = "file_writer")]
    FileWriter(FileWriter),
    /// Reads and writes of 4 KiB in twelve ways, through the page cache and around it, beside fio
    Cells(Cells),
    /// A segment through its checksums, and one that a crash left, beside plain reads
    Read(Read),
    /// Bytes that reach the device for each durable record of one writer, preparing segments included; fails where it is
    /// more than is allowed. Wants `--on`
    #[command(name = "device_bytes")]
    DeviceBytes(DeviceBytes),
    /// Make the tables and plots of docs/BENCHMARKS.md again from the results in docs/benchmarks
    Report(Report),
    /// Plan for many hosts, from the measured figures of the relay
    Fleet(FleetArgs),
    /// What is to be reached: rows of contenders, ours, fio and peers, in turn
    Speed(Speed),
    /// A logging call of clad, beside `tracing-appender`; wants a daemon that may be flooded
    #[command(name = "logging_call")]
    LoggingCall(LoggingCall),
    /// Messages of syslog or RELP to any receiver, as fast as it takes them; prints one line of JSON
    #[command(name = "syslog_load")]
    SyslogLoad(SyslogLoad),
    /// Log requests by OTLP to any receiver, or by clad's own gRPC, as fast as they are taken; prints one line of JSON
    #[command(name = "otlp_load")]
    OtlpLoad(otlp_load::Plan),
    /// Readers that commit their named cursors; prints one line of JSON
    #[command(name = "cursor_load")]
    CursorLoad(cursor_load::Plan),
}

/// Where, and where to put the results.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Folder to write in: on a disk, not in memory
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    /// In that folder, or on a file system in a file there (needs root)
    #[arg(long, value_enum, default_value_t = On::Folder)]
    pub on: On,
}

impl Common {
    /// The folder, or the file system that is made in it.
    ///
    /// # Errors
    /// As [`Place::new`].
    pub fn place(&self) -> Result<Place> {
        Place::new(&self.dir, self.on)
    }
}

/// How often, and what to do with the results.
#[derive(Args, Clone, Debug)]
struct Rounds {
    /// How often each takes its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// File for the results, as JSON [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// One contender, of ours or of somebody else's.
#[derive(Args, Clone, Debug)]
pub struct OneDurable {
    /// Writers at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub writers: u32,
    /// Bytes of an operation
    #[arg(long, default_value_t = 4096)]
    pub size: usize,
    /// Seconds
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Operations of each writer, at most
    #[arg(long)]
    pub ops: Option<u64>,
}

impl OneDurable {
    /// When to stop.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let time = Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX);
        Limit { time, ops: self.ops.unwrap_or(u64::MAX) }
    }
}

/// One contender, of ours or of somebody else's.
#[derive(Args, Clone, Debug)]
pub struct OneBulk {
    /// Bytes of a chunk
    #[arg(long, default_value_t = 4096, value_parser = chunk)]
    pub chunk: usize,
    /// Megabytes (2^20) of the file
    #[arg(long, default_value_t = 1024)]
    pub mebibytes: u64,
    /// Buffers of the journal's file writer [default: its own]
    #[arg(long, requires = "buffer_bytes")]
    pub buffers: Option<usize>,
    /// Bytes of each
    #[arg(long, requires = "buffers")]
    pub buffer_bytes: Option<usize>,
}

impl OneBulk {
    /// The same as a run.
    #[must_use]
    pub fn work(&self) -> bulk::Work {
        bulk::Work { chunk: self.chunk, total: self.mebibytes << 20, buffers: self.buffers.zip(self.buffer_bytes) }
    }
}

fn chunk(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(chunk @ 1..=bulk::MAX_CHUNK) => Ok(chunk),
        _ => Err(format!("1 to {} bytes", bulk::MAX_CHUNK)),
    }
}

/// `logging_call`
#[derive(Args)]
struct LoggingCall {
    /// The daemon's address; it gets all events
    #[arg(long, value_name = "ADDRESS")]
    server: clad_client::Address,
    /// Folder for the file of the other contender
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// Calls in a turn
    #[arg(long, default_value_t = 100_000)]
    events: u64,
    /// How often each takes its turn
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// `client-sdk/c/benches/log_call.c`, built
    #[arg(long, value_name = "PROGRAM")]
    c: Option<PathBuf>,
    /// Level of the records: `none` in a ring of shared memory is to log and go on; without it the highest
    #[arg(long)]
    level: Option<clad_client::AckLevel>,
}

/// `syslog_load`
#[derive(Args)]
struct SyslogLoad {
    /// `udp://`, `tcp://`, `relp://` or `unix-dgram://` and an address
    to: String,
    /// Messages
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Bytes of each
    #[arg(long, default_value_t = 200)]
    size: usize,
    /// Messages of RELP that wait for an answer, at most
    #[arg(long, default_value_t = 128)]
    window: usize,
    /// Datagrams a second, at most
    #[arg(long)]
    rate: Option<f64>,
}

/// `durable`
#[derive(Args)]
struct Durable {
    #[command(flatten)]
    common: Common,
    /// Who writes
    #[arg(long, value_enum)]
    by: durable::Contender,
    /// What issues the writes of the journal's storage
    #[arg(long, value_enum, default_value_t = Engine::Blocking)]
    engine: Engine,
    #[command(flatten)]
    one: OneDurable,
}

/// `bulk`
#[derive(Args)]
struct Bulk {
    #[command(flatten)]
    common: Common,
    /// Who writes
    #[arg(long, value_enum)]
    by: bulk::Contender,
    #[command(flatten)]
    one: OneBulk,
}

/// `append`
#[derive(Args)]
struct AppendArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Seconds of each run
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// `write_sync`
#[derive(Args)]
struct WriteSync {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Methods to compare; `strict`: a file of its own for each writer
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = write_sync::METHODS)]
    sync_method: Vec<durable::Contender>,
    /// Engines of the journal's storage
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Engine::Blocking, Engine::Uring])]
    engine: Vec<Engine>,
    /// Writers at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    writers: Vec<u32>,
    /// Bytes of an operation
    #[arg(long, value_delimiter = ',', default_values_t = [4 << 10, 64 << 10, 1 << 20])]
    size: Vec<usize>,
    /// Seconds of each run
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
}

/// `file_writer`
#[derive(Args)]
struct FileWriter {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Bytes of a chunk
    #[arg(long, value_delimiter = ',', default_values_t = [100, 800, 4096], value_parser = chunk)]
    chunk: Vec<usize>,
    /// Megabytes (2^20) of the file
    #[arg(long, default_value_t = 512)]
    mebibytes: u64,
}

/// `speed`
#[derive(Args)]
struct Speed {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Rows to run [default: all]
    #[arg(long, value_delimiter = ',')]
    row: Vec<String>,
    /// Seconds of each run that is bounded by time
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Megabytes (2^20) of a bulk file
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
    /// Folder with the programs of benches/peers
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
}

/// `cells`
#[derive(Args)]
struct Cells {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Seconds of each run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Megabytes (2^20) of the file
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
}

/// `read`
#[derive(Args)]
struct Read {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Bytes of a record
    #[arg(long, default_value_t = 256)]
    size: usize,
}

/// `device_bytes`
#[derive(Args)]
struct DeviceBytes {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    rounds: Rounds,
    /// Bytes of a record
    #[arg(long, default_value_t = 128)]
    size: usize,
    /// Segments that are filled
    #[arg(long, default_value_t = 4)]
    segments: u64,
}

/// `report`
#[derive(Args)]
struct Report {
    /// The folder with BENCHMARKS.md
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

/// `fleet`
#[derive(Args)]
struct FleetArgs {
    /// Hosts
    #[arg(long, default_value_t = 10.0)]
    hosts: f64,
    /// Records a second of each host
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Bytes of a record's text
    #[arg(long, default_value_t = 200.0)]
    bytes: f64,
    /// Days for which everything is kept
    #[arg(long, default_value_t = 30.0)]
    days: f64,
    /// Price of a gigabyte a month
    #[arg(long, default_value_t = 0.0)]
    gigabyte_month: f64,
    /// Price of a thousand objects that are stored
    #[arg(long, default_value_t = 0.0)]
    thousand_puts: f64,
    /// The folder with the figures
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

#[expect(clippy::print_stdout, reason = "the plan")]
fn fleet(args: &FleetArgs) -> Result<()> {
    let fleet = Fleet { hosts: args.hosts, rate: args.rate, bytes: args.bytes, days: args.days };
    let plan = fleet.plan(&Measured::kept(&args.docs)?)?;
    let gigabytes = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
    for (what, number) in [
        ("log of each host, a day", gigabytes(plan.log_bytes)),
        ("processors of each host, archive", format!("{:.4}", plan.archive_load)),
        ("processors of each host, Kafka", format!("{:.4}", plan.kafka_load)),
        ("partitions of the topic", plan.partitions.to_string()),
        ("objects of all hosts, a day", plan.objects.to_string()),
        ("Parquet of all hosts and days", gigabytes(plan.parquet_bytes)),
        ("raw archive of all hosts and days", gigabytes(plan.raw_bytes)),
        ("price of Parquet, a month", format!("{:.2}", plan.price(args.gigabyte_month, args.thousand_puts))),
    ] {
        println!("{what:34} {number}");
    }
    Ok(())
}

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    match execute(Cli::parse().bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("clad-benches: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(bench: Bench) -> Result<()> {
    match bench {
        Bench::Durable(args) => {
            let one = &args.one;
            let work = durable::Work {
                by: args.by,
                engine: args.engine,
                writers: one.writers,
                size: one.size,
                limit: one.limit(),
                file: durable::FILE,
            };
            let place = args.common.place()?;
            print_outcome(work.run(place.path())?)
        }
        Bench::Bulk(args) => {
            let place = args.common.place()?;
            print_outcome(args.one.work().run(args.by, place.path())?)
        }
        Bench::Append(args) => {
            let limit = Limit { time: seconds(args.seconds)?, ops: u64::MAX };
            let plan = append::Plan { rounds: args.rounds.rounds, limit, file: durable::FILE };
            args.rounds.keep(&plan.run(&args.common.place()?)?)
        }
        Bench::WriteSync(args) => {
            let plan = write_sync::Plan {
                methods: args.sync_method,
                engines: args.engine,
                writers: args.writers,
                sizes: args.size,
                rounds: args.rounds.rounds,
                limit: Limit { time: seconds(args.seconds)?, ops: u64::MAX },
                file: durable::FILE,
            };
            args.rounds.keep(&plan.run(&args.common.place()?)?)
        }
        Bench::FileWriter(args) => {
            let works: Vec<_> = args
                .chunk
                .iter()
                .map(|chunk| bulk::Work { chunk: *chunk, total: args.mebibytes << 20, buffers: None })
                .collect();
            args.rounds.keep(&file_writer::run(&args.common.place()?, args.rounds.rounds, &works)?)
        }
        Bench::Cells(args) => {
            let limit = Limit { time: seconds(args.seconds)?, ops: u64::MAX };
            let plan = cells::Plan { rounds: args.rounds.rounds, limit, file: args.mebibytes << 20, fio: true };
            args.rounds.keep(&plan.run(&args.common.place()?)?)
        }
        Bench::Read(args) => {
            let plan = read::Plan { rounds: args.rounds.rounds, segment: durable::FILE, size: args.size };
            args.rounds.keep(&plan.run(&args.common.place()?)?)
        }
        Bench::DeviceBytes(args) => {
            let plan = device_bytes::Plan { rounds: args.rounds.rounds, size: args.size, segments: args.segments };
            let results = plan.run(&args.common.place()?)?;
            args.rounds.keep(&results)?;
            ensure!(results.aims.iter().all(Aim::is_reached), "a record costs the device more than it may");
            Ok(())
        }
        Bench::Fleet(args) => fleet(&args),
        Bench::Report(args) => crate::render::render(&args.docs, true).map(drop),
        Bench::LoggingCall(args) => {
            let LoggingCall { server, dir, events, rounds, c: c_program, level } = args;
            print_turns(&logging_call::Plan { server, dir, events, rounds, c_program, level }.run()?)
        }
        Bench::SyslogLoad(args) => {
            let SyslogLoad { to, messages, size, window, rate } = args;
            print_sent(&syslog_load::Plan { to, messages, size, window, rate }.run()?)
        }
        Bench::OtlpLoad(plan) => print_sent(&plan.run()?),
        Bench::CursorLoad(plan) => print_sent(&plan.run()?),
        Bench::Speed(args) => {
            let plan = speed::Plan {
                rows: args.row,
                rounds: args.rounds.rounds,
                seconds: args.seconds,
                mebibytes: args.mebibytes,
                peers: args.peers,
                own: std::env::current_exe()?,
            };
            args.rounds.keep(&plan.run(&args.common.place()?)?)
        }
    }
}

fn seconds(seconds: f64) -> Result<Duration> {
    ensure!(seconds.is_finite() && seconds >= 0.0, "{seconds} seconds");
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// Prints the outcome of one contender, if it is one.
///
/// # Errors
/// Something in it failed: then there is no other result.
#[expect(clippy::print_stdout, reason = "the line that a driver reads")]
pub fn print_outcome(outcome: Outcome) -> Result<()> {
    println!("{}", serde_json::to_string(&outcome.checked()?)?);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn print_sent(sent: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(sent)?);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn print_turns(turns: &[logging_call::Turn]) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(turns)?);
    Ok(())
}

impl Rounds {
    #[expect(clippy::print_stdout, reason = "what was asked for")]
    fn keep(&self, results: &Results) -> Result<()> {
        match &self.out {
            Some(path) => results.write(path),
            None => {
                println!("{}", serde_json::to_string_pretty(results)?);
                Ok(())
            }
        }
    }
}
