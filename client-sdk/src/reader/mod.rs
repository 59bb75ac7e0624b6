//! The reader: a READ that outlives its connection.
//!
//! `handle` keeps the place and comes back to it; `source` is one READ on one connection, on either transport; `event`
//! is what is given; `sieve` drops what the filter does not let through.

mod builder;
mod event;
mod framed;
#[cfg(feature = "grpc")]
mod grpc;
mod handle;
mod next;
mod plan;
mod sieve;
mod source;

pub use builder::ReaderBuilder;
pub use event::{Chunk, Event, Gap};
pub use handle::Reader;
pub use plan::Start;
