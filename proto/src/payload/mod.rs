//! The payload of an append: one group, then records back to back. How many records there are is said beside it.

mod builder;
mod view;

pub use builder::{Payload, PayloadBuilder, first_record, max_severity};
pub use view::{KnownGroup, PayloadView, RecordIter, Scan, TimeRange, parse_group, scan, scan_known};
