//! Detects that stdout has no reader any more, while nothing is written: a pipe reports that only to a writer.
//!
//! Invariants: it says so as soon as the other end is closed, and never where stdout is a file or a terminal that
//! is there.

use std::io;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::oneshot;

/// Ends when nobody reads stdout any more. The thread that looks sleeps in the kernel, and ends with the process.
pub(crate) fn reader_gone() -> io::Result<impl Future<Output = ()>> {
    let (closed, gone) = oneshot::channel();
    thread::Builder::new().name("stdout".to_owned()).spawn(move || {
        if watch(&io::stdout()) {
            let _ = closed.send(());
        }
    })?;
    Ok(async {
        if gone.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Sleeps until the other end is closed; false where that cannot be told.
fn watch(end: &impl std::os::fd::AsFd) -> bool {
    loop {
        // Nothing is asked for: errors and hang-ups are told all the same.
        let mut wanted = [PollFd::new(end, PollFlags::empty())];
        match poll(&mut wanted, None) {
            Ok(_) => {
                let found = wanted[0].revents();
                return found.intersects(PollFlags::ERR | PollFlags::HUP);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_whose_reader_goes() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let watching = thread::spawn(move || watch(&writer));
        drop(reader);
        assert!(watching.join().expect("no panic"));
    }
}
