//! Filters of READ: which records a reader wants.
//!
//! A filter is conditions that all hold. The daemon leaves out each append in which no record matches; the client drops
//! the other records of those that come. Both do it by [`Matcher`], so that it means the same on both sides.
//!
//! Invariants: evaluation takes time that is linear in the length of a record, times the number of conditions
//! ([`MAX_FILTER_CONDITIONS`](crate::limits::MAX_FILTER_CONDITIONS) at most). No filter nests deeper than
//! [`MAX_FILTER_DEPTH`], however it was made.
//!
//! # Encoding
//! Conditions back to back, in any order; a kind may repeat. A condition is `u8 kind, LEB128 length, content`:
//!
//! | kind | condition | content |
//! |---|---|---|
//! | 1 | severity within a range; none is in no range | `i32` least, `i32` most |
//! | 2 | component | `u8` 1 equal or 2 begins with, UTF-8 |
//! | 3 | an attribute of the record is this one, in kind and every bit | a pair, whose value is no list |
//! | 4 | the body contains a text | UTF-8, not empty |
//! | 5 | the body matches a regular expression | `u8` flags (1: ignore case), UTF-8 |
//! | 6 | trace id | bytes, not empty |
//! | 7 | producer id | 16 bytes |
//! | 8 | one filter of several matches | for each a LEB128 length, its conditions |

mod conditions;
mod encoding;
mod matcher;

pub use conditions::{Filter, FilterError};
pub use matcher::Matcher;
