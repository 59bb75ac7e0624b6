//! The generated gRPC services `clad.v1` and the OTLP messages that they carry.
//!
//! The `.proto` files under `proto/clad` are ours. Those under `proto/opentelemetry` are the official ones of the
//! OpenTelemetry project, unchanged, under the Apache License 2.0; but for `collector`, which is written after them.

mod asked;
mod convert;
pub(crate) mod generated;
mod handshake;
mod read;
mod status;

pub use asked::{Asked, AskedAppend};
pub use generated::{clad, opentelemetry, v1};
pub use status::{ERROR_METADATA, from_status, to_status};

/// The descriptors of all files, encoded: what server reflection serves.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/clad_descriptors.bin"));
