//! A producer: making it, appending, flushing, closing.

use std::ffi::c_char;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clad_client::{AckLevel, DropReason, ProducerBuilder, ReserveError, blocking};

use crate::error::{Failure, guard, guard_or};
use crate::local;
use crate::options::{self, clad_call, clad_options};
use crate::pointers::{self, Handle};
use crate::record::{self, clad_attribute, clad_record};
use crate::signals::without_signals;
use crate::stats::clad_stats;
use crate::status::{clad_status, clad_status::*};
use crate::ticket::{clad_receipt, clad_ticket, wait_for};

/// The longest sleep of a flush that waits for the daemon's first greeting.
const GREETING_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The longest wait for options.resume_level.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);
/// The wait between two looks.
const RESUME_LOOK_INTERVAL: Duration = Duration::from_millis(10);

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A producer: it appends records, and has a thread that talks to the daemon. Any number of threads may use it at once.
pub struct clad_producer {
    mark: AtomicU64,
    number: u64,
    level: Option<AckLevel>,
    producer: blocking::Producer,
}

impl Handle for clad_producer {
    const MARK: u64 = 0x636c_6164_7072_6f64;

    fn mark(&self) -> &AtomicU64 {
        &self.mark
    }
}

type Make = fn(ProducerBuilder) -> Result<blocking::Producer, clad_client::ConnectError>;

fn make(options: *const clad_options, producer: *mut *mut clad_producer, make: Make) -> Result<clad_status, Failure> {
    pointers::write("producer", producer, std::ptr::null_mut())?;
    let builder = clad_options::builder(options)?;
    let options = pointers::sized("options", options)?;
    let resume = options.map_or(Ok(None), |options| options::level(options.resume_level))?;
    let level = options.map_or(Ok(None), |options| options::level(options.level))?;
    let made = without_signals(|| match resume {
        None => Ok(make(builder)?),
        Some(resume) => resumed(builder, make, resume),
    });
    let made = made.map_err(|error| Failure::new(CLAD_ERR_INTERNAL, error.to_string()))??;
    let number = NEXT_NUMBER.fetch_add(1, Relaxed);
    let handle = clad_producer { mark: clad_producer::MARK.into(), number, level, producer: made };
    pointers::write("producer", producer, pointers::give(handle))?;
    Ok(CLAD_OK)
}

/// A producer whose last record in the log has reached a level: what the program counts as done then survives as much.
fn resumed(builder: ProducerBuilder, make: Make, level: AckLevel) -> Result<blocking::Producer, Failure> {
    let start = Instant::now();
    loop {
        let producer = make(builder.clone())?;
        if producer.last_stored().is_none_or(|last| last.level >= level) {
            return Ok(producer);
        }
        if producer.log().is_some_and(|log| log.highest_ack < level) {
            return Err(Failure::new(CLAD_ERR_LEVEL, "this log does not offer options.resume_level"));
        }
        // Nothing was handed over: only the connection ends, so that the next one looks again.
        let _ = producer.close(RESUME_LOOK_INTERVAL);
        if start.elapsed() >= RESUME_TIMEOUT {
            let text = format!("the last record in the log has not reached options.resume_level in {RESUME_TIMEOUT:?}");
            return Err(Failure::new(CLAD_ERR_TIMEOUT, text).coded(None, true, false));
        }
        std::thread::sleep(RESUME_LOOK_INTERVAL);
    }
}

/// Connects once, for at most connect_timeout_ms, and makes a producer. `options` may be NULL: all defaults. On an
/// error *producer is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn clad_connect(options: *const clad_options, producer: *mut *mut clad_producer) -> clad_status {
    guard(|| make(options, producer, blocking::Producer::connect))
}

/// Makes a producer without waiting for a daemon: it connects by itself, and records wait for that. `options` may be
/// NULL, and has no resume_level.
#[unsafe(no_mangle)]
pub extern "C" fn clad_start(options: *const clad_options, producer: *mut *mut clad_producer) -> clad_status {
    guard(|| {
        if pointers::sized("options", options)?.is_some_and(|options| options.resume_level != 0) {
            return Err(Failure::argument("options.resume_level needs clad_connect()"));
        }
        make(options, producer, blocking::Producer::start)
    })
}

impl clad_producer {
    fn send<T>(
        &self,
        fill: impl FnOnce(&mut clad_client::Batch) -> Result<(), Failure>,
        send: impl FnOnce(&mut clad_client::Batch) -> Result<T, clad_client::SendError>,
    ) -> Result<T, Failure> {
        let fill = |batch: &mut clad_client::Batch| {
            fill(batch).inspect_err(|failure| {
                if failure.status == CLAD_ERR_TOO_LARGE {
                    self.producer.count_dropped(DropReason::TooLarge);
                }
            })
        };
        local::with_batch((self.number, &self.producer), fill, |batch| Ok(send(batch)?))
    }

    fn append(
        &self,
        records: *const clad_record,
        count: usize,
        call: *const clad_call,
    ) -> Result<clad_client::Ticket, Failure> {
        let call = clad_call::read(call)?;
        if records.is_null() && count > 0 {
            return Err(Failure::null("records"));
        }
        let fill = |batch: &mut clad_client::Batch| {
            for index in 0..count {
                let record = pointers::sized("record", pointers::element(records, index))?;
                record.ok_or_else(|| Failure::null("record"))?.encode(batch)?;
            }
            Ok(())
        };
        self.send(fill, |batch| self.producer.offer_batch(batch, &call))
    }

    /// That this process is no fork of the one that made it: there a lock may be held by a thread that is not there.
    fn is_here(&self) -> Result<(), Failure> {
        match self.producer.try_reserve(0) {
            Err(ReserveError::Forked) => Err(Failure::forked()),
            _ => Ok(()),
        }
    }
}

/// Hands over `count` records as one append: stored whole or not at all, with consecutive offsets. All of them have the
/// size of the first one. `call` may be NULL. *ticket gives the outcome, and must be freed; `ticket` may be NULL: then
/// clad_flush() reports an error of it.
///
/// It waits for room only where the rule for overload says so. An error says that nothing was handed over: the records
/// are certainly not written. CLAD_ERR_DROPPED and CLAD_ERR_TOO_LARGE are counted as drops.
#[unsafe(no_mangle)]
pub extern "C" fn clad_append(
    producer: *mut clad_producer,
    records: *const clad_record,
    count: usize,
    call: *const clad_call,
    ticket: *mut *mut clad_ticket,
) -> clad_status {
    guard(|| {
        if !ticket.is_null() {
            pointers::write("ticket", ticket, std::ptr::null_mut())?;
        }
        let made = pointers::handle("producer", producer)?.append(records, count, call)?;
        if !ticket.is_null() {
            pointers::write("ticket", ticket, pointers::give(clad_ticket::new(made)))?;
        }
        Ok(CLAD_OK)
    })
}

/// Hands over one record and waits until it has reached its level, for at most `timeout_ms` after it found room. `call`
/// and `receipt` may be NULL. After CLAD_ERR_TIMEOUT the record is still under way: it may be written, or not.
#[unsafe(no_mangle)]
pub extern "C" fn clad_append_wait(
    producer: *mut clad_producer,
    record: *const clad_record,
    call: *const clad_call,
    timeout_ms: u64,
    receipt: *mut clad_receipt,
) -> clad_status {
    guard(|| {
        let mut ticket = pointers::handle("producer", producer)?.append(record, 1, call)?;
        match wait_for(&mut ticket, Duration::from_millis(timeout_ms)) {
            Some(outcome) => clad_receipt::write(receipt, outcome),
            None => {
                let text = format!("no answer within {timeout_ms} ms; it is under way and may be written");
                Err(Failure::unanswered(text))
            }
        }
    })
}

/// Logs a text that ends with a NUL, with attributes (NULL and 0: none): fire and forget, at the producer's level.
///
/// It waits for room only where the rule for overload says so, by default never. The record is sent again until it has
/// reached its level; if it cannot, clad_flush() says so. An error says that it is not written, and by CLAD_ERR_DROPPED
/// and CLAD_ERR_TOO_LARGE that it is counted as dropped.
#[unsafe(no_mangle)]
pub extern "C" fn clad_log(
    producer: *mut clad_producer,
    severity: i32,
    text: *const c_char,
    attributes: *const clad_attribute,
    attributes_count: usize,
) -> clad_status {
    guard(|| {
        let handle = pointers::handle("producer", producer)?;
        let text = pointers::bytes("text", text.cast(), usize::MAX)?.ok_or_else(|| Failure::null("text"))?;
        let attributes = pointers::array("attributes", attributes, attributes_count)?;
        let ids = (std::ptr::null(), std::ptr::null());
        let fill = |batch: &mut clad_client::Batch| {
            record::encode(batch, record::head(severity, 0), record::text_body(text), "", "", attributes, ids)
        };
        handle.send(fill, |batch| handle.producer.post_batch(batch, &clad_client::Call::new()))?;
        Ok(CLAD_OK)
    })
}

/// As clad_log(), of a whole record. `call` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn clad_log_record(
    producer: *mut clad_producer,
    record: *const clad_record,
    call: *const clad_call,
) -> clad_status {
    guard(|| {
        let handle = pointers::handle("producer", producer)?;
        let call = clad_call::read(call)?;
        let record = pointers::sized("record", record)?.ok_or_else(|| Failure::null("record"))?;
        handle.send(|batch| record.encode(batch), |batch| handle.producer.post_batch(batch, &call))?;
        Ok(CLAD_OK)
    })
}

/// Waits until every record that was handed over before has reached `level`, for at most `timeout_ms`.
///
/// It also reports the worst error of a record without a ticket, or whose ticket was freed, since the last flush.
#[unsafe(no_mangle)]
pub extern "C" fn clad_flush(producer: *mut clad_producer, level: u32, timeout_ms: u64) -> clad_status {
    guard(|| {
        let handle = pointers::handle("producer", producer)?;
        handle.is_here()?;
        let start = Instant::now();
        let timeout = Duration::from_millis(timeout_ms);
        let level = match options::level(level)?.or(handle.level) {
            Some(AckLevel::None | AckLevel::Posted) => AckLevel::Received,
            Some(level) => level,
            None => loop {
                if let Some(log) = handle.producer.log() {
                    break log.highest_ack;
                }
                if start.elapsed() >= timeout {
                    let why = handle.producer.why_waiting().unwrap_or_else(|| "no daemon has answered yet".to_owned());
                    return Err(Failure::unanswered(format!("not flushed in {timeout_ms} ms: {why}")));
                }
                std::thread::sleep(GREETING_LOOK_INTERVAL.min(timeout));
            },
        };
        handle.producer.flush(level, timeout.saturating_sub(start.elapsed()))?;
        Ok(CLAD_OK)
    })
}

/// Brings every record to the producer's level and ends the producer, for all threads. Waits at most `timeout_ms`; then
/// it goes on in the background, as long as the process lives. The handle stays, for statistics, until
/// clad_producer_free().
#[unsafe(no_mangle)]
pub extern "C" fn clad_close(producer: *mut clad_producer, timeout_ms: u64) -> clad_status {
    guard(|| {
        let handle = pointers::handle("producer", producer)?;
        handle.is_here()?;
        local::forget(handle.number);
        handle.producer.clone().close(Duration::from_millis(timeout_ms))?;
        Ok(CLAD_OK)
    })
}

/// Frees a producer; NULL is nothing. No other call may have it. One that was not closed goes on for 2 seconds at most in
/// the background, to bring records home. In a child of fork it only frees.
#[unsafe(no_mangle)]
pub extern "C" fn clad_producer_free(producer: *mut clad_producer) -> clad_status {
    guard(|| {
        if let Some(handle) = pointers::take("producer", producer)? {
            local::forget(handle.number);
        }
        Ok(CLAD_OK)
    })
}

/// The counters so far. Begin with CLAD_STATS_INIT.
#[unsafe(no_mangle)]
pub extern "C" fn clad_get_stats(producer: *mut clad_producer, stats: *mut clad_stats) -> clad_status {
    guard(|| {
        let counted = pointers::handle("producer", producer)?.producer.stats();
        pointers::write_sized("stats", stats, &clad_stats::from(&counted))?;
        Ok(CLAD_OK)
    })
}

/// The number of records that the log had of this producer_id when the producer was made: where a program that was
/// killed goes on, if each of its records is one of this producer. CLAD_PENDING while there was no connection.
#[unsafe(no_mangle)]
pub extern "C" fn clad_next_sequence(producer: *mut clad_producer, sequence: *mut u64) -> clad_status {
    guard(|| {
        let handle = pointers::handle("producer", producer)?;
        handle.is_here()?;
        if handle.producer.log().is_none() {
            return Ok(CLAD_PENDING);
        }
        let last = handle.producer.last_stored();
        pointers::write("sequence", sequence, last.map_or(0, |last| last.sequence.saturating_add(1)))?;
        Ok(CLAD_OK)
    })
}

/// Writes the reason why nothing goes forward, for a person, with a NUL: a daemon that is away, or that refuses for now.
/// A text that is longer than `text_size` is cut. "" while appends are taken.
#[unsafe(no_mangle)]
pub extern "C" fn clad_why_waiting(producer: *mut clad_producer, text: *mut c_char, text_size: usize) -> clad_status {
    guard(|| {
        let handle = pointers::handle("producer", producer)?;
        handle.is_here()?;
        let why = handle.producer.why_waiting().unwrap_or_default();
        let end = why.floor_char_boundary(text_size.saturating_sub(1));
        pointers::write_text("text", text, text_size, &why[..end])?;
        Ok(CLAD_OK)
    })
}

/// True if records go into a ring of shared memory now. An address of shm:// asks for one; without it they go over the
/// socket.
#[unsafe(no_mangle)]
pub extern "C" fn clad_has_ring(producer: *mut clad_producer) -> bool {
    guard_or(false, || pointers::handle("producer", producer).is_ok_and(|handle| handle.producer.has_ring()))
}
