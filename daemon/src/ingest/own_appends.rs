//! Appends of one sender that has no producer: they are stored under one of the daemon's own.
//!
//! Invariants: not more than a connection's share of bytes waits for the disk. An append whose level is reached is
//! counted as acked. A failure of the journal ends it for good: nobody knows which of its appends are stored, so none of
//! them may pass for one that has its level, whatever is called next.

use std::sync::Arc;
use std::time::Instant;

use clad_journal::{DeferredWrite, ResendKey, Watcher, Watermarks};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, Payload};

use super::admission::{ADMISSION_TIMEOUT, Admission, Admitted, count_refusal};
use super::append_quota::AppendQuota;
use super::own_producers::{OwnProducer, OwnProducers};
use super::peer::Peer;
use super::session::{Answer, Session};
use crate::config::Right;

/// The appends of one sender, until they have their level.
pub(crate) struct OwnAppends {
    admission: Arc<Admission>,
    producer: Arc<OwnProducer>,
    peer: Peer,
    level: AckLevel,
    inflight_quota: AppendQuota,
    session: Session,
    watermarks: Watcher,
    /// A failure of the journal came before an append had its level.
    failure: Option<ErrorInfo>,
}

impl OwnAppends {
    /// # Errors
    /// The peer may not append; the journal is closing.
    pub(crate) fn begin(
        admission: Arc<Admission>,
        producers: &OwnProducers,
        peer: Peer,
        level: AckLevel,
    ) -> Result<Self, ErrorInfo> {
        peer.check(Right::Append)?;
        Ok(Self {
            producer: producers.of(&peer)?,
            inflight_quota: AppendQuota::of(&peer, &admission.budget),
            session: Session::begin(&admission.journal.watermarks()),
            watermarks: admission.journal.watcher(),
            admission,
            peer,
            level,
            failure: None,
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

    /// Hands an append over. Returns a write that is left to the caller; where it is dropped, the journal's threads make it.
    ///
    /// # Errors
    /// Its refusal; nothing of it is stored, and the same append may be handed over again.
    pub(crate) fn take(
        &mut self,
        payload: &Payload,
        key: Option<ResendKey>,
        admitted: Admitted,
    ) -> Result<Option<DeferredWrite>, ErrorInfo> {
        let since = admitted.at.since;
        let (first_seq, accepted, deferred) =
            self.producer.append(&self.admission, &self.peer, self.level, (payload, key), admitted)?;
        self.session.given(first_seq, &accepted, self.level, payload.bytes.len(), since);
        Ok(deferred)
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
    /// A failure of the journal lies between, now or earlier.
    pub(crate) fn release(&mut self) -> Result<(), ErrorInfo> {
        let watermarks = self.watermarks.now();
        self.release_at(&watermarks)
    }

    fn release_at(&mut self, watermarks: &Watermarks) -> Result<(), ErrorInfo> {
        let mut answers = Vec::new();
        self.session.release(watermarks, &mut answers);
        for answer in answers {
            if let Answer::Refused(refused) = answer {
                count_refusal(self.level, refused.error.code, refused.count);
                self.failure.get_or_insert(refused.error);
            }
        }
        self.failure.clone().map_or(Ok(()), Err)
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

#[cfg(test)]
mod tests {
    use clad_journal::{Journal, JournalConfig, Policy};
    use clad_proto::frame::Transport;
    use clad_proto::{DurabilityPolicy, Group, PayloadBuilder, Record};

    use super::*;
    use crate::access::Access;
    use crate::ingest::Shown;
    use crate::ingest::quota::{Owner, Quota};

    /// The recovery of the journal is over before anybody looks: what was lost must not pass for what has its level.
    #[tokio::test]
    async fn a_failure_of_the_journal_ends_it_whatever_is_called_next() {
        let dir = tempfile::tempdir().expect("a folder");
        let policy = Policy::FireAndForget { sync_interval: std::time::Duration::ZERO };
        let config = JournalConfig { policy, reserve_free: 0, segment_bytes: 16 << 20, ..JournalConfig::default() };
        let journal = Arc::new(Journal::open_dir(dir.path(), config, Arc::new(|_| {})).expect("a log"));
        let admission = Arc::new(Admission {
            journal: journal.clone(),
            policy: DurabilityPolicy::FireAndForget,
            highest: AckLevel::Durable,
            flush_reach: AckLevel::Durable,
            max_append: 1 << 20,
            max_record: 1 << 20,
            max_connection_bytes: 1 << 20,
            window: 256,
            budget: Quota::new(1 << 20),
            access: Access::open(),
        });
        let peer = Peer::network(Transport::Relp, None, Owner::Network, false);
        let peer = peer.judged(&admission.access, Shown::Nothing).expect("a peer");
        let producers = OwnProducers::new(journal.clone());
        let mut appends = OwnAppends::begin(admission, &producers, peer, AckLevel::Durable).expect("a producer");
        let mut builder = PayloadBuilder::new(&Group::default()).expect("a group");
        builder.push(&Record::text(1, 9, "lost")).expect("a record");
        let payload = builder.finish();
        let admitted = appends.admit(payload.bytes.len()).await.expect("room");
        drop(appends.take(&payload, None, admitted).expect("taken"));
        assert_eq!((appends.release(), appends.unanswered()), (Ok(()), 1), "nobody has synced it");

        let after = Watermarks { failures: 1, durable: 1, ..journal.watermarks() };
        let error = appends.release_at(&after).expect_err("it may be lost");
        assert!(error.maybe_written && error.code == ErrorCode::JournalFailed, "{error:?}");
        assert_eq!(appends.release().expect_err("as before"), error);
        assert_eq!(appends.admit(1).await.err(), Some(error.clone()), "no further append hides it");
        assert_eq!(appends.reach_level().await, Err(error));
    }
}
