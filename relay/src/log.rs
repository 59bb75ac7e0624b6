//! The log that a relay writes to.
//!
//! Invariants:
//! - Appends are stored in the order in which they were handed over, or the relay ends. What is then stored is found at the
//!   next start, in the log.
//! - A relay that the log knows goes on behind its last record. One that it does not know any more is looked for in the
//!   whole log; where nothing is left of it, it stops, and begins again only when a person says so.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clad_client::{
    AckLevel, AppendError, Batch, Chunk, ConnectError, ErrorCode, Event, Filter, Group, Producer, ProducerId, Reader,
    Record, Start, Ticket,
};
use clad_proto::{AnyValue, PayloadBuilder};
use sha2::{Digest, Sha256};

use crate::config::ToClad;
use crate::metrics;
use crate::state::RelayState;

/// Bytes that wait for the log.
const BUFFERED_BYTES: usize = 8 << 20;
/// An outage is waited out: the source keeps what is not read.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Time for the log to take the last appends at a stop.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Component of the records of a relay's own.
pub(crate) const COMPONENT: &str = "clad-relay";
/// Attribute of these: the relay's name.
const NAME: &str = "clad.relay";

/// The last record of a relay.
#[derive(Debug, Clone)]
pub(crate) struct LastRecord {
    pub(crate) offset: u64,
    pub(crate) record: Record,
}

impl LastRecord {
    /// An attribute's value.
    pub(crate) fn attribute(&self, key: &str) -> Option<&AnyValue> {
        self.record.attributes.iter().find(|pair| pair.key == key)?.value.as_ref()
    }
}

/// The log.
pub(crate) struct Log {
    producer: Producer,
    batch: Batch,
    component: Option<String>,
    in_flight: VecDeque<(Ticket, u32, usize)>,
    name: String,
    to: ToCladOwned,
    pub(crate) max_append: u32,
    pub(crate) max_record: u32,
}

type ToCladOwned = clad_client::Address;

fn id_of(name: &str) -> ProducerId {
    let mut id = [0; 16];
    id.copy_from_slice(&Sha256::digest(format!("clad-relay\0{name}"))[..16]);
    ProducerId::from_bytes(id)
}

impl Log {
    /// Connects, and finds where the relay stands; nothing where it has not begun.
    pub(crate) async fn open(to: &ToClad, name: &str, state: &mut RelayState) -> Result<(Self, Option<LastRecord>)> {
        let address = to.address()?;
        let epoch = state.next_epoch()?;
        let producer = connect(&address, to.level()?, name, epoch).await?;
        let info = producer.log().context("no word of the log")?;
        let log_id = info.log_id.to_string();
        let place = match producer.last_stored() {
            Some(stored) => last_at(&address, id_of(name), stored.offset).await?,
            None => last_of(&address, id_of(name)).await?,
        };
        match (&place, state.log()) {
            (None, Some(log)) => bail!(
                "the log at {} has no record of this relay, which has stored some in log {log}: retention has removed \
                 them, or this is another log ({log_id}). `clad-relay begin` lets it begin again, where `start` says",
                to.server
            ),
            (Some(_), _) => state.has_begun(&log_id)?,
            (None, None) => {}
        }
        let mut batch = producer.batch();
        *batch.builder() = builder(&Group::default(), (info.max_append_bytes, info.max_record_bytes))?;
        let mut log = Self {
            producer,
            batch,
            component: None,
            in_flight: VecDeque::new(),
            name: name.to_owned(),
            to: address,
            max_append: info.max_append_bytes,
            max_record: info.max_record_bytes,
        };
        if place.is_none() {
            log.begin(state, &log_id).await?;
        }
        Ok((log, place))
    }

    /// Notes in the log that the relay has begun, then in its state.
    async fn begin(&mut self, state: &mut RelayState, log_id: &str) -> Result<()> {
        self.note(9, "this relay begins", Vec::new()).await?;
        self.settle().await?;
        state.has_begun(log_id)
    }

    /// The payload that is filled, for records of this group. `component` names the group.
    pub(crate) async fn open_group(&mut self, component: &str, group: impl FnOnce() -> Group) -> Result<()> {
        if self.component.as_deref() != Some(component) {
            self.submit().await?;
            *self.batch.builder() = builder(&group(), (self.max_append, self.max_record))?;
            self.component = Some(component.to_owned());
        }
        Ok(())
    }

    pub(crate) const fn records(&mut self) -> &mut PayloadBuilder {
        self.batch.builder()
    }

    pub(crate) const fn len_bytes(&self) -> usize {
        self.batch.len_bytes()
    }

    /// Hands over the records so far. Waits for room.
    pub(crate) async fn submit(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return self.settle_ready();
        }
        let (count, bytes) = (self.batch.count(), self.batch.len_bytes());
        let reserved = self.producer.reserve(bytes).await.context("the log takes nothing any more")?;
        let ticket = reserved.submit_batch(&mut self.batch).context("the log takes nothing any more")?;
        metrics::handed_over(count);
        self.in_flight.push_back((ticket, count, bytes));
        self.settle_ready()
    }

    /// Hands over a record of the relay's own, as an append, behind those so far. Waits for room.
    pub(crate) async fn note(&mut self, severity: i32, text: &str, attributes: Vec<(&str, AnyValue)>) -> Result<()> {
        self.submit().await?;
        let own = [(NAME, AnyValue::String(self.name.clone()))];
        let attributes = own.into_iter().chain(attributes);
        let attributes = attributes.map(|(key, value)| clad_proto::KeyValue {
            key: key.to_owned(),
            value: Some(value),
            ..clad_proto::KeyValue::default()
        });
        let record = Record { attributes: attributes.collect(), ..Record::text(now(), severity, text) };
        let mut builder = builder(&Group::component_named(COMPONENT), (self.max_append, self.max_record))?;
        builder.push(&record)?;
        let mut batch = self.producer.batch();
        *batch.builder() = builder;
        let (count, bytes) = (batch.count(), batch.len_bytes());
        let reserved = self.producer.reserve(bytes).await.context("the log takes nothing any more")?;
        let ticket = reserved.submit_batch(&mut batch).context("the log takes nothing any more")?;
        metrics::handed_over(count);
        self.in_flight.push_back((ticket, count, bytes));
        Ok(())
    }

    /// Counts what is stored.
    pub(crate) fn settle_ready(&mut self) -> Result<()> {
        while let Some((ticket, ..)) = self.in_flight.front_mut() {
            let Some(outcome) = ticket.try_wait() else { break };
            self.settled(outcome)?;
        }
        Ok(())
    }

    /// Waits until all is stored: the offset of the last record, where there was one.
    pub(crate) async fn settle(&mut self) -> Result<Option<u64>> {
        self.submit().await?;
        let mut last = None;
        while let Some((ticket, ..)) = self.in_flight.front_mut() {
            let outcome = ticket.await;
            last = self.settled(outcome)?.or(last);
        }
        Ok(last)
    }

    fn settled(&mut self, outcome: Result<clad_client::Receipt, AppendError>) -> Result<Option<u64>> {
        let Some((_, count, bytes)) = self.in_flight.pop_front() else { return Ok(None) };
        metrics::answered(count);
        match outcome {
            Ok(receipt) => {
                metrics::stored(u64::from(count), bytes as u64);
                Ok(receipt.last_offset())
            }
            // The daemon takes less than it said: these can never be stored.
            Err(error) if is_final(&error) => {
                metrics::lost(metrics::Lost::Refused);
                tracing::error!("{count} records are lost: {error}");
                Ok(None)
            }
            Err(error) => Err(error).context("an append is not stored: this relay starts again where the log has it"),
        }
    }

    /// Ends; what was handed over is stored, if the log takes it in time.
    pub(crate) async fn close(mut self) -> Result<()> {
        match tokio::time::timeout(CLOSE_TIMEOUT, self.settle()).await {
            Ok(settled) => settled.map(drop),
            Err(_) => {
                tracing::warn!("the log did not take the last records in time: the next start sends what it has not");
                Ok(())
            }
        }
    }

    /// All appends of this relay from an offset on, oldest first.
    pub(crate) async fn own_from(&self, offset: u64) -> Result<Reader> {
        let filter = Filter::new().producer(id_of(&self.name));
        Ok(Reader::builder(self.to.clone()).from(Start::Offset(offset)).filter(filter).open().await?)
    }
}

fn builder(group: &Group, (max_append, max_record): (u32, u32)) -> Result<PayloadBuilder> {
    Ok(PayloadBuilder::with_limits(group, max_append, max_record)?)
}

pub(crate) fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn is_final(error: &AppendError) -> bool {
    match error {
        AppendError::TooLarge { .. } => true,
        AppendError::Refused { error, .. } => {
            matches!(error.code, ErrorCode::RecordTooLarge | ErrorCode::AppendTooLarge | ErrorCode::BadRecord)
        }
        _ => false,
    }
}

/// A producer whose last record has its level. Waits for a daemon.
async fn connect(address: &clad_client::Address, level: Option<AckLevel>, name: &str, epoch: u32) -> Result<Producer> {
    let build = |level: Option<AckLevel>| {
        let builder =
            Producer::builder(address.clone()).producer(id_of(name), epoch).name(format!("clad-relay {name}"));
        let builder = builder.max_buffered_bytes(BUFFERED_BYTES).delivery_timeout(DELIVERY_TIMEOUT);
        match level {
            Some(level) => builder.level(level),
            None => builder,
        }
    };
    let mut said = false;
    loop {
        let connected = match level {
            Some(level) => build(Some(level)).resume(level).await,
            None => match build(None).connect().await {
                Ok(producer) => {
                    let highest = producer.log().map_or(AckLevel::Written, |log| log.highest_ack);
                    drop(producer);
                    build(Some(highest)).resume(highest).await
                }
                Err(error) => Err(error),
            },
        };
        match connected {
            Ok(producer) => return Ok(producer),
            Err(ConnectError::Refused { error, .. }) if !error.retryable => {
                return Err(anyhow::Error::from(*error).context("the daemon refuses this relay"));
            }
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!("no daemon at {address}, or it takes no relay now: {error}");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The record at an offset.
async fn last_at(address: &clad_client::Address, id: ProducerId, offset: u64) -> Result<Option<LastRecord>> {
    let reader = Reader::builder(address.clone()).from(Start::Offset(offset)).limit(1);
    let mut reader = reader.open().await.context("this relay may not read the log ([access] read_group)")?;
    while let Some(event) = reader.next().await? {
        if let Event::Records(chunk) = event
            && chunk.first_offset() == offset
            && chunk.producer_id() == id
        {
            return Ok(last_in(&chunk));
        }
    }
    Ok(None)
}

/// The last record of a producer, wherever it is.
async fn last_of(address: &clad_client::Address, id: ProducerId) -> Result<Option<LastRecord>> {
    let reader = Reader::builder(address.clone()).filter(Filter::new().producer(id));
    let mut reader = reader.open().await.context("this relay may not read the log ([access] read_group)")?;
    let mut last = None;
    while let Some(event) = reader.next().await? {
        if let Event::Records(chunk) = event {
            last = last_in(&chunk);
        }
    }
    Ok(last)
}

pub(crate) fn last_in(chunk: &Chunk) -> Option<LastRecord> {
    chunk.records().last().map(|(offset, record)| LastRecord { offset, record: record.to_owned() })
}

/// Where a relay stands, for a person.
pub(crate) async fn status(to: &ToClad, name: &str) -> Result<String> {
    let Some(last) = last_of(&to.address()?, id_of(name)).await? else {
        return Ok(format!("relay {name}: the log has nothing of it"));
    };
    let mut said = format!("relay {name}\nlast record  offset {}", last.offset);
    for pair in &last.record.attributes {
        if let (true, Some(value)) = (pair.key.starts_with("clad.") || pair.key.starts_with("log.file."), &pair.value) {
            let value = match value {
                AnyValue::String(text) => text.clone(),
                other => format!("{other:?}"),
            };
            said.push_str(&format!("\n{}  {value}", pair.key));
        }
    }
    Ok(said)
}
