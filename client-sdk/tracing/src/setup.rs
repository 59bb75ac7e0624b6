//! The set-up of a program's log.

use std::path::Path;
use std::time::Duration;

use clad_client::{AckLevel, Address, Overload, Producer, ProducerBuilder, blocking};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt};

use crate::error::{SERVER_VARIABLE, SOCKET, SetupError};
use crate::{Guard, Layer, current::Current, guard::Live, panic_hook, text::warn};

/// Filters records, as `info` or `warn,billing=debug`.
const FILTER_VARIABLE: &str = "RUST_LOG";
/// The longest wait of a panic for the log.
const PANIC_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Records that are grouped while the producer is busy.
const GROUP_RECORDS_MAX: u32 = 128;

/// Sets up the log of a program, for `tracing` and `log`, with the defaults of [`Setup`]. See [the crate](crate).
pub fn init() -> Guard {
    Setup::new().init()
}

/// Settings of a program's log.
#[must_use = "init() or layer() makes it so"]
#[derive(Debug, Clone)]
pub struct Setup {
    server: Option<Address>,
    component: Option<String>,
    level: AckLevel,
    overload: Overload,
    max_buffered_bytes: Option<usize>,
    flush_timeout: Duration,
    filter: Option<Targets>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            server: None,
            component: None,
            level: AckLevel::Written,
            overload: Overload::default(),
            max_buffered_bytes: None,
            flush_timeout: Duration::from_secs(5),
            filter: None,
        }
    }
}

impl Setup {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The daemon. Default: `CLAD_SERVER`, else `/run/clad/clad.sock` where that is there. It need not run yet.
    pub fn server(mut self, address: Address) -> Self {
        self.server = Some(address);
        self
    }

    /// The component (`service.name`). Default: the name of the program's file.
    pub fn component(mut self, name: impl Into<String>) -> Self {
        self.component = Some(name.into());
        self
    }

    /// The level that records are sent again for until they have reached it, and that [`Guard`] and the panic hook wait
    /// for. Default: `written`, which survives the death of program and daemon. On a log that does not offer it each
    /// record fails and is counted ([`Stats::failed`](clad_client::Stats::failed)); one line on stderr says so.
    pub const fn level(mut self, level: AckLevel) -> Self {
        self.level = level;
        self
    }

    /// Rule for a record that finds no room. Default: it is dropped, and no call ever waits.
    pub const fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// Bytes that records may take until they have reached their level
    /// ([`ProducerBuilder::max_buffered_bytes`]). Default: 16 MiB.
    pub const fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.max_buffered_bytes = Some(bytes);
        self
    }

    /// The longest wait of [`Guard`]. Default: 5 s. That of the panic hook is 2 s, or this if it is shorter.
    pub const fn flush_timeout(mut self, timeout: Duration) -> Self {
        self.flush_timeout = timeout;
        self
    }

    /// The records that are taken. Default: `RUST_LOG`, as `info` or `warn,billing=debug`; else those from `info` on.
    pub fn filter(mut self, filter: Targets) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Makes it the log of the program: its subscriber, its logger (feature `log`) and a panic hook. Where there is no
    /// daemon, records go to stderr, with one warning. Never waits for a daemon, and never panics: where the program has
    /// a subscriber or logger already, it stays, with a warning.
    pub fn init(self) -> Guard {
        let filter = self.chosen_filter();
        let limit = tracing_subscriber::Layer::<tracing_subscriber::Registry>::max_level_hint(&filter);
        let (level, timeout) = (self.level, self.flush_timeout);
        let registry = tracing_subscriber::registry().with(filter.clone());
        let (guard, is_first) = match self.layer() {
            Ok((layer, guard)) => {
                let is_first = tracing::subscriber::set_global_default(registry.with(layer)).is_ok();
                (guard, is_first)
            }
            Err(error) => {
                warn(format_args!("{error}; logging to stderr"));
                let stderr = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
                let is_first = tracing::subscriber::set_global_default(registry.with(stderr)).is_ok();
                (Guard::none(level, timeout), is_first)
            }
        };
        if !is_first {
            warn(format_args!("the program has another subscriber for tracing already; it stays"));
        }
        set_logger(&guard, filter, limit, (level, timeout));
        guard
    }

    /// A layer for a subscriber of the program's own, and its guard; the panic hook is installed. Its filter is the
    /// subscriber's. Never waits for a daemon.
    ///
    /// # Errors
    /// Nobody names a daemon, or what names one is no address.
    pub fn layer(self) -> Result<(Layer, Guard), SetupError> {
        let producer = self.start()?;
        let current = Current::new(&producer);
        panic_hook::install(current.clone(), self.level, self.flush_timeout.min(PANIC_FLUSH_TIMEOUT));
        let (level, timeout) = (self.level, self.flush_timeout);
        let start = Box::new(move || self.start());
        Ok((Layer::of(current.clone()), Guard::new(Live { producer, current, start }, level, timeout)))
    }

    /// A producer with these settings.
    pub(crate) fn start(&self) -> Result<blocking::Producer, SetupError> {
        Ok(blocking::Producer::start(self.builder()?)?)
    }

    fn builder(&self) -> Result<ProducerBuilder, SetupError> {
        let address = self.server.clone().map_or_else(find, Ok)?;
        // An append in a ring is not grouped: it goes there in its caller's thread.
        // A group is dropped for a severe record only where all of it is below.
        let alone = matches!(address, Address::Shm(_)) || matches!(self.overload, Overload::DropBelow { .. });
        let group = if alone { 1 } else { GROUP_RECORDS_MAX };
        let component = self.component.clone().unwrap_or_else(program);
        let builder = Producer::builder(address).component(component).level(self.level).overload(self.overload);
        let builder = builder.max_append_records(group).on_first_error(|error| {
            warn(format_args!("a record is not in the log, and later ones may not be: {error}"));
        });
        Ok(match self.max_buffered_bytes {
            Some(bytes) => builder.max_buffered_bytes(bytes),
            None => builder,
        })
    }

    fn chosen_filter(&self) -> Targets {
        let default = || Targets::new().with_default(LevelFilter::INFO);
        let named = || {
            let text = std::env::var(FILTER_VARIABLE).ok()?;
            text.parse().map_err(|error| warn(format_args!("{FILTER_VARIABLE}: {error}; logging from info on"))).ok()
        };
        self.filter.clone().or_else(named).unwrap_or_else(default)
    }
}

/// The daemon that the environment or the host names.
fn find() -> Result<Address, SetupError> {
    if let Some(text) = std::env::var(SERVER_VARIABLE).ok().filter(|text| !text.is_empty()) {
        return Ok(text.parse()?);
    }
    if Path::new(SOCKET).exists() { Ok(Address::unix(SOCKET)) } else { Err(SetupError::NoServer) }
}

fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(feature = "log")]
fn set_logger(guard: &Guard, filter: Targets, limit: Option<LevelFilter>, flush: (AckLevel, Duration)) {
    let logger: Box<dyn log::Log> = match guard.current() {
        Some(current) => Box::new(crate::Logger::of(current.clone(), filter, flush)),
        None => Box::new(crate::log_bridge::Stderr(filter)),
    };
    let max = match limit.and_then(LevelFilter::into_level) {
        Some(tracing::Level::ERROR) => log::LevelFilter::Error,
        Some(tracing::Level::WARN) => log::LevelFilter::Warn,
        Some(tracing::Level::INFO) => log::LevelFilter::Info,
        Some(tracing::Level::DEBUG) => log::LevelFilter::Debug,
        Some(tracing::Level::TRACE) => log::LevelFilter::Trace,
        None => log::LevelFilter::Off,
    };
    match log::set_boxed_logger(logger) {
        Ok(()) => log::set_max_level(max),
        Err(_) => warn(format_args!("the program has another logger already; it stays")),
    }
}

#[cfg(not(feature = "log"))]
fn set_logger(_: &Guard, _: Targets, _: Option<LevelFilter>, _: (AckLevel, Duration)) {}
