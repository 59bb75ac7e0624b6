//! The same attacks in plain and within TLS: within TLS an attack speaks to a tunnel, which seals what it says.
//!
//! Invariants: a tunnel reads no more than the daemon takes, and ends a connection when either end does. It is in the test's
//! process, so what it holds counts for nobody.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use clad_e2e::{Daemon, STRANGER, Setup, as_user, is_root};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::certs::Authority;

/// What a session of TLS holds: its keys, a record of the peer that is not whole, answers that wait for the kernel.
pub(super) const SESSION_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Tls,
}

impl Way {
    /// Words for the name of a case.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Tls => " within TLS",
        }
    }

    /// Bytes that a daemon holds for so many connections only because of the way.
    pub(super) fn bytes(self, connections: u64) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Tls => connections * SESSION_BYTES,
        }
    }
}

/// A certificate for a daemon, and a client's settings that trust it.
pub(super) struct Tls {
    pub(super) folder: tempfile::TempDir,
    pub(super) config: Arc<ClientConfig>,
}

impl Tls {
    pub(super) fn new() -> Self {
        let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("an authority"));
        authority.server().put(folder.path(), "server");
        std::fs::write(folder.path().join("ca.crt"), authority.pem()).expect("written");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Self { folder, config: Arc::new(config) }
    }

    /// A daemon with the certificate.
    pub(super) fn set(&self, setup: Setup) -> Setup {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        setup.set("tls.cert", &path("server.crt")).set("tls.key", &path("server.key"))
    }
}

/// A daemon that is attacked over one way.
pub(super) struct Target {
    pub(super) daemon: Daemon,
    tls: Option<Tls>,
}

impl Target {
    /// `within`: turns TLS on at the listeners of a setup.
    pub(super) fn start(way: Way, setup: Setup, within: impl FnOnce(Setup) -> Setup) -> Self {
        let tls = (way == Way::Tls).then(Tls::new);
        let setup = match &tls {
            Some(tls) => within(tls.set(setup)),
            None => setup,
        };
        Self { daemon: setup.start(), tls }
    }

    /// Where an attack that speaks in plain reaches this listener of the daemon.
    pub(super) fn at(&self, address: SocketAddr) -> SocketAddr {
        self.tls.as_ref().map_or(address, |tls| tunnel(address, tls.config.clone(), false))
    }

    /// The same, and who comes is another user where that can be.
    pub(super) fn at_as_stranger(&self, address: SocketAddr) -> SocketAddr {
        self.tls.as_ref().map_or(address, |tls| tunnel(address, tls.config.clone(), is_root()))
    }
}

/// Seals what comes at the address that it answers, until the test's process ends.
fn tunnel(to: SocketAddr, config: Arc<ClientConfig>, as_stranger: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("its address");
    listener.set_nonblocking(true).expect("a socket");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((near, _)) = listener.accept().await {
                let _ = near.set_nodelay(true);
                drop(tokio::spawn(seal(near, to, config.clone(), as_stranger)));
            }
        });
    });
    own
}

async fn seal(
    mut near: tokio::net::TcpStream,
    to: SocketAddr,
    config: Arc<ClientConfig>,
    as_stranger: bool,
) -> std::io::Result<()> {
    let come = || TcpStream::connect(to);
    let far = if as_stranger { as_user(STRANGER, come)? } else { come()? };
    far.set_nonblocking(true)?;
    far.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let mut far = TlsConnector::from(config).connect(name, tokio::net::TcpStream::from_std(far)?).await?;
    // An end without a word of TLS is an end as well.
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    Ok(())
}
