//! Fields of events and spans, as they go into records.

use std::error::Error;
use std::fmt;

use clad_client::KvWriter;
use tracing::field::{Field, Visit};

use crate::local::Extent;
use crate::text::push_value;

/// The field that is the body.
const MESSAGE: &str = "message";
/// Causes of an error that its text names.
const CAUSES_MAX: usize = 16;

/// Finds the message and writes it as text.
pub(crate) struct Message<'a> {
    pub(crate) text: &'a mut String,
    pub(crate) is_there: bool,
}

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == MESSAGE {
            self.is_there = true;
            push_value(self.text, format_args!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.is_there = true;
            self.text.push_str(value);
        }
    }
}

/// Writes all fields but the message as attributes.
pub(crate) struct Attributes<'a, 'p> {
    pub(crate) pairs: &'a mut KvWriter<'p>,
    /// Memory for a value.
    pub(crate) value: &'a mut String,
    pub(crate) extent: Extent,
    /// The message is a field like others: it is a span's.
    pub(crate) with_message: bool,
}

impl Attributes<'_, '_> {
    fn takes(&self, field: &Field) -> bool {
        self.with_message || field.name() != MESSAGE
    }

    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if self.takes(field) {
            self.value.clear();
            push_value(self.value, value);
            self.pairs.entry(field.name()).text(self.extent.of(self.value));
        }
    }
}

impl Visit for Attributes<'_, '_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        if self.takes(field) {
            self.pairs.entry(field.name()).double(value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if self.takes(field) {
            self.pairs.entry(field.name()).int(value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.write(field, format_args!("{value}")),
        }
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.write(field, format_args!("{value}")),
        }
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.write(field, format_args!("{value}")),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if self.takes(field) {
            self.pairs.entry(field.name()).boolean(value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.takes(field) {
            self.pairs.entry(field.name()).text(self.extent.of(value));
        }
    }

    fn record_bytes(&mut self, field: &Field, value: &[u8]) {
        if self.takes(field) {
            self.pairs.entry(field.name()).bytes(self.extent.of_bytes(value));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.write(field, format_args!("{}", Chain(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

/// An error and its causes, as text.
struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let causes = std::iter::successors(self.0.source(), |error| (*error).source());
        causes.take(CAUSES_MAX).try_for_each(|cause| write!(f, ": {cause}"))
    }
}
