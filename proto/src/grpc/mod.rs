//! The generated gRPC services `clad.v1` and the OTLP messages that they carry.
//!
//! The `.proto` files under `proto/clad` are ours. Those under `proto/opentelemetry` are the official ones of the
//! OpenTelemetry project, unchanged, under the Apache License 2.0.

mod asked;
mod convert;
mod handshake;
mod read;
mod status;

pub use asked::{Asked, AskedAppend};
pub use status::{ERROR_METADATA, from_status, to_status};

/// The descriptors of all files, encoded: what server reflection serves.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/clad_descriptors.bin"));

/// Generated from `proto/clad`.
pub mod clad {
    /// Version 1 of the services.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, rustdoc::all)] // generated
    pub mod v1 {
        tonic::include_proto!("clad.v1");
    }
}

/// Generated from `proto/opentelemetry`.
pub mod opentelemetry {
    /// The protocol's messages.
    pub mod proto {
        /// Values, scopes, entities.
        pub mod common {
            /// Version 1.
            #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, rustdoc::all)] // generated
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.common.v1");
            }
        }
        /// Resources.
        pub mod resource {
            /// Version 1.
            #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, rustdoc::all)] // generated
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.resource.v1");
            }
        }
        /// Log records.
        pub mod logs {
            /// Version 1.
            #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, rustdoc::all)] // generated
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.logs.v1");
            }
        }
    }
}

pub use clad::v1;
