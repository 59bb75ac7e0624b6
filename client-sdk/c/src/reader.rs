//! A reader: the log from a place on, in the thread that asks.

use std::ffi::c_char;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clad_client::{Cursor, Event, Reader, ReaderBuilder, Start};
use tokio::runtime::Runtime;

use crate::error::{Failure, guard};
use crate::filter::clad_filter;
use crate::options;
use crate::pointers::{self, Grows, Handle};
use crate::reader_event::{Given, clad_event};
use crate::signals::without_sigpipe;
use crate::status::{clad_status, clad_status::*};

/// The longest wait that a timer takes.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Place at which a reader starts.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_start_at {
    /// At the oldest record. What was removed before it comes as a gap.
    CLAD_START_OLDEST = 0,
    /// At the offset start_value.
    CLAD_START_OFFSET = 1,
    /// At the last start_value records; 0 is only what comes from now on.
    CLAD_START_TAIL = 2,
    /// At start_cursor, where an earlier reader stopped.
    CLAD_START_CURSOR = 3,
}

/// Settings of a reader. Begin with CLAD_READER_OPTIONS_INIT; what is 0 or NULL has its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_reader_options {
    /// sizeof(clad_reader_options).
    pub size: usize,
    /// As in clad_options.
    pub address: *const c_char,
    /// Of CLAD_START_CURSOR: what clad_reader_cursor() gave.
    pub start_cursor: *const c_char,
    /// Of CLAD_START_OFFSET and CLAD_START_TAIL.
    pub start_value: u64,
    /// A clad_start_at.
    pub start: u32,
    /// 1: go on with what is appended later, over disconnects. 0: end at the end.
    pub follow: u32,
    /// The end after so many records; 0 is none.
    pub limit: u64,
    /// Leave out records before this time, Unix nanoseconds; 0 is none. A record's time is time_unix_nano of its event.
    /// The limit counts records that are given.
    pub since: i64,
    /// Leave out records after this time, Unix nanoseconds; 0 is none.
    pub until: i64,
    /// CLAD_LEVEL_WRITTEN or CLAD_LEVEL_DURABLE: give a record only when it has reached this. Default: written.
    pub level: u32,
    /// The longest time of one try to connect, milliseconds. Default: 5000.
    pub connect_timeout_ms: u32,
    /// The longest time that a reader which follows tries to connect again, milliseconds. Default: 300000.
    pub reconnect_timeout_ms: u64,
    /// Give only what matches. Default: NULL, everything.
    pub filter: *const clad_filter,
}

// SAFETY: `size` is first; zeroes are NULL and 0.
unsafe impl Grows for clad_reader_options {}

/// A reader. One thread at a time uses it.
pub struct clad_reader {
    mark: AtomicU64,
    /// The process that made it: a child of fork shares its connection and must not touch it.
    process: u32,
    /// In a child of fork it is not dropped, for the same reason.
    open: ManuallyDrop<Open>,
}

struct Open {
    reader: Reader,
    given: Given,
    cursor: Option<Cursor>,
    /// Dropped last: it runs what is above.
    runtime: Runtime,
}

impl Handle for clad_reader {
    const MARK: u64 = 0x636c_6164_7265_6164;

    fn mark(&self) -> &AtomicU64 {
        &self.mark
    }
}

impl Drop for clad_reader {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: it is dropped here alone, and not used again.
            without_sigpipe(|| unsafe { ManuallyDrop::drop(&mut self.open) });
        }
    }
}

impl clad_reader_options {
    fn builder(options: *const Self) -> Result<ReaderBuilder, Failure> {
        let Some(options) = pointers::sized("options", options)? else {
            return Ok(Reader::builder(options::address(None)?));
        };
        let address = options::address(pointers::text("options.address", options.address)?)?;
        let start = match options.start {
            x if x == clad_start_at::CLAD_START_OLDEST as u32 => Start::Oldest,
            x if x == clad_start_at::CLAD_START_OFFSET as u32 => Start::Offset(options.start_value),
            x if x == clad_start_at::CLAD_START_TAIL as u32 => Start::Tail(options.start_value),
            x if x == clad_start_at::CLAD_START_CURSOR as u32 => {
                let text = pointers::text("options.start_cursor", options.start_cursor)?;
                let text = text.ok_or_else(|| Failure::null("options.start_cursor"))?;
                Start::Cursor(text.parse().map_err(|error| Failure::argument(format!("{error}")))?)
            }
            other => return Err(Failure::argument(format!("{other} is no place to start"))),
        };
        let mut builder = Reader::builder(address).from(start).follow(options.follow != 0).limit(options.limit);
        if let Some(level) = options::level(options.level)? {
            builder = builder.level(level);
        }
        if options.since != 0 {
            builder = builder.since(options.since);
        }
        if options.until != 0 {
            builder = builder.until(options.until);
        }
        if options.connect_timeout_ms != 0 {
            builder = builder.connect_timeout(Duration::from_millis(options.connect_timeout_ms.into()));
        }
        if options.reconnect_timeout_ms != 0 {
            builder = builder.reconnect_timeout(Duration::from_millis(options.reconnect_timeout_ms));
        }
        if let Some(filter) = clad_filter::read(options.filter)? {
            builder = builder.filter(filter);
        }
        Ok(builder)
    }
}

/// Opens a reader: connects, for at most connect_timeout_ms. `options` may be NULL: from the oldest record to the end.
/// On an error *reader is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn clad_reader_open(options: *const clad_reader_options, reader: *mut *mut clad_reader) -> clad_status {
    guard(|| {
        pointers::write("reader", reader, std::ptr::null_mut())?;
        let builder = clad_reader_options::builder(options)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new(CLAD_ERR_INTERNAL, error.to_string()))?;
        let opened = without_sigpipe(|| runtime.block_on(builder.open()))?;
        let open = Open { reader: opened, given: Given::default(), cursor: None, runtime };
        let mark = clad_reader::MARK.into();
        let handle = clad_reader { mark, process: std::process::id(), open: ManuallyDrop::new(open) };
        pointers::write("reader", reader, pointers::give(handle))?;
        Ok(CLAD_OK)
    })
}

/// Gives the next event, waiting for at most `timeout_ms`. CLAD_PENDING: there is none yet. CLAD_END: there is none any
/// more. Begin with CLAD_EVENT_INIT; what the event points to is valid until the next call with this reader.
#[unsafe(no_mangle)]
pub extern "C" fn clad_reader_next(reader: *mut clad_reader, timeout_ms: u64, event: *mut clad_event) -> clad_status {
    guard(|| {
        let open = here(reader)?;
        if event.is_null() {
            return Err(Failure::null("event"));
        }
        loop {
            if let Some((next, cursor)) = open.given.next() {
                pointers::write_sized("event", event, &next)?;
                open.cursor = cursor.or_else(|| open.reader.cursor());
                return Ok(CLAD_OK);
            }
            let timeout = Duration::from_millis(timeout_ms).min(WAIT_MAX);
            let Open { runtime, reader, .. } = open;
            let next =
                without_sigpipe(|| runtime.block_on(async { tokio::time::timeout(timeout, reader.next()).await }));
            match next {
                Err(_) => return Ok(CLAD_PENDING),
                Ok(next) => match next? {
                    None => return Ok(CLAD_END),
                    Some(Event::CaughtUp { cursor }) => open.given.caught_up(cursor),
                    Some(Event::Gap(gap)) => open.given.gap(gap),
                    Some(Event::Records(chunk)) => open.given.records(&chunk, open.reader.log_id()),
                    Some(_) => {}
                },
            }
        }
    })
}

/// Writes the place behind the last event as a text of less than CLAD_CURSOR_BYTES bytes, with a NUL. A reader that
/// starts there misses nothing and gets nothing twice. CLAD_PENDING: there was no event yet.
#[unsafe(no_mangle)]
pub extern "C" fn clad_reader_cursor(reader: *mut clad_reader, text: *mut c_char, text_size: usize) -> clad_status {
    guard(|| {
        let open = here(reader)?;
        let Some(cursor) = open.cursor else { return Ok(CLAD_PENDING) };
        pointers::write_text("text", text, text_size, &cursor.to_string())?;
        Ok(CLAD_OK)
    })
}

/// Frees a reader; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn clad_reader_free(reader: *mut clad_reader) -> clad_status {
    guard(|| {
        drop(pointers::take("reader", reader)?);
        Ok(CLAD_OK)
    })
}

fn here<'a>(reader: *mut clad_reader) -> Result<&'a mut Open, Failure> {
    let handle = pointers::handle_mut("reader", reader)?;
    if handle.process != std::process::id() {
        return Err(Failure::forked());
    }
    Ok(&mut handle.open)
}
