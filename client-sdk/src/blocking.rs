//! A producer for programs without a runtime: a thread of its own runs it.
//!
//! Its receipts, rules and errors are those of [`crate::Producer`], whose calls that do not wait can be used as they
//! are. Every wait here has a bound. A child of `fork` is refused, as there.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use clad_client::{Producer, Record, blocking};
//!
//! let builder = Producer::builder("unix:///run/clad/clad.sock".parse()?).component("billing");
//! let producer = blocking::Producer::connect(builder)?;
//! let receipt = producer.append(&[Record::text(0, 9, "paid")])?; // at the log's highest level now
//! # Ok(()) }
//! ```

use crate::{AppendError, ConnectError, ProducerBuilder, Receipt, Record, SendError, Summary, thread_wait::wait_for};
use clad_proto::AckLevel;
use std::{cell::Cell, ops::Deref, sync::Arc, sync::mpsc, time::Duration};

/// The longest time that a wait goes on beyond `delivery_timeout`, for the daemon that has the append.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// True in a thread that runs a producer: what it logs must not go to that producer.
#[must_use]
pub fn is_worker_thread() -> bool {
    IS_WORKER.get()
}

/// See the module. Cheap to clone; all clones are one producer. The thread ends when the last one is dropped and what
/// was submitted is home, or after [`drop_timeout`](ProducerBuilder::drop_timeout).
#[derive(Debug, Clone)]
pub struct Producer(crate::Producer);

impl Producer {
    /// Makes the producer without waiting for a daemon, as [`ProducerBuilder::start`].
    ///
    /// # Errors
    /// When resource and scope are too long, or there is no thread.
    pub fn start(builder: ProducerBuilder) -> Result<Self, ConnectError> {
        Self::spawn(builder, async |builder| builder.start())
    }

    /// Connects once, then makes the producer, as [`ProducerBuilder::connect`]. Waits at most
    /// [`connect_timeout`](ProducerBuilder::connect_timeout).
    ///
    /// # Errors
    /// Why there is no connection; or as [`Self::start`].
    pub fn connect(builder: ProducerBuilder) -> Result<Self, ConnectError> {
        Self::spawn(builder, ProducerBuilder::connect)
    }

    /// Goes on where an earlier process died, as [`ProducerBuilder::resume`]. Waits at most
    /// [`delivery_timeout`](ProducerBuilder::delivery_timeout).
    ///
    /// # Errors
    /// As [`ProducerBuilder::resume`]; or as [`Self::start`].
    pub fn resume(builder: ProducerBuilder, level: AckLevel) -> Result<Self, ConnectError> {
        Self::spawn(builder, async move |builder| builder.resume(level).await)
    }

    fn spawn<F>(builder: ProducerBuilder, make: F) -> Result<Self, ConnectError>
    where
        F: AsyncFnOnce(ProducerBuilder) -> Result<crate::Producer, ConnectError> + Send + 'static,
    {
        let address = builder.address().clone();
        let failed = |error| ConnectError::Io { address: address.clone(), error: Arc::new(error) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (sender, made) = mpsc::sync_channel(1);
        let run = move || {
            IS_WORKER.set(true);
            runtime.block_on(async {
                let made = make(builder).await;
                let ended = made.as_ref().ok().map(crate::Producer::ended);
                // A receiver that is gone has dropped the only handle.
                let _ = sender.send(made);
                if let Some(ended) = ended {
                    ended.await;
                }
            });
        };
        std::thread::Builder::new().name("clad-client".to_owned()).spawn(run).map_err(failed)?;
        made.recv().unwrap_or_else(|_| Err(failed(std::io::Error::other("the thread of the producer ended")))).map(Self)
    }

    /// Hands over records as one append and waits until it has reached the default level. Waits for room, and for a
    /// daemon, at most [`delivery_timeout`](ProducerBuilder::delivery_timeout).
    ///
    /// # Errors
    /// Says whether another try makes sense and whether the records may be written.
    pub fn append(&self, records: &[Record]) -> Result<Receipt, SendError> {
        self.append_within(records, self.0.delivery_timeout() + ANSWER_WAIT_MAX)
    }

    /// As [`Self::append`], and waits at most `time` also for a daemon that has the records and does not answer. Then it
    /// goes on in the thread: the records may be written later.
    ///
    /// # Errors
    /// As [`Self::append`]; [`AppendError::DeliveryTimeout`] when the time is over.
    pub fn append_within(&self, records: &[Record], time: Duration) -> Result<Receipt, SendError> {
        wait_for(self.0.append(records), time, || ()).unwrap_or_else(|| Err(unanswered(time).into()))
    }

    /// Waits until every record that was submitted before has reached a level, for at most `time`.
    ///
    /// # Errors
    /// As [`crate::Producer::flush`]; [`AppendError::DeliveryTimeout`] when the time is over.
    pub fn flush(&self, level: AckLevel, time: Duration) -> Result<(), AppendError> {
        flush(&self.0, level, time)
    }

    /// Brings everything that was submitted to the default level and ends, for all clones. Waits at most `time`; then
    /// it goes on in the thread.
    ///
    /// # Errors
    /// As [`Self::flush`]; it has ended all the same.
    pub fn close(self, time: Duration) -> Result<Summary, AppendError> {
        wait_for(self.0.close(), time, || ()).unwrap_or_else(|| Err(unanswered(time)))
    }
}

impl Deref for Producer {
    type Target = crate::Producer;

    fn deref(&self) -> &crate::Producer {
        &self.0
    }
}

/// Waits in the calling thread until every record that was submitted to a producer before has reached a level, for at
/// most `time`. The producer may run anywhere but in this thread.
///
/// # Errors
/// As [`crate::Producer::flush`]; [`AppendError::DeliveryTimeout`] when the time is over.
pub fn flush(producer: &crate::Producer, level: AckLevel, time: Duration) -> Result<(), AppendError> {
    wait_for(producer.flush(level), time, || ()).unwrap_or_else(|| Err(unanswered(time)))
}

fn unanswered(waited: Duration) -> AppendError {
    AppendError::DeliveryTimeout { waited, reason: "the daemon has not answered".to_owned(), maybe_written: true }
}
