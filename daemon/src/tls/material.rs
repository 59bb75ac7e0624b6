//! Certificate, key and authorities, from their files.
//!
//! Invariant: what is returned fits together and is valid now. An error names the key of the configuration, the file, and what
//! to do.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::name::NamedPeers;
use crate::config;

/// Bits of a mode that let others than owner and group at a file.
const OTHERS: u32 = 0o007;
/// PemFiles above this are no certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Settings of listeners, checked.
#[derive(Debug)]
pub(crate) struct Material {
    /// For the framed protocol, syslog and RELP.
    framed: Arc<ServerConfig>,
    /// For HTTP, which negotiates its version.
    http: Arc<ServerConfig>,
    expires: SystemTime,
    digest: [u8; 32],
}

/// Why files are not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{key} = {}: {error}", path.display())]
    Read { key: &'static str, path: PathBuf, error: io::Error },
    #[error("{key} = {}: {what}", path.display())]
    Bad { key: &'static str, path: PathBuf, what: String, digest: [u8; 32] },
}

impl TlsError {
    /// Of the files, where they could be read.
    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        match self {
            Self::Read { .. } => None,
            Self::Bad { digest, .. } => Some(*digest),
        }
    }
}

/// A file, read whole.
struct PemFile<'a> {
    key: &'static str,
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> PemFile<'a> {
    fn read(key: &'static str, path: &'a Path) -> Result<Self, TlsError> {
        let read = || match std::fs::metadata(path)?.len() {
            0..=FILE_BYTES_MAX => std::fs::read(path),
            long => Err(io::Error::other(format!("{long} bytes are no certificate and no key"))),
        };
        let bytes = read().map_err(|error| TlsError::Read { key, path: path.to_owned(), error })?;
        Ok(Self { key, path, bytes })
    }
}

/// PemFiles, and the digest of all of them.
struct PemFiles<'a> {
    cert: PemFile<'a>,
    private: PemFile<'a>,
    authorities: Option<PemFile<'a>>,
    digest: [u8; 32],
}

impl<'a> PemFiles<'a> {
    fn read(settings: &'a config::Tls) -> Result<Self, TlsError> {
        // The rules of the configuration want both where anything is to speak TLS.
        let cert = PemFile::read("tls.cert", settings.cert.as_deref().unwrap_or(Path::new("")))?;
        let private = PemFile::read("tls.key", settings.key.as_deref().unwrap_or(Path::new("")))?;
        let authorities = settings.client_ca.as_deref().map(|path| PemFile::read("tls.client_ca", path)).transpose()?;
        let mut hasher = Sha256::new();
        for file in [Some(&cert), Some(&private), authorities.as_ref()].into_iter().flatten() {
            hasher.update((file.bytes.len() as u64).to_le_bytes());
            hasher.update(&file.bytes);
        }
        hasher.update([u8::from(settings.require_client_cert), settings.min_version as u8]);
        Ok(Self { cert, private, authorities, digest: hasher.finalize().into() })
    }

    fn bad(&self, file: &PemFile<'_>, what: impl Into<String>) -> TlsError {
        TlsError::Bad { key: file.key, path: file.path.to_owned(), what: what.into(), digest: self.digest }
    }

    fn certificates(&self, file: &PemFile<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&file.bytes).collect();
        let certificates = read.map_err(|error| self.bad(file, format!("not PEM, or cut short: {error}")))?;
        match certificates.is_empty() {
            true => Err(self.bad(file, "there is no certificate in it (PEM: -----BEGIN CERTIFICATE-----)")),
            false => Ok(certificates),
        }
    }

    /// The server's own certificate comes first and is valid now, each next one is the issuer of the one before.
    fn check_chain(&self, chain: &[CertificateDer<'_>], now: i64) -> Result<SystemTime, TlsError> {
        let mut parsed = Vec::with_capacity(chain.len());
        for der in chain {
            let (_, one) = X509Certificate::from_der(der)
                .map_err(|error| self.bad(&self.cert, format!("no certificate: {error}")))?;
            parsed.push(one);
        }
        for (at, pair) in parsed.windows(2).enumerate() {
            if pair[0].issuer() != pair[1].subject() {
                let what = format!(
                    "certificate {} is not the issuer of certificate {}: the server's own comes first, then the issuer of each",
                    at + 2,
                    at + 1
                );
                return Err(self.bad(&self.cert, what));
            }
        }
        for (at, one) in parsed.iter().enumerate() {
            let (from, to) = (one.validity().not_before, one.validity().not_after);
            let which = if at == 0 { "it".to_owned() } else { format!("certificate {}", at + 1) };
            if now < from.timestamp() {
                return Err(self.bad(&self.cert, format!("{which} is valid from {from} on: is the clock right?")));
            }
            if now > to.timestamp() {
                return Err(self.bad(&self.cert, format!("{which} was valid until {to}: renew it")));
            }
        }
        let expires = parsed.iter().map(|one| one.validity().not_after.timestamp()).min().unwrap_or(0);
        Ok(UNIX_EPOCH + Duration::from_secs(u64::try_from(expires).unwrap_or(0)))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let file = &self.private;
        let mode = std::fs::metadata(file.path).map(|metadata| metadata.permissions().mode());
        let mode = mode.map_err(|error| TlsError::Read { key: file.key, path: file.path.to_owned(), error })?;
        if mode & OTHERS != 0 {
            let what = format!("others can get at it (mode {:04o}): chmod 640, or 600", mode & 0o7777);
            return Err(self.bad(file, what));
        }
        PrivateKeyDer::from_pem_slice(&file.bytes)
            .map_err(|error| self.bad(file, format!("there is no private key in it, or it is cut short: {error}")))
    }

    /// The check of clients' certificates; none where no authority is named.
    fn verifier(&self, is_required: bool) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let Some(file) = &self.authorities else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(file)? {
            roots.add(certificate).map_err(|error| self.bad(file, format!("no authority: {error}")))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        let verifier = builder.build().map_err(|error| self.bad(file, error.to_string()))?;
        Ok(Some(Arc::new(NamedPeers(verifier))))
    }
}

impl Material {
    /// Reads and checks the files. Blocks.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub(crate) fn read(settings: &config::Tls) -> Result<Self, TlsError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let files = PemFiles::read(settings)?;
        let chain = files.certificates(&files.cert)?;
        let expires = files.check_chain(&chain, i64::try_from(now.as_secs()).unwrap_or(i64::MAX))?;
        let private = files.private_key()?;
        let verifier = files.verifier(settings.require_client_cert)?;
        let versions: &[_] = match settings.min_version {
            config::TlsVersion::V12 => &[&TLS13, &TLS12],
            config::TlsVersion::V13 => &[&TLS13],
        };
        let unsupported = |error: rustls::Error| files.bad(&files.cert, error.to_string());
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .map_err(unsupported)?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut framed = builder.with_single_cert(chain, private).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let cert = files.cert.path.display();
                files.bad(&files.private, format!("it is not the key of tls.cert = {cert}: take both from one issue"))
            }
            other => unsupported(other),
        })?;
        framed.ticketer = ring::Ticketer::new().map_err(unsupported)?;
        let mut http = framed.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { framed: Arc::new(framed), http: Arc::new(http), expires, digest: files.digest })
    }

    /// When the first certificate of the chain ends.
    pub(crate) fn expires(&self) -> SystemTime {
        self.expires
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    pub(super) fn framed(&self) -> Arc<ServerConfig> {
        self.framed.clone()
    }

    pub(super) fn http(&self) -> Arc<ServerConfig> {
        self.http.clone()
    }
}
