//! `clactl probe DIR`: what a log in this folder would stand on, what each way of making a write durable costs there, and
//! what to set.
//!
//! Invariants: nothing is left in the folder, however it ends; every figure comes from single operations that were
//! timed here and now; what is recommended follows from the figures by rules that stand in `advise`, and says which.
//!
//! | module | what it is |
//! |---|---|
//! | `measure` | the trials, in turn |
//! | `advise` | figures and findings to settings and warnings |
//! | `show` | for people and for programs |

mod advise;
mod measure;
mod show;

use std::path::PathBuf;
use std::time::Duration;

use clad_journal::io::device;
use clad_journal::io::probe;
use clap::Args;

use crate::admin::Form;
use crate::bench::seconds;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::interrupt::Interrupt;

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The folder for a log; it must exist and be writable
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Time for all measurements together
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    pub(crate) duration: Duration,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub(crate) output: Form,
}

/// `clactl probe`.
pub(crate) fn run(context: &mut Context, args: &ProbeArgs) -> Outcome {
    let interrupt = Interrupt::listen().map_err(anyhow::Error::new)?;
    let uring = probe::uring();
    let substrate = device::discover(&args.dir);
    let measured = measure::all(&args.dir, args.duration, &uring, &interrupt).map_err(anyhow::Error::new)?;
    if interrupt.came() {
        context.output.note("interrupted; nothing is left behind")?;
        return Ok(Exit::Failed);
    }
    if let Some(why) = measure::nothing(&measured) {
        return Err(Stop::Failed(anyhow::anyhow!("nothing can be measured in {}: {why}", args.dir.display())));
    }
    let findings = advise::Findings { substrate: &substrate, uring: &uring, measured: &measured };
    let text = match args.output {
        Form::Text => show::text(&args.dir, &findings),
        Form::Json => format!("{}\n", show::json(&args.dir, &findings)),
    };
    context.output.write(text.as_bytes())?;
    Ok(Exit::Done)
}
