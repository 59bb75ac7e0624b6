//! `clactl completions SHELL`: a script that completes commands and flags, made from the parser's own definition.

use clap::Args;
use clap_complete::Shell;

use crate::context::Context;
use crate::exit::{Exit, Outcome};

/// For which shell.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// `clactl completions`.
pub(crate) fn run(context: &mut Context, args: &CompletionsArgs, mut command: clap::Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "clactl", &mut script);
    context.output.write(&script)?;
    Ok(Exit::Done)
}
