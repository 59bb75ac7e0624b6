//! The daemon's own messages: to stderr, and never into its own log.
//!
//! Invariants: one event is one line, whatever a peer put into a name; a stderr that nobody reads stalls no thread of
//! the daemon ([`stream`]); level and form can change while it runs.

mod format;
mod stream;

use std::io::IsTerminal;
use std::os::fd::AsFd;

use tracing::level_filters::LevelFilter;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{LogFormat, LogLevel};
use format::OneLine;
use stream::{Line, Stream};

/// Style of messages, once everything is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For a terminal, in colour.
    Colour,
    /// Plain text with time and level.
    Plain,
    /// Plain text behind a syslog priority, which the system's journal takes off.
    Journald,
    /// One object a line.
    Json,
}

/// Facts about stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// It is a terminal.
    pub terminal: bool,
    /// It leads to the system's journal.
    pub journal: bool,
    /// The person asked for no colour.
    pub no_colour: bool,
}

impl Surroundings {
    /// Facts about this process's stderr.
    #[must_use]
    pub fn of_process() -> Self {
        let stderr = std::io::stderr();
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let journal =
            nix::sys::stat::fstat(stderr.as_fd()).is_ok_and(|stat| is_journal(&stream, stat.st_dev, stat.st_ino));
        Self {
            terminal: stderr.is_terminal(),
            journal,
            // By no-color.org an empty value is no wish.
            no_colour: std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
        }
    }
}

/// Returns true if `$JOURNAL_STREAM` (`device:inode`) is the stream given. A child whose stderr was redirected inherits
/// the variable too, so that the numbers must match.
fn is_journal(variable: &str, device: u64, inode: u64) -> bool {
    variable.split_once(':') == Some((device.to_string().as_str(), inode.to_string().as_str()))
}

impl Style {
    /// The style that the configuration asks for here.
    #[must_use]
    pub fn choose(format: LogFormat, here: Surroundings) -> Self {
        match format {
            LogFormat::Json => Self::Json,
            LogFormat::Journald => Self::Journald,
            LogFormat::Auto if here.journal => Self::Journald,
            LogFormat::Auto | LogFormat::Text if here.terminal && !here.no_colour => Self::Colour,
            LogFormat::Auto | LogFormat::Text => Self::Plain,
        }
    }
}

/// Keeps the messages flowing; dropped last, it writes what is still waiting.
#[must_use = "dropping it ends the logging"]
pub struct Logging {
    handles: Handles,
    line: Line,
    _stream: Stream,
}

type Filtered = Layered<reload::Layer<Targets, Registry>, Registry>;
type Form = Box<dyn Layer<Filtered> + Send + Sync>;

/// Handles to the parts of a subscriber that can change.
struct Handles {
    level: reload::Handle<Targets, Registry>,
    form: reload::Handle<Form, Filtered>,
}

impl Logging {
    /// Sets up the messages of the whole process.
    ///
    /// # Errors
    /// Where it has been set up before.
    pub fn start(level: LogLevel, style: Style) -> Result<Self, SetGlobalDefaultError> {
        let (stream, line) = Stream::to(std::io::stderr());
        let (subscriber, handles) = subscriber(level, style, line.clone());
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(Self { handles, line, _stream: stream })
    }

    /// Changes the level from now on.
    pub fn set_level(&self, level: LogLevel) {
        // It fails only once the subscriber is gone, and that lives as long as the process.
        let _ = self.handles.level.reload(targets(level));
    }

    /// Changes the form from now on.
    pub fn set_style(&self, style: Style) {
        let _ = self.handles.form.reload(form(style, self.line.clone()));
    }
}

fn subscriber(level: LogLevel, style: Style, line: Line) -> (impl tracing::Subscriber + Send + Sync, Handles) {
    let (filter, level) = reload::Layer::new(targets(level));
    let (layer, form) = reload::Layer::new(form(style, line));
    (tracing_subscriber::registry().with(filter).with(layer), Handles { level, form })
}

fn form(style: Style, line: Line) -> Form {
    let layer = fmt::layer().with_writer(line);
    let text = fmt::format().with_target(false);
    match style {
        Style::Json => layer.json().flatten_event(true).boxed(),
        Style::Colour => layer.with_ansi(true).event_format(OneLine::text(text.with_ansi(true), true)).boxed(),
        Style::Plain => layer.with_ansi(false).event_format(OneLine::text(text, false)).boxed(),
        Style::Journald => {
            layer.with_ansi(false).event_format(OneLine::journald(text.without_time().with_level(false))).boxed()
        }
    }
}

/// Our crates at the level asked for; their libraries only from `warn` up, for `debug` here is not meant for the frames
/// of an HTTP library.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("clad", level)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A stderr that can be looked at.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<u8>>>);

    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn written(style: Style, log: impl FnOnce(&Handles, &Line)) -> String {
        let seen = Seen::default();
        let (stream, line) = Stream::to(seen.clone());
        let (subscriber, handles) = subscriber(LogLevel::Info, style, line.clone());
        tracing::subscriber::with_default(subscriber, || log(&handles, &line));
        drop(stream);
        let bytes = seen.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_style_follows_stderr() {
        let on = |terminal, journal, no_colour| Surroundings { terminal, journal, no_colour };
        for (format, here, style) in [
            (LogFormat::Auto, on(true, false, false), Style::Colour),
            (LogFormat::Auto, on(true, false, true), Style::Plain),
            (LogFormat::Auto, on(false, false, false), Style::Plain),
            (LogFormat::Auto, on(false, true, false), Style::Journald),
            (LogFormat::Text, on(false, true, false), Style::Plain),
            (LogFormat::Text, on(true, false, false), Style::Colour),
            (LogFormat::Json, on(true, true, false), Style::Json),
            (LogFormat::Journald, on(true, false, false), Style::Journald),
        ] {
            assert_eq!(Style::choose(format, here), style, "{format} {here:?}");
        }
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        assert!(is_journal("8:1234", 8, 1234));
        for other in ["", "8", "8:", "8:12345", "9:1234"] {
            assert!(!is_journal(other, 8, 1234), "{other}");
        }
    }

    #[test]
    fn one_event_is_one_line() {
        let name = "evil\n<0>forged\r\u{1b}[2J";
        for style in [Style::Plain, Style::Colour, Style::Journald, Style::Json] {
            let text = written(style, |_, _| tracing::info!(peer = %name, "hello\nworld"));
            assert_eq!(text.lines().count(), 1, "{style:?}: {text:?}");
            assert!(!text.contains("\u{1b}[2J") && !text.contains('\r'), "{style:?}: {text:?}");
        }
    }

    #[test]
    fn the_journal_gets_priorities_and_no_time() {
        let text = written(Style::Journald, |_, _| {
            tracing::error!("e");
            tracing::warn!("w");
            tracing::info!(offset = 7, "i");
        });
        assert_eq!(text, "<3>e\n<4>w\n<6>i offset=7\n");
    }

    #[test]
    fn plain_text_has_no_colour_and_a_terminal_has() {
        let plain = written(Style::Plain, |_, _| tracing::info!("hello"));
        assert!(!plain.contains('\u{1b}') && plain.contains(" INFO hello"), "{plain:?}");
        let colour = written(Style::Colour, |_, _| tracing::info!("hello"));
        assert!(colour.contains('\u{1b}'), "{colour:?}");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = written(Style::Json, |_, _| tracing::info!(offset = 7, "hello"));
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&object["level"], &object["message"]), (&"INFO".into(), &"hello".into()));
        assert_eq!(object["offset"], 7);
    }

    #[test]
    fn the_level_changes_while_it_runs_and_spares_others_crates() {
        let text = written(Style::Journald, |handles, _| {
            tracing::debug!("before");
            handles.level.reload(targets(LogLevel::Debug)).unwrap();
            tracing::debug!("after");
            tracing::debug!(target: "clad_journal::commit", "ours too");
            tracing::info!(target: "h2", "not ours");
            tracing::warn!(target: "h2", "a warning");
        });
        assert_eq!(text, "<7>after\n<7>ours too\n<4>a warning\n");
    }

    #[test]
    fn the_form_changes_while_it_runs() {
        let text = written(Style::Journald, |handles, line| {
            tracing::info!("before");
            handles.form.reload(form(Style::Json, line.clone())).unwrap();
            tracing::info!("after");
        });
        let (before, after) = text.split_once('\n').unwrap();
        assert_eq!(before, "<6>before");
        assert_eq!(serde_json::from_str::<serde_json::Value>(after).unwrap()["message"], "after");
    }
}
