//! Parts of the daemon that a start makes before anything is served.

use std::sync::Arc;
use std::time::Instant;

use clad_journal::Journal;
use clad_journal::io::device::Substrate;
use tokio::sync::watch;

use crate::config::Config;
use crate::ingest::quota::Quota;
use crate::ops::health::Health;
use crate::ops::metrics::Recent;
use crate::ops::origin::Origin;

/// Parts that serving needs; clones share all but the configuration.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) config: Config,
    pub(crate) origin: Origin,
    pub(crate) health: Health,
    pub(crate) journal: Arc<Journal>,
    pub(crate) substrate: Substrate,
    /// Grounds of the policy's promise.
    pub(crate) grounds: String,
    pub(crate) stopped: watch::Receiver<bool>,
    pub(crate) recent: Arc<Recent>,
    pub(crate) started: Instant,
    /// Bytes that buffers of connections use beyond their own.
    pub(crate) buffers: Arc<Quota>,
}
