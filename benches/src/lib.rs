//! The storage benches: the journal's ways to write, beside bare loops, standard writers, fio, and (from a workspace of
//! their own, `benches/peers`) other crates.
//!
//! What must hold, for every one of them:
//! - **Nothing is measured that did not happen.** A failed operation is counted and fails the run; what was written is
//!   read back and compared, byte for byte, after the time has been taken; a folder in memory is refused.
//! - **Both sides of a comparison are run alike**: each contender is a run of its own ([`Outcome`]), which a driver
//!   alternates with the others, round by round, at the same priority; figures are medians over the rounds with the least
//!   and the greatest beside them.
//! - **The same code runs in the tests**, for a moment, where counts and contents are asserted and never a time.
//!
//! Not the aim: micro-benches of functions, and figures of other machines.
//!
//! | module | what it is |
//! |---|---|
//! | [`durable`] | writers that want each write durable: one contender, one run |
//! | [`bulk`] | one large file, in small chunks: one contender, one run |
//! | [`append`] | space × method for one writer, in turn |
//! | [`file_writer`] | the file writer beside `BufWriter`, in turn |
//! | [`write_sync`] | methods × engines × writers × sizes, in turn |
//! | [`cells`] | reads and writes of 4 KiB in twelve ways, beside fio |
//! | [`read`] | a segment through its checksums, beside plain reads |
//! | [`speed`] | what is to be reached: rows of contenders, peers and [`fio`] among them, in turn |
//! | [`device_bytes`] | what a durable record costs the device, counted where the kernel counts |
//! | [`syslog_load`] | a sender of syslog and RELP, for any receiver |
//! | [`otlp_load`] | a sender of log requests by OTLP and by clad's own gRPC, for any receiver |
//! | [`cursor_load`] | readers that commit their named cursors |
//! | [`logging_call`] | a logging call of Rust, `tracing` and C, beside a non-blocking file writer, in turn |
//! | [`place`] | the folder, what it stands on, and file systems in a file |
//! | [`outcome`], [`results`], [`stats`] | one run, all runs of a bench, and figures, for programs |
//! | [`render`] | tables and plots for docs/BENCHMARKS.md |
//! | [`pattern`] | contents that name their writer, and when they were written |
//! | [`writers`] | threads that do one thing after the other, timed |

pub mod append;
pub mod bulk;
pub mod cells;
pub mod cli;
pub mod clock;
pub mod cursor_load;
pub mod device_bytes;
pub mod durable;
pub mod file_writer;
pub mod fio;
pub mod fleet;
pub mod logging_call;
pub mod otlp_load;
pub mod outcome;
pub mod pattern;
pub mod place;
pub mod read;
pub mod render;
pub mod results;
pub mod speed;
pub mod stats;
pub mod syslog_load;
mod waiting;
pub mod write_sync;
pub mod writers;

pub use cli::main;
pub use outcome::Outcome;

/// A folder on the file system that holds the build: the one for temporary files may be in memory.
#[cfg(test)]
fn test_folder() -> tempfile::TempDir {
    let tests = std::env::current_exe().expect("a test has a name");
    tempfile::tempdir_in(tests.parent().expect("in a folder")).expect("a folder")
}
