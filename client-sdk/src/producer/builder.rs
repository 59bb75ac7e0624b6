//! Construction of a producer.

use super::{call::Overload, handle::Producer, options::Options, shared::Shared, task::Task};
use crate::{Address, AppendError, ConnectError, backoff::random, clock::bounded};
use clad_proto::{
    AckLevel, Group, ProducerId, Scope,
    limits::{DEFAULT_MAX_APPEND_BYTES, MAX_APPEND_RECORDS, MAX_CLIENT_NAME_BYTES, MAX_WINDOW},
};
use std::{sync::Arc, time::Duration};

/// Default time that an outage may last before appends are abandoned.
const DEFAULT_DELIVERY_TIMEOUT: Duration = Duration::from_secs(300);
/// Default number of bytes that may wait for a receipt.
const DEFAULT_MAX_BUFFERED_BYTES: usize = 16 * 1024 * 1024;
/// Permits of a semaphore are counted in 32 bits when they are taken.
const MAX_BUFFERED_BYTES: usize = u32::MAX as usize;

/// Makes a [`Producer`]. Every setting has a default; [`connect`](Self::connect) or [`start`](Self::start) ends it.
#[derive(Debug, Clone)]
#[must_use = "connect() or start() makes the producer"]
pub struct ProducerBuilder(Options);

impl ProducerBuilder {
    pub(crate) fn new(address: Address) -> Self {
        let secret = if address.knows_its_peer() { Vec::new() } else { random::<32>().to_vec() };
        Self(Options {
            address,
            name: String::new(),
            producer_id: ProducerId::from_bytes(random()),
            producer_epoch: 0,
            comes_back: false,
            secret,
            group: Group::default(),
            level: None,
            max_in_flight: MAX_WINDOW,
            max_buffered_bytes: DEFAULT_MAX_BUFFERED_BYTES,
            max_records: 1,
            max_bytes: DEFAULT_MAX_APPEND_BYTES as usize,
            linger: Duration::ZERO,
            backoff: (Duration::from_millis(10), Duration::from_secs(2)),
            connect_timeout: Duration::from_secs(5),
            delivery_timeout: DEFAULT_DELIVERY_TIMEOUT,
            drop_timeout: Duration::from_secs(2),
            drop_when_full: false,
            overload: Overload::default(),
            on_first_error: None,
        })
    }

    pub(crate) const fn address(&self) -> &Address {
        &self.0.address
    }

    /// The name by which a person finds this client in the daemon's own messages; what is longer than 128 bytes
    /// is cut. Default: the component.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Resumes a producer that existed before: its id and a higher epoch than it had, so that the old producer is
    /// fenced off. Sequences resume where the log has them ([`resume`](Self::resume)). Such a producer can be resumed in
    /// turn: it closes without a notice to the daemon that it may be forgotten. Default: a random id, epoch 0.
    pub const fn producer(mut self, id: ProducerId, epoch: u32) -> Self {
        self.0.producer_id = id;
        self.0.producer_epoch = epoch;
        self.0.comes_back = true;
        self
    }

    /// The secret that the id is bound to where the daemon cannot know its peer (TCP, gRPC); at most 32 bytes, a longer
    /// one is cut. Needed only to resume an earlier producer. Default: random there, none on Unix sockets.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.0.secret = secret.into();
        self.0.secret.truncate(clad_proto::limits::MAX_SECRET_BYTES);
        self
    }

    /// The component (`service.name`) that the records are from. Replaces the resource of an earlier
    /// [`group`](Self::group).
    pub fn component(mut self, name: impl Into<String>) -> Self {
        self.0.group.resource = Group::component_named(name).resource;
        self
    }

    /// The scope of the records: the part of the program that made them.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.0.group.scope = Some(scope);
        self
    }

    /// Resource and scope that all records share.
    pub fn group(mut self, group: Group) -> Self {
        self.0.group = group;
        self
    }

    /// The level that appends wait for where nothing else is said. Default: the highest that the log offers. A level
    /// that the log cannot reach is refused append by append (`level_unreachable`), never lowered.
    pub const fn level(mut self, level: AckLevel) -> Self {
        self.0.level = Some(level);
        self
    }

    /// Number of appends, at least 1, that may be sent, counted from the oldest without a receipt. The daemon's window
    /// bounds it too. Default: the daemon's window.
    pub const fn max_in_flight_appends(mut self, appends: u32) -> Self {
        self.0.max_in_flight = if appends == 0 { 1 } else { appends };
        self
    }

    /// Number of bytes that may be reserved or wait for a receipt, 256 for each append included: the bound of this
    /// producer's memory. Bytes in a ring of shared memory are bounded by the ring, and do not count. At most 4 GiB, at
    /// least what one append needs. Default: 16 MiB.
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.0.max_buffered_bytes = bytes.clamp(1024, MAX_BUFFERED_BYTES);
        self
    }

    /// Groups records that are submitted one by one: up to this many in one append, 1 to 2^20. Each has its own ticket;
    /// they are taken or refused together. Default: 1, each record is an append.
    ///
    /// An append leaves when it is full, when [`linger`](Self::linger) is over, or when the level changes. One that is
    /// longer than the next daemon takes is refused as a whole.
    pub fn max_append_records(mut self, records: u32) -> Self {
        self.0.max_records = records.clamp(1, MAX_APPEND_RECORDS);
        self
    }

    /// Where records are grouped, an append is full at this many bytes of payload. Default: what the daemon takes; before
    /// the first greeting what any daemon takes, which is less than 1 KiB.
    pub const fn max_append_bytes(mut self, bytes: usize) -> Self {
        self.0.max_bytes = bytes;
        self
    }

    /// Where records are grouped, how long the first one waits for others. Default: 0, as long as the task is busy with
    /// what came before.
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.0.linger = linger;
        self
    }

    /// Waits between tries to connect, and to resend what was refused for now: doubling from `first` to `max`,
    /// jittered. Default: 10 ms to 2 s.
    pub const fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.0.backoff = (first, max);
        self
    }

    /// The longest time for one try to connect, the greeting included. Default: 5 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// The longest time that an append waits while there is no daemon, or while the daemon refuses it for now, before
    /// it ends with an error. Counted from when the trouble began, or from the submit if that was later. Default: 5
    /// min.
    ///
    /// It counts for a flush, too. It does not count for records in a ring of shared memory: they are posted, and any
    /// later daemon takes them. Their ticket waits, until the producer is closed or dropped.
    ///
    /// A daemon forgets a producer that has been silent for long (see its documentation). Exactly-once ends there, so
    /// keep this below that time.
    pub const fn delivery_timeout(mut self, time: Duration) -> Self {
        self.0.delivery_timeout = time;
        self
    }

    /// Time that the task continues after the last handle was dropped, to deliver submitted records. Default: 2 s.
    pub const fn drop_timeout(mut self, time: Duration) -> Self {
        self.0.drop_timeout = time;
        self
    }

    /// Calls this once: when a record ends with an error that nobody waits for, for the first time. Who logs without
    /// tickets would learn of it only by the next flush. It may not use the producer, and drops are no such errors: the
    /// log has their reports. Default: nothing is called.
    pub const fn on_first_error(mut self, report: fn(&AppendError)) -> Self {
        self.0.on_first_error = Some(report);
        self
    }

    /// Behavior for a record that finds a ring of shared memory full. False, the default: it queues for room, in its
    /// order and within [`max_buffered_bytes`](Self::max_buffered_bytes), for at most
    /// [`delivery_timeout`](Self::delivery_timeout); await its ticket to wait for it. True: its submit ends with
    /// [`SubmitError::RingFull`](crate::SubmitError::RingFull), and it is counted as dropped.
    pub const fn drop_when_full(mut self, drop: bool) -> Self {
        self.0.drop_when_full = drop;
        self
    }

    /// Rule for a record that finds no room, where the call says nothing else ([`Producer::offer`]). Default:
    /// [`Overload::DropNewest`].
    pub const fn overload(mut self, overload: Overload) -> Self {
        self.0.overload = overload;
        self
    }

    /// Makes the producer without waiting for a daemon: it connects by itself, and appends wait for that.
    ///
    /// # Errors
    /// [`ConnectError::Group`] when resource and scope are too long.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Result<Producer, ConnectError> {
        let shared = Arc::new(Shared::new(self.finish())?);
        spawn(&shared, Task::new(shared.clone()));
        Ok(Producer::new(shared))
    }

    /// Connects once, then makes the producer: a wrong address or a refusing daemon is reported here.
    ///
    /// # Errors
    /// Why there is no connection, or that resource and scope are too long.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left.
    pub async fn connect(self) -> Result<Producer, ConnectError> {
        let shared = Arc::new(Shared::new(self.finish())?);
        let mut task = Task::new(shared.clone());
        Box::pin(task.connect_once()).await?;
        spawn(&shared, task);
        Ok(Producer::new(shared))
    }

    /// As [`connect`](Self::connect), for a program that goes on where it died. It waits until the last record that the
    /// log has of this producer ([`Producer::last_stored`]) has reached `level`: what this program counts as done then
    /// survives what that level survives. Waits for at most [`delivery_timeout`](Self::delivery_timeout), and makes a
    /// new connection for each look.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). [`ConnectError::Refused`] (`level_unreachable`) if the log does not offer the
    /// level, [`ConnectError::Timeout`] if the record does not reach it in time. The same call again is safe.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn resume(self, level: AckLevel) -> Result<Producer, ConnectError> {
        let shared = Arc::new(Shared::new(self.finish())?);
        let mut task = Task::new(shared.clone());
        Box::pin(task.connect_at(level)).await?;
        spawn(&shared, task);
        Ok(Producer::new(shared))
    }

    pub(crate) fn finish(self) -> Options {
        let mut options = self.0;
        let Options { delivery_timeout, linger, drop_timeout, backoff: (first, max_delay), connect_timeout, .. } =
            &mut options;
        for wait in [delivery_timeout, linger, drop_timeout, first, max_delay, connect_timeout] {
            *wait = bounded(*wait);
        }
        if options.name.is_empty() {
            options.name = options.group.component().unwrap_or("clad-client").to_owned();
        }
        options.name.truncate(options.name.floor_char_boundary(MAX_CLIENT_NAME_BYTES));
        options
    }
}

impl Producer {
    /// Starts to make one for the daemon at this address.
    pub fn builder(address: Address) -> ProducerBuilder {
        ProducerBuilder::new(address)
    }
}

/// Begins the task. A child of `fork` that continues with its parent's runtime must not touch the connection, which is
/// still the parent's: there the task does nothing.
fn spawn(shared: &Arc<Shared>, task: Task) {
    let (shared, mut run) = (shared.clone(), Box::pin(task.run()));
    tokio::spawn(std::future::poll_fn(move |cx| match shared.is_forked() {
        true => std::task::Poll::Pending,
        false => run.as_mut().poll(cx),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_as_long_as_one_may_be_on_any_transport() {
        let named = |name: String| ProducerBuilder::new(Address::unix("/clad.sock")).component(name).finish().name;
        assert_eq!(named("n".repeat(128)).len(), 128);
        assert_eq!(named(format!("n{}", "\u{e4}".repeat(100))).len(), 127, "a letter is whole");
    }
}
