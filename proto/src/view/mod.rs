//! Reading in place: values, records and groups as they lie in a payload, without allocating.
//!
//! A view is made only from bytes that were checked as a whole, so its accessors give plain values. They still never
//! index past an end: on bytes that were not checked (there is no way to make such a view from outside) they would give
//! less, never panic.

mod group;
mod record;
mod unknown;
mod value;

pub use group::{EntityRefView, GroupView, ResourceView, ScopeView, StrIter};
pub use record::RecordView;
pub(crate) use record::split_record;
pub use unknown::UnknownIter;
pub(crate) use value::is_simple_value;
pub use value::{ArrayIter, ArrayRef, KeyValueRef, KvIter, KvsRef, ValueRef};
