//! Appends that another log forwards: who may forward what, and the checks of each append.
//!
//! Invariants: a connection forwards one stream of one log, which it names in HELLO. An append is stored under the forwarder's
//! owner, as the next of that stream or not at all; the journal decides that where it gives the offset. Its payload and its
//! client's checksum stay as they are. What a source's daemon said of it is checked, and kept beside what this daemon sees of
//! the forwarder.

use std::time::Duration;

use clad_journal::format::origin::tombstone_id;
use clad_journal::{Accepted, DeferredWrite, Forward, Item, Journal, OriginEntry, Parting, Sender};
use clad_proto::frame::{
    AppendHead, AppendView, ForwardFault, ForwardView, Forwarding, Hello, Origin, OriginState, PeerMeta, Transport,
    forwarded_peer_meta,
};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, KnownGroup, LogId};
use sha2::{Digest, Sha256};

use super::admission::{Admission, Admitted, refusal};
use super::peer::Peer;
use crate::ops::metrics;

/// Time that a HELLO waits for the log to say durably that its stream was dropped a moment ago.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// The stream that a connection forwards.
pub(crate) struct Forwarder {
    name: Origin,
    /// The same, as the journal has it.
    origin: clad_journal::Origin,
    /// The producer id of its chunks.
    producer: [u8; 16],
    owner: u64,
    /// Peer metadata of the forwarder, encoded.
    meta: Vec<u8>,
    /// This log.
    log_id: LogId,
}

/// The first 16 bytes of SHA-256 of the words, the log id and the name: for each stream another producer.
fn producer_of(origin: &Origin) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"clad-origin");
    hash.update(origin.log_id.as_bytes());
    hash.update(origin.stream.as_str());
    let mut first = [0; 16];
    first.copy_from_slice(&hash.finalize()[..16]);
    first
}

impl Forwarder {
    /// Of a HELLO that names a stream.
    ///
    /// # Errors
    /// The peer may not forward it; or it is this log's own.
    pub(crate) fn of(journal: &Journal, hello: &Hello, name: &Origin, peer: &Peer) -> Result<Self, ErrorInfo> {
        if hello.intent.append {
            let text = "a connection appends or forwards, and not both";
            return Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        }
        peer.check_forward(name.log_id)?;
        let log_id = LogId::from_bytes(journal.meta().log_id);
        if log_id == name.log_id {
            return Err(loops(&ForwardFault::Loop(log_id)));
        }
        if peer.needs_secret() && hello.secret.is_empty() {
            let text = "over the network a forwarder needs a name (a certificate, a token), or the secret that the stream was \
                        first forwarded with";
            return Err(ErrorInfo::new(ErrorCode::ProducerNotYours, text));
        }
        let stream = clad_journal::StreamName::new(name.stream.as_str().as_bytes());
        let stream = stream.ok_or_else(|| ErrorInfo::new(ErrorCode::MalformedFrame, "no name of a stream"))?;
        let seen = PeerMeta::decode(&peer.meta).unwrap_or_default();
        Ok(Self {
            name: name.clone(),
            origin: clad_journal::Origin { source: name.log_id.to_bytes(), stream },
            producer: producer_of(name),
            owner: peer.owner(&hello.secret),
            meta: PeerMeta { transport: Some(Transport::Relay), ..seen }.to_bytes(),
            log_id,
        })
    }

    /// The log's word on the stream. Where it was dropped a moment ago, waits for the log to say so, with a timeout.
    ///
    /// # Errors
    /// The log has lost appends of it, and does not know which: nothing more is taken.
    pub(crate) async fn state(&self, journal: &Journal) -> Result<Forwarding, ErrorInfo> {
        let forgotten = tombstone_id(self.owner, &self.producer);
        let _ = tokio::time::timeout(DROP_TIMEOUT, journal.forgotten(&forgotten)).await;
        match journal.origin(self.owner, &self.producer) {
            None => Ok(Forwarding::Unknown),
            Some(OriginEntry { last: stored, is_lost: true, .. }) => {
                let sent = clad_journal::ForwardedAppend::default();
                let parting = Parting { stored, sent, is_lost: true };
                Err(refusal(&clad_journal::AppendError::Parted(Box::new(parting))))
            }
            Some(OriginEntry { last, .. }) => Ok(Forwarding::Known(OriginState {
                epoch: last.epoch,
                end: last.end(),
                first: last.first,
                count: last.count,
                payload_crc: last.payload_checksum,
                offset: last.offset,
            })),
        }
    }
}

fn loops(fault: &ForwardFault) -> ErrorInfo {
    ErrorInfo::new(ErrorCode::ForwardLoop, fault.to_string())
}

/// The append in it, as one that comes without another log.
pub(crate) fn append_in<'a>(view: &ForwardView<'a>) -> AppendView<'a> {
    let records = &view.records;
    let head = AppendHead {
        first_seq: records.head.first_offset,
        count: records.head.count,
        level: view.head.level,
        gap: false,
        payload_crc: records.head.payload_crc,
    };
    AppendView { head, payload: records.payload }
}

impl Admission {
    /// Checks an append whose checksum holds, and hands it to the journal. Returns a write that became due by it, as
    /// [`Self::take_burst`].
    pub(crate) fn take_forwarded(
        &self,
        peer: &Peer,
        forwarder: &Forwarder,
        view: &ForwardView<'_>,
        Admitted { permit, at }: Admitted,
    ) -> Result<(Accepted, Option<DeferredWrite>), ErrorInfo> {
        let (append, records) = (append_in(view), &view.records);
        let item = self.item(&append, append.head.payload_crc, at, &mut KnownGroup::default(), peer.rights())?;
        if !Self::fits_component(peer.rights(), append.payload) {
            return Err(peer.wrong_component());
        }
        let peer_meta =
            forwarded_peer_meta(&forwarder.meta, &forwarder.name, forwarder.log_id, &records.head, records.peer_meta);
        let peer_meta = peer_meta.map_err(|fault| match fault {
            ForwardFault::Loop(_) | ForwardFault::TooFar => loops(&fault),
            _ => ErrorInfo::new(ErrorCode::BadRecord, fault.to_string()),
        })?;
        let forward = Forward { origin: forwarder.origin, previous: view.head.previous, begins: view.head.begins };
        let from = Sender {
            producer: forwarder.producer,
            owner: forwarder.owner,
            producer_epoch: records.head.epoch,
            peer_meta: &peer_meta,
            resend: None,
            forward: Some(forward),
        };
        let (item, mut verdicts) = (Item { share: permit.num_permits(), ..item }, Vec::new());
        let relay = metrics::Transport::Relay;
        let deferred_write = self.append_run(&from, relay, &[item], permit, at, &mut verdicts);
        let accepted = verdicts.pop().expect("one append has one verdict").map_err(|e| refusal(&e))?;
        if append.head.level == AckLevel::Received {
            metrics::acked(metrics::Level::Received, 1, u64::from(accepted.count), at.since.elapsed());
        }
        Ok((accepted, deferred_write))
    }
}
