//! The thread that reads the inputs, so that a slow pipe holds up nobody who waits for an ack.
//!
//! Invariants: at most [`QUEUE_GROUPS_MAX`] groups wait; the lines of an input come in order, inputs come in the order given;
//! the end of an input ends its last line. The thread ends when nobody takes groups any more, or with the process: a
//! read from a terminal cannot be called off.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use bytes::Bytes;
use clad_proto::Severity;
use tokio::sync::mpsc;

use super::lines::{GroupSize, LineError, Lines};

/// Groups that may wait between the thread and the daemon.
const QUEUE_GROUPS_MAX: usize = 2;

/// Where lines come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

/// A line by its input and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which input, counted from 0.
    pub(crate) input: usize,
    /// Which line in it, counted from 1.
    pub(crate) line: u64,
}

/// Lines that were read together.
#[derive(Debug)]
pub(crate) struct Group {
    /// The place of the first.
    pub(crate) first: Place,
    /// The lines; at least one.
    pub(crate) lines: Vec<Bytes>,
    pub(crate) origin: Origin,
    /// The last of them is a piece of a line that continues in the next group of its input.
    pub(crate) continues: bool,
}

/// Stream of a program that lines came by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its severity, where that is not the one of all lines.
    pub(crate) severity: Option<Severity>,
    /// Its name, `stdout` or `stderr`.
    pub(crate) stream: Option<&'static str>,
}

/// Why an input cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FeedError {
    /// It cannot be opened.
    #[error("cannot open: {0}")]
    Open(io::Error),
    /// A line of it.
    #[error(transparent)]
    Line(#[from] LineError),
}

/// Output of the thread: groups, and an error with its input as the last thing, if any.
pub(crate) type Fed = Result<Group, (usize, FeedError)>;

/// Starts to read.
pub(crate) fn start(inputs: Vec<Input>, limit: usize, size: GroupSize) -> io::Result<mpsc::Receiver<Fed>> {
    let (sender, receiver) = mpsc::channel(QUEUE_GROUPS_MAX);
    std::thread::Builder::new().name("reads lines".to_owned()).spawn(move || {
        for (number, input) in inputs.into_iter().enumerate() {
            if let Err(error) = read(number, input, limit, size, &sender) {
                let _ = sender.blocking_send(Err((number, error)));
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn read(
    number: usize,
    input: Input,
    limit: usize,
    size: GroupSize,
    sender: &mpsc::Sender<Fed>,
) -> Result<(), FeedError> {
    let reader: Box<dyn Read> = match input {
        Input::Stdin => Box::new(io::stdin().lock()),
        Input::File(path) => Box::new(File::open(path).map_err(FeedError::Open)?),
    };
    let mut lines = Lines::new(reader, limit);
    let mut next = Place { input: number, line: 1 };
    loop {
        let group = lines.next_group(size)?;
        if group.is_empty() {
            return Ok(());
        }
        let first = next;
        next.line += group.len() as u64;
        if sender.blocking_send(Ok(Group { first, lines: group, origin: Origin::default(), continues: false })).is_err()
        {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_order_and_the_one_that_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&one, "a\nb\n").expect("a file");
        std::fs::write(&two, "c").expect("a file");
        let inputs = [one, two, folder.path().join("three")].map(Input::File).to_vec();
        let size = GroupSize { lines: 10, bytes: 1000, wait: false };
        let mut fed = start(inputs, 100, size).expect("a thread");
        let first = fed.blocking_recv().expect("a group").expect("it is good");
        assert_eq!((first.first, first.lines), (Place { input: 0, line: 1 }, vec!["a".into(), "b".into()]));
        let second = fed.blocking_recv().expect("a group").expect("it is good");
        assert_eq!((second.first, second.lines), (Place { input: 1, line: 1 }, vec!["c".into()]));
        let (input, error) = fed.blocking_recv().expect("an error").expect_err("no such file");
        assert!(input == 2 && matches!(error, FeedError::Open(_)));
        assert!(fed.blocking_recv().is_none());
    }
}
