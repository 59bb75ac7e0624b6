//! The filter of a READ.
//!
//! Invariants: what is left out has no record that matches, and is what its client made: an append whose checksum does
//! not hold is sent, for its reader to report. A regular expression is compiled and evaluated on the blocking threads
//! only; [`FILTER_EXPRESSIONS_MAX`] of them are held at once, and their looks count as [`EXPRESSION_LOOKS`].

use std::sync::Arc;

use clad_proto::filter::{Filter, FilterError, Matcher};
use clad_proto::limits::MAX_FILTER_EXPRESSION_BYTES;
use clad_proto::{ErrorCode, ErrorInfo, PayloadView, ProducerId, payload_checksum};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Regular expressions in the filters of all open READs.
pub(super) const FILTER_EXPRESSIONS_MAX: usize = 16;
/// Places among the looks of all READs that one with a regular expression takes: the slowest take that much longer.
pub(super) const EXPRESSION_LOOKS: usize = 4;

/// A filter and its evaluation.
pub(super) struct Sieve {
    filter: Filter,
    matcher: Option<Matcher>,
    expression: Option<OwnedSemaphorePermit>,
}

/// Error for a filter that is not evaluated.
fn unsupported(error: &FilterError) -> ErrorInfo {
    let text = format!("{error}; read without this filter, and filter what comes");
    ErrorInfo::new(ErrorCode::FilterUnsupported, text)
}

impl Sieve {
    /// Reads a filter; what takes time is done by [`prepare`](Self::prepare).
    pub(super) fn new(bytes: &[u8], expressions: &Arc<Semaphore>) -> Result<Self, ErrorInfo> {
        let filter = Filter::from_bytes(bytes).map_err(|error| unsupported(&error))?;
        let expression = match filter.has_expression() {
            true => Some(expressions.clone().try_acquire_owned().map_err(|_| {
                let text =
                    format!("{FILTER_EXPRESSIONS_MAX} READs with regular expressions are open; filter what comes");
                ErrorInfo::new(ErrorCode::FilterUnsupported, text)
            })?),
            false => None,
        };
        Ok(Self { filter, matcher: None, expression })
    }

    /// Places among all looks that one of this READ takes.
    pub(super) fn looks(&self) -> usize {
        if self.expression.is_some() { EXPRESSION_LOOKS } else { 1 }
    }

    /// Compiles the filter, the first time. May take some milliseconds.
    pub(super) fn prepare(&mut self) -> Result<(), ErrorInfo> {
        if self.matcher.is_none() {
            let matcher = Matcher::new(&self.filter, MAX_FILTER_EXPRESSION_BYTES);
            self.matcher = Some(matcher.map_err(|error| unsupported(&error))?);
        }
        Ok(())
    }

    /// True if an append is sent.
    pub(super) fn passes(&self, producer: ProducerId, count: u32, payload: &[u8], checksum: u32) -> bool {
        let Some(matcher) = &self.matcher else { return true };
        let Ok(view) = PayloadView::parse(payload, count) else { return true };
        matcher.records(producer, &view).any(|matches| matches) || payload_checksum(payload) != checksum
    }
}
