//! `clactl run`: the lines of a program's stdout and stderr become records, each followed to its ack.
//!
//! Invariants: the program starts once the daemon is reached, and never ends by what becomes of its lines. Where they can be
//! handed over no longer, they are written to stderr instead, as all that have not their level. The exit code is the program's; it is
//! 0 only where every line has its level, too. Memory is bounded as that of `append` is; beyond it the program waits.

mod program;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::anyhow;
use clad_client::Producer;
use clad_proto::limits::RECORD_HEADER_BYTES;
use clad_proto::{AckLevel, Severity};
use clap::Args;

use self::program::{Program, show};
use crate::append::flow::{Flow, Trouble};
use crate::append::{BUFFER_BYTES, level};
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop, error_text};
use crate::format::human::counted;
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::reach::unreachable;

/// Exit code where the program was not run, or a line of it has not its level. (126 and 127 are those of a shell.)
const NOT_LOGGED: u8 = 125;
/// Bytes of a record beside its line and header: the attributes.
const ATTRIBUTE_BYTES: usize = 64;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The component (service.name) that the lines are from [default: the program's name]
    #[arg(short = 't', long, value_name = "NAME")]
    pub(crate) component: Option<String>,
    /// Level that each line must have before it counts: none, posted (with shm:// only), received, written or durable
    /// [default: the highest that the log offers]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) ack: Option<AckLevel>,
    /// Severity of the lines of stdout, by OpenTelemetry's or syslog's names
    #[arg(long, value_name = "NAME", default_value = "info")]
    pub(crate) stdout_severity: Severity,
    /// Severity of the lines of stderr
    #[arg(long, value_name = "NAME", default_value = "error")]
    pub(crate) stderr_severity: Severity,
    /// The program and its arguments, behind `--`
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    fn component(&self) -> String {
        let name = self.command.first().map(std::path::Path::new).and_then(|path| path.file_name());
        self.component.clone().unwrap_or_else(|| name.unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// `clactl run`.
pub(crate) fn run(context: &mut Context, args: &RunArgs) -> Outcome {
    let address = context.which.server(&context.around)?;
    let exit = context.block_on(async {
        let mut builder = Producer::builder(address).component(args.component()).name("clactl run");
        if let Some(level) = args.ack {
            builder = builder.level(level.max(AckLevel::Received));
        }
        let producer = builder.max_buffered_bytes(BUFFER_BYTES).drop_timeout(Duration::ZERO).connect().await;
        let producer = producer.map_err(|error| unreachable(&error))?;
        log(producer, args).await
    });
    match exit {
        Err(Stop::Failed(error)) => {
            say(&format!("clactl: {}; {:?} was not started", error_text(&error), args.command.join(" ".as_ref())));
            Ok(Exit::Program(NOT_LOGGED))
        }
        exit => exit,
    }
}

/// Runs the program to its end, and its lines to their level. An error says that it was not started.
async fn log(producer: Producer, args: &RunArgs) -> Outcome {
    let log = producer.log().ok_or_else(|| anyhow!("the daemon did not describe its log"))?;
    if args.ack == Some(AckLevel::Posted) && !producer.offers_posted() {
        return Err(Stop::Failed(anyhow!("`posted` needs a ring of shared memory that is stored (`clactl status`)")));
    }
    let level = level(args.ack, &log)?;
    let longest = log.max_record_bytes.min(log.max_append_bytes.saturating_sub(producer.batch().len_bytes() as u32));
    let limit = (longest as usize).saturating_sub(RECORD_HEADER_BYTES + ATTRIBUTE_BYTES).max(1);
    let severities = [args.stdout_severity, args.stderr_severity];
    let (program, mut fed) = match Program::start(&args.command, severities, limit) {
        Ok(started) => started,
        Err((code, error)) => {
            say(&format!("clactl: {:?}: {error}", args.command.first().cloned().unwrap_or_default()));
            return Ok(Exit::Program(code));
        }
    };
    let mut flow = Flow::keeping(producer, level, args.stdout_severity);
    // Who asks this process to end asks the program: its last lines are waited for.
    let mut trouble = flow.run(&mut fed, &Interrupt::default(), |_| {}).await.err();
    let unreached = flow.unreached();
    let (reached, producer) = flow.into_parts();
    if trouble.is_none()
        && let Some(producer) = producer
    {
        // At level `none` this is where a refusal is heard of.
        trouble = producer.close().await.err().map(|error| Trouble::new(None, error));
    }
    let is_logged = trouble.is_none();
    if let Some(trouble) = trouble {
        say(&format!(
            "clactl: {}; {} of the program reached `{level}`, and those that are not known to have stand here, in the log or not",
            error_text(&trouble.error),
            counted(reached.lines, "line")
        ));
        unreached.iter().for_each(show);
        trouble.unsent.iter().for_each(show);
        while let Some(fed) = fed.recv().await {
            fed.iter().for_each(show);
        }
    }
    let code = program.wait().await;
    Ok(Exit::Program(if code == 0 && !is_logged { NOT_LOGGED } else { code }))
}
