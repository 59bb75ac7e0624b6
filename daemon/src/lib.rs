//! The Central Logging Authority of a host: a daemon that says exactly how safe each log record is.

#[cfg(not(target_os = "linux"))]
compile_error!("clad runs on Linux only (5.10 or newer): its promises lean on what Linux says about its disks");

mod access;
mod admin;
mod advice;
pub mod check;
pub mod cli;
pub mod config;
mod defect;
mod events;
pub mod exit;
mod fds;
mod fdstore;
mod gauges;
mod grpc;
pub mod health;
mod hint;
mod ingest;
pub mod inherited_sockets;
mod lifecycle;
mod lock_holder;
pub mod logging;
pub mod metrics;
mod origin;
mod pages;
mod read;
pub mod reload;
mod rings;
pub mod run;
mod setup;
mod shares;
mod status;
mod sync;
pub mod systemd;
mod text;
mod watchdog;
