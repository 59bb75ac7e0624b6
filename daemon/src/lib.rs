//! The Central Logging Authority of a host: a daemon that says exactly how safe each log record is.

#[cfg(not(target_os = "linux"))]
compile_error!("clad runs on Linux only (5.10 or newer): its promises lean on what Linux says about its disks");

mod access;
pub mod cli;
pub mod config;
mod defect;
pub mod exit;
mod fds;
mod fdstore;
mod ingest;
pub mod life;
pub mod ops;
mod read;
mod sync;
mod text;
mod tls;

#[doc(hidden)]
pub use ingest::syslog::{split_relp, split_syslog, take_apart as take_syslog_apart};
pub use ingest::to_protobuf as otlp_json_to_protobuf;
#[doc(hidden)]
pub use tls::certificate_name;
