//! See the library: `clad-benches --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    clad_benches::main()
}
