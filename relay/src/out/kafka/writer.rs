//! Transactions: messages, and how far the relay is with them, together or not at all. Its functions wait, so they are for
//! threads that may.
//!
//! Invariants:
//! - Before the progress is read, the servers have ended what another process of this relay had under way, and take nothing
//!   more from it (`init_transactions`).
//! - A transaction that failed, or whose end is not known, is never tried again by the same client: a new one asks how far it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clad_client::{Cursor, LogId};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde::{Deserialize, Serialize};

use super::client::{Heard, Looking, Topic, config, made};
use crate::config::{Compression, PartitionBy, ToKafka};
use crate::out::Trouble;
use crate::out::message::Message;
use crate::out::source::Append;

/// Which delivery is that of the progress.
pub(super) const PROGRESS: usize = 1;
/// For how long a transaction may be open: twice what an answer may take, within these. The servers refuse more than the
/// latter by default (`transaction.max.timeout.ms`).
const TRANSACTION_TIMEOUT_MIN: Duration = Duration::from_secs(60);
const TRANSACTION_TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);
/// Messages come all at once, and then their end is waited for.
const LINGER_MS: &str = "1";
/// The longest wait for what the servers say, before what is still under way is looked at.
const POLL_TIMEOUT: Duration = Duration::from_millis(2);
/// Bytes of a batch beside its messages.
const BATCH_BYTES: usize = 1 << 10;

/// What the servers have said of messages.
#[derive(Default)]
pub(super) struct Deliveries {
    pub(super) failed: Option<KafkaError>,
    /// The last offset of each partition.
    pub(super) last: BTreeMap<i32, i64>,
    pub(super) progress: Option<i64>,
}

/// How far a relay is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    log: String,
    epoch: u32,
    /// All below this offset of the log is in the topic.
    offset: u64,
    /// The append before it: first offset, number of records, CRC of the payload, epoch.
    append: Option<(u64, u32, u32, u32)>,
    pub(super) topic: String,
    /// Where its last messages are: partition and offset.
    pub(super) last: BTreeMap<i32, i64>,
}

impl Progress {
    pub(super) fn new(place: Cursor, append: Option<Append>, topic: &str) -> Self {
        let append = append.map(|append| (append.first, append.count, append.payload_crc, append.epoch));
        let (log, topic) = (place.log_id.to_string(), topic.to_owned());
        Self { log, epoch: place.epoch, offset: place.offset, append, topic, last: BTreeMap::new() }
    }

    pub(super) fn place(&self) -> anyhow::Result<Cursor> {
        let log_id: LogId = self.log.parse().ok().context("the progress names no log")?;
        Ok(Cursor { log_id, epoch: self.epoch, offset: self.offset })
    }

    pub(super) fn append(&self) -> Option<Append> {
        let (first, count, payload_crc, epoch) = self.append?;
        Some(Append { epoch, first, count, payload_crc })
    }
}

/// A topic that is written to.
pub(super) struct Writer {
    producer: BaseProducer<Heard>,
    topic: String,
    /// Nothing where each message's key chooses.
    partition: Option<i32>,
    /// The topic of the progress, with the key there and what the relay's earlier transactions have left; nothing for at
    /// least once.
    once: Option<Once>,
    /// The most bytes of a message with its headers.
    pub(super) max_bytes: usize,
    timeout: Duration,
}

pub(super) struct Once {
    pub(super) topic: String,
    key: String,
    last: BTreeMap<i32, i64>,
}

/// What has been written.
pub(super) struct Written {
    /// Where the progress is in its topic.
    pub(super) progress: i64,
}

impl Writer {
    /// Connects, and has the servers end what an earlier process had under way. Nothing where there is no topic.
    pub(super) fn open(to: &ToKafka, name: &str, log_id: LogId, looking: &Looking) -> Result<Option<Self>, Trouble> {
        let Some(topic) = looking.topic(&to.topic)? else { return Ok(None) };
        let partition = partition(to, &topic)?;
        let mut config = config(to, name)?;
        let timeout = to.timeout()?;
        let compression = match to.compression {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        };
        config.set("enable.idempotence", "true").set("compression.type", compression);
        config.set("partitioner", "murmur2_random").set("linger.ms", LINGER_MS);
        config.set("message.timeout.ms", timeout.as_millis().to_string());
        config.set("message.max.bytes", topic.max_bytes.clamp(1000, 100 << 20).to_string());
        let once = if to.exactly_once {
            let id = format!("clad-relay:{log_id}:{name}");
            let progress = to.progress_topic.clone().unwrap_or_else(|| format!("clad-progress.{log_id}.{name}"));
            progress_topic(looking, &progress)?;
            let transaction = (timeout * 2).clamp(TRANSACTION_TIMEOUT_MIN, TRANSACTION_TIMEOUT_MAX);
            config.set("transactional.id", &id).set("transaction.timeout.ms", transaction.as_millis().to_string());
            Some(Once { topic: progress, key: id, last: BTreeMap::new() })
        } else {
            None
        };
        let producer: BaseProducer<Heard> = made(&config, &looking.trouble)?;
        if once.is_some() {
            let begun = producer.init_transactions(timeout);
            begun.map_err(|error| producer.context().trouble("no transactions", &error))?;
        }
        let max_bytes = topic.max_bytes.saturating_sub(BATCH_BYTES);
        Ok(Some(Self { producer, topic: to.topic.clone(), partition, once, max_bytes, timeout }))
    }

    /// How far earlier processes are: the progress, and its offset in its topic. Nothing where they have begun nothing.
    pub(super) fn progress(&mut self, looking: &Looking) -> Result<Option<(Progress, i64)>, Trouble> {
        let Some(once) = &mut self.once else { return Ok(None) };
        let found = looking.last(&once.topic, 0, |message| {
            let key = message.key().unwrap_or_default();
            ensure!(
                key == once.key.as_bytes(),
                "topic {} is of {}, and this relay is {}: each has a topic of its own for its progress (to.kafka.progress_topic)",
                once.topic,
                String::from_utf8_lossy(key),
                once.key
            );
            let progress: Progress = serde_json::from_slice(message.payload().unwrap_or_default())
                .with_context(|| format!("topic {}, offset {}", once.topic, message.offset()))?;
            Ok((progress, message.offset()))
        })?;
        if let Some((progress, _)) = &found {
            once.last.clone_from(&progress.last);
        }
        Ok(found)
    }

    pub(super) fn once(&self) -> Option<&Once> {
        self.once.as_ref()
    }

    /// Writes that the relay begins at a place, behind what is in the topic.
    pub(super) fn write_at(&mut self, place: Cursor) -> Result<Written, Trouble> {
        if let Some(once) = &mut self.once {
            once.last.clear();
        }
        self.transaction(&[], Progress::new(place, None, &self.topic))
    }

    /// Writes messages, and that the relay is behind the last: all or nothing. `append` is what that is of.
    pub(super) fn write(&mut self, messages: &[Message], append: Option<Append>) -> Result<Written, Trouble> {
        let last = messages.last().context("a transaction of nothing")?;
        self.transaction(messages, Progress::new(last.place.behind(), append, &self.topic))
    }

    fn transaction(&mut self, messages: &[Message], mut progress: Progress) -> Result<Written, Trouble> {
        *self.deliveries()? = Deliveries::default();
        let trouble = |error: &KafkaError| self.trouble("a transaction", error);
        if self.once.is_some() {
            self.producer.begin_transaction().map_err(|error| trouble(&error))?;
        }
        for message in messages {
            self.send(message)?;
        }
        self.delivered()?;
        let Some(once) = &self.once else { return Ok(Written { progress: 0 }) };
        let mut last = once.last.clone();
        last.append(&mut self.deliveries()?.last);
        progress.last = last.clone();
        let text = serde_json::to_string(&progress).context("the progress")?;
        let record = BaseRecord::with_opaque_to(&once.topic, PROGRESS).partition(0).key(&once.key).payload(&text);
        self.producer.send(record).map_err(|(error, _)| trouble(&error))?;
        self.delivered()?;
        self.producer.commit_transaction(self.timeout).map_err(|error| trouble(&error))?;
        let progress = self.deliveries()?.progress.context("no word of where the progress is")?;
        if let Some(once) = &mut self.once {
            once.last = last;
        }
        Ok(Written { progress })
    }

    fn send(&self, message: &Message) -> Result<(), Trouble> {
        let until = Instant::now() + self.timeout;
        let mut headers = OwnedHeaders::new();
        // What append the last message is of stands in the progress.
        for (key, value) in message.place.place_headers() {
            headers = headers.insert(Header { key, value: Some(&*value) });
        }
        let mut record = BaseRecord::with_opaque_to(&self.topic, 0).payload(&message.payload[..]).headers(headers);
        if let Some(time) = message.time {
            record = record.timestamp(i64::try_from(time / 1_000_000).unwrap_or(i64::MAX));
        }
        match self.partition {
            Some(partition) => record = record.partition(partition),
            None => record = record.key(message.component.as_deref().unwrap_or_default()),
        }
        loop {
            match self.producer.send::<str, [u8]>(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) if Instant::now() < until => {
                    record = back;
                    self.producer.poll(Duration::from_millis(100));
                }
                Err((error, _)) => return Err(self.trouble("a message", &error)),
            }
        }
    }

    /// Waits until the servers have said of each message that they have it.
    fn delivered(&self) -> Result<(), Trouble> {
        let trouble = |error: &KafkaError| self.trouble("messages", error);
        let until = Instant::now() + self.timeout;
        // Not by `flush`: that looks every 100 ms (rdkafka 0.39), and a transaction needs two.
        while self.producer.in_flight_count() > 0 {
            if Instant::now() > until {
                return Err(trouble(&KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut)));
            }
            self.producer.poll(POLL_TIMEOUT);
        }
        self.deliveries()?.failed.take().map_or(Ok(()), |error| Err(trouble(&error)))
    }

    /// What an error means. Where another process has begun, messages only say that they were given up.
    fn trouble(&self, what: &str, error: &KafkaError) -> Trouble {
        match self.producer.client().fatal_error() {
            Some((RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced, text)) => Trouble::Stop(anyhow!(
                "{what}: another relay of this name has begun for this log, or the servers have ended a transaction that took too \
                 long. Only one can write ({text})"
            )),
            _ => self.producer.context().trouble(what, error),
        }
    }

    fn deliveries(&self) -> anyhow::Result<std::sync::MutexGuard<'_, Deliveries>> {
        let heard: &Arc<Heard> = self.producer.context();
        heard.deliveries.lock().ok().context("a thread of the client has panicked")
    }
}

/// The partition of all messages; nothing where each message's key chooses.
fn partition(to: &ToKafka, topic: &Topic) -> anyhow::Result<Option<i32>> {
    let cleanup = topic.cleanup.as_deref().unwrap_or_default();
    ensure!(
        !cleanup.contains("compact"),
        "topic {} is compacted (cleanup.policy = {cleanup}): it would lose records. Nothing was sent",
        to.topic
    );
    match (to.partition_by, to.partition.unwrap_or(0)) {
        (Some(PartitionBy::Component), _) => Ok(None),
        (None, partition) => {
            ensure!(
                topic.partitions.contains(&partition),
                "topic {} has no partition {partition}, but {}. Nothing was sent",
                to.topic,
                topic.partitions.len()
            );
            Ok(Some(partition))
        }
    }
}

/// Finds the topic of the progress fit, or makes it.
fn progress_topic(looking: &Looking, name: &str) -> Result<(), Trouble> {
    let Some(topic) = looking.topic(name)? else {
        return looking.make(name);
    };
    let fit = || {
        ensure!(topic.partitions == [0], "topic {name} has {} partitions, and is to have one", topic.partitions.len());
        ensure!(
            topic.cleanup.as_deref().is_none_or(|cleanup| cleanup == "compact"),
            "topic {name} has cleanup.policy = {}, and is to have compact alone: the progress must not expire",
            topic.cleanup.as_deref().unwrap_or_default()
        );
        anyhow::Ok(())
    };
    Ok(fit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_progress_is_read_as_it_was_written() {
        let log_id: LogId = "0123456789abcdef0123456789abcdef".parse().expect("an id");
        let place = Cursor { log_id, epoch: 3, offset: 12 };
        let append = Append { epoch: 2, first: 5, count: 7, payload_crc: 0xdead };
        let mut progress = Progress::new(place, Some(append), "logs");
        progress.last.insert(4, 77);
        let text = serde_json::to_string(&progress).expect("JSON");
        let read: Progress = serde_json::from_str(&text).expect("a progress");
        assert_eq!((read.place().expect("a place"), read.append()), (place, Some(append)));
        assert_eq!(read, progress);
    }
}
