//! Clients of the servers: what topics are like, and what is in them. Its functions wait, so they are for threads that may.
//!
//! Invariants: nothing here makes a topic but [`Looking::make`]; what is read is committed.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

use super::writer::{Deliveries, PROGRESS};
use crate::config::ToKafka;
use crate::out::Trouble;
use crate::out::message::Place;

/// What a topic takes at most, where its configuration may not be read: Kafka's own default.
const MESSAGE_BYTES: usize = 1 << 20;
/// Pauses between two looks at the end of a topic.
const PAUSE: Duration = Duration::from_millis(50);
/// Events of a client that are looked at for why it cannot connect.
const EVENTS_HEARD: usize = 8;

/// What a client keeps of what it is called back with.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) deliveries: Mutex<Deliveries>,
    /// The last word on a connection. All clients of a connection share it.
    trouble: Arc<Mutex<String>>,
}

impl ClientContext for Heard {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
        let is_no_reason = [RDKafkaErrorCode::AllBrokersDown, RDKafkaErrorCode::PartitionEOF].map(Some);
        if !is_no_reason.contains(&error.rdkafka_error_code())
            && let Ok(mut trouble) = self.trouble.lock()
        {
            // Without the times: the same word is said once.
            reason.split(" (after ").next().unwrap_or(reason).clone_into(&mut trouble);
        }
    }
}

impl ConsumerContext for Heard {}

impl ProducerContext for Heard {
    type DeliveryOpaque = usize;

    fn delivery(&self, delivered: &DeliveryResult<'_>, which: usize) {
        let Ok(mut deliveries) = self.deliveries.lock() else { return };
        match delivered {
            Ok(message) if which == PROGRESS => deliveries.progress = Some(message.offset()),
            Ok(message) => {
                let last = deliveries.last.entry(message.partition()).or_insert(-1);
                *last = message.offset().max(*last);
            }
            Err((error, _)) => {
                deliveries.failed.get_or_insert_with(|| error.clone());
            }
        }
    }
}

impl Heard {
    /// An error as a program of Kafka's is to take it. `what` says what was tried.
    pub(super) fn trouble(&self, what: impl fmt::Display, error: &KafkaError) -> Trouble {
        let heard = self.trouble.lock().map(|text| text.clone()).unwrap_or_default();
        Trouble::Later(if heard.is_empty() { format!("{what}: {error}") } else { format!("{what}: {error} ({heard})") })
    }
}

/// What any client is set to.
pub(super) fn config(to: &ToKafka, name: &str) -> anyhow::Result<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set("client.id", format!("clad-relay-{name}"));
    for (property, value) in to.properties()? {
        config.set(property, value);
    }
    Ok(config)
}

pub(super) fn made<C: FromClientConfigAndContext<Heard>>(
    config: &ClientConfig,
    trouble: &Arc<Mutex<String>>,
) -> anyhow::Result<C> {
    config
        .create_with_context(Heard { trouble: trouble.clone(), ..Heard::default() })
        .context("to.kafka: librdkafka refuses this")
}

/// What the servers say of a topic.
pub(super) struct Topic {
    pub(super) partitions: Vec<i32>,
    /// `cleanup.policy`; nothing where it may not be read.
    pub(super) cleanup: Option<String>,
    /// The most bytes of a message.
    pub(super) max_bytes: usize,
}

/// Looks at what is there.
pub(super) struct Looking {
    committed: BaseConsumer<Heard>,
    /// Sees what is not committed too: it knows where a partition ends.
    all: BaseConsumer<Heard>,
    admin: AdminClient<Heard>,
    pub(super) trouble: Arc<Mutex<String>>,
    timeout: Duration,
}

impl Looking {
    pub(super) fn new(to: &ToKafka, name: &str) -> Result<Self, Trouble> {
        let mut config = config(to, name)?;
        let trouble = Arc::default();
        let admin = made(&config, &trouble)?;
        // No consumer of a group, but without a name for one nothing can be read.
        config.set("group.id", format!("clad-relay-{name}")).set("enable.auto.commit", "false");
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "error");
        config.set("allow.auto.create.topics", "false");
        let committed = made(config.set("isolation.level", "read_committed"), &trouble)?;
        let all = made(config.set("isolation.level", "read_uncommitted"), &trouble)?;
        Ok(Self { committed, all, admin, trouble, timeout: to.timeout()? })
    }

    /// A topic; nothing where there is none of the name.
    pub(super) fn topic(&self, name: &str) -> Result<Option<Topic>, Trouble> {
        let client = self.all.client();
        let said = client.fetch_metadata(Some(name), self.timeout);
        let said = said.map_err(|error| {
            // What is wrong with a connection waits in the client's queue.
            (0..EVENTS_HEARD).for_each(|_| drop(self.all.poll(PAUSE)));
            client.context().trouble(format_args!("topic {name}"), &error)
        })?;
        let Some(found) = said.topics().iter().find(|topic| topic.name() == name) else { return Ok(None) };
        if let Some(error) = found.error() {
            return match error.into() {
                RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => Ok(None),
                code => Err(Trouble::Later(format!("topic {name}: {code}"))),
            };
        }
        let partitions = found.partitions().iter().map(|partition| partition.id()).collect();
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        let asked = [ResourceSpecifier::Topic(name)];
        let said = waited(self.admin.describe_configs(&asked, &options));
        let described = match said.map(|mut all| all.pop()) {
            Ok(Some(Ok(described))) => Some(described),
            Ok(None | Some(Err(RDKafkaErrorCode::TopicAuthorizationFailed))) => None,
            Ok(Some(Err(code))) => return Err(Trouble::Later(format!("topic {name}: {code}"))),
            Err(error) => return Err(self.admin.inner().context().trouble(format_args!("topic {name}"), &error)),
        };
        let value = |key: &str| described.as_ref()?.get(key)?.value.clone();
        let max_bytes = value("max.message.bytes").and_then(|text| text.parse().ok()).unwrap_or(MESSAGE_BYTES);
        Ok(Some(Topic { partitions, cleanup: value("cleanup.policy"), max_bytes }))
    }

    /// Makes a topic of one partition that keeps the last word of each.
    pub(super) fn make(&self, name: &str) -> Result<(), Trouble> {
        let topic = NewTopic::new(name, 1, TopicReplication::Fixed(-1)).set("cleanup.policy", "compact");
        let options = AdminOptions::new().request_timeout(Some(self.timeout)).operation_timeout(Some(self.timeout));
        match waited(self.admin.create_topics([&topic], &options)).map(|mut all| all.pop()) {
            Ok(None | Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)))) => Ok(()),
            Ok(Some(Err((_, code)))) => Err(Trouble::Later(format!("topic {name} cannot be made: {code}"))),
            Err(error) => {
                Err(self.admin.inner().context().trouble(format_args!("topic {name} cannot be made"), &error))
            }
        }
    }

    /// The lowest offset of a partition and its end, with what is not committed.
    pub(super) fn ends(&self, topic: &str, partition: i32) -> Result<(i64, i64), Trouble> {
        let client = self.all.client();
        let ends = client.fetch_watermarks(topic, partition, self.timeout);
        ends.map_err(|error| client.context().trouble(format_args!("the end of topic {topic}"), &error))
    }

    /// The last message of a partition that is committed, by what `of` makes of it. What is under way there is waited for:
    /// behind a transaction that is not ended nothing can be read.
    pub(super) fn last<T>(
        &self,
        topic: &str,
        partition: i32,
        of: impl Fn(&BorrowedMessage<'_>) -> anyhow::Result<T>,
    ) -> Result<Option<T>, Trouble> {
        let end = self.ends(topic, partition)?.1;
        let until = Instant::now() + self.timeout;
        let client = self.committed.client();
        loop {
            let ends = client.fetch_watermarks(topic, partition, self.timeout);
            let stable = ends.map_err(|error| client.context().trouble(format_args!("topic {topic}"), &error))?.1;
            if stable >= end {
                break;
            }
            if Instant::now() > until {
                let text = format!("somebody's transaction in topic {topic} does not end (at {stable} of {end})");
                return Err(Trouble::Later(text));
            }
            std::thread::sleep(PAUSE);
        }
        let mut last = None;
        self.read(topic, partition, Offset::Beginning, |message| {
            last = Some(of(message)?);
            Ok(true)
        })?;
        Ok(last)
    }

    /// What is said of its place by the message at an offset: nothing where it is not there, or is no relay's.
    pub(super) fn place_at(&self, topic: &str, partition: i32, offset: i64) -> Result<Option<Place>, Trouble> {
        let mut place = None;
        self.read(topic, partition, Offset::Offset(offset), |message| {
            if message.offset() == offset {
                place = place_of(message);
            }
            Ok(false)
        })?;
        Ok(place)
    }

    /// Reads what is committed, to its end, or until `each` wants no more.
    fn read(
        &self,
        topic: &str,
        partition: i32,
        from: Offset,
        mut each: impl FnMut(&BorrowedMessage<'_>) -> anyhow::Result<bool>,
    ) -> Result<(), Trouble> {
        let trouble = |error: &KafkaError| self.committed.context().trouble(format_args!("topic {topic}"), error);
        let mut place = TopicPartitionList::new();
        place.add_partition_offset(topic, partition, from).map_err(|error| trouble(&error))?;
        self.committed.assign(&place).map_err(|error| trouble(&error))?;
        let ended = loop {
            match self.committed.poll(self.timeout) {
                Some(Ok(message)) => match each(&message) {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error.into()),
                },
                Some(Err(KafkaError::PartitionEOF(_))) => break Ok(()),
                Some(Err(error)) => break Err(trouble(&error)),
                None => break Err(trouble(&KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut))),
            }
        };
        self.committed.unassign().map_err(|error| trouble(&error))?;
        ended
    }
}

fn place_of(message: &BorrowedMessage<'_>) -> Option<Place> {
    let headers = message.headers()?;
    Place::of(|name| {
        let header = headers.iter().find(|header| header.key == name)?;
        std::str::from_utf8(header.value?).ok()
    })
}

/// Waits for an answer that comes by a thread of the client's.
fn waited<T>(answer: impl Future<Output = T>) -> T {
    tokio::runtime::Handle::current().block_on(answer)
}
