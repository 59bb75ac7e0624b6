//! The only place that prints.
//!
//! Invariants: stdout carries what was asked for and nothing else; notes, progress and errors go to stderr. A
//! stdout that nobody reads any more is [`Stop::ReaderGone`], which ends the command quietly; what is known to have failed
//! by then still says so. Colour is for a terminal
//! whose user has not set `NO_COLOR`; progress is for a terminal; everywhere else output is plain.

mod gone;
mod progress;
pub(crate) mod table;

use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};

use crate::exit::{Exit, Stop};
use crate::format::escape;

pub(crate) use gone::reader_gone;
pub(crate) use progress::Progress;

/// Output that is collected before it is written.
const BUFFER_BYTES: usize = 64 * 1024;

/// Stdout and stderr.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
    colour: bool,
    failed: bool,
}

impl Output {
    /// That of this process.
    pub(crate) fn of_process() -> Self {
        let stdout = io::stdout().lock();
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let colour = stdout.is_terminal() && set("NO_COLOR").is_none() && !dumb;
        Self { stdout: BufWriter::with_capacity(BUFFER_BYTES, stdout), colour, failed: false }
    }

    /// True if stdout may be coloured.
    pub(crate) const fn colour(&self) -> bool {
        self.colour
    }

    /// Columns of the terminal; no bound where stdout is none, so that what a program reads has no breaks.
    pub(crate) fn columns(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0);
        size.map_or(usize::MAX, |size| usize::from(size.ws_col))
    }

    /// True if stdout is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.stdout.get_ref().is_terminal()
    }

    /// Writes bytes to stdout, sooner or later.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.stdout.write_all(bytes).map_err(stopped)
    }

    /// Writes a text and a newline to stdout, sooner or later.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Stop> {
        self.write(text.as_bytes())?;
        self.write(b"\n")
    }

    /// Writes everything that was not written yet.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        self.stdout.flush().map_err(stopped)
    }

    /// Says something beside the result, on stderr, after what stdout has so far. Where nobody reads that any more, only what
    /// tells of a failure.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), Stop> {
        let flushed = self.flush();
        if flushed.is_ok() || self.failed {
            say(text);
        }
        flushed
    }

    /// Notes that something failed, or that damage was found: the command will not end in 0, whoever reads its output. To be
    /// called before anything is printed of it.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
    }

    /// Notes how it will end, and gives that back.
    pub(crate) fn ends(&mut self, exit: Exit) -> Exit {
        if exit == Exit::Failed {
            self.fail();
        }
        exit
    }

    /// True if something failed.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }
}

fn stopped(error: io::Error) -> Stop {
    match error.kind() {
        ErrorKind::BrokenPipe => Stop::ReaderGone,
        _ => Stop::Failed(anyhow::Error::new(error).context("stdout")),
    }
}

/// Says something on stderr; a stderr that is gone is no concern of ours.
pub(crate) fn say(text: &str) {
    let mut out = String::with_capacity(text.len() + 1);
    for (at, line) in text.lines().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        escape::text(&mut out, line);
    }
    out.push('\n');
    let _ = io::stderr().lock().write_all(out.as_bytes());
}

/// Prints what the command line's parser has to say: help, or what is wrong.
pub(crate) fn clap(error: &clap::Error) {
    let _ = error.print();
}
