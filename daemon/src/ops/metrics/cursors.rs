//! Metrics of named cursors, each under its own name: the only label with values from outside. There are at most 256, and the
//! daemon checks their letters. They are rendered here: a series must go with its cursor.

use std::sync::Mutex;
use std::time::Duration;

/// Lag of one cursor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CursorLag {
    /// Its name.
    pub name: String,
    /// Records that are written and not read.
    pub records: u64,
    /// Bytes of the segments with those.
    pub bytes: u64,
    /// Age of the oldest of them.
    pub age: Duration,
}

/// The cursors at the last look.
#[derive(Default)]
pub(super) struct Cursors(Mutex<Vec<CursorLag>>);

impl Cursors {
    pub(super) fn set(&self, lags: Vec<CursorLag>) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = lags;
    }

    /// The series of a gauge in the text format.
    pub(super) fn render(&self, gauge: &Described, value: fn(&CursorLag) -> String, out: &mut String) {
        let Described { name, label, help } = gauge;
        out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n"));
        for lag in self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
            out.push_str(&format!("{name}{{{label}=\"{}\"}} {}\n", lag.name, value(lag)));
        }
        out.push('\n');
    }
}

/// Name, label and help of a gauge.
pub(super) struct Described {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) help: &'static str,
}
