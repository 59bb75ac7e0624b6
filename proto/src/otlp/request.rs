//! A request of an OTLP exporter, cut into appends.
//!
//! Invariants:
//! - An append is of one resource and one scope, as it is in the request. A long one is cut between records, at
//!   [`SPLIT_BYTES`]: the same records are cut alike in each request, whatever the limits of the daemon are.
//! - The message is checked down to the beginning of each record before anything is made of it. What is broken there is
//!   an error of the whole; a broken record costs itself alone.
//! - A cut costs memory for one append. Nothing is decoded, and the request stays as it came.

use super::encoded::{ScopeLogs, Top, put_group, put_record};
use super::error::OtlpError;
use super::fields::{Content, Fields, NotProtobuf, Pieces};
use crate::{
    fault::EncodeError,
    payload::{Payload, PayloadBuilder},
    write::put_group_with,
};

/// Length of an append's encoding above which the next record begins another. A record that is longer is alone.
pub const SPLIT_BYTES: u32 = 256 * 1024;

/// An encoded `ExportLogsServiceRequest` that was checked.
#[derive(Debug, Clone, Copy)]
pub struct ExportRequest<'a>(&'a [u8]);

/// Limits of an append and of a record, in bytes of their encodings.
#[derive(Debug, Clone, Copy)]
pub struct ExportLimits {
    /// The longest append.
    pub max_append_bytes: u32,
    /// The longest record.
    pub max_record_bytes: u32,
}

/// Records that are stored together, and those before them that cannot be.
#[derive(Debug, Default)]
pub struct ExportPart {
    /// The append; absent where no record of this part is good.
    pub payload: Option<Payload>,
    /// A record of the append has whole milliseconds alone: a clock that is so coarse gives two records one time.
    pub has_coarse_time: bool,
    /// Number of records that no retry will make good.
    pub rejected: u32,
    /// The first of them, in words.
    pub first_rejected: Option<String>,
}

/// The parts of a request. A clone before [`Iterator::next`] gives the same part once more.
#[derive(Debug, Clone)]
pub struct ExportParts<'a> {
    limits: ExportLimits,
    resources: Fields<'a>,
    /// The resource under way, its number, and its scopes that are not done.
    resource: Option<(Resource<'a>, Fields<'a>)>,
    scope: Option<Scope<'a>>,
    resource_index: u32,
}

/// A `ResourceLogs` without its scopes.
#[derive(Debug, Clone, Copy)]
struct Resource<'a> {
    resource: Option<Pieces<'a>>,
    schema_url: &'a str,
    scope_index: u32,
}

/// A `ScopeLogs` under way: all of it, its records that are not done, and the number of the next.
#[derive(Debug, Clone, Copy)]
struct Scope<'a> {
    message: &'a [u8],
    left: Fields<'a>,
    record_index: u32,
}

impl<'a> ExportRequest<'a> {
    /// Checks a message.
    ///
    /// # Errors
    /// The bytes are no such message.
    pub fn new(message: &'a [u8]) -> Result<Self, NotProtobuf> {
        for resource in lists(message, 1) {
            let resource = resource?;
            Resource::read(resource)?;
            for scope in lists(resource, 2) {
                let scope = scope?;
                ScopeLogs::read(scope)?;
                for record in lists(scope, 2) {
                    record?;
                }
            }
        }
        Ok(Self(message))
    }

    /// Number of records in it.
    #[must_use]
    pub fn count(&self) -> u64 {
        let scopes = lists(self.0, 1).flatten().flat_map(|resource| lists(resource, 2).flatten());
        scopes.map(|scope| lists(scope, 2).count() as u64).sum()
    }

    /// Its parts, in its order.
    #[must_use]
    pub const fn parts(&self, limits: ExportLimits) -> ExportParts<'a> {
        ExportParts { limits, resources: Fields(self.0), resource: None, scope: None, resource_index: 0 }
    }
}

/// The elements of one list among the fields of a message.
fn lists(message: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], NotProtobuf>> {
    Fields(message).filter_map(move |field| match field {
        Ok((found, content)) => (found == number).then(|| content.bytes()),
        Err(error) => Some(Err(error)),
    })
}

/// The next element of one list; the rest of the fields follows it.
fn next<'a>(fields: &mut Fields<'a>, number: u32) -> Option<&'a [u8]> {
    loop {
        match fields.next()? {
            Ok((found, Content::Bytes(element))) if found == number => return Some(element),
            _ => {}
        }
    }
}

impl<'a> Resource<'a> {
    fn read(message: &'a [u8]) -> Result<Self, NotProtobuf> {
        let mut it = Self { resource: None, schema_url: "", scope_index: 0 };
        for field in Fields(message) {
            match field? {
                (1, content) => Pieces::add(&mut it.resource, content)?,
                (3, content) => it.schema_url = content.text()?,
                _ => {}
            }
        }
        Ok(it)
    }
}

impl<'a> ExportParts<'a> {
    /// The scope under way, or the next one that has records.
    fn scope(&mut self) -> Option<(Resource<'a>, Scope<'a>)> {
        loop {
            if let (Some((resource, _)), Some(scope)) = (&self.resource, self.scope) {
                return Some((*resource, scope));
            }
            if let Some((resource, scopes)) = &mut self.resource
                && let Some(message) = next(scopes, 2)
            {
                resource.scope_index += 1;
                self.scope = Some(Scope { message, left: Fields(message), record_index: 0 });
                continue;
            }
            let message = next(&mut self.resources, 1)?;
            self.resource_index += 1;
            // It was checked; nothing is left of what is no resource.
            self.resource = Resource::read(message).ok().map(|resource| (resource, Fields(message)));
        }
    }

    /// Encodes records of a scope until one does not fit, and leaves that one for the next part.
    fn part(&self, resource: Resource<'a>, scope: &mut Scope<'a>) -> Result<ExportPart, OtlpError> {
        let most = SPLIT_BYTES.min(self.limits.max_append_bytes);
        let mut builder = self.builder(resource, scope, most)?;
        // A record is a little longer here than it came.
        let left = scope.left.0.len();
        let length = (left + left / 8).min(most as usize);
        builder.reserve(length, length);
        let mut part = ExportPart::default();
        loop {
            let before = *scope;
            let Some(record) = next(&mut scope.left, 2) else { break };
            scope.record_index += 1;
            let mut put = put_record(&mut builder, Content::Bytes(record));
            if self.may_fit_alone(&put) {
                if !builder.is_empty() {
                    *scope = before;
                    break;
                }
                let mut alone = self.builder(resource, scope, self.limits.max_append_bytes)?;
                put = put_record(&mut alone, Content::Bytes(record));
                if let Ok(has_fine_time) = put {
                    part.payload = Some(alone.finish());
                    part.has_coarse_time = !has_fine_time;
                    return Ok(part);
                }
            }
            match put {
                Ok(has_fine_time) => part.has_coarse_time |= !has_fine_time,
                Err(error) => {
                    part.rejected += 1;
                    part.first_rejected.get_or_insert_with(|| self.name(resource, before.record_index, &error));
                }
            }
        }
        part.payload = (!builder.is_empty()).then(|| builder.finish());
        Ok(part)
    }

    /// True if the error is of the length at which a scope is cut, not of a record's limit.
    fn may_fit_alone(&self, put: &Result<bool, EncodeError>) -> bool {
        match put {
            Err(EncodeError::AppendFull { .. }) => true,
            Err(EncodeError::RecordTooLarge { max, .. }) => *max < self.limits.max_record_bytes.into(),
            _ => false,
        }
    }

    fn builder(&self, resource: Resource<'a>, scope: &Scope<'a>, max: u32) -> Result<PayloadBuilder, OtlpError> {
        let top = Top { resource: resource.resource, schema_url: resource.schema_url, scope_logs: scope.message };
        let scope_logs = ScopeLogs::read(scope.message)?;
        let group = |sink: &mut _| put_group_with(sink, |sink| put_group(sink, &top, &scope_logs));
        PayloadBuilder::with_group(max, self.limits.max_record_bytes, group).map_err(OtlpError::Group)
    }

    fn name(&self, resource: Resource<'a>, record: u32, error: &dyn std::fmt::Display) -> String {
        let (resource_logs, scope_logs) = (self.resource_index - 1, resource.scope_index - 1);
        format!("record {record} of ScopeLogs {scope_logs} of ResourceLogs {resource_logs}: {error}")
    }

    /// All records of a scope that has no encoding, and why.
    fn reject_all(&self, resource: Resource<'a>, scope: &mut Scope<'a>, error: &OtlpError) -> ExportPart {
        let first = self.name(resource, scope.record_index, error);
        let rejected = std::iter::from_fn(|| next(&mut scope.left, 2)).count();
        let rejected = u32::try_from(rejected).unwrap_or(u32::MAX);
        ExportPart { rejected, first_rejected: Some(first), ..ExportPart::default() }
    }
}

impl Iterator for ExportParts<'_> {
    type Item = ExportPart;

    fn next(&mut self) -> Option<ExportPart> {
        loop {
            let (resource, mut scope) = self.scope()?;
            let part = match self.part(resource, &mut scope) {
                Ok(part) => part,
                Err(error) => self.reject_all(resource, &mut scope, &error),
            };
            let is_done = scope.left.clone().all(|field| !matches!(field, Ok((2, _))));
            self.scope = (!is_done).then_some(scope);
            if part.payload.is_some() || part.rejected > 0 {
                return Some(part);
            }
        }
    }
}
