//! RELP: syslog with answers, as rsyslog's `omrelp` speaks it.
//!
//! Invariants:
//! - "200 OK" says that the record has the level of `[ingest.syslog.NAME] ack`. Answers come in the order of the messages.
//! - A refusal that passes is never answered: a client throws away what is answered by an error (rsyslog#841). The session
//!   stops reading, so that the order stays, and tries again; after [`HOLD_TIMEOUT`] it ends, and the client sends again.
//! - A failure of the journal ends a session at once: nobody knows which of its messages are stored.
//! - What a session did not answer a client sends again after its end: a record may be there twice, none is lost.
//! - At a stop what has its level is answered, and the session is closed.

mod frame;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::{ErrorCode, ErrorInfo};
use tokio::time::timeout;

use super::framing::RawMessage;
use super::streams::{Came, Incoming, RECORDS_BYTES, StreamIntake};
use crate::ingest::PeerTimeouts;
use crate::ops::metrics;
use frame::{Command, RelpFrames, RelpRequest};

/// Longest time for which a message that is refused for now is held.
const HOLD_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages that may wait for their level; clients have 128. More are not read.
const WINDOW: usize = 1024;
/// Time for the last answers at a stop, and for the client to take them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Answer to the offers of a client.
const OFFERS: &str = "200 OK\nrelp_version=0\nrelp_software=clad\ncommands=syslog";

/// Reason for the end of a session.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("the client has closed it")]
    Closed,
    #[error("the daemon stops, or others want the place")]
    Leave,
    #[error("not RELP: {0}")]
    NotRelp(&'static str),
    #[error("the disk has no room for a message that waited for {HOLD_TIMEOUT:?}: {0}")]
    Held(ErrorInfo),
    #[error("{0}")]
    Refused(ErrorInfo),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Serves a session until its end.
pub(in crate::ingest::syslog) async fn serve(
    input: Incoming,
    intake: StreamIntake,
    max_message: usize,
    times: PeerTimeouts,
    peer: String,
) {
    let mut session = RelpSession {
        input,
        intake,
        frames: RelpFrames::new(max_message),
        unsent: VecDeque::new(),
        given: VecDeque::new(),
        is_open: false,
        write_timeout: times.of(false),
    };
    let end = match session.run().await {
        Ok(never) => match never {},
        Err(end) => end,
    };
    match &end {
        SessionEnd::Closed => return,
        SessionEnd::Leave => session.close().await,
        SessionEnd::NotRelp(_) => metrics::dropped(metrics::Dropped::Invalid, 1),
        SessionEnd::Held(_) | SessionEnd::Refused(_) | SessionEnd::Io(_) => {}
    }
    tracing::info!(peer, unanswered = session.given.len() + session.unsent.len(), "a session of RELP has ended: {end}");
}

struct RelpSession {
    input: Incoming,
    intake: StreamIntake,
    frames: RelpFrames,
    /// Transactions of messages that are in no append yet.
    unsent: VecDeque<u32>,
    /// Transactions of each append whose level is not reached.
    given: VecDeque<Vec<u32>>,
    is_open: bool,
    write_timeout: Duration,
}

impl RelpSession {
    async fn run(&mut self) -> Result<std::convert::Infallible, SessionEnd> {
        let mut pending_answer = self.input.slot().slot_state().pending_answer();
        loop {
            // Who waits for an answer does not make room for others.
            pending_answer.set(!self.given.is_empty());
            let is_full = self.given.iter().map(Vec::len).sum::<usize>() >= WINDOW;
            let has_given = self.intake.appends.unanswered() > 0;
            tokio::select! {
                came = self.input.read(!is_full) => match came? {
                    Came::Bytes => {
                        self.take().await?;
                        self.input.settle();
                    }
                    // Everything that came before is stored, and nobody is there for the answer.
                    Came::End => return Err(SessionEnd::Closed),
                    Came::Leave => return Err(SessionEnd::Leave),
                },
                progress = self.intake.appends.progress(), if has_given => progress.map_err(SessionEnd::Refused)?,
            }
            self.answer().await?;
        }
    }

    /// Takes what was read.
    async fn take(&mut self) -> Result<(), SessionEnd> {
        while let Some(RelpRequest { transaction, command, data }) =
            self.frames.next(&mut self.input.buf).map_err(SessionEnd::NotRelp)?
        {
            match command {
                Command::Open => {
                    self.store().await?;
                    self.is_open = true;
                    self.write(&answer(transaction, OFFERS)).await?;
                }
                Command::Syslog if self.is_open => {
                    self.unsent.push_back(transaction);
                    let RawMessage { bytes, cut_from } = data;
                    let frame = RawMessage { bytes: super::framing::without_end(bytes), cut_from };
                    if !self.intake.push(&frame) {
                        self.unsent.pop_back();
                        self.store().await?;
                        self.reach_level().await?;
                        self.write(&answer(transaction, "500 the message fits no record")).await?;
                    }
                    if self.intake.batch.bytes() >= RECORDS_BYTES {
                        self.store().await?;
                    }
                }
                Command::Syslog => return Err(SessionEnd::NotRelp("a message before the session was opened")),
                Command::Close => {
                    self.store().await?;
                    self.reach_level().await?;
                    self.write(&answer(transaction, "")).await?;
                    self.write(b"0 serverclose 0\n").await?;
                    let _ = self.input.socket.shutdown().await;
                    return Err(SessionEnd::Closed);
                }
                Command::Other => self.write(&answer(transaction, "500 clad takes syslog alone")).await?,
            }
        }
        self.store().await
    }

    /// Hands over the messages so far.
    async fn store(&mut self) -> Result<(), SessionEnd> {
        for payload in self.intake.batch.take() {
            let store = timeout(HOLD_TIMEOUT, self.intake.store(&payload));
            let stored = tokio::select! {
                biased;
                stored = store => stored,
                () = self.input.stopped() => return Err(SessionEnd::Leave),
            };
            match stored {
                Ok(Ok(())) => {}
                Ok(Err(error)) if error.code == ErrorCode::ShuttingDown => return Err(SessionEnd::Leave),
                // Its component: no later try makes it good, and others must not wait for it.
                Ok(Err(error)) if error.code == ErrorCode::PermissionDenied => {
                    metrics::rejected(metrics::Rejected::Denied, payload.count.into());
                    self.reach_level().await?;
                    let count = self.unsent.len().min(payload.count as usize);
                    let refused: Vec<u32> = self.unsent.drain(..count).collect();
                    for transaction in refused {
                        self.write(&answer(transaction, "500 this peer may not append records of this component"))
                            .await?;
                    }
                    continue;
                }
                Ok(Err(error)) => return Err(SessionEnd::Refused(error)),
                Err(_) => {
                    let text = "it was refused for now all the time, or waited for room";
                    return Err(SessionEnd::Held(ErrorInfo::new(ErrorCode::Busy, text)));
                }
            }
            let count = self.unsent.len().min(payload.count as usize);
            self.given.push_back(self.unsent.drain(..count).collect());
            self.answer().await?;
        }
        Ok(())
    }

    /// Answers what has its level.
    async fn answer(&mut self) -> Result<(), SessionEnd> {
        // A failure of the journal: nobody knows what of the rest is stored, so the client sends it again.
        self.intake.appends.release().map_err(SessionEnd::Refused)?;
        let reached = self.given.len().saturating_sub(self.intake.appends.unanswered());
        let mut answers = Vec::new();
        for transaction in self.given.drain(..reached).flatten() {
            answers.extend_from_slice(&answer(transaction, "200 OK"));
        }
        if !answers.is_empty() {
            self.write(&answers).await?;
        }
        Ok(())
    }

    async fn reach_level(&mut self) -> Result<(), SessionEnd> {
        loop {
            // First: an admission notes levels too, and nothing would come after the last of them.
            self.answer().await?;
            if self.given.is_empty() {
                return Ok(());
            }
            let progress = tokio::select! {
                progress = self.intake.appends.progress() => progress,
                () = self.input.stopped() => return Err(SessionEnd::Leave),
            };
            progress.map_err(SessionEnd::Refused)?;
        }
    }

    /// Ends the session from this side, once what was given has its level.
    async fn close(&mut self) {
        let answered = async {
            loop {
                self.answer().await?;
                if self.given.is_empty() {
                    return Ok::<(), SessionEnd>(());
                }
                self.intake.appends.progress().await.map_err(SessionEnd::Refused)?;
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, answered).await;
        let closed = async {
            self.write(b"0 serverclose 0\n").await?;
            self.input.socket.shutdown().await.map_err(SessionEnd::Io)
        };
        let _ = timeout(CLOSE_TIMEOUT, closed).await;
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SessionEnd> {
        match timeout(self.write_timeout, self.input.socket.write_all(bytes)).await {
            Ok(written) => Ok(written?),
            Err(_) => {
                Err(SessionEnd::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the client takes no answers")))
            }
        }
    }
}

/// A frame that answers a transaction.
fn answer(transaction: u32, data: &str) -> Vec<u8> {
    match data.is_empty() {
        true => format!("{transaction} rsp 0\n").into_bytes(),
        false => format!("{transaction} rsp {} {data}\n", data.len()).into_bytes(),
    }
}

/// Data of the frames of a session that is read in pieces, and whether it was one to its end.
pub(super) fn split(stream: &[u8], piece: usize, max_message: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut frames, mut buf, mut data) = (RelpFrames::new(max_message), BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece) {
        buf.extend_from_slice(piece);
        loop {
            match frames.next(&mut buf) {
                Ok(Some(request)) => data.push(request.data.bytes.to_vec()),
                Ok(None) => break,
                Err(_) => return (data, false),
            }
        }
    }
    (data, true)
}
