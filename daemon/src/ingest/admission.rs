//! The one place where an append is checked, counted and handed to the journal, whatever transport it came by.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_journal::clock::Moment;
use clad_journal::format::meta::Meta;
use clad_journal::owner_bytes::NETWORK;
use clad_journal::{
    Accepted, AfterRefusal, AppendError, DeferredWrite, Item, Journal, Level, ResendKey, Sender, Watermarks,
};
use clad_proto::frame::{AppendView, EpochStart, Forwarding, Hello, LastStored, Welcome};
use clad_proto::limits::{MAX_EARLIER_EPOCHS, MAX_VERSION, MIN_VERSION};
use clad_proto::{
    AckLevel, DurabilityPolicy, ErrorCode, ErrorInfo, KnownGroup, LogId, ProducerId, parse_group, scan_known,
};

use super::Owner;
use super::append_quota::AppendQuota;
use super::peer::Peer;
use super::quota::{Quota, QuotaGuard};
use crate::access::{Access, Rights};
use crate::config::Right;
use crate::ops::metrics::{self, Dropped, Rejected, Share};

/// Time that an append may wait for room, in its connection's share and then in the budget. Then it is refused as busy.
pub(crate) const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Counted for each append beside its payload: what the journal and the session hold of it.
const APPEND_OVERHEAD_BYTES: usize = 128;

/// Admission of the log. A reload makes another one for later connections: what the handshake of a client says holds
/// for as long as the client stays.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) journal: Arc<Journal>,
    pub(crate) policy: DurabilityPolicy,
    pub(crate) highest: AckLevel,
    /// Levels that a FLUSH can reach: `durable` also where the policy's acks end at `written`, if the disk allows it.
    pub(crate) flush_reach: AckLevel,
    pub(crate) max_append: u32,
    pub(crate) max_record: u32,
    pub(crate) max_connection_bytes: usize,
    pub(crate) window: u32,
    /// Bytes that may be in flight over all connections.
    pub(crate) budget: Arc<Quota>,
    /// Rights of peers.
    pub(crate) access: Access,
}

/// A producer whose handshake is done. Dropping it ends its session.
pub(crate) struct Producer {
    journal: Arc<Journal>,
    pub(crate) id: ProducerId,
    pub(crate) owner: u64,
    pub(crate) epoch: u32,
    /// Owner whose share of all producers it counts in.
    quota: Owner,
    forget: bool,
}

impl Producer {
    /// Its session begins.
    ///
    /// # Errors
    /// [`AppendError::NotOwner`], also where another connection was faster; [`AppendError::Forgetting`].
    pub(crate) fn begin(
        journal: Arc<Journal>,
        id: ProducerId,
        owner: u64,
        epoch: u32,
        quota: Owner,
    ) -> Result<Self, AppendError> {
        let counted = match quota {
            Owner::Uid(uid) => uid.into(),
            Owner::Network => NETWORK,
        };
        journal.connect(id.as_bytes(), owner, epoch, counted)?;
        Ok(Self { journal, id, owner, epoch, quota, forget: false })
    }

    /// A refusal of the journal in the protocol's words. Where there is no place for this producer, it names the owner
    /// whose share is used up.
    pub(crate) fn refusal(&self, e: &AppendError) -> ErrorInfo {
        let mut info = refusal(e);
        if *e == AppendError::TooManyProducers {
            let (known, total) = self.journal.producers_by_owner();
            info.text = no_place_among(&known, total, self.quota);
        }
        info
    }

    /// The client said that it is done with its producer, and has nothing unanswered.
    pub(crate) fn forget(&mut self) {
        self.forget = true;
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.journal.disconnect(self.id.as_bytes(), self.forget);
    }
}

/// An append that has its bytes counted.
pub(crate) struct Admitted {
    pub(crate) permit: QuotaGuard,
    pub(crate) at: Arrival,
}

/// Time at which something arrived, on all clocks; read once for everything that one read brought.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) since: Instant,
    moment: Moment,
}

impl Arrival {
    /// As the journal takes it.
    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }
}

/// The last epochs before this one; none while a new one is in force and not shown yet.
fn earlier(meta: &Meta, epoch: u32) -> Vec<EpochStart> {
    let before = meta.epochs.len().saturating_sub(1);
    let epochs =
        if meta.epoch() == epoch { &meta.epochs[before.saturating_sub(MAX_EARLIER_EPOCHS)..before] } else { &[] };
    epochs.iter().map(|e| EpochStart { epoch: e.epoch, first_offset: e.first_offset }).collect()
}

impl Admission {
    /// Answers a HELLO. Where an earlier life of its producer was forgotten a moment ago, the answer waits for the log
    /// to say so, with a timeout. Cancel safe: no session has begun then.
    pub(crate) async fn meet(&self, hello: &Hello, peer: &Peer) -> Result<(Welcome, Option<Producer>), ErrorInfo> {
        if hello.intent.append {
            peer.check(Right::Append)?;
            // If it is not over then, the journal refuses the session for it.
            let forgotten = self.journal.forgotten(hello.producer_id.as_bytes());
            let _ = tokio::time::timeout(ADMISSION_TIMEOUT, forgotten).await;
        }
        self.welcome(hello, peer)
    }

    fn welcome(&self, hello: &Hello, peer: &Peer) -> Result<(Welcome, Option<Producer>), ErrorInfo> {
        if hello.min_version > MAX_VERSION || hello.max_version < MIN_VERSION {
            let text = format!(
                "this clad speaks protocol versions {MIN_VERSION} to {MAX_VERSION}, the client {} to {}",
                hello.min_version, hello.max_version
            );
            return Err(ErrorInfo::new(ErrorCode::UnsupportedVersion, text).limited_to(MAX_VERSION.into()));
        }
        let watermarks = self.journal.watermarks();
        let meta = self.journal.meta();
        let mut welcome = Welcome {
            version: hello.max_version.min(MAX_VERSION),
            policy: self.policy,
            highest_ack: peer.rights().cap(self.highest),
            may_read: peer.rights().may(Right::Read),
            log_id: LogId::from_bytes(meta.log_id),
            epoch: watermarks.epoch,
            epoch_first_offset: watermarks.epoch_first,
            producer_id: ProducerId::default(),
            producer_epoch: 0,
            secret: Vec::new(),
            last: None,
            window: self.window,
            max_append_bytes: self.max_append,
            max_record_bytes: self.max_record,
            received: watermarks.received,
            written: watermarks.written,
            durable: watermarks.durable,
            earlier: earlier(&meta, watermarks.epoch),
            forwarding: Forwarding::No,
        };
        let producer =
            if hello.intent.append { Some(self.producer(hello, peer, &watermarks, &mut welcome)?) } else { None };
        Ok((welcome, producer))
    }

    fn producer(
        &self,
        hello: &Hello,
        peer: &Peer,
        m: &Watermarks,
        welcome: &mut Welcome,
    ) -> Result<Producer, ErrorInfo> {
        let (mut id, mut secret) = (hello.producer_id, hello.secret.clone());
        if id == ProducerId::default() {
            id = ProducerId::from_bytes(random()?);
            if peer.needs_secret() && secret.is_empty() {
                secret = random::<16>()?.to_vec();
                welcome.secret.clone_from(&secret);
            }
        } else if peer.needs_secret() && secret.is_empty() {
            let text = "over the network a producer id needs the secret that it was first used with";
            return Err(ErrorInfo::new(ErrorCode::ProducerNotYours, text));
        }
        let owner = peer.owner(&secret);
        let known = self.journal.producer(id.as_bytes(), owner).map_err(|e| refusal(&e))?;
        if let Some(state) = known {
            if hello.producer_epoch < state.epoch {
                return Err(refusal(&AppendError::Fenced { current: state.epoch }));
            }
            welcome.last = state.last.map(|(sequence, offset)| LastStored {
                sequence,
                offset,
                level: reached(m, offset).min(self.flush_reach),
            });
        }
        welcome.producer_id = id;
        welcome.producer_epoch = hello.producer_epoch;
        Producer::begin(self.journal.clone(), id, owner, hello.producer_epoch, peer.quota_owner())
            .map_err(|e| refusal(&e))
    }

    /// Bytes that an append of this payload is counted with.
    pub(crate) fn cost(payload: usize) -> usize {
        payload + APPEND_OVERHEAD_BYTES
    }

    /// Counts an append's bytes for its owner if there is room right now.
    pub(crate) fn try_admit(quota: &AppendQuota, payload: usize, at: Arrival) -> Option<Admitted> {
        let permit = quota.try_take(Self::cost(payload))?;
        Some(Admitted { permit, at })
    }

    /// Hands over appends that came together and were checked. `verdicts` gets one for each, in their order. Returns a
    /// write that became due by them: another thread makes it where it is dropped.
    pub(crate) fn take_burst(
        &self,
        peer: &Peer,
        producer: &Producer,
        items: &[Item<'_>],
        permit: QuotaGuard,
        at: Arrival,
        verdicts: &mut Vec<Result<Accepted, AppendError>>,
    ) -> Option<DeferredWrite> {
        let from = sender(peer, producer);
        self.append_run(&from, peer.label(), items, permit, at, verdicts)
    }

    pub(super) fn append_run(
        &self,
        from: &Sender<'_>,
        transport: metrics::Transport,
        items: &[Item<'_>],
        permit: QuotaGuard,
        at: Arrival,
        verdicts: &mut Vec<Result<Accepted, AppendError>>,
    ) -> Option<DeferredWrite> {
        verdicts.reserve(items.len());
        let runs = [(from, items)];
        let outcome =
            self.journal.append(runs, AfterRefusal::Judge, Some(permit), at.moment, |verdict| verdicts.push(verdict));
        let deferred_write = outcome.deferred_write;
        let (mut fresh, mut bytes, mut again) = (0, 0, 0);
        for (item, accepted) in items.iter().zip(&*verdicts).filter_map(|(i, v)| Some((i, v.as_ref().ok()?))) {
            match accepted.duplicate {
                true => again += u64::from(item.count),
                false => {
                    fresh += u64::from(item.count);
                    bytes += item.payload.len() as u64;
                }
            }
        }
        if fresh > 0 {
            metrics::appended(transport, fresh, bytes);
        }
        if again > 0 {
            metrics::deduplicated(again);
        }
        deferred_write
    }

    /// Checks an append and prepares it for the journal; `sum` is the checksum of its payload.
    ///
    /// # Errors
    /// Says what is wrong with it.
    // Inlined, so that it is made where it is stored.
    #[inline(always)]
    pub(crate) fn item<'a>(
        &self,
        view: &AppendView<'a>,
        sum: u32,
        at: Arrival,
        known: &mut KnownGroup,
        rights: &Rights,
    ) -> Result<Item<'a>, ErrorInfo> {
        let head = &view.head;
        self.check_level(head.level, rights)?;
        if view.payload.len() > self.max_append as usize {
            return Err(refusal(&AppendError::Size { limit: self.max_append })); // by a ring; frames are bounded before
        }
        if sum != head.payload_crc {
            return Err(bad_checksum());
        }
        let now_ns = u64::try_from(at.moment.real_ns).unwrap_or(0);
        let times = scan_known(view.payload, head.count, self.max_record, known)?.times_or(now_ns);
        Ok(Item {
            first_sequence: head.first_seq,
            count: head.count,
            gap: head.gap,
            level: level(head.level),
            min_time_ns: i64::try_from(times.min).unwrap_or(i64::MAX),
            max_time_ns: i64::try_from(times.max).unwrap_or(i64::MAX),
            payload: view.payload,
            payload_checksum: head.payload_crc,
            share: Self::cost(view.payload.len()),
        })
    }

    /// The clocks now.
    pub(crate) fn arrival(&self) -> Arrival {
        Arrival { since: Instant::now(), moment: self.journal.now() }
    }

    /// Counts an append's bytes; waits for room, with a timeout. Cancel safe: nothing is counted then.
    pub(crate) async fn admit(&self, quota: &AppendQuota, payload: usize) -> Result<Admitted, ErrorInfo> {
        let acquire = quota.take(Self::cost(payload));
        match tokio::time::timeout(ADMISSION_TIMEOUT, acquire).await {
            Ok(Some(permit)) => Ok(Admitted { permit, at: self.arrival() }),
            Ok(None) => Err(refusal(&AppendError::Closing)),
            Err(_) => {
                if let Some(rate) = quota.bytes_per_second() {
                    let text = format!(
                        "this peer appends more than the {rate} bytes in a second that max_bytes_per_second of its access.rule \
                         allows, or others have all room"
                    );
                    return Err(ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000).limited_to(rate));
                }
                metrics::refused_for_share(Share::InflightBytes);
                let text = "as many bytes as [limits] max_inflight_bytes allows, or as this user may have of them beside \
                            others, are waiting for the disk";
                Err(ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000).limited_to(quota.total() as u64))
            }
        }
    }

    /// Error for an append that has waited [`ADMISSION_TIMEOUT`] for the bytes of its own connection to reach the disk.
    pub(crate) fn share_is_full(&self) -> ErrorInfo {
        let limit = self.max_connection_bytes;
        let text = "as many bytes of this connection as [limits] max_connection_inflight_bytes allows are waiting for the disk";
        ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000).limited_to(limit as u64)
    }

    /// The error of an append that is refused for what it is. The append may be stored already: it may be a resend of
    /// one that was taken when more was allowed.
    pub(crate) fn unless_stored(&self, producer: &Producer, first_seq: u64, error: ErrorInfo) -> ErrorInfo {
        let stored = self.journal.is_stored(producer.id.as_bytes(), producer.owner, first_seq);
        ErrorInfo { maybe_written: error.maybe_written || stored == Some(true), ..error }
    }

    /// Checks an append whose checksum holds, and hands it to the journal. Returns a write that became due by it, as
    /// [`Self::take_burst`].
    pub(crate) fn take(
        &self,
        peer: &Peer,
        producer: &Producer,
        view: &AppendView<'_>,
        admitted: Admitted,
    ) -> Result<(Accepted, Option<DeferredWrite>), ErrorInfo> {
        self.take_of(&sender(peer, producer), peer, producer, view, admitted)
    }

    /// The same of an append that may have been stored before, under another sequence: then it has the offset that it got.
    pub(crate) fn take_once(
        &self,
        peer: &Peer,
        producer: &Producer,
        key: ResendKey,
        view: &AppendView<'_>,
        admitted: Admitted,
    ) -> Result<(Accepted, Option<DeferredWrite>), ErrorInfo> {
        let mut peer_meta = peer.meta.clone();
        key.encode(&mut peer_meta);
        let from = Sender { peer_meta: &peer_meta, resend: Some(key), ..sender(peer, producer) };
        self.take_of(&from, peer, producer, view, admitted)
    }

    fn take_of(
        &self,
        from: &Sender<'_>,
        peer: &Peer,
        producer: &Producer,
        view: &AppendView<'_>,
        Admitted { permit, at }: Admitted,
    ) -> Result<(Accepted, Option<DeferredWrite>), ErrorInfo> {
        let head = &view.head;
        let item = self.item(view, head.payload_crc, at, &mut KnownGroup::default(), peer.rights());
        let item = item.and_then(|item| match Self::fits_component(peer.rights(), view.payload) {
            true => Ok(item),
            false => Err(peer.wrong_component()),
        });
        let item = item.map_err(|error| self.unless_stored(producer, head.first_seq, error))?;
        let (item, mut verdicts) = (Item { share: permit.num_permits(), ..item }, Vec::new());
        let deferred_write = self.append_run(from, peer.label(), &[item], permit, at, &mut verdicts);
        let accepted = verdicts.pop().expect("one append has one verdict").map_err(|e| producer.refusal(&e))?;
        if head.level == AckLevel::Received {
            metrics::acked(metrics::Level::Received, 1, u64::from(accepted.count), at.since.elapsed());
        }
        Ok((accepted, deferred_write))
    }

    /// Returns true if the records are of a component that a peer with these rights may append.
    pub(crate) fn fits_component(rights: &Rights, payload: &[u8]) -> bool {
        let Some(pattern) = &rights.component else { return true };
        let component = parse_group(payload).ok().and_then(|group| group.component());
        component.is_some_and(|component| pattern.matches(component))
    }

    /// Refuses a level that this log cannot reach, or its peer may not ask for.
    pub(crate) fn check_level(&self, level: AckLevel, rights: &Rights) -> Result<(), ErrorInfo> {
        let is_there = level <= self.highest && level != AckLevel::Posted;
        if is_there && rights.cap(level) == level {
            return Ok(());
        }
        let text = match level {
            _ if is_there => {
                let most = rights.cap(level);
                format!("this peer may ask for `{most}` at most, not `{level}`: {}", rights.because())
            }
            AckLevel::Posted => {
                "`posted` is what a ring of shared memory answers: ask for one, or for another level".to_owned()
            }
            _ => format!(
                "this log ({}) reaches `{}` at most, not `{level}`: `clactl status` says why",
                self.policy, self.highest
            ),
        };
        Err(ErrorInfo::new(ErrorCode::LevelUnreachable, text))
    }
}

fn sender<'a>(peer: &'a Peer, producer: &Producer) -> Sender<'a> {
    Sender {
        producer: *producer.id.as_bytes(),
        owner: producer.owner,
        producer_epoch: producer.epoch,
        peer_meta: &peer.meta,
        resend: None,
        forward: None,
    }
}

/// Reason why there is no place for a further producer of this owner; `known` is how many are remembered of each owner.
fn no_place_among(known: &[(u64, usize)], total: usize, quota: Owner) -> String {
    let is_his = |counted: u64| match quota {
        Owner::Uid(uid) => counted == u64::from(uid),
        Owner::Network => counted & NETWORK != 0,
    };
    let all: usize = known.iter().map(|(_, count)| count).sum();
    let his: usize = known.iter().filter(|(counted, _)| is_his(*counted)).map(|(_, count)| count).sum();
    let why = match all < total {
        true => format!(
            "the share that {} has of [limits] max_producers is used up: {his} of {total}, and the rest is for others",
            quota.in_words()
        ),
        false => format!(
            "the log remembers as many producers as [limits] max_producers allows, {total}; {his} of {all} are of {}",
            quota.in_words()
        ),
    };
    format!("{why}. End producers with BYE, wait until some were silent for 10 minutes, or raise the limit")
}

/// Counts a refusal: reported to the sender, or, where it wants no answer, as dropped.
pub(crate) fn count_refusal(level: AckLevel, code: ErrorCode, records: u32) {
    if code == ErrorCode::TooManyConnections {
        return metrics::refused_for_share(Share::Connections); // no record was in it
    }
    let records = u64::from(records.max(1));
    match code {
        ErrorCode::TooManyProducers => metrics::refused_for_share(Share::Producers),
        ErrorCode::QuotaExceeded => metrics::refused_for_share(Share::LogBytes),
        _ => {}
    }
    if level == AckLevel::None {
        return metrics::dropped(dropped(code), records);
    }
    let reason = match code {
        ErrorCode::RecordTooLarge | ErrorCode::AppendTooLarge | ErrorCode::FrameTooLarge => Rejected::TooLarge,
        ErrorCode::LevelUnreachable => Rejected::Level,
        ErrorCode::SequenceGap
        | ErrorCode::SequenceOverlap
        | ErrorCode::SequenceTooOld
        | ErrorCode::HistoryParted
        | ErrorCode::OriginUnknown => Rejected::Sequence,
        ErrorCode::ProducerFenced => Rejected::Fenced,
        ErrorCode::ProducerNotYours | ErrorCode::PermissionDenied | ErrorCode::ForwardLoop => Rejected::Denied,
        ErrorCode::Busy | ErrorCode::TooManyProducers | ErrorCode::TooManyOrigins | ErrorCode::WindowExceeded => {
            Rejected::Busy
        }
        ErrorCode::HandshakeTimeout | ErrorCode::IdleTimeout => Rejected::Timeout,
        ErrorCode::NoSpace => Rejected::NoSpace,
        ErrorCode::QuotaExceeded => Rejected::Quota,
        ErrorCode::JournalFailed => Rejected::JournalFailed,
        ErrorCode::ShuttingDown => Rejected::Stopping,
        _ => Rejected::Malformed,
    };
    metrics::rejected(reason, records);
}

/// Reason by which a drop for this error is counted.
pub(crate) fn dropped(code: ErrorCode) -> Dropped {
    match code {
        ErrorCode::Busy | ErrorCode::TooManyProducers | ErrorCode::WindowExceeded => Dropped::Busy,
        ErrorCode::NoSpace => Dropped::NoSpace,
        ErrorCode::QuotaExceeded => Dropped::Quota,
        ErrorCode::JournalFailed => Dropped::JournalFailed,
        ErrorCode::PermissionDenied => Dropped::Denied,
        ErrorCode::ShuttingDown => Dropped::Stopping,
        _ => Dropped::Invalid,
    }
}

/// A payload that is not what its sender made.
pub(crate) fn bad_checksum() -> ErrorInfo {
    let text = "the payload does not fit its checksum: it was damaged on the way, or made wrongly";
    ErrorInfo::new(ErrorCode::BadChecksum, text)
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], ErrorInfo> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| ErrorInfo::new(ErrorCode::Internal, format!("no random numbers: {e}")))?;
    Ok(bytes)
}

fn reached(m: &Watermarks, offset: u64) -> AckLevel {
    match offset {
        o if o < m.durable => AckLevel::Durable,
        o if o < m.written => AckLevel::Written,
        _ => AckLevel::Received,
    }
}

fn level(level: AckLevel) -> Level {
    match level {
        AckLevel::Durable => Level::Durable,
        AckLevel::Written => Level::Written,
        _ => Level::Received,
    }
}

/// A refusal of the journal in the protocol's words. None of them left a trace in the log.
pub(crate) fn refusal(e: &AppendError) -> ErrorInfo {
    let code = match e {
        AppendError::Fenced { .. } => ErrorCode::ProducerFenced,
        AppendError::NotOwner => ErrorCode::ProducerNotYours,
        AppendError::Gap { .. } => ErrorCode::SequenceGap,
        AppendError::Overlap { .. } | AppendError::Skipped { .. } => ErrorCode::SequenceOverlap,
        AppendError::TooOld => ErrorCode::SequenceTooOld,
        AppendError::TooManyProducers => ErrorCode::TooManyProducers,
        AppendError::Forgetting => ErrorCode::Busy,
        AppendError::Size { .. } => ErrorCode::AppendTooLarge,
        AppendError::PastTheLast => ErrorCode::BadRecord,
        AppendError::UnknownOrigin => ErrorCode::OriginUnknown,
        AppendError::TooManyOrigins { .. } => ErrorCode::TooManyOrigins,
        AppendError::Parted(_) => ErrorCode::HistoryParted,
        AppendError::NoSpace | AppendError::NoSegment { .. } => ErrorCode::NoSpace,
        AppendError::OwnerQuota { .. } => ErrorCode::QuotaExceeded,
        AppendError::Failed { .. } => ErrorCode::JournalFailed,
        AppendError::Closing => ErrorCode::ShuttingDown,
    };
    let mut info = ErrorInfo::new(code, e.to_string());
    match e {
        AppendError::Gap { expected } | AppendError::Overlap { expected } => info.expected_sequence = Some(*expected),
        AppendError::Skipped { expected } => {
            info.expected_sequence = Some(*expected);
            info.maybe_written = false;
        }
        AppendError::Size { limit } => info.limit = Some((*limit).into()),
        AppendError::TooManyOrigins { limit } => info.limit = Some(*limit as u64),
        AppendError::Parted(parting) => info.expected_sequence = Some(parting.stored.end()),
        AppendError::NoSpace | AppendError::NoSegment { .. } | AppendError::TooManyProducers => {
            info.retry_after_ms = Some(1000)
        }
        AppendError::OwnerQuota { limit } => {
            info.limit = Some(*limit);
            info.retry_after_ms = Some(1000);
        }
        AppendError::Failed { .. } => {
            // Refused before it was given an offset: this attempt certainly left nothing.
            info.maybe_written = false;
            info.retry_after_ms = Some(1000);
        }
        AppendError::Closing => info.retry_after_ms = Some(1000),
        AppendError::Forgetting => info.retry_after_ms = Some(100),
        _ => {}
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_used_up_his_share_of_the_producers_is_named() {
        let known = [(7, 2), (NETWORK | 1, 1), (NETWORK | 2, 1)];
        let text = |total, quota| no_place_among(&known, total, quota);
        let his = text(5, Owner::Uid(7));
        assert!(his.starts_with("the share that uid 7 has of [limits] max_producers is used up: 2 of 5"), "{his}");
        let network = text(5, Owner::Network);
        assert!(
            network.starts_with("the share that the network has of [limits] max_producers is used up: 2 of 5"),
            "{network}"
        );
        let all = text(4, Owner::Uid(7));
        assert!(all.contains("as [limits] max_producers allows, 4; 2 of 4 are of uid 7"), "{all}");
    }
}
