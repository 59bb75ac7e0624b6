//! Handshakes, on the runtime.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::{HandshakeKind, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::failure::{Failure, FailureLines};
use super::name;
use crate::ops::metrics::{self, Handshake};

/// Handshakes under way at once.
const HANDSHAKES_MAX: usize = 256;
/// First byte of a handshake.
const CLIENT_HELLO: u8 = 0x16;
/// Time and bytes for a peer without TLS to read why it is refused.
const PLAINTEXT: (Duration, u64) = (Duration::from_secs(1), 64 * 1024);

/// A session that both sides have agreed on.
pub(crate) struct Established {
    pub(crate) stream: TlsStream<TcpStream>,
    /// Name of the peer, where it has shown a certificate.
    pub(crate) name: Option<Arc<str>>,
}

/// Words for a peer that speaks no TLS, in its own protocol, by its first bytes.
pub(crate) type Refuse = fn(&[u8]) -> Vec<u8>;

/// Those under way.
#[derive(Default)]
pub(super) struct Handshakes {
    open: Mutex<UnderWay>,
    lines: FailureLines,
}

#[derive(Default)]
struct UnderWay {
    last: u64,
    handshakes: VecDeque<(u64, Arc<Notify>)>,
}

/// One of them.
struct Place<'a> {
    of: &'a Handshakes,
    key: u64,
    ends: Arc<Notify>,
}

impl Handshakes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// One handshake; nothing where it came to nothing, which was reported.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        settings: Arc<ServerConfig>,
        (listener, address): (&'static str, SocketAddr),
        timeout: Duration,
        refuse: Refuse,
    ) -> Option<Established> {
        let place = self.begin();
        let result = tokio::select! {
            result = tokio::time::timeout(timeout, shake(stream, settings, refuse)) => result.unwrap_or_else(|_| {
                Err(Failure::new(Handshake::Timeout, format!("no handshake within {timeout:?}: the peer is silent, or slow")))
            }),
            () = place.ends.notified() => {
                let text = format!("more than {HANDSHAKES_MAX} handshakes are under way: the oldest has ended");
                Err(Failure::new(Handshake::Crowded, text))
            }
        };
        drop(place);
        let (kind, established) = match result {
            Ok((kind, established)) => (kind, Some(established)),
            Err(failure) => {
                self.lines.report(listener, address, &failure);
                (failure.kind, None)
            }
        };
        metrics::tls_handshake(kind);
        established
    }

    fn open(&self) -> MutexGuard<'_, UnderWay> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place; beyond the limit the oldest ends. A peer that goes on needs two round trips, and is not the oldest for long.
    fn begin(&self) -> Place<'_> {
        let mut open = self.open();
        if open.handshakes.len() >= HANDSHAKES_MAX
            && let Some((_, ends)) = open.handshakes.pop_front()
        {
            ends.notify_one();
        }
        open.last += 1;
        let (key, ends) = (open.last, Arc::new(Notify::new()));
        open.handshakes.push_back((key, ends.clone()));
        Place { of: self, key, ends }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut open = self.of.open();
        if let Ok(at) = open.handshakes.binary_search_by_key(&self.key, |(key, _)| *key) {
            open.handshakes.remove(at);
        }
    }
}

async fn shake(
    mut stream: TcpStream,
    settings: Arc<ServerConfig>,
    refuse: Refuse,
) -> Result<(Handshake, Established), Failure> {
    let mut first = [0; 4];
    match stream.peek(&mut first).await {
        Ok(0) => return Err(Failure::new(Handshake::Closed, "the peer has said nothing")),
        Ok(_) if first[0] == CLIENT_HELLO => {}
        Ok(some) => {
            let words = refuse(&first[..some]);
            let say = async {
                stream.write_all(&words).await?;
                stream.shutdown().await?;
                // Closed with unread bytes, the kernel would take the answer back.
                tokio::io::copy(&mut stream.take(PLAINTEXT.1), &mut tokio::io::sink()).await
            };
            let _ = tokio::time::timeout(PLAINTEXT.0, say).await;
            return Err(Failure::new(
                Handshake::Plaintext,
                "the peer speaks no TLS, and this listener takes nothing else",
            ));
        }
        Err(error) => return Err(Failure::of(&error)),
    }
    let stream = TlsAcceptor::from(settings).accept(stream).await.map_err(|error| Failure::of(&error))?;
    let (_, session) = stream.get_ref();
    let name = match session.peer_certificates().and_then(|chain| chain.first()) {
        None => None,
        Some(certificate) => {
            // A session that goes on is not verified again.
            still_valid(certificate)?;
            Some(name::of(certificate).map_err(|error| Failure::new(Handshake::BadCertificate, error.to_string()))?)
        }
    };
    let kind = match session.handshake_kind() {
        Some(HandshakeKind::Resumed) => Handshake::Resumed,
        _ => Handshake::Full,
    };
    Ok((kind, Established { stream, name }))
}

fn still_valid(certificate: &CertificateDer<'_>) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let parsed = X509Certificate::from_der(certificate);
    match parsed
        .is_ok_and(|(_, parsed)| i64::try_from(now).is_ok_and(|now| now <= parsed.validity().not_after.timestamp()))
    {
        true => Ok(()),
        false => {
            Err(Failure::new(Handshake::BadCertificate, "the peer's certificate has expired since its session began"))
        }
    }
}

/// Takes a session apart: the socket goes to other threads.
impl Established {
    pub(crate) fn into_parts(self) -> io::Result<(std::net::TcpStream, rustls::ServerConnection, Option<Arc<str>>)> {
        let (stream, session) = self.stream.into_inner();
        Ok((stream.into_std()?, session, self.name))
    }
}
