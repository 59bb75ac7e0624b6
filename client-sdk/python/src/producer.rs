//! A producer, for `logging` and for appends.
//!
//! Invariants: no lock of ours is held while Python code runs. A child of `fork` is refused (`ForkedError`), by a mark
//! that the kernel wipes, whoever called `fork`; `lib/clad/_core.py` begins again there.

use crate::errors;
use crate::pending::{Outcome, Pending, handed_over, seconds};
use crate::record::{Fields, push_fields, push_log_record};
use crate::value;
use clad_client::{Address, Batch, Call, DropReason, Overload, ReserveError, SendError, SubmitError, blocking};
use clad_proto::{EncodeError, ProducerId, Severity};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Batches that are kept for their memory.
const BATCHES_MAX: usize = 8;
/// The longest payload of a batch that is kept.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// The wait that is left after the wait for room: not nothing, so that a drop has the reason that it has.
const LAST_WAIT: Duration = Duration::from_millis(1);
/// Records that one thread makes at once: a text that is made may log, and a signal's handler too.
const NESTED_RECORDS_MAX: u32 = 4;

thread_local! {
    static RECORDS_BEING_MADE: Cell<u32> = const { Cell::new(0) };
}

/// A record that is being made in this thread.
struct BeingMade;

impl BeingMade {
    fn begin() -> Option<Self> {
        let others = RECORDS_BEING_MADE.get();
        (others < NESTED_RECORDS_MAX).then(|| {
            RECORDS_BEING_MADE.set(others + 1);
            Self
        })
    }
}

impl Drop for BeingMade {
    fn drop(&mut self) {
        RECORDS_BEING_MADE.set(RECORDS_BEING_MADE.get() - 1);
    }
}

/// A rule for a lack of room: its name, a severity, seconds.
type Rule = (String, i32, f64);

fn overload((name, severity, wait): Rule) -> PyResult<Overload> {
    let wait = seconds(wait);
    Ok(match name.as_str() {
        "drop_newest" => Overload::DropNewest,
        "drop_oldest" => Overload::DropOldest,
        "drop_below" => Overload::DropBelow { severity: Severity(severity), wait },
        "wait" => Overload::Wait(wait),
        other => return Err(PyValueError::new_err(format!("`{other}` is no rule for a lack of room"))),
    })
}

/// The settings of a producer, as `lib/clad/_core.py` has them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    component: String,
    name: Option<String>,
    level: Option<String>,
    overload: Rule,
    max_buffered_bytes: Option<usize>,
    max_in_flight_appends: Option<u32>,
    max_append_records: Option<u32>,
    linger: Option<f64>,
    backoff: Option<(f64, f64)>,
    connect_timeout: Option<f64>,
    delivery_timeout: Option<f64>,
    producer_id: Option<String>,
    epoch: u32,
    secret: Option<Vec<u8>>,
}

/// Makes what is otherwise made at its first use: see `record`.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    let settings = c"dict(component='', name=None, level=None, overload=('', 0, 0.0), max_buffered_bytes=None, \
        max_in_flight_appends=None, max_append_records=None, linger=None, backoff=None, connect_timeout=None, \
        delivery_timeout=None, producer_id=None, epoch=0, secret=None)";
    py.eval(settings, None, None)?.extract::<Settings>().map(drop)
}

impl Settings {
    fn builder(self, py: Python<'_>, address: &str) -> PyResult<(clad_client::ProducerBuilder, Overload)> {
        let address = address.parse::<Address>().map_err(|error| errors::address(py, error.to_string()))?;
        let rule = overload(self.overload)?;
        let mut builder = clad_client::Producer::builder(address).component(self.component).overload(rule);
        if let Some(id) = self.producer_id {
            let id: ProducerId = id.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?;
            builder = builder.producer(id, self.epoch);
        }
        if let Some(level) = value::level(self.level.as_deref())? {
            builder = builder.level(level);
        }
        let numbers = (self.max_in_flight_appends, self.max_append_records, self.max_buffered_bytes);
        builder = numbers.0.map_or(builder.clone(), |appends| builder.max_in_flight_appends(appends));
        builder = numbers.1.map_or(builder.clone(), |records| builder.max_append_records(records));
        builder = numbers.2.map_or(builder.clone(), |bytes| builder.max_buffered_bytes(bytes));
        builder = self.name.map_or(builder.clone(), |name| builder.name(name));
        builder = self.secret.map_or(builder.clone(), |secret| builder.secret(secret));
        builder = self.linger.map_or(builder.clone(), |time| builder.linger(seconds(time)));
        builder = self.backoff.map_or(builder.clone(), |(first, max)| builder.backoff(seconds(first), seconds(max)));
        builder = self.connect_timeout.map_or(builder.clone(), |time| builder.connect_timeout(seconds(time)));
        builder = self.delivery_timeout.map_or(builder.clone(), |time| builder.delivery_timeout(seconds(time)));
        Ok((builder, rule))
    }
}

const fn is_long(batch: &Batch) -> bool {
    batch.len_bytes() > BATCH_BYTES_MAX
}

/// A producer of this process.
#[pyclass(frozen, module = "clad._clad")]
pub(crate) struct Producer {
    producer: blocking::Producer,
    overload: Overload,
    batches: Mutex<Vec<Batch>>,
}

impl Producer {
    // A fork in C may find the lock taken for ever: whoever does not get it makes a batch.
    fn take_batch(&self) -> Batch {
        let kept = self.batches.try_lock().ok().and_then(|mut batches| batches.pop());
        kept.unwrap_or_else(|| self.producer.batch())
    }

    /// Keeps a batch for the next record, but for one that took much memory. (Once it was handed over it is empty, and
    /// has that memory all the same.)
    fn keep_batch(&self, mut batch: Batch, is_long: bool) {
        batch.clear();
        if let Ok(mut batches) = self.batches.try_lock()
            && !is_long
            && batches.len() < BATCHES_MAX
        {
            batches.push(batch);
        }
    }

    /// Hands over a batch by a rule that may wait: then Python's lock is released.
    fn post(&self, py: Python<'_>, batch: &mut Batch) -> Result<(), SendError> {
        let mut post = || self.producer.post_batch(batch, &Call::new());
        match self.overload {
            Overload::DropNewest | Overload::DropOldest => post(),
            _ => py.detach(post),
        }
    }

    /// Hands over a batch; where the rule is to wait, signals are looked for meanwhile.
    fn offer(
        &self,
        py: Python<'_>,
        batch: &mut Batch,
        level: Option<clad_proto::AckLevel>,
        rule: Overload,
    ) -> PyResult<Result<Pending, SendError>> {
        let mut left = Duration::ZERO;
        if let Overload::Wait(time) = rule {
            let start = Instant::now();
            self.wait_for_room(py, batch.len_bytes(), time)?;
            // Where another thread was faster it waits on, for what is left.
            left = time.saturating_sub(start.elapsed()).max(LAST_WAIT);
        }
        let rule = if matches!(rule, Overload::Wait(_)) { Overload::Wait(left) } else { rule };
        let call = level.map_or(Call::new(), |level| Call::new().at(level)).on_overload(rule);
        Ok(py.detach(|| self.producer.offer_batch(batch, &call)).map(Pending::of_ticket))
    }

    /// Waits until there is room, or the time is over, or a signal's handler raises.
    fn wait_for_room(&self, py: Python<'_>, bytes: usize, time: Duration) -> PyResult<()> {
        if matches!(self.producer.try_reserve(bytes), Err(ReserveError::Full { .. })) {
            let producer = clad_client::Producer::clone(&self.producer);
            let room = Pending::new(async move {
                drop(producer.reserve(bytes).await?);
                Ok(Outcome::Done)
            });
            room.outcome(py, time)?;
        }
        Ok(())
    }

    /// Room for a batch, then its ticket.
    fn room(&self, mut batch: Batch, level: Option<clad_proto::AckLevel>) -> Pending {
        let producer = clad_client::Producer::clone(&self.producer);
        Pending::new(async move {
            let reservation = producer.reserve(batch.len_bytes()).await?;
            let reservation = match level {
                Some(level) => reservation.at(level),
                None => reservation,
            };
            Ok(handed_over(reservation.submit_batch(&mut batch)?))
        })
    }

    fn refused(&self, py: Python<'_>, error: EncodeError) -> PyErr {
        self.producer.count_dropped(DropReason::TooLarge);
        errors::send(py, &SubmitError::Record { index: 0, error }.into())
    }
}

#[pymethods]
impl Producer {
    /// Starts one; `connects`: a wrong address or a refusal is an error here.
    #[new]
    fn new(py: Python<'_>, address: &str, connects: bool, settings: Settings) -> PyResult<Self> {
        let (builder, overload) = settings.builder(py, address)?;
        let made = py.detach(|| match connects {
            true => blocking::Producer::connect(builder),
            false => blocking::Producer::start(builder),
        });
        let producer = made.map_err(|error| errors::connect(py, &error))?;
        Ok(Self { producer, overload, batches: Mutex::default() })
    }

    /// Hands over a LogRecord. What is dropped is counted, and no error.
    fn log(
        &self,
        py: Python<'_>,
        fields: &Bound<'_, PyDict>,
        body: &Bound<'_, PyString>,
        more: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let Some(_being_made) = BeingMade::begin() else {
            self.producer.count_dropped(DropReason::Recursive);
            return Ok(());
        };
        let mut batch = self.take_batch();
        let pushed = push_log_record(&mut batch, fields, body, more)?;
        // What did not go in whole took its room before it was cut.
        let is_long = pushed != Ok(false) || is_long(&batch);
        let sent = match pushed {
            Ok(_) => self.post(py, &mut batch),
            Err(_) => {
                self.producer.count_dropped(DropReason::TooLarge);
                Ok(())
            }
        };
        self.keep_batch(batch, is_long);
        match sent {
            Err(error @ SendError::Submit(SubmitError::Forked)) => Err(errors::send(py, &error)),
            _ => Ok(()),
        }
    }

    /// Hands over a record and gives its ticket; waits for room as the rule says.
    fn append(&self, py: Python<'_>, fields: Fields<'_>, level: Option<&str>, rule: Option<Rule>) -> PyResult<Pending> {
        let (level, rule) = (value::level(level)?, rule.map_or(Ok(self.overload), overload)?);
        let mut batch = self.take_batch();
        push_fields(&mut batch, &fields)?.map_err(|error| self.refused(py, error))?;
        let is_long = is_long(&batch);
        let pending = self.offer(py, &mut batch, level, rule)?;
        self.keep_batch(batch, is_long);
        pending.map_err(|error| errors::send(py, &error))
    }

    /// Gives the wait for room, whose outcome is the ticket. Dropped before that, nothing was handed over.
    fn append_later(&self, py: Python<'_>, fields: Fields<'_>, level: Option<&str>) -> PyResult<Pending> {
        let level = value::level(level)?;
        let mut batch = self.producer.batch();
        push_fields(&mut batch, &fields)?.map_err(|error| self.refused(py, error))?;
        if self.is_forked() {
            return Err(errors::forked(py, false));
        }
        Ok(self.room(batch, level))
    }

    /// Gives the wait until all that was handed over has reached a level: the producer's own without one.
    fn flush(&self, py: Python<'_>, level: Option<&str>) -> PyResult<Pending> {
        self.check(py)?;
        let level = value::level(level)?.or_else(|| self.producer.log().map(|log| log.highest_ack));
        let producer = clad_client::Producer::clone(&self.producer);
        Ok(Pending::new(async move {
            producer.flush(level.unwrap_or(clad_proto::AckLevel::Written)).await?;
            Ok(Outcome::Done)
        }))
    }

    /// Gives the wait until all is home and the producer has ended.
    fn close(&self, py: Python<'_>) -> PyResult<Pending> {
        self.check(py)?;
        let producer = clad_client::Producer::clone(&self.producer);
        Ok(Pending::new(async move {
            producer.close().await?;
            Ok(Outcome::Done)
        }))
    }

    /// The counters, by their names.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check(py)?;
        let stats = self.producer.stats();
        let (all, dropped_by) = (PyDict::new(py), PyDict::new(py));
        for (name, count) in [
            ("submitted", stats.submitted),
            ("sent", stats.sent),
            ("acked", stats.acked),
            ("resent", stats.resent),
            ("failed", stats.failed),
            ("dropped", stats.dropped),
            ("drop_reports", stats.drop_reports),
            ("reconnects", stats.reconnects),
            ("buffered_bytes", stats.buffered_bytes),
            ("pending_appends", stats.pending_appends),
        ] {
            all.set_item(name, count)?;
        }
        for reason in DropReason::ALL {
            dropped_by.set_item(reason.name(), stats.dropped_by.of(reason))?;
        }
        all.set_item("dropped_by", dropped_by)?;
        Ok(all)
    }

    /// The description that the daemon gave of itself and its log at the last greeting; None before the first.
    fn log_info<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.check(py)?;
        let Some(log) = self.producer.log() else { return Ok(None) };
        let all = PyDict::new(py);
        all.set_item("log_id", log.log_id.to_string())?;
        all.set_item("epoch", log.epoch)?;
        all.set_item("durability", log.policy.name())?;
        all.set_item("highest_ack", log.highest_ack.name())?;
        all.set_item("max_record_bytes", log.max_record_bytes)?;
        Ok(Some(all))
    }

    /// The last record that the log had of this producer before this process sent one: its sequence, its level.
    fn last_stored(&self, py: Python<'_>) -> PyResult<Option<(u64, &'static str)>> {
        self.check(py)?;
        Ok(self.producer.last_stored().map(|last| (last.sequence, last.level.name())))
    }

    /// Why nothing goes forward; None while appends are taken.
    fn why_waiting(&self) -> Option<String> {
        self.producer.why_waiting()
    }

    /// The producer's id.
    fn id(&self) -> String {
        self.producer.id().to_string()
    }
}

impl Producer {
    fn is_forked(&self) -> bool {
        matches!(self.producer.try_reserve(0), Err(ReserveError::Forked))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_forked() { Err(errors::forked(py, false)) } else { Ok(()) }
    }
}
