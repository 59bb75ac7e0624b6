//! A message into the log, and the wait for its level.
//!
//! Invariants:
//! - The message is checked before anything of it is stored.
//! - A payload is encoded, and handed over at once; where there is no room it is dropped, and made again when there is.
//! - A request that is alone writes by itself. No other request waits for the disk with it, but those of its own connection.
//! - Not more than a connection's share of bytes waits for the disk; a longer request goes in as these are written.
//! - At level `none` the answer is a success at once, and what is not stored is counted as dropped.

use clad_journal::{DeferredWrite, ResendKey};
use clad_proto::otlp::{ExportLimits, ExportParts, ExportRequest};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, Payload};

use super::answer::{Done, Refusal};
use super::resends::Resends;
use super::shared::Otlp;
use crate::ingest::http::{Call, Caller};
use crate::ingest::own_appends::OwnAppends;
use crate::ingest::slots::PendingAnswer;
use crate::ingest::{Peer, count_refusal};
use crate::ops::metrics::OtlpCode;

/// A request whose body is there.
pub(super) struct Export {
    appends: OwnAppends,
    level: AckLevel,
    /// Names of the appends; absent where the journal does not know what is sent again.
    resends: Option<Resends>,
    /// The write of all appends so far, if it is left to this request.
    deferred: Option<DeferredWrite>,
    /// Notes for others, which may want the connection's slot, that an answer is pending.
    _pending_answer: Option<PendingAnswer>,
    call: Call,
}

impl Export {
    pub(super) fn begin(otlp: &Otlp, caller: Option<&Caller>, peer: Peer, level: AckLevel) -> Result<Self, Refusal> {
        let service = otlp.live_settings.service();
        if *service.stop.borrow() {
            return Err(Refusal::new(OtlpCode::Unavailable, "clad is stopping"));
        }
        service.admission.check_level(level, peer.rights())?;
        let resends = caller.filter(|_| otlp.has_resend_window).map(|_| Resends::of(peer.sender_hash()));
        let mut pending_answer = caller.map(Caller::pending_answer);
        if let Some(pending_answer) = &mut pending_answer {
            pending_answer.set(true);
        }
        Ok(Self {
            appends: OwnAppends::begin(service.admission, &otlp.producers, peer, level)?,
            resends,
            level,
            deferred: None,
            _pending_answer: pending_answer,
            call: otlp.calls.begin(),
        })
    }

    /// Stores the records of a message.
    pub(super) async fn run(mut self, otlp: &Otlp, message: &[u8]) -> Result<Done, Refusal> {
        let request = ExportRequest::new(message).map_err(|error| {
            count_refusal(self.level, ErrorCode::BadRecord, 1);
            Refusal::new(OtlpCode::Invalid, error.to_string())
        })?;
        let (max_append_bytes, max_record_bytes) = self.appends.limits();
        let limits = ExportLimits { max_append_bytes, max_record_bytes };
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
                match self.append(payload, part.has_coarse_time, &mut before).await {
                    Ok(()) => stored = true,
                    // Its component: no retry makes it good, and the others are as they were.
                    Err(error) if error.code == ErrorCode::PermissionDenied => {
                        count_refusal(self.level, error.code, count);
                        done.rejected += u64::from(count);
                        done.first = done.first.or(Some(error.text));
                    }
                    Err(error) => self.refused(error, u32::try_from(left).unwrap_or(u32::MAX))?,
                }
            }
            left = left.saturating_sub(u64::from(count) + u64::from(part.rejected));
        }
        self.write(otlp);
        self.appends.reach_level().await?;
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
    async fn append(
        &mut self,
        payload: Payload,
        has_coarse_time: bool,
        again: &mut ExportParts<'_>,
    ) -> Result<(), ErrorInfo> {
        let bytes = payload.bytes.len();
        let (payload, admitted) = match self.appends.try_admit(bytes) {
            Some(admitted) => (payload, admitted),
            None if self.level == AckLevel::None => {
                return Err(ErrorInfo::new(ErrorCode::Busy, "no room now, and nobody waits for the answer"));
            }
            None => {
                drop(payload);
                // What is waited for may come by that write.
                self.deferred = None;
                let admitted = self.appends.admit(bytes).await?;
                let payload = again.next().and_then(|part| part.payload);
                (payload.expect("the same part once more"), admitted)
            }
        };
        let key: Option<ResendKey> = self.resends.as_mut().and_then(|resends| resends.next(&payload, has_coarse_time));
        let deferred = self.appends.take(&payload, key, admitted)?;
        self.deferred = match (self.deferred.take(), deferred) {
            (Some(earlier), Some(later)) => Some(earlier.join(later)),
            (earlier, later) => earlier.or(later),
        };
        Ok(())
    }

    /// Makes the write that was left to this request, where it is the only one: no other thread has to wake. Where others are under
    /// way, their appends go with it, and the journal's threads make it.
    fn write(&mut self, otlp: &Otlp) {
        let Some(deferred) = self.deferred.take() else { return };
        if self.level <= AckLevel::Received || !self.call.is_alone() {
            return;
        }
        // A thread of the runtime waits for the disk, and gives what others wait for to another thread first.
        if let Ok(mut buffer) = otlp.write_buffer.try_lock() {
            tokio::task::block_in_place(|| drop(deferred.write(&mut buffer)));
        }
    }
}
