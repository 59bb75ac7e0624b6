//! Settings of the next connection. A reload replaces them; open connections keep theirs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::admission::Admission;
use super::framed::Service;
use crate::config::Limits;

/// Bytes that buffers of connections may take beyond their own: as much for input as for answers.
pub(crate) fn buffers(limits: &Limits) -> usize {
    2 * limits.max_inflight_bytes as usize
}

/// Sizes that the configuration has bounded already.
pub(crate) fn clamp(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The service of the connections to come. Clones are the same one.
#[derive(Clone)]
pub(crate) struct LiveSettings {
    service: Arc<RwLock<Service>>,
    max_message_bytes: Arc<AtomicU64>,
}

impl LiveSettings {
    pub(crate) fn new(service: Service, max_message_bytes: u64) -> Self {
        let max_message_bytes = Arc::new(AtomicU64::new(max_message_bytes));
        Self { service: Arc::new(RwLock::new(service)), max_message_bytes }
    }

    /// The longest request of OTLP.
    pub(crate) fn max_message_bytes(&self) -> usize {
        self.max_message_bytes.load(Ordering::Relaxed) as usize
    }

    /// For one connection.
    pub(crate) fn service(&self) -> Service {
        self.service.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts new limits in force: the budgets for everybody at once, the rest for connections to come.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        let mut service = self.service.write().unwrap_or_else(PoisonError::into_inner);
        service.admission.budget.resize(limits.max_inflight_bytes as usize);
        service.assembly.resize(limits.max_inflight_bytes as usize);
        service.buffers.resize(buffers(limits));
        self.max_message_bytes.store(limits.max_message_bytes, Ordering::Relaxed);
        service.handshake_timeout = limits.handshake_timeout;
        service.idle_timeout = limits.idle_timeout;
        service.admission = Arc::new(Admission {
            max_append: clamp(limits.max_append_bytes),
            max_connection_bytes: limits.max_connection_inflight_bytes as usize,
            ..Admission::clone(&service.admission)
        });
    }
}
