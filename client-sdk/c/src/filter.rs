//! Filters of a reader.

use std::ffi::c_char;

use clad_client::{Filter, ProducerId, Severity};

use crate::error::Failure;
use crate::options::ID_BYTES;
use crate::pointers::{self, Grows};
use crate::record::{TRACE_ID_BYTES, clad_attribute};

/// Records that a reader wants: those for which all that is stated holds. The daemon leaves out the others. Begin with
/// CLAD_FILTER_INIT; what is 0 or NULL states nothing. Nothing is kept of what the pointers point to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_filter {
    /// sizeof(clad_filter).
    pub size: usize,
    /// Components (service.name); the record is of one of them. A text that ends with * is each that begins so.
    pub components: *const *const c_char,
    /// The number of components.
    pub components_count: usize,
    /// Attributes that the record itself has, equal in type and value. 1 is neither 1.0 nor "1".
    pub attributes: *const clad_attribute,
    /// The number of attributes.
    pub attributes_count: usize,
    /// A text in the body, where that is text or bytes; another body is given, none is not.
    pub body_contains: *const c_char,
    /// 16 bytes: the trace of the record.
    pub trace_id: *const u8,
    /// 16 bytes: the producer of the record.
    pub producer_id: *const u8,
    /// The least severity. A record without one is below all.
    pub min_severity: i32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `size` is first; zeroes are NULL and 0.
unsafe impl Grows for clad_filter {}

impl clad_filter {
    pub(crate) fn read(filter: *const Self) -> Result<Option<Filter>, Failure> {
        let Some(wanted) = pointers::sized("filter", filter)? else { return Ok(None) };
        let mut filter = Filter::new();
        let mut named = Vec::new();
        for name in pointers::array("filter.components", wanted.components, wanted.components_count)? {
            let name = pointers::text("filter.components", *name)?;
            named.push(Filter::new().component(name.ok_or_else(|| Failure::null("filter.components"))?));
        }
        if !named.is_empty() {
            filter = filter.any(named);
        }
        for attribute in pointers::array("filter.attributes", wanted.attributes, wanted.attributes_count)? {
            let (key, value) = attribute.read()?;
            filter = filter.attribute(key, value.to_owned());
        }
        if let Some(text) = pointers::text("filter.body_contains", wanted.body_contains)? {
            filter = filter.body_contains(text);
        }
        if !wanted.trace_id.is_null() {
            filter = filter.trace_id(pointers::array("filter.trace_id", wanted.trace_id, TRACE_ID_BYTES)?);
        }
        if !wanted.producer_id.is_null() {
            let id = pointers::array("filter.producer_id", wanted.producer_id, ID_BYTES)?;
            filter = filter.producer(ProducerId::from_bytes(id.try_into().unwrap_or_default()));
        }
        if wanted.min_severity != 0 {
            filter = filter.severity_at_least(Severity(wanted.min_severity));
        }
        Ok(Some(filter))
    }
}
