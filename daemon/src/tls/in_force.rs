//! The material in force, and its replacement.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::TcpStream;

use super::handshake::{Established, Handshakes, Refuse};
use super::material::{Material, TlsError};
use crate::config;
use crate::ops::metrics;

/// Time between two looks at the files. Two small files are read, and nothing else is done unless they changed.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// TLS of all listeners: clones are the same.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Shared>);

struct Shared {
    in_force: RwLock<Arc<Material>>,
    handshakes: Handshakes,
    /// Digest of files that were refused: they are reported once.
    refused: Mutex<Option<[u8; 32]>>,
    /// Number of times that a reload has had its word.
    reloads: AtomicU64,
}

/// Outcome of a look at the files.
#[derive(Debug)]
pub(crate) enum Look {
    /// As they were.
    Same,
    /// Others are in force now.
    Taken,
    /// Others are there, and are refused as before.
    StillRefused,
    /// Others are there, and the old stay in force.
    Refused(TlsError),
}

impl Tls {
    /// With material that was checked.
    pub(crate) fn new(material: Material) -> Self {
        metrics::tls_certificate_expiry(material.expires());
        let in_force = RwLock::new(Arc::new(material));
        Self(Arc::new(Shared {
            in_force,
            handshakes: Handshakes::new(),
            refused: Mutex::default(),
            reloads: AtomicU64::new(0),
        }))
    }

    fn material(&self) -> Arc<Material> {
        self.0.in_force.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the material of a reload in force, for handshakes to come.
    pub(crate) fn set(&self, material: Material) {
        self.0.reloads.fetch_add(1, Ordering::SeqCst);
        self.put(material);
    }

    fn put(&self, material: Material) {
        // The same files keep their tickets.
        if material.digest() == self.material().digest() {
            return;
        }
        metrics::tls_certificate_expiry(material.expires());
        *self.0.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(material);
        *self.refused() = None;
        metrics::tls_reload_failed(false);
    }

    /// Reads the files again, and takes what they hold if it is sound. Blocks.
    pub(crate) fn look(&self, settings: &config::Tls) -> Look {
        let reloads = self.0.reloads.load(Ordering::SeqCst);
        let read = Material::read(settings);
        // A reload has read other files meanwhile.
        if self.0.reloads.load(Ordering::SeqCst) != reloads {
            return Look::Same;
        }
        let digest = match &read {
            Ok(material) => Some(material.digest()),
            Err(error) => error.digest(),
        };
        match read {
            Ok(material) if material.digest() == self.material().digest() => {
                // A bad pair was taken back.
                *self.refused() = None;
                metrics::tls_reload_failed(false);
                Look::Same
            }
            Ok(material) => {
                self.put(material);
                Look::Taken
            }
            Err(error) => {
                metrics::tls_reload_failed(true);
                let digest = digest.unwrap_or_default();
                let before = self.refused().replace(digest);
                if before == Some(digest) { Look::StillRefused } else { Look::Refused(error) }
            }
        }
    }

    /// The handshake of a listener for frames, named by its key; nothing where it came to nothing, which was reported.
    pub(crate) async fn framed(
        &self,
        stream: TcpStream,
        at: (&'static str, SocketAddr),
        timeout: Duration,
        refuse: Refuse,
    ) -> Option<Established> {
        self.0.handshakes.accept(stream, self.material().framed(), at, timeout, refuse).await
    }

    /// The same for HTTP.
    pub(crate) async fn http(
        &self,
        stream: TcpStream,
        at: (&'static str, SocketAddr),
        timeout: Duration,
        refuse: Refuse,
    ) -> Option<Established> {
        self.0.handshakes.accept(stream, self.material().http(), at, timeout, refuse).await
    }

    fn refused(&self) -> MutexGuard<'_, Option<[u8; 32]>> {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
