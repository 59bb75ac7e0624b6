//! Code that tonic and prost generate from the `.proto` files.

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
        /// Services that take what others export.
        pub mod collector {
            /// For log records.
            pub mod logs {
                /// Version 1.
                #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, rustdoc::all)] // generated
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.logs.v1");
                }
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
