//! Entry point.

fn main() -> std::process::ExitCode {
    clactl::main(std::env::args_os()).into()
}
