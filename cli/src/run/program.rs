//! The program that runs: its two streams, its signals, its end.
//!
//! Invariants: a thread a stream reads it to its end, whatever becomes of the lines, so that the program never waits for
//! a reader that is gone. A signal is sent to the program itself, never to another process that has its number by then.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use clad_proto::Severity;
use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, pidfd_open, pidfd_send_signal};
use rustix::termios::tcgetpgrp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::append::ADAPTIVE;
use crate::append::feed::{Fed, FeedError, Group, Origin, Place};
use crate::append::lines::Lines;

/// Groups of lines that may wait between the threads and the daemon.
const QUEUE_GROUPS_MAX: usize = 2;
/// Exit codes of a shell for a program that cannot be executed, and for one that is not there.
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Added by a shell to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Signals that are passed on.
const PASSED_ON: [Signal; 4] = [Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];
/// Signals that a terminal sends to all of its foreground: there the program has them already.
const OF_TERMINAL: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// A program that was started.
#[derive(Debug)]
pub(super) struct Program {
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl Program {
    /// Starts it; its lines come as groups of pieces of at most `limit` bytes.
    ///
    /// # Errors
    /// The exit code that a shell has for it, and the reason.
    pub(super) fn start(
        command: &[OsString],
        severities: [Severity; 2],
        limit: usize,
    ) -> Result<(Self, mpsc::Receiver<Fed>), (u8, io::Error)> {
        let failed = |error: io::Error| {
            let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE };
            (code, error)
        };
        let (name, arguments) = command.split_first().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        // Before the program is there: a signal that comes now would end this process, and leave it alone.
        let signals = signals().map_err(failed)?;
        let mut child =
            Command::new(name).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (sender, fed) = mpsc::channel(QUEUE_GROUPS_MAX);
        let streams: [(Option<Box<dyn Read + Send>>, &str); 2] = [
            (child.stdout.take().map(|stream| Box::new(stream) as _), "stdout"),
            (child.stderr.take().map(|stream| Box::new(stream) as _), "stderr"),
        ];
        for (input, ((stream, name), severity)) in streams.into_iter().zip(severities).enumerate() {
            let (Some(stream), sender) = (stream, sender.clone()) else { continue };
            let origin = Origin { severity: Some(severity), stream: Some(name) };
            let read = move || read(Lines::split(stream, limit), input, origin, &sender);
            thread::Builder::new().name(format!("reads {name}")).spawn(read).map_err(failed)?;
        }
        pass_on(signals, &child);
        let (end, ended) = oneshot::channel();
        let wait = move || drop(end.send(child.wait()));
        thread::Builder::new().name("waits".to_owned()).spawn(wait).map_err(failed)?;
        Ok((Self { ended }, fed))
    }

    /// Waits for its end; its exit code, as a shell has it.
    pub(super) async fn wait(self) -> u8 {
        let Ok(Ok(status)) = self.ended.await else { return CANNOT_EXECUTE };
        let code = status.code().or_else(|| Some(BY_SIGNAL + status.signal()?)).unwrap_or(BY_SIGNAL);
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

/// Reads a stream to its end.
fn read(mut lines: Lines<Box<dyn Read + Send>>, input: usize, origin: Origin, sender: &mpsc::Sender<Fed>) {
    let mut next = Place { input, line: 1 };
    loop {
        match lines.next_group(ADAPTIVE) {
            Ok(group) if group.is_empty() => return,
            Ok(group) => {
                let (first, continues) = (next, lines.continues());
                next.line += group.len() as u64;
                if sender.blocking_send(Ok(Group { first, lines: group, origin, continues })).is_err() {
                    return; // this process ends
                }
            }
            Err(error) => {
                let _ = sender.blocking_send(Err((input, FeedError::Line(error))));
                return;
            }
        }
    }
}

/// Writes lines that are not logged to stderr.
pub(super) fn show(group: &Group) {
    let mut stderr = io::stderr().lock();
    for (at, line) in group.lines.iter().enumerate() {
        let end: &[u8] = if group.continues && at + 1 == group.lines.len() { b"" } else { b"\n" };
        // Nobody is left to hear of a failure.
        let _ = stderr.write_all(line).and_then(|()| stderr.write_all(end));
    }
}

/// Listens for the signals that may be passed on, from now on.
fn signals() -> io::Result<Vec<(Signal, tokio::signal::unix::Signal)>> {
    let listen = |which: &Signal| Ok((*which, signal(SignalKind::from_raw(which.as_raw()))?));
    PASSED_ON.iter().chain(&OF_TERMINAL).map(listen).collect()
}

/// Passes signals on as long as the program is there.
fn pass_on(signals: Vec<(Signal, tokio::signal::unix::Signal)>, child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(Ok(program)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    let program: std::sync::Arc<OwnedFd> = program.into();
    for (which, mut signal) in signals {
        let program = program.clone();
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                if !(OF_TERMINAL.contains(&which) && is_in_foreground()) {
                    let _ = pidfd_send_signal(&program, which); // it has ended
                }
            }
        });
    }
}

/// Returns true if a terminal sends its signals to this process, and so to the program, too.
fn is_in_foreground() -> bool {
    let terminals = [io::stdin().is_terminal(), io::stderr().is_terminal()];
    let foreground = match terminals {
        [true, _] => tcgetpgrp(io::stdin()),
        [_, true] => tcgetpgrp(io::stderr()),
        _ => return false,
    };
    foreground.is_ok_and(|group| group == getpgrp())
}
