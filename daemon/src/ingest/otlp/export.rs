//! A message into the log, and the wait for its level.
//!
//! Invariants:
//! - The message is checked before anything of it is stored.
//! - A payload is encoded, and handed over at once; where there is no room it is dropped, and made again when there is.
//! - Not more than a connection's share of bytes waits for the disk; a longer request goes in as these are written.
//! - At level `none` the answer is a success at once, and what is not stored is counted as dropped.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use clad_journal::{Accepted, ResendKey, Watcher};
use clad_proto::frame::{AppendHead, AppendView, Transport};
use clad_proto::otlp::{ExportLimits, ExportParts, ExportRequest};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, Payload};

use super::answer::{Done, Refusal};
use super::producers::OwnProducer;
use super::resends::Resends;
use super::shared::Otlp;
use crate::ingest::http::{Call, Caller};
use crate::ingest::quota::{Owner, QuotaHandle};
use crate::ingest::slots::PendingAnswer;
use crate::ingest::{ADMISSION_TIMEOUT, Admission, Admitted, Answer, Peer, Session, count_refusal};
use crate::ops::metrics::OtlpCode;

/// A request whose body is there.
pub(super) struct Export {
    admission: Arc<Admission>,
    producer: Arc<OwnProducer>,
    peer: Peer,
    level: AckLevel,
    inflight_quota: QuotaHandle,
    /// Names of the appends; absent where the journal does not know what is sent again.
    resends: Option<Resends>,
    session: Session,
    watermarks: Watcher,
    /// Notes for others, which may want the connection's slot, that an answer is pending.
    _pending_answer: Option<PendingAnswer>,
    _call: Call,
}

impl Export {
    pub(super) fn begin(
        otlp: &Otlp,
        caller: Option<&Caller>,
        transport: Transport,
        level: AckLevel,
    ) -> Result<Self, Refusal> {
        let service = otlp.live_settings.service();
        if *service.stop.borrow() {
            return Err(Refusal::new(OtlpCode::Unavailable, "clad is stopping"));
        }
        let admission = service.admission;
        admission.check_level(level)?;
        let peer = caller.map_or_else(
            || Peer::network(transport, None, Owner::Network, false),
            |caller| caller.peer(transport, false),
        );
        let mut pending_answer = caller.map(Caller::pending_answer);
        if let Some(pending_answer) = &mut pending_answer {
            pending_answer.set(true);
        }
        Ok(Self {
            producer: otlp.producers.of(&peer)?,
            resends: caller.filter(|_| otlp.has_resend_window).map(|caller| Resends::of(caller.identity_hash())),
            inflight_quota: admission.budget.handle(peer.quota_owner()),
            session: Session::begin(&admission.journal.watermarks()),
            watermarks: admission.journal.watcher(),
            admission,
            peer,
            level,
            _pending_answer: pending_answer,
            _call: otlp.calls.begin(),
        })
    }

    /// Stores the records of a message.
    pub(super) async fn run(mut self, message: &[u8]) -> Result<Done, Refusal> {
        let request = ExportRequest::new(message).map_err(|error| {
            count_refusal(self.level, ErrorCode::BadRecord, 1);
            Refusal::new(OtlpCode::Invalid, error.to_string())
        })?;
        let limits =
            ExportLimits { max_append_bytes: self.admission.max_append, max_record_bytes: self.admission.max_record };
        let (mut done, mut stored, mut left) = (Done::default(), false, request.count());
        let mut parts = request.parts(limits);
        loop {
            let mut before = parts.clone();
            let Some(part) = parts.next() else { break };
            if part.rejected > 0 {
                count_refusal(self.level, ErrorCode::BadRecord, part.rejected);
                done.rejected += u64::from(part.rejected);
                done.first = done.first.or(part.first_rejected);
            }
            let count = part.payload.as_ref().map_or(0, |payload| payload.count);
            if let Some(payload) = part.payload {
                match self.append(payload, &mut before).await {
                    Ok(()) => stored = true,
                    Err(error) => self.refused(error, u32::try_from(left).unwrap_or(u32::MAX))?,
                }
            }
            left = left.saturating_sub(u64::from(count) + u64::from(part.rejected));
        }
        self.reach_level().await?;
        match stored || done.rejected == 0 || self.level == AckLevel::None {
            true => Ok(done),
            false => Err(Refusal::new(OtlpCode::Invalid, done.first.unwrap_or_default())),
        }
    }

    /// A refusal of an append: the end of the request, but at level `none`.
    fn refused(&self, error: ErrorInfo, records: u32) -> Result<(), Refusal> {
        count_refusal(self.level, error.code, records);
        if self.level == AckLevel::None { Ok(()) } else { Err(error.into()) }
    }

    /// Hands an append over, when there is room. `again` gives its payload once more.
    async fn append(&mut self, payload: Payload, again: &mut ExportParts<'_>) -> Result<(), ErrorInfo> {
        let bytes = payload.bytes.len();
        let (payload, admitted) = match Admission::try_admit(&self.inflight_quota, bytes, self.admission.arrival()) {
            Some(admitted) if !self.is_short_of(bytes) => (payload, admitted),
            _ if self.level == AckLevel::None => {
                return Err(ErrorInfo::new(ErrorCode::Busy, "no room now, and nobody waits for the answer"));
            }
            admitted => {
                drop((payload, admitted));
                self.share_has_room(bytes).await?;
                let admitted = self.admission.admit(&self.inflight_quota, bytes).await?;
                let payload = again.next().and_then(|part| part.payload);
                (payload.expect("the same part once more"), admitted)
            }
        };
        let since = admitted.at.since;
        let key = self.resends.as_mut().and_then(|resends| resends.next(&payload));
        let (first_seq, accepted) = self.take(&payload, key, admitted)?;
        self.session.given(first_seq, &accepted, self.level, bytes, since);
        Ok(())
    }

    fn take(
        &self,
        payload: &Payload,
        key: Option<ResendKey>,
        admitted: Admitted,
    ) -> Result<(u64, Accepted), ErrorInfo> {
        let mut next = self.producer.next.lock().unwrap_or_else(PoisonError::into_inner);
        // The gap mark: sequences of appends that the journal lost are not given again.
        let (first_seq, count, payload_crc) = (*next, payload.count, payload.checksum());
        let head = AppendHead { first_seq, count, level: self.level, gap: true, payload_crc };
        let view = AppendView { head, payload: &payload.bytes };
        // No thread of the runtime may block: a write that is deferred is dropped, and the journal's threads make it.
        let (peer, producer) = (&self.peer, &self.producer.producer);
        let (accepted, _) = match key {
            Some(key) => self.admission.take_once(peer, producer, key, &view, admitted)?,
            None => self.admission.take(peer, producer, &view, admitted)?,
        };
        *next += u64::from(count);
        Ok((first_seq, accepted))
    }

    fn is_short_of(&self, bytes: usize) -> bool {
        let unwritten = self.session.unwritten_bytes();
        unwritten > 0 && unwritten + bytes > self.admission.max_connection_bytes
    }

    /// Waits until the request's share has room for so many bytes, with a timeout.
    async fn share_has_room(&mut self, bytes: usize) -> Result<(), ErrorInfo> {
        let until = Instant::now() + ADMISSION_TIMEOUT;
        loop {
            self.release()?;
            if !self.is_short_of(bytes) {
                return Ok(());
            }
            let progress = tokio::time::timeout_at(until.into(), self.progress()).await;
            progress.map_err(|_| self.admission.share_is_full())??;
        }
    }

    /// Waits until all appends have their level.
    async fn reach_level(&mut self) -> Result<(), ErrorInfo> {
        loop {
            self.release()?;
            if self.session.unanswered() == 0 {
                return Ok(());
            }
            self.progress().await?;
        }
    }

    /// Notes what the watermarks cover.
    ///
    /// # Errors
    /// A failure of the journal lies between.
    fn release(&mut self) -> Result<(), ErrorInfo> {
        let mut answers = Vec::new();
        self.session.release(&self.watermarks.now(), &mut answers);
        for answer in answers {
            if let Answer::Refused(refused) = answer {
                count_refusal(self.level, refused.error.code, refused.count);
                return Err(refused.error);
            }
        }
        Ok(())
    }

    /// Waits for the watermarks.
    async fn progress(&mut self) -> Result<(), ErrorInfo> {
        let wants = self.session.wants();
        let closed = || ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000);
        self.watermarks.reached(wants).await.map_err(|_| closed())
    }
}
