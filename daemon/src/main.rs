//! Entry point.

use std::process::ExitCode;

fn main() -> ExitCode {
    clad::cli::main(std::env::args_os(), clad::life::run::run).into()
}
