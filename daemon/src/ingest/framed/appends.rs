//! The appends of a connection: who makes them, whether they may be taken, and which answers are due.
//!
//! Invariants: appends are answered in their order. They are bounded by the window and by their connection's share of
//! bytes. Nothing is read or sent here: frames come in, and answers are added to the output.

use std::sync::Arc;
use std::time::Instant;

use clad_journal::{Accepted, AppendError, DeferredWrite, Watermarks};
use clad_proto::frame::{self, AppendHead, AppendView, Flush, ForwardView, Hello, Refused, RingWanted, Welcome};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, KnownGroup, payload_checksum};

use super::append_room::AppendRoom;
use super::burst::{Burst, add};
use super::output::Output;
use super::ring::RingControl;
use super::service::Service;
use crate::ingest::AppendQuota;
use crate::ingest::admission::{Admission, Admitted, Arrival, Producer, bad_checksum, count_refusal, refusal};
use crate::ingest::forwards::{Forwarder, append_in};
use crate::ingest::peer::{Peer, Shown};
use crate::ingest::rings::Asker;
use crate::ingest::session::{Answer, Session};
use crate::ops::metrics;

/// Next step of a connection whose frames were handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    /// Every whole frame was handled.
    NeedBytes,
    /// The frame at the front waits for a permit, or for the ring of its connection.
    NeedPermit,
    /// The peer must read first.
    OutputFull,
    /// The peer said BYE, or was sent the reason why the connection ends.
    Close,
}

/// The appends of a connection.
pub(super) struct Appends {
    admission: Arc<Admission>,
    pub(super) peer: Arc<Peer>,
    pub(super) producer: Option<Producer>,
    /// The stream of another log that it forwards; then it has no producer.
    forwarder: Option<Forwarder>,
    pub(super) session: Session,
    pub(super) room: AppendRoom,
    pub(super) ring: RingControl,
    /// Time at which the bytes that are being handled came.
    pub(super) arrival: Arrival,
    /// The part that most of a stream repeats, checked once.
    known_group: KnownGroup,
    /// Empty between two bursts.
    verdicts: Vec<Result<Accepted, AppendError>>,
    /// Empty between two releases.
    answers: Vec<Answer>,
}

impl Appends {
    pub(super) fn new(service: &Service, peer: Arc<Peer>) -> Self {
        let admission = service.admission.clone();
        Self {
            producer: None,
            forwarder: None,
            session: Session::begin(&admission.journal.watermarks()),
            room: AppendRoom::new(AppendQuota::of(&peer, &admission.budget)),
            ring: RingControl::new(service.rings.clone()),
            arrival: admission.arrival(),
            known_group: KnownGroup::default(),
            verdicts: Vec::new(),
            answers: Vec::new(),
            admission,
            peer,
        }
    }

    /// Answers a HELLO, which may have shown a token.
    pub(super) async fn meet(&mut self, hello: &Hello) -> Result<Welcome, ErrorInfo> {
        let peer = Peer::clone(&self.peer).judged(&self.admission.access, Shown::Secret(&hello.secret))?;
        self.peer = Arc::new(peer);
        self.room = AppendRoom::new(AppendQuota::of(&self.peer, &self.admission.budget));
        self.ring.meet(hello, &self.peer).await?;
        let forwarder = match &hello.forward {
            Some(origin) => Some(Forwarder::of(&self.admission.journal, hello, origin, &self.peer)?),
            None => None,
        };
        // Before the watermarks of WELCOME are taken: they cover what it says.
        let forwarding = match &forwarder {
            Some(forwarder) => Some(forwarder.state(&self.admission.journal).await?),
            None => None,
        };
        let (mut welcome, producer) = self.admission.meet(hello, &self.peer).await?;
        welcome.forwarding = forwarding.unwrap_or_default();
        (self.producer, self.forwarder) = (producer, forwarder);
        Ok(welcome)
    }

    /// Lets an append join, if nothing is against it. `false`: it must be checked alone, after everything before it was
    /// handed over.
    pub(super) fn join<'a>(&mut self, burst: &mut Burst<'a>, body: &'a [u8], at: usize) -> bool {
        let Ok(view) = AppendView::parse(body) else { return false };
        let admission = &self.admission;
        let window = self.session.unanswered() + burst.items.len() >= admission.window as usize;
        let unwritten = self.session.unwritten_bytes() + burst.bytes;
        let share = unwritten > 0 && unwritten + view.payload.len() > admission.max_connection_bytes;
        let alone = self.ring.takes_appends() || self.room.is_asked();
        if burst.is_full_for(view.payload.len()) || window || share || self.producer.is_none() || alone {
            return false;
        }
        self.room.share_since = None;
        let sum = payload_checksum(view.payload);
        let item = admission.item(&view, sum, self.arrival, &mut self.known_group, self.peer.rights());
        match item {
            Ok(item) if Admission::fits_component(self.peer.rights(), view.payload) => {
                burst.push(at, view.head, item);
            }
            _ => return false,
        }
        true
    }

    /// Hands over the appends that joined. Where the budget has no room for an append, the error is where its frame
    /// begins: those before it are taken.
    pub(super) fn hand_over(&mut self, burst: &mut Burst<'_>, output: &mut Output) -> Result<(), usize> {
        if burst.is_empty() {
            return Ok(());
        }
        let Some(permit) = self.room.quota.try_take(burst.cost) else { return self.one_by_one(burst, output) };
        let producer = self.producer.as_ref().expect("who has none does not join");
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let deferred_write =
            self.admission.take_burst(&self.peer, producer, &burst.items, permit, self.arrival, &mut verdicts);
        add(&mut burst.deferred, deferred_write);
        output.bytes.reserve(burst.answers_len());
        let (mut received, mut records) = (0, 0);
        for ((_, head), (item, verdict)) in burst.heads.iter().zip(burst.items.iter().zip(verdicts.drain(..))) {
            if head.level == AckLevel::Received && verdict.is_ok() {
                received += 1;
                records += u64::from(head.count);
            }
            match verdict {
                Ok(accepted) => self.taken(head, &accepted, item.payload.len(), self.arrival.since, output),
                Err(e) => {
                    let error = self.producer.as_ref().map_or_else(|| refusal(&e), |producer| producer.refusal(&e));
                    refused(head, error, output);
                }
            }
        }
        if received > 0 {
            metrics::acked(metrics::Level::Received, received, records, self.arrival.since.elapsed());
        }
        self.verdicts = verdicts;
        burst.clear();
        Ok(())
    }

    fn one_by_one(&mut self, burst: &mut Burst<'_>, output: &mut Output) -> Result<(), usize> {
        for ((at, head), item) in burst.heads.iter().zip(&burst.items) {
            let view = AppendView { head: *head, payload: item.payload };
            if self.append_alone(&view, None, output, &mut burst.deferred) == Flow::NeedPermit {
                return Err(*at);
            }
        }
        burst.clear();
        Ok(())
    }

    /// Takes or refuses an append that did not join a burst. An error ends the connection.
    pub(super) fn append(
        &mut self,
        body: &[u8],
        output: &mut Output,
        deferred: &mut Option<DeferredWrite>,
    ) -> Result<Flow, ErrorInfo> {
        let view = AppendView::parse(body).map_err(|e| e.info())?;
        self.appending()?;
        if let Some(error) = self.ring.refusal()? {
            refused(&view.head, error, output);
            return Ok(Flow::NeedBytes);
        }
        Ok(self.append_alone(&view, None, output, deferred))
    }

    /// Takes or refuses an append of another log. An error ends the connection.
    pub(super) fn forward(
        &mut self,
        body: &[u8],
        output: &mut Output,
        deferred: &mut Option<DeferredWrite>,
    ) -> Result<Flow, ErrorInfo> {
        let view = ForwardView::parse(body).map_err(|e| e.info())?;
        if self.forwarder.is_none() {
            let text = "HELLO did not say that this connection forwards";
            return Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        }
        Ok(self.append_alone(&append_in(&view), Some(&view), output, deferred))
    }

    fn appending(&self) -> Result<&Producer, ErrorInfo> {
        let text = "HELLO did not say that this connection appends";
        self.producer.as_ref().ok_or_else(|| ErrorInfo::new(ErrorCode::MalformedFrame, text))
    }

    /// Takes or refuses one append, for which there was no room in a burst or which did not join one. `forward`: it is of
    /// another log.
    fn append_alone(
        &mut self,
        view: &AppendView<'_>,
        forward: Option<&ForwardView<'_>>,
        output: &mut Output,
        deferred: &mut Option<DeferredWrite>,
    ) -> Flow {
        let (unwritten, payload) = (self.session.unwritten_bytes(), view.payload.len());
        let Some(admitted) = self.room.ask(&self.admission, unwritten, payload, self.arrival) else {
            return Flow::NeedPermit;
        };
        let since = admitted.as_ref().map_or_else(|_| Instant::now(), |admitted| admitted.at.since);
        match admitted.and_then(|admitted| self.take(view, forward, admitted)) {
            Ok((accepted, deferred_write)) => {
                add(deferred, deferred_write);
                self.taken(&view.head, &accepted, payload, since, output);
            }
            Err(error) => refused(&view.head, error, output),
        }
        Flow::NeedBytes
    }

    fn take(
        &self,
        view: &AppendView<'_>,
        forward: Option<&ForwardView<'_>>,
        admitted: Admitted,
    ) -> Result<(Accepted, Option<DeferredWrite>), ErrorInfo> {
        let admission = &self.admission;
        if !view.checksum_holds() {
            return Err(bad_checksum());
        }
        if self.session.unanswered() >= admission.window as usize {
            let text = format!("more than {} appends are unanswered", admission.window);
            return Err(ErrorInfo::new(ErrorCode::WindowExceeded, text).limited_to(admission.window.into()));
        }
        match (forward, &self.forwarder) {
            (Some(forward), Some(forwarder)) => admission.take_forwarded(&self.peer, forwarder, forward, admitted),
            _ => admission.take(&self.peer, self.appending()?, view, admitted),
        }
    }

    /// Answers an append that was taken, and notes what is still due.
    fn taken(&mut self, head: &AppendHead, accepted: &Accepted, bytes: usize, since: Instant, output: &mut Output) {
        if head.level != AckLevel::None {
            let before = output.bytes.len();
            frame::Accepted {
                first_seq: head.first_seq,
                first_offset: accepted.first_offset,
                count: accepted.count,
                epoch: accepted.epoch,
                duplicate: accepted.duplicate,
            }
            .encode(&mut output.bytes);
            if head.level != AckLevel::Received {
                output.coalesce_ack(before, since);
            }
        }
        self.session.given(head.first_seq, accepted, head.level, bytes, since);
    }

    /// Answers a FLUSH that its ring does not hold up, or notes that its answer is due.
    pub(super) fn flush(&mut self, flush: Flush, output: &mut Output) {
        // No watermark covers appends that wait in its ring.
        let answer = self.ring.flushed().and_then(|()| self.session.ask_flush(&self.admission, &self.peer, flush));
        match answer {
            Ok(None) => {}
            Ok(Some(mark)) => mark.encode(&mut output.bytes),
            Err(error) => output.error(flush.request_id, error),
        }
    }

    /// Answers everything that these watermarks cover.
    pub(super) fn release(&mut self, watermarks: &Watermarks, output: &mut Output) {
        let mut answers = std::mem::take(&mut self.answers);
        self.session.release(watermarks, &mut answers);
        for answer in answers.drain(..) {
            match answer {
                Answer::Watermark(w) => w.encode(&mut output.bytes),
                Answer::Refused(r) => {
                    count_refusal(AckLevel::Received, r.error.code, r.count);
                    r.encode(&mut output.bytes);
                }
                Answer::FlushFailed(request_id, error) => output.error(request_id, error),
            }
        }
        self.answers = answers;
    }

    /// Asks for a ring. An error ends the connection.
    pub(super) fn ask_for_ring(&mut self, wanted: RingWanted) -> Result<(), ErrorInfo> {
        let handed_back = self.ring.handed_back(&wanted)?;
        let producer = self.appending()?;
        let asker = Asker {
            peer: Peer::clone(&self.peer),
            producer: producer.id,
            producer_epoch: producer.epoch,
            owner: producer.owner,
            handed_back,
        };
        self.ring.ask(wanted, asker, self.session.waits())
    }

    /// The client says that it is done.
    pub(super) fn bye(&mut self) {
        self.ring.forget();
        if self.session.unanswered() == 0
            && let Some(producer) = &mut self.producer
        {
            producer.forget();
        }
    }
}

/// Answers an append that was refused.
fn refused(head: &AppendHead, error: ErrorInfo, output: &mut Output) {
    count_refusal(head.level, error.code, head.count);
    if head.level != AckLevel::None {
        Refused { first_seq: head.first_seq, count: head.count, error }.encode(&mut output.bytes);
    }
}
