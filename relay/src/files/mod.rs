//! Files that programs write: followed by device, inode and birth, over renames and truncation.
//!
//! Invariants:
//! - The last record of each append says how far its file is stored. Now and then a record has the places of all files, and
//!   each append says where that one is: so a start reads that record and what this relay stored behind it.
//! - A place has a checksum of the bytes before it. A file whose bytes are others was truncated, or is another.
//! - Bytes are read once: a copy that logrotate makes before it truncates is no new file, and what of it was not read when
//!   the file was truncated is read there.
//! - Lines of a file stay in their order, also from a renamed file to the next one of its name.

mod follow;
mod lines;
mod place;
mod relay;

pub(crate) use place::POSITION;
pub(crate) use relay::run;
