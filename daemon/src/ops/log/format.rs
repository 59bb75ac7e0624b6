//! One event, one line: the text formats.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// Wraps a format so that each event stays on one line, with the syslog priority in front where asked.
pub(super) struct OneLine<F> {
    inner: F,
    colour: bool,
    priority: bool,
}

impl<F> OneLine<F> {
    /// For people and files.
    pub(super) fn text(inner: F, colour: bool) -> Self {
        let priority = false;
        Self { inner, colour, priority }
    }

    /// For the system's journal.
    pub(super) fn journald(inner: F) -> Self {
        Self { inner, colour: false, priority: true }
    }
}

impl<S, N, F> FormatEvent<S, N> for OneLine<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut text = String::new();
        self.inner.format_event(context, Writer::new(&mut text), event)?;
        if self.priority {
            write!(out, "<{}>", priority(*event.metadata().level()))?;
        }
        let text = text.trim_end_matches('\n');
        for (at, c) in text.char_indices() {
            let wanted = self.colour && is_colour(&text[at..]);
            if c.is_control() && !wanted {
                write!(out, "{}", c.escape_default())?;
            } else {
                out.write_char(c)?;
            }
        }
        out.write_char('\n')
    }
}

/// Returns true if a colour starts here. A peer's text in a name can be coloured by it, and no more: moving the cursor
/// or clearing the screen would let it forge what a person sees.
fn is_colour(text: &str) -> bool {
    text.strip_prefix("\u{1b}[")
        .is_some_and(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'))
}

/// Syslog's severities.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}
