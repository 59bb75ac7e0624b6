//! The operator's side: what is counted, logged and shown, and the orders that the admin service takes.

pub(crate) mod admin;
pub(crate) mod events;
pub(crate) mod gauges;
pub mod health;
pub(crate) mod limited_line;
pub mod log;
pub mod metrics;
pub(crate) mod origin;
pub(crate) mod pages;
pub(crate) mod shares;
pub(crate) mod status;
