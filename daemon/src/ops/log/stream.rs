//! The way to stderr: a bounded queue and one thread.
//!
//! Invariant: a logging thread never waits for the reader of stderr. Otherwise a stopped terminal, a pipe that nobody
//! empties or a hanging journal would hold the writer of the log, and with it every program on the host. Lines that do
//! not fit the queue are dropped, and the number of dropped lines is written as soon as there is room again. Dropping
//! the [`Stream`] writes what is queued, within [`STDERR_DRAIN_TIMEOUT`].

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait: more than a start or a recovery says at once.
const QUEUED_LINES_MAX: usize = 1024;
/// Longest that the end of the process waits for a stderr that nobody reads.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two tries to end a queue that is full.
const STDERR_RETRY_PAUSE: Duration = Duration::from_millis(10);

enum Item {
    Line(Vec<u8>),
    /// All that was queued before is to be written; then confirm.
    End(SyncSender<()>),
}

/// The owner's end: ends the thread.
pub(super) struct Stream {
    queue: SyncSender<Item>,
}

/// The writers' end.
#[derive(Clone)]
pub(super) struct Line {
    queue: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Stream {
    /// Starts the thread that writes to `out`.
    pub(super) fn to(out: impl Write + Send + 'static) -> (Self, Line) {
        let (queue, items) = sync_channel(QUEUED_LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let line = Line { queue: queue.clone(), dropped: Arc::clone(&dropped) };
        // Without the thread every line is dropped: no reason to keep a log daemon from starting.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(move || write_all(out, &items, &dropped));
        (Self { queue }, line)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (done, wait) = sync_channel(1);
        // A queue that is full empties, or stderr hangs: a few tries show which.
        for _ in 0..STDERR_DRAIN_TIMEOUT.as_millis() / STDERR_RETRY_PAUSE.as_millis() {
            match self.queue.try_send(Item::End(done.clone())) {
                Ok(()) => {
                    let _ = wait.recv_timeout(STDERR_DRAIN_TIMEOUT);
                    return;
                }
                Err(TrySendError::Full(_)) => thread::sleep(STDERR_RETRY_PAUSE),
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

/// Runs the thread. A stderr that is closed is no reason to stop: the queue must be emptied all the same.
fn write_all(mut out: impl Write, items: &Receiver<Item>, dropped: &AtomicU64) {
    for item in items {
        match item {
            Item::Line(line) => {
                let _ = out.write_all(&line);
            }
            Item::End(done) => {
                let _ = out.flush();
                let _ = done.send(());
                return;
            }
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(out, "clad: {lost} of its own messages were dropped: stderr was not read in time");
        }
    }
}

impl<'a> MakeWriter<'a> for Line {
    type Writer = OneWrite<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        OneWrite { line: self }
    }
}

/// Takes one event, which the formats above hand over in one write.
pub(super) struct OneWrite<'a> {
    line: &'a Line,
}

impl Write for OneWrite<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.line.queue.try_send(Item::Line(bytes.to_vec())).is_err() {
            self.line.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A stderr whose reader has to be woken up.
    struct Gated(Arc<Mutex<Vec<u8>>>);

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_hangs_stalls_nobody_and_the_loss_is_counted() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (stream, line) = Stream::to(Gated(Arc::clone(&seen)));
        let hang = seen.lock().unwrap();
        let total = QUEUED_LINES_MAX + 100;
        for number in 0..total {
            let text = format!("line {number}\n");
            line.make_writer().write_all(text.as_bytes()).unwrap();
        }
        drop(hang);
        drop(stream);
        let text = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
        let kept = text.lines().filter(|line| line.starts_with("line ")).count();
        let lost: usize =
            text.lines().filter_map(|line| line.strip_prefix("clad: ")?.split(' ').next()?.parse::<usize>().ok()).sum();
        assert!(lost >= 99, "{lost}");
        assert_eq!(kept + lost, total);
    }
}
