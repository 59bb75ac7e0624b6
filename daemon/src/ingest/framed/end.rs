//! The end of a connection.

use std::io;

use clad_journal::Watcher;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use clad_proto::{AckLevel, ErrorCode};

use super::{CLOSE_TIMEOUT, Connection, READ_END_POLL_INTERVAL, count_refusal};

impl Connection {
    /// The peer closed its side. Its requests are still answered, as long as answers can be sent.
    pub(super) async fn hang_up<W: AsyncWrite + Unpin>(
        &mut self,
        wr: &mut W,
        mut watermarks: Watcher,
    ) -> io::Result<()> {
        while self.session.unanswered() > 0 {
            self.release(&watermarks.now());
            if !self.say(wr).await? {
                return self.last_words(wr).await;
            }
            if self.session.unanswered() > 0 && watermarks.reached(self.session.wants()).await.is_err() {
                break;
            }
        }
        self.pending_answer.set(false);
        // A peer that follows and closes is gone: nothing else would ever show it, on an idle log. A peer that only
        // half-closed its side still gets the rest of what it asked for.
        self.reads.retain(|_, read| {
            if read.follows {
                read.task.abort();
            }
            !read.follows
        });
        loop {
            self.forget_ended_reads();
            if !self.say(wr).await?
                || self.reads.is_empty()
                || *self.service.stop.borrow()
                || self.slot_state.is_leaving()
            {
                break;
            }
            // The task may end between its last block and this look: this side holds a sender too, so that the channel
            // never says so by itself.
            if let Ok(Some(bytes)) = tokio::time::timeout(READ_END_POLL_INTERVAL, self.records.1.recv()).await {
                self.out.extend_from_slice(&bytes);
                self.of_read = true;
            }
        }
        self.last_words(wr).await
    }

    /// Sends all output; `false` where the daemon goes down before the peer has taken it, the peer takes nothing, or it
    /// is to make room.
    pub(super) async fn say<W: AsyncWrite + Unpin>(&mut self, wr: &mut W) -> io::Result<bool> {
        let mut stop = self.service.stop.clone();
        while !self.out.is_empty() {
            let write_timeout = self.write_timeout();
            tokio::select! {
                biased;
                written = wr.write_buf(&mut self.out) => {
                    if written? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                _ = stop.wait_for(|stop| *stop) => return Ok(false),
                () = self.slot_state.leaves() => return Ok(false),
                () = tokio::time::sleep(write_timeout) => {
                    count_refusal(AckLevel::Received, ErrorCode::IdleTimeout, 1);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Forgets READs whose task is over and whose last block was taken.
    pub(super) fn forget_ended_reads(&mut self) {
        // In this order: a task that is over has sent its last block, and it is in the channel or was taken.
        let blocks = &self.records.1;
        self.reads.retain(|_, read| !(read.task.is_finished() && blocks.is_empty()));
    }

    pub(super) async fn last_words<W: AsyncWrite + Unpin>(&mut self, wr: &mut W) -> io::Result<()> {
        self.producer = None; // its session ends before the peer can see the end
        let say = async {
            wr.write_all_buf(&mut self.out).await?;
            wr.shutdown().await
        };
        tokio::time::timeout(CLOSE_TIMEOUT, say).await.unwrap_or(Ok(()))
    }
}
