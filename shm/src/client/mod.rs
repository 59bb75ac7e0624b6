//! The client's end of a ring: it reserves, copies and commits.

pub(crate) mod producer;
pub(crate) mod writer;

pub use producer::{Look, Producer};
