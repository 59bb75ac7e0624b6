//! The connection as a whole: its three parts, what it waits for, its beginning and its end.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use clad_journal::Watcher;
use clad_proto::frame::Frame;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::alarm::Alarm;
use super::appends::{Appends, Flow};
use super::input::Input;
use super::output::{Output, took_some};
use super::service::{CLOSE_TIMEOUT, READ_END_POLL_INTERVAL, Service, end_of};
use crate::ingest::admission::count_refusal;
use crate::ingest::connection_slots::leaves;
use crate::ingest::peer::Peer;
use crate::ingest::reactor::{GiveFds, TakeFds};
use crate::ingest::slots::{PendingAnswer, SlotState};

/// A connection: bytes in, appends, bytes out.
pub(super) struct Connection {
    pub(super) service: Service,
    slot_state: Arc<SlotState>,
    /// Notes for others whether it has a pending answer: then it makes no room.
    pending_answer: PendingAnswer,
    pub(super) input: Input,
    pub(super) appends: Appends,
    pub(super) output: Output,
}

/// Serves one connection to its end.
pub(crate) async fn serve<R, W>(service: Service, peer: Peer, slot_state: Arc<SlotState>, mut rd: R, mut wr: W)
where
    R: AsyncRead + TakeFds + Unpin + Send,
    W: AsyncWrite + GiveFds + Unpin + Send,
{
    let watermarks = service.admission.journal.watcher();
    let mut connection = Connection::new(service, peer, slot_state);
    if let Err(e) = connection.run(&mut rd, &mut wr, watermarks).await
        && !matches!(
            e.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
        )
    {
        tracing::debug!(peer = connection.appends.peer.name, error = %e, "connection ended");
    }
}

impl Connection {
    fn new(service: Service, peer: Peer, slot_state: Arc<SlotState>) -> Self {
        let owner = peer.quota_owner();
        Self {
            pending_answer: slot_state.pending_answer(),
            slot_state,
            input: Input::new(&service, owner),
            appends: Appends::new(&service, Arc::new(peer)),
            output: Output::new(service.buffers.handle(owner), service.peer_timeouts),
            service,
        }
    }

    async fn run<R, W>(&mut self, rd: &mut R, wr: &mut W, mut watermarks: Watcher) -> io::Result<()>
    where
        R: AsyncRead + TakeFds + Unpin + Send,
        W: AsyncWrite + GiveFds + Unpin + Send,
    {
        if !self.handshake(rd, wr).await? {
            return self.last_words(wr).await;
        }
        let mut stop = self.service.stop.clone();
        let mut alarm = Alarm::new();
        loop {
            let (stopping, leaving) = (*stop.borrow(), self.slot_state.is_leaving());
            let flow = if stopping || leaving { Flow::NeedPermit } else { self.process() };
            self.appends.release(&watermarks.now(), &mut self.output);
            if stopping || leaving || !self.output.has_room_behind(0) {
                self.appends.room.leave_the_queue();
            }
            let unanswered = self.appends.session.unanswered();
            self.pending_answer.set(unanswered > 0 || flow == Flow::NeedPermit && !leaving);
            if flow == Flow::Close {
                return self.last_words(wr).await;
            }
            if self.appends.ring.is_asked() {
                let timeout = self.service.peer_timeouts.ring_handover;
                if self.appends.ring.answer(wr, &mut self.output, timeout).await? {
                    self.slot_state.in_use();
                }
                continue; // a frame behind it may have waited for the answer
            }
            if stopping && unanswered == 0 {
                self.output.error(0, going_down());
                return self.last_words(wr).await;
            }
            if leaving && unanswered == 0 {
                self.fatal(leaves(&self.slot_state));
                return self.last_words(wr).await;
            }
            let may_read = flow == Flow::NeedBytes && !self.input.waits_for_share() && !self.output.is_full();
            if may_read {
                self.output.rest();
                self.input.make_room();
            }
            self.output.reads.forget_ended();
            self.output.note_what_waits();
            let deadline = self.deadline(flow);
            tokio::select! {
                biased;
                written = wr.write_buf(&mut self.output.bytes), if self.output.must_send() => self.output.sent(written)?,
                reached = watermarks.reached(self.appends.session.wants()), if self.appends.session.waits() => {
                    if reached.is_err() {
                        return Ok(());
                    }
                }
                more = self.input.more(rd), if may_read || self.input.waits_for_share() => match more? {
                    Some(0) if self.slot_state.is_leaving() => {} // it seems so only
                    Some(0) => return self.hang_up(wr, watermarks).await,
                    Some(_) => {
                        self.appends.ring.came(rd.take_fds());
                        self.slot_state.active(self.input.last_activity);
                    }
                    None => {}
                },
                drained = end_of(&mut self.appends.ring.draining), if self.appends.ring.draining.is_some() => {
                    self.appends.ring.drained = Some(drained);
                }
                admitted = end_of(&mut self.appends.room.admitting), if self.appends.room.admitting.is_some() => {
                    self.appends.room.admitted = Some(admitted);
                }
                Some(block) = self.output.reads.next_block(), if !self.output.is_full() && !self.output.reads.is_empty() => {
                    self.output.block(&block);
                    self.slot_state.active(Instant::now());
                }
                () = alarm.until(deadline) => {
                    if let Err(error) = self.timed_out(flow) {
                        self.fatal(error);
                        return self.last_words(wr).await;
                    }
                }
                _ = stop.changed() => {}
                () = self.slot_state.leaves(), if !leaving => {}
            }
        }
    }

    /// HELLO and WELCOME; `false` when the peer was sent the reason of a refusal.
    async fn handshake<R, W>(&mut self, rd: &mut R, wr: &mut W) -> io::Result<bool>
    where
        R: AsyncRead + TakeFds + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        let timeout = self.service.handshake_timeout;
        let mut stop = self.service.stop.clone();
        let hello = tokio::select! {
            biased;
            got = tokio::time::timeout(timeout, self.input.hello(rd)) => got.unwrap_or_else(|_| {
                Err(ErrorInfo::new(ErrorCode::HandshakeTimeout, format!("no HELLO within {timeout:?}")))
            }),
            // It has handed over nothing: no stop waits for it.
            _ = stop.wait_for(|stop| *stop) => {
                self.output.error(0, going_down());
                return Ok(false);
            }
        };
        let answer = match hello {
            Ok(Frame::Hello(hello)) => {
                let met = self.appends.meet(&hello).await;
                self.slot_state.serves(&self.appends.peer, &self.service.admission.access);
                met
            }
            Ok(_) => Err(ErrorInfo::new(ErrorCode::MalformedFrame, "the first frame must be HELLO")),
            Err(e) => Err(e),
        };
        match answer {
            Ok(welcome) => {
                self.output.reads.version = welcome.version;
                welcome.encode(&mut self.output.bytes);
                self.say(wr).await
            }
            Err(error) => {
                count_refusal(AckLevel::Received, error.code, 1);
                self.output.error(0, error);
                Ok(false)
            }
        }
    }

    fn deadline(&self, flow: Flow) -> Option<Instant> {
        let leaving = self.slot_state.is_leaving();
        let idle = self.idles(flow).then(|| self.input.last_activity + self.service.idle_timeout);
        // Where an append waits, that is looked at again; when the connection ends, nothing is.
        let waits = flow == Flow::NeedPermit && !*self.service.stop.borrow() && !leaving;
        let share = self.appends.room.deadline().filter(|_| waits);
        [self.input.deadline(), idle, share, self.output.deadline(leaving)].into_iter().flatten().min()
    }

    /// Returns true if silence has a bound now: nothing is under way in either direction.
    fn idles(&self, flow: Flow) -> bool {
        let bounded = !self.service.idle_timeout.is_zero() && flow == Flow::NeedBytes;
        bounded && !self.appends.session.waits() && self.output.reads.is_empty() && !self.appends.ring.has_ring()
    }

    /// Looks at what a deadline was for; an error ends the connection.
    fn timed_out(&mut self, flow: Flow) -> Result<(), ErrorInfo> {
        let (input, output) = (self.input.timed_out(), self.output.timed_out(self.slot_state.is_leaving()));
        let idles = self.idles(flow) && self.input.last_activity.elapsed() >= self.service.idle_timeout;
        let silence = if idles { Err("nothing came for too long".to_owned()) } else { Ok(()) };
        input.and(output).and(silence).map_err(|text| ErrorInfo::new(ErrorCode::IdleTimeout, text))
    }

    /// The peer closed its side. Its requests are still answered, as long as answers can be sent.
    async fn hang_up<W: AsyncWrite + Unpin>(&mut self, wr: &mut W, mut watermarks: Watcher) -> io::Result<()> {
        while self.appends.session.unanswered() > 0 {
            self.appends.release(&watermarks.now(), &mut self.output);
            if !self.say(wr).await? {
                return self.last_words(wr).await;
            }
            let session = &self.appends.session;
            if session.unanswered() > 0 && watermarks.reached(session.wants()).await.is_err() {
                break;
            }
        }
        self.pending_answer.set(false);
        // A peer that follows and closes is gone: nothing else would ever show it, on an idle log. A peer that only
        // half-closed its side still gets the rest of what it asked for.
        self.output.reads.end_following();
        loop {
            self.output.reads.forget_ended();
            if !self.say(wr).await?
                || self.output.reads.is_empty()
                || *self.service.stop.borrow()
                || self.slot_state.is_leaving()
            {
                break;
            }
            // The task may end between its last block and this look: this side holds a sender too, so that the channel
            // never says so by itself.
            let block = tokio::time::timeout(READ_END_POLL_INTERVAL, self.output.reads.next_block());
            if let Ok(Some(block)) = block.await {
                self.output.block(&block);
            }
        }
        self.last_words(wr).await
    }

    /// Sends all output; `false` where the daemon goes down before the peer has taken it, the peer takes nothing, or it
    /// is to make room.
    async fn say<W: AsyncWrite + Unpin>(&mut self, wr: &mut W) -> io::Result<bool> {
        let mut stop = self.service.stop.clone();
        while !self.output.bytes.is_empty() {
            let write_timeout = self.output.write_timeout(self.slot_state.is_leaving());
            tokio::select! {
                biased;
                written = wr.write_buf(&mut self.output.bytes) => took_some(written)?,
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

    async fn last_words<W: AsyncWrite + Unpin>(&mut self, wr: &mut W) -> io::Result<()> {
        // Its session ends before the peer can see the end, and so does its hold of a ring: a HELLO that comes next
        // waits for the end of that ring, and does not resume it.
        self.appends.producer = None;
        self.appends.ring.release();
        let say = async {
            wr.write_all_buf(&mut self.output.bytes).await?;
            wr.shutdown().await
        };
        tokio::time::timeout(CLOSE_TIMEOUT, say).await.unwrap_or(Ok(()))
    }
}

/// Error for a connection that a stop ends.
fn going_down() -> ErrorInfo {
    ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000)
}
