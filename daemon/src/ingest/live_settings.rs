//! Settings of the next connection. A reload replaces them; open connections keep theirs.

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
pub(crate) struct LiveSettings(Arc<RwLock<Service>>);

impl LiveSettings {
    pub(crate) fn new(service: Service) -> Self {
        Self(Arc::new(RwLock::new(service)))
    }

    /// For one connection.
    pub(crate) fn service(&self) -> Service {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts new limits in force: the budgets for everybody at once, the rest for connections to come.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        let mut service = self.0.write().unwrap_or_else(PoisonError::into_inner);
        service.admission.budget.resize(limits.max_inflight_bytes as usize);
        service.assembly.resize(limits.max_inflight_bytes as usize);
        service.buffers.resize(buffers(limits));
        service.handshake_timeout = limits.handshake_timeout;
        service.idle_timeout = limits.idle_timeout;
        service.admission = Arc::new(Admission {
            max_append: clamp(limits.max_append_bytes),
            max_connection_bytes: limits.max_connection_inflight_bytes as usize,
            ..Admission::clone(&service.admission)
        });
    }
}
