//! Appends of one sender that has no producer: they are stored under one of the daemon's own.
//!
//! Invariants: not more than a connection's share of bytes waits for the disk. An append whose level is reached is
//! counted as acked. A failure of the journal ends the wait with an error: nobody knows what of it was stored.

use std::sync::Arc;
use std::time::Instant;

use clad_journal::{ResendKey, Watcher};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, Payload};

use super::admission::{ADMISSION_TIMEOUT, Admission, Admitted, count_refusal};
use super::own_producers::{OwnProducer, OwnProducers};
use super::peer::Peer;
use super::quota::QuotaHandle;
use super::session::{Answer, Session};

/// The appends of one sender, until they have their level.
pub(crate) struct OwnAppends {
    admission: Arc<Admission>,
    producer: Arc<OwnProducer>,
    peer: Peer,
    level: AckLevel,
    inflight_quota: QuotaHandle,
    session: Session,
    watermarks: Watcher,
}

impl OwnAppends {
    /// # Errors
    /// The journal is closing.
    pub(crate) fn begin(
        admission: Arc<Admission>,
        producers: &OwnProducers,
        peer: Peer,
        level: AckLevel,
    ) -> Result<Self, ErrorInfo> {
        Ok(Self {
            producer: producers.of(&peer)?,
            inflight_quota: admission.budget.handle(peer.quota_owner()),
            session: Session::begin(&admission.journal.watermarks()),
            watermarks: admission.journal.watcher(),
            admission,
            peer,
            level,
        })
    }

    /// Largest append and largest record.
    pub(crate) fn limits(&self) -> (u32, u32) {
        (self.admission.max_append, self.admission.max_record)
    }

    /// Counts an append's bytes, where there is room now.
    pub(crate) fn try_admit(&self, bytes: usize) -> Option<Admitted> {
        let admitted = Admission::try_admit(&self.inflight_quota, bytes, self.admission.arrival())?;
        (!self.is_short_of(bytes)).then_some(admitted)
    }

    /// Waits for room, in the connection's share and then in the owner's, with a timeout. Cancel safe: nothing is
    /// counted then.
    ///
    /// # Errors
    /// `busy` at the timeout; a failure of the journal.
    pub(crate) async fn admit(&mut self, bytes: usize) -> Result<Admitted, ErrorInfo> {
        self.share_has_room(bytes).await?;
        self.admission.admit(&self.inflight_quota, bytes).await
    }

    /// Hands an append over.
    ///
    /// # Errors
    /// Its refusal; nothing of it is stored, and the same append may be handed over again.
    pub(crate) fn take(
        &mut self,
        payload: &Payload,
        key: Option<ResendKey>,
        admitted: Admitted,
    ) -> Result<(), ErrorInfo> {
        let since = admitted.at.since;
        let (first_seq, accepted) =
            self.producer.append(&self.admission, &self.peer, self.level, (payload, key), admitted)?;
        self.session.given(first_seq, &accepted, self.level, payload.bytes.len(), since);
        Ok(())
    }

    fn is_short_of(&self, bytes: usize) -> bool {
        let unwritten = self.session.unwritten_bytes();
        unwritten > 0 && unwritten + bytes > self.admission.max_connection_bytes
    }

    /// Waits until the connection's share has room for so many bytes, with a timeout.
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

    /// Waits until all appends have their level. Cancel safe.
    ///
    /// # Errors
    /// A failure of the journal; the end of the daemon.
    pub(crate) async fn reach_level(&mut self) -> Result<(), ErrorInfo> {
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
    pub(crate) fn release(&mut self) -> Result<(), ErrorInfo> {
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

    /// Appends whose level is not reached.
    pub(crate) fn unanswered(&self) -> usize {
        self.session.unanswered()
    }

    /// Waits for the watermarks. Cancel safe.
    ///
    /// # Errors
    /// The end of the daemon.
    pub(crate) async fn progress(&mut self) -> Result<(), ErrorInfo> {
        let wants = self.session.wants();
        let closed = || ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000);
        self.watermarks.reached(wants).await.map_err(|_| closed())
    }
}
