//! The last words: a panic becomes a record, and what was logged before it is sent.

use std::panic::{self, PanicHookInfo};
use std::time::Duration;

use clad_client::{AckLevel, Call, Producer, blocking};

use crate::callsite::{Place, severity};
use crate::current::Current;
use crate::local::{Head, with_local};
use crate::text::push_value;

/// Installs the hook before the one that there is. In the thread that panics it waits for the log for at most
/// `timeout`.
pub(crate) fn install(current: Current, level: AckLevel, timeout: Duration) {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // The producer's own thread cannot wait for itself; a panic inside a record is in that record's text.
        if !blocking::is_worker_thread() && log(current.producer(), info) {
            // The panic itself goes on whatever comes of it, and stderr has it.
            let _ = blocking::flush(current.producer(), level, timeout);
        }
        before(info);
    }));
}

/// Logs a panic, unless this thread is logging just now.
fn log(producer: &Producer, info: &PanicHookInfo<'_>) -> bool {
    let message = info.payload_as_str().unwrap_or("Box<dyn Any>");
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    let (severity, severity_text) = severity(tracing::Level::ERROR);
    let head = Head { severity, severity_text, event_name: "panic", has_body: true, ids: None };
    let place = Place {
        target: "panic",
        module: None,
        file: info.location().map(panic::Location::file),
        line: info.location().map(panic::Location::line),
    };
    let logged = with_local(|local| {
        local.body.clear();
        push_value(&mut local.body, format_args!("thread '{thread}' panicked: {message}"));
        local.send(producer, &Call::new(), head, |pairs, _, extent| {
            pairs.entry("exception.type").text("panic");
            pairs.entry("exception.message").text(extent.of(message));
            pairs.entry("thread.name").text(thread);
            place.write(pairs);
        });
    });
    logged.is_some()
}
