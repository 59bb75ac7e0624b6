//! The write path: from an append to the bytes of a segment. No threads, and no call to the disk but of those who
//! prepare, seal and name segments.

pub(crate) mod active;
pub(crate) mod batch;
pub(crate) mod buffer_pool;
pub(crate) mod clock_trust;
pub(crate) mod committer;
pub(crate) mod cursor_table;
pub(crate) mod metafile;
pub(crate) mod origin;
pub mod owner_bytes;
pub(crate) mod pending_reclaim;
pub(crate) mod permits;
pub(crate) mod prepare;
pub(crate) mod producer;
pub(crate) mod resend;
pub(crate) mod seal;
pub(crate) mod segment_file;
pub(crate) mod segment_supply;
pub(crate) mod sequencer;
mod tombstones;
pub(crate) mod watermarks;
