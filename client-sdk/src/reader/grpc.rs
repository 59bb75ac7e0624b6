//! `clad.v1.Log.Read`.
//!
//! The messages do not name the log, and a cursor needs its name: where it is not known from a cursor that was given,
//! an empty read asks for it first. HTTP/2 keep-alive sees to a daemon that is gone.

use super::{
    event::{Chunk, Event, Gap},
    next::{Next, Opened, of_connect},
    plan::{Plan, Start},
};
use crate::transport::Channel;
use crate::{
    Address, ConnectError, ReadError,
    transport::{channel, of_status},
};
use clad_proto::{
    Cursor, LogId, ProducerId,
    frame::{GapReason, PeerMeta, RecordsHead, Transport},
    grpc::v1::{self, log_client::LogClient, read_request::From, read_response::Message},
    limits::{MAX_APPEND_BYTES, MAX_RECORD_BYTES},
    otlp,
};
use std::num::NonZeroU64;
use tonic::{Status, Streaming};

/// The longest message that is taken: an append of the greatest length, as long as OTLP can make it.
const MAX_MESSAGE_BYTES: usize = otlp::Logs::PER_PAYLOAD_BYTE * MAX_APPEND_BYTES as usize;

pub(super) struct GrpcSource {
    responses: Streaming<v1::ReadResponse>,
    address: Address,
    start: Start,
    log_id: LogId,
}

impl std::fmt::Debug for GrpcSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcSource").field("address", &self.address).finish_non_exhaustive()
    }
}

impl GrpcSource {
    pub(super) async fn open(plan: &Plan, start: Start, limit: Option<NonZeroU64>) -> Result<Opened<Self>, ReadError> {
        let fail = |status: Status| of_connect(of_status(&plan.address, &status), start);
        let channel = channel(&plan.address).await.map_err(|error| of_connect(error, start))?;
        let mut client = LogClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let log_id = match start {
            Start::Cursor(cursor) => cursor.log_id,
            _ => ask_log_id(&mut client, plan, fail).await?,
        };
        let responses = client.read(v1::ReadRequest::from(plan.read(start, limit))).await.map_err(fail)?.into_inner();
        let source = Self { responses, address: plan.address.clone(), start, log_id };
        Ok(Opened { source, log_id, log: None })
    }

    pub(super) async fn next(&mut self) -> Result<Next, ReadError> {
        let message = self.responses.message().await;
        let message = message.map_err(|status| of_connect(of_status(&self.address, &status), self.start))?;
        let message = message.ok_or_else(|| ConnectError::Closed { address: self.address.clone() })?;
        match message.message {
            Some(Message::Records(records)) => {
                let chunk = chunk(&records)?;
                let cursor = Cursor { log_id: self.log_id, epoch: chunk.epoch(), offset: chunk.end_offset() };
                Ok(Next::Event { event: Event::Records(chunk), cursor })
            }
            Some(Message::Gap(gap)) => {
                let reason = match gap.reason() {
                    v1::GapReason::Retention => GapReason::Retention,
                    v1::GapReason::Damage | v1::GapReason::Unspecified => GapReason::Damage,
                };
                let cursor = Cursor { log_id: self.log_id, epoch: gap.epoch, offset: gap.to };
                Ok(Next::Event { event: Event::Gap(Gap { from: gap.from, to: gap.to, reason }), cursor })
            }
            Some(Message::CaughtUp(cursor)) => {
                let cursor = cursor.cursor().ok_or_else(|| self.protocol("a cursor without a log"))?;
                Ok(Next::Event { event: Event::CaughtUp { cursor }, cursor })
            }
            Some(Message::Progress(cursor)) => {
                let cursor = cursor.cursor().ok_or_else(|| self.protocol("a cursor without a log"))?;
                Ok(Next::Event { event: Event::Progress { cursor }, cursor })
            }
            Some(Message::End(end)) => {
                let cursor = end.cursor.and_then(|cursor| cursor.cursor());
                Ok(Next::End { cursor: cursor.ok_or_else(|| self.protocol("an end without a cursor"))? })
            }
            None => Err(self.protocol("an empty message").into()),
        }
    }

    fn protocol(&self, what: &str) -> ConnectError {
        ConnectError::Protocol { address: self.address.clone(), what: what.to_owned() }
    }
}

async fn ask_log_id(
    client: &mut LogClient<Channel>,
    plan: &Plan,
    fail: impl Fn(Status) -> ReadError,
) -> Result<LogId, ReadError> {
    let nothing = v1::ReadRequest {
        from: Some(From::Tail(0)),
        min_level: v1::AckLevel::from(plan.level).into(),
        ..v1::ReadRequest::default()
    };
    let mut answers = client.read(nothing).await.map_err(&fail)?.into_inner();
    while let Some(answer) = answers.message().await.map_err(&fail)? {
        if let Some(Message::End(v1::ReadEnd { cursor: Some(cursor), .. })) = answer.message
            && let Some(cursor) = cursor.cursor()
        {
            return Ok(cursor.log_id);
        }
    }
    Err(ConnectError::Protocol { address: plan.address.clone(), what: "a read that ends without a cursor".into() }
        .into())
}

fn chunk(records: &v1::Records) -> Result<Chunk, ReadError> {
    let logs = records.resource_logs.as_ref();
    let count = logs.and_then(|logs| logs.scope_logs.first()).map_or(0, |scope| scope.log_records.len());
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let damaged = |what: String| ReadError::Damaged { offset: records.first_offset, count, what };
    let logs = logs.ok_or_else(|| damaged("no records".to_owned()))?;
    let payload = otlp::encode(logs, MAX_APPEND_BYTES, MAX_RECORD_BYTES).map_err(|error| damaged(error.to_string()))?;
    let producer_id: [u8; 16] =
        records.producer_id.as_ref().try_into().map_err(|_| damaged("a producer id of another length".to_owned()))?;
    if records.first_offset.checked_add(payload.count.into()).is_none() {
        return Err(damaged("their offsets pass 64 bits".to_owned()));
    }
    let peer_meta = records.peer_meta.as_ref().map_or_else(PeerMeta::default, |peer_meta| PeerMeta {
        transport: peer_meta.transport.map(Transport::from_code),
        pid: peer_meta.pid,
        pid_start: peer_meta.pid_start,
        uid: peer_meta.uid,
        gid: peer_meta.gid,
        address: peer_meta.address.as_ref().and_then(|address| address.parse().ok()),
        identity: peer_meta.identity.clone(),
        path: peer_meta.forwarded.as_ref().and_then(|forwarded| forwarded.parts()).map(|(path, _)| path),
        origin: peer_meta.forwarded.as_ref().and_then(|forwarded| forwarded.parts()).map(|(_, origin)| origin),
        ..PeerMeta::default()
    });
    let head = RecordsHead {
        epoch: records.epoch,
        count: payload.count,
        first_offset: records.first_offset,
        append_time: records.append_time,
        producer_id: ProducerId::from_bytes(producer_id),
        producer_epoch: records.producer_epoch,
        payload_crc: payload.checksum(),
        first_seq: records.first_seq,
        skip: 0,
        take: payload.count,
    };
    let (payload, peer_meta) = (payload.bytes, Box::new(peer_meta));
    Ok(Chunk { head, payload, raw_peer_meta: None, peer_meta, matching: None })
}
