//! TLS on a framed connection: who is trusted, who this client is, and a session on a socket.
//!
//! Invariants:
//! - Files are read at each connection, so a renewed certificate is used from the next one on. While they are the same, sessions
//!   go on where an earlier connection ended: a reconnect costs no new handshake.
//! - No write is over while bytes of it wait in the session: [`Session::wants_write`] says so.
//! - Nothing of the runtime or the session is used in a child of `fork`, and no lock is waited for.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::{Address, TlsHost};

/// Settings that are remembered, with their sessions.
const REMEMBERED_MAX: usize = 16;

/// Contents of the files that an address names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) authorities: Vec<u8>,
    /// Certificate and key.
    pub(super) own: Option<(Vec<u8>, Vec<u8>)>,
}

type Remembered = Vec<(TlsHost, Files, Arc<ClientConfig>)>;

static REMEMBERED: Mutex<Remembered> = Mutex::new(Vec::new());

impl Files {
    pub(super) fn read(host: &TlsHost) -> io::Result<Self> {
        let authorities = host.ca.as_deref().ok_or_else(|| {
            wrong("no authority is named that the daemon's certificate is checked by: add ?ca=FILE to the address, or set CLAD_TLS_CA")
        })?;
        let own = match (host.cert.as_deref(), host.key.as_deref()) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            _ => return Err(wrong("cert and key are wanted both, or none of them")),
        };
        Ok(Self { authorities: read(authorities)?, own })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| wrong(format!("{}: {error}", path.display())))
}

fn wrong(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text.into())
}

/// The settings of an address, remembered while its files are the same.
fn settings(host: &TlsHost) -> io::Result<Arc<ClientConfig>> {
    let files = Files::read(host)?;
    // A child of fork may have the lock as another thread held it.
    let mut remembered = REMEMBERED.try_lock().ok();
    let known = remembered.as_ref().and_then(|all| all.iter().find(|(at, with, _)| at == host && *with == files));
    if let Some((_, _, settings)) = known {
        return Ok(settings.clone());
    }
    let settings = Arc::new(made(host, &files)?);
    if let Some(all) = &mut remembered {
        all.retain(|(at, _, _)| at != host);
        if all.len() >= REMEMBERED_MAX {
            all.remove(0);
        }
        all.push((host.clone(), files, settings.clone()));
    }
    Ok(settings)
}

fn made(host: &TlsHost, files: &Files) -> io::Result<ClientConfig> {
    let named = |path: &Option<std::path::PathBuf>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&files.authorities) {
        let certificate = certificate.map_err(|error| wrong(format!("{}: not PEM: {error}", named(&host.ca))))?;
        roots.add(certificate).map_err(|error| wrong(format!("{}: no authority: {error}", named(&host.ca))))?;
    }
    if roots.is_empty() {
        return Err(wrong(format!("{}: there is no certificate in it", named(&host.ca))));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let Some((cert, key)) = &files.own else { return Ok(builder.with_no_client_auth()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let chain = chain.map_err(|error| wrong(format!("{}: not PEM: {error}", named(&host.cert))))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| wrong(format!("{}: there is no private key in it: {error}", named(&host.key))))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| {
        wrong(format!("{} and {} do not belong together: {error}", named(&host.cert), named(&host.key)))
    })
}

impl Address {
    /// Settings of TLS that a connection would use, the environment's among them; nothing for an address without TLS.
    ///
    /// # Errors
    /// A file that cannot be read, or is not what it should be.
    pub fn check_tls(&self) -> io::Result<Option<TlsHost>> {
        let host = match self {
            Self::TcpTls(host) => host.with_environment(),
            #[cfg(feature = "grpc")]
            Self::Grpcs(host) => host.with_environment(),
            _ => return Ok(None),
        };
        made(&host, &Files::read(&host)?)?;
        Ok(Some(host))
    }
}

/// A session with a daemon, and its socket.
#[derive(Debug)]
pub(super) struct Session {
    tcp: TcpStream,
    tls: ClientConnection,
}

/// The socket as `std` has one.
struct Now<'a>(&'a TcpStream);

impl Read for Now<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // nothing is buffered here
    }
}

impl Session {
    /// The handshake.
    pub(super) async fn begin(tcp: TcpStream, host: &TlsHost) -> io::Result<Self> {
        let settings = settings(host)?;
        let name = host.server_name.clone().unwrap_or_else(|| host.at.host.clone());
        let parsed = ServerName::try_from(name.clone()).map_err(|_| wrong(format!("{name} is no name of a host")))?;
        let stream = TlsConnector::from(settings).connect(parsed, tcp).await.map_err(|error| said(&error, &name))?;
        let (tcp, tls) = stream.into_inner();
        Ok(Self { tcp, tls })
    }

    pub(super) const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// True while bytes wait for the socket.
    pub(super) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn try_flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut Now(&self.tcp))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Everything that can be had now; 0 at the end.
    pub(super) fn try_read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        let before = buf.len();
        loop {
            let (taken, has_ended) = match self.tls.reader().fill_buf() {
                Ok(bytes) => {
                    buf.extend_from_slice(bytes);
                    (bytes.len(), bytes.is_empty())
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, false),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => (0, true),
                Err(error) => return Err(error),
            };
            if taken > 0 {
                self.tls.reader().consume(taken);
                continue;
            }
            if has_ended || buf.len() > before {
                return Ok(buf.len() - before);
            }
            // An answer of the session itself; it is not waited for.
            match self.try_flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            self.tls.read_tls(&mut Now(&self.tcp))?;
            self.tls.process_new_packets().map_err(|error| said(&io::Error::other(error), ""))?;
        }
    }

    pub(super) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_flush()?;
        let taken = self.tls.writer().write_vectored(slices)?;
        match self.try_flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Says that nothing more comes.
    pub(super) fn say_end(&mut self) {
        self.tls.send_close_notify();
    }

    pub(super) fn tcp_mut(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }
}

/// The error in words that a person can act on.
fn said(error: &io::Error, name: &str) -> io::Error {
    let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return io::Error::new(error.kind(), format!("the handshake of TLS came to nothing: {error}"));
    };
    let text = match inner {
        // The signature is bad where another authority has the same name.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "no authority that is trusted here (ca) has issued the daemon's certificate".to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            format!("the daemon's certificate is not for {name}: name what it is for as server_name, if that is right")
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the daemon's certificate has expired, or the clock of this host is ahead".to_owned()
        }
        Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "the daemon's certificate is not valid yet, or the clock of this host is behind".to_owned()
        }
        Error::AlertReceived(alert) => format!(
            "the daemon refuses this client ({alert:?}): it may want a certificate (cert and key) of an authority of its own"
        ),
        Error::InvalidMessage(_) => "the daemon does not speak TLS there: use tcp://, or its port for TLS".to_owned(),
        other => other.to_string(),
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {text}"))
}
