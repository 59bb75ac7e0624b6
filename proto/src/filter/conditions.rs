//! Filters as a program makes them.

use crate::{
    ids::ProducerId,
    limits::{MAX_FILTER_BYTES, MAX_FILTER_CONDITIONS, MAX_FILTER_DEPTH},
    severity::Severity,
    value::AnyValue,
    write::EncodedPairs,
};

/// Why a filter is not evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// Its encoding is longer than a READ takes.
    #[error("the filter is {0} bytes long, the limit is {MAX_FILTER_BYTES}")]
    TooLong(usize),
    /// Filters inside filters beyond [`MAX_FILTER_DEPTH`].
    #[error("filters are nested more than {MAX_FILTER_DEPTH} deep")]
    TooDeep,
    /// More conditions than [`MAX_FILTER_CONDITIONS`], those of inner filters included.
    #[error("a filter has at most {MAX_FILTER_CONDITIONS} conditions, inner ones included")]
    TooManyConditions,
    /// More than one regular expression.
    #[error("a filter has at most one regular expression; join them with `|`")]
    TooManyExpressions,
    /// A kind of condition that this version does not know.
    #[error("condition kind {0} is unknown")]
    UnknownKind(u8),
    /// It breaks the encoding.
    #[error("the filter is malformed: {0}")]
    Malformed(&'static str),
    /// A list as the value of an attribute.
    #[error("attributes are compared with simple values, not with lists")]
    List,
    /// A regular expression that does not compile, or not within its limit.
    #[error("the regular expression: {0}")]
    Expression(String),
    /// This program was built without regular expressions.
    #[error("this program was built without regular expressions (feature `regex`)")]
    NoExpressions,
}

/// A filter: conditions that all hold for a record that is wanted. One without conditions wants every record.
///
/// A mistake in it is reported where it is used, by [`Matcher::new`](super::Matcher::new) or [`to_bytes`](Self::to_bytes).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub(super) conditions: Vec<Condition>,
    /// Number of levels below this one.
    pub(super) depth: usize,
    fault: Option<FilterError>,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    Severity {
        least: i32,
        most: i32,
    },
    Component {
        name: String,
        is_prefix: bool,
    },
    /// The value as it is encoded.
    Attribute {
        key: String,
        value: Vec<u8>,
    },
    Contains(String),
    Expression {
        pattern: String,
        ignores_case: bool,
    },
    TraceId(Vec<u8>),
    Producer(ProducerId),
    Any(Vec<Filter>),
}

impl Filter {
    /// A filter without conditions.
    #[must_use]
    pub const fn new() -> Self {
        Self { conditions: Vec::new(), depth: 0, fault: None }
    }

    fn and(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    fn fail(mut self, fault: FilterError) -> Self {
        self.fault.get_or_insert(fault);
        self
    }

    /// Of this severity or a higher one. A record without a severity (0 or less) is not.
    #[must_use]
    pub fn severity_at_least(self, least: Severity) -> Self {
        self.severity_within(least, Severity(i32::MAX))
    }

    /// Of a severity in this range, both ends included.
    #[must_use]
    pub fn severity_within(self, least: Severity, most: Severity) -> Self {
        self.and(Condition::Severity { least: least.0, most: most.0 })
    }

    /// Of this component (`service.name`). `billing*` is every component that begins with `billing`.
    #[must_use]
    pub fn component(self, name: &str) -> Self {
        let (name, is_prefix) = name.strip_suffix('*').map_or((name, false), |name| (name, true));
        self.and(Condition::Component { name: name.to_owned(), is_prefix })
    }

    /// Of the component of exactly this name, whatever it ends with.
    #[must_use]
    pub fn component_named(self, name: impl Into<String>) -> Self {
        self.and(Condition::Component { name: name.into(), is_prefix: false })
    }

    /// With this attribute of its own (not of its resource or scope). Kind and value are equal: 1 is not 1.0, and not
    /// the text `1`. Lists are not compared: [`FilterError::List`].
    #[must_use]
    pub fn attribute(self, key: impl Into<String>, value: impl Into<AnyValue>) -> Self {
        let (key, value) = (key.into(), value.into());
        // An empty key is one byte; the value follows.
        match EncodedPairs::new(|pairs| pairs.entry("").any(&value)) {
            Ok(pair) => {
                let value = pair.as_bytes().get(1..).unwrap_or_default().to_vec();
                self.and(Condition::Attribute { key, value })
            }
            Err(_) => self.fail(FilterError::List),
        }
    }

    /// With this text in its body. Bodies that are strings or bytes are looked at. Any other body is let through, and
    /// is the reader's to look at; a record without a body is not.
    #[must_use]
    pub fn body_contains(self, text: impl Into<String>) -> Self {
        self.and(Condition::Contains(text.into()))
    }

    /// With a body in which this regular expression (of the crate `regex`) finds something; the same bodies as with
    /// [`body_contains`](Self::body_contains). A filter has at most one.
    #[must_use]
    pub fn body_matches(self, pattern: impl Into<String>, ignores_case: bool) -> Self {
        self.and(Condition::Expression { pattern: pattern.into(), ignores_case })
    }

    /// Of this trace.
    #[must_use]
    pub fn trace_id(self, id: impl Into<Vec<u8>>) -> Self {
        self.and(Condition::TraceId(id.into()))
    }

    /// Of this producer.
    #[must_use]
    pub fn producer(self, id: ProducerId) -> Self {
        self.and(Condition::Producer(id))
    }

    /// Matched by at least one of these filters.
    #[must_use]
    pub fn any(mut self, alternatives: impl IntoIterator<Item = Self>) -> Self {
        let mut filters = Vec::new();
        for filter in alternatives {
            if filter.depth + 1 > MAX_FILTER_DEPTH {
                return self.fail(FilterError::TooDeep);
            }
            self.depth = self.depth.max(filter.depth + 1);
            if let Some(fault) = &filter.fault {
                self.fault.get_or_insert(fault.clone());
            }
            filters.push(filter);
        }
        self.and(Condition::Any(filters))
    }

    /// Number of conditions, those of inner filters included, and of regular expressions.
    fn counts(&self) -> (usize, usize) {
        let of = |condition: &Condition| match condition {
            Condition::Any(filters) => {
                filters.iter().map(Self::counts).fold((1, 0), |sum, inner| (sum.0 + inner.0, sum.1 + inner.1))
            }
            Condition::Expression { .. } => (1, 1),
            _ => (1, 0),
        };
        self.conditions.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    pub(super) fn check(&self) -> Result<(), FilterError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        match self.counts() {
            (conditions, _) if conditions > MAX_FILTER_CONDITIONS => Err(FilterError::TooManyConditions),
            (_, expressions) if expressions > 1 => Err(FilterError::TooManyExpressions),
            _ => Ok(()),
        }
    }

    /// True if it has a regular expression.
    #[must_use]
    pub fn has_expression(&self) -> bool {
        self.counts().1 > 0
    }
}
