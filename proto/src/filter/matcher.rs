//! Filters that are ready to be evaluated.

use super::conditions::{Condition, Filter, FilterError};
use crate::{ids::ProducerId, payload::PayloadView, view::RecordView};

/// A filter that is ready to be evaluated.
#[derive(Debug, Clone)]
pub struct Matcher {
    filter: Filter,
    #[cfg(feature = "regex")]
    expression: Option<regex::bytes::Regex>,
}

/// Values that the records of an append share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    producer: ProducerId,
    component: Option<&'a str>,
}

fn has_empty_condition(filter: &Filter) -> bool {
    filter.conditions.iter().any(|condition| match condition {
        Condition::Contains(text) => text.is_empty(),
        Condition::TraceId(id) => id.is_empty(),
        Condition::Any(filters) => filters.is_empty() || filters.iter().any(has_empty_condition),
        _ => false,
    })
}

#[cfg(feature = "regex")]
fn expression(filter: &Filter) -> Option<(&str, bool)> {
    filter.conditions.iter().find_map(|condition| match condition {
        Condition::Expression { pattern, ignores_case } => Some((pattern.as_str(), *ignores_case)),
        Condition::Any(filters) => filters.iter().find_map(expression),
        _ => None,
    })
}

#[cfg(feature = "regex")]
fn compile((pattern, ignores_case): (&str, bool), bytes_max: usize) -> Result<regex::bytes::Regex, FilterError> {
    let mut builder = regex::bytes::RegexBuilder::new(pattern);
    builder.case_insensitive(ignores_case).size_limit(bytes_max).dfa_size_limit(bytes_max);
    builder.build().map_err(|error| FilterError::Expression(error.to_string()))
}

impl Matcher {
    /// Makes a filter ready. `expression_bytes_max` bounds the memory of a compiled regular expression, and as much
    /// again for its search in each thread.
    ///
    /// # Errors
    /// For a wrong filter: see [`FilterError`]. Its length is not looked at.
    pub fn new(filter: &Filter, expression_bytes_max: usize) -> Result<Self, FilterError> {
        filter.check()?;
        if has_empty_condition(filter) {
            return Err(FilterError::Malformed("a condition without content"));
        }
        #[cfg(not(feature = "regex"))]
        {
            let _ = expression_bytes_max;
            if filter.has_expression() {
                return Err(FilterError::NoExpressions);
            }
        }
        Ok(Self {
            filter: filter.clone(),
            #[cfg(feature = "regex")]
            expression: expression(filter).map(|of| compile(of, expression_bytes_max)).transpose()?,
        })
    }

    /// For each record of an append in turn: whether it matches.
    pub fn records<'a>(
        &'a self,
        producer: ProducerId,
        append: &PayloadView<'a>,
    ) -> impl Iterator<Item = bool> + use<'a> {
        let shared = Shared { producer, component: append.group().component() };
        append.records().map(move |record| self.all(&self.filter, shared, &record))
    }

    fn all(&self, filter: &Filter, shared: Shared<'_>, record: &RecordView<'_>) -> bool {
        filter.conditions.iter().all(|condition| self.holds(condition, shared, record))
    }

    fn holds(&self, condition: &Condition, shared: Shared<'_>, record: &RecordView<'_>) -> bool {
        match condition {
            Condition::Severity { least, most } => {
                let number = record.severity_number();
                number > 0 && (*least..=*most).contains(&number)
            }
            Condition::Component { name, is_prefix: false } => shared.component == Some(name),
            Condition::Component { name, is_prefix: true } => {
                shared.component.is_some_and(|component| component.starts_with(name.as_str()))
            }
            Condition::Attribute { key, value } => record.attributes().has(key, value),
            Condition::Contains(text) => body(record, |bytes| {
                // A text is found whole between bytes that are no UTF-8, and each search is linear.
                bytes.utf8_chunks().any(|chunk| chunk.valid().contains(text.as_str()))
            }),
            Condition::Expression { .. } => body(record, |bytes| self.finds(bytes)),
            Condition::TraceId(id) => record.trace_id() == id,
            Condition::Producer(id) => shared.producer == *id,
            Condition::Any(filters) => filters.iter().any(|filter| self.all(filter, shared, record)),
        }
    }

    #[cfg(feature = "regex")]
    fn finds(&self, bytes: &[u8]) -> bool {
        self.expression.as_ref().is_none_or(|expression| expression.is_match(bytes))
    }

    #[cfg(not(feature = "regex"))]
    fn finds(&self, _: &[u8]) -> bool {
        true // there is no matcher with an expression
    }
}

/// Looks at a body of text. One of another kind is let through: its text is the reader's to make.
fn body(record: &RecordView<'_>, finds: impl FnOnce(&[u8]) -> bool) -> bool {
    record.body_bytes().map_or_else(|| record.body().is_some(), finds)
}
