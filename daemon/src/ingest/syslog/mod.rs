//! Syslog and RELP: what `logger`, rsyslog, network devices and the C library send.
//!
//! Invariants:
//! - The bytes of a message are kept, whatever they are; where its parts were found, they are attributes ([`message`]).
//! - Who sends over a Unix socket is whom the kernel names; over the network it is an address. A producer of the daemon's own
//!   numbers what each owner sends.
//! - A reader of datagrams waits for nothing, and counts what it drops. A stream waits, and drops nothing.
//! - RELP answers a message once its record has the level asked for.
//!
//! ```text
//! datagrams ──────────────▶ message ─▶ record ─▶ Admission
//! streams ─▶ framing ─────▶    "         "          "
//! relp    ─▶ frame ───────▶    "         "          "      ─▶ level reached ─▶ answer
//! ```

mod datagrams;
mod drops;
mod framing;
mod message;
mod record;
mod relp;
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::AckLevel;
use clad_proto::frame::Transport;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::http::Calls;
use super::{
    ConnectionSlot, ConnectionSlots, LiveSettings, OwnProducers, Peer, Shown, count_refusal, no_place, sock_diag,
    start_time_of_peer,
};
use crate::ops::metrics;
use crate::tls::{Established, Tls};
pub(crate) use datagrams::Datagrams;
pub(crate) use message::Rules;
use streams::{Incoming, StreamIntake, StreamSocket};

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The part of the daemon that takes syslog. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Syslog {
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
    producers: Arc<OwnProducers>,
    stop: watch::Receiver<bool>,
    /// Sockets of datagrams that are being read.
    readers: Calls,
}

/// Settings of one listener.
#[derive(Clone)]
pub(crate) struct ListenerSettings {
    pub(crate) rules: Rules,
    pub(crate) max_message: usize,
    /// Level of an answer of RELP.
    pub(crate) level: AckLevel,
}

/// A listening socket of streams.
pub(crate) enum Listener {
    Tcp(TcpListener, Option<Tls>),
    Relp(TcpListener, Option<Tls>),
    Unix(UnixListener),
}

/// A connection that was accepted.
struct AcceptedStream {
    socket: StreamSocket,
    peer: Peer,
    transport: metrics::Transport,
    /// TLS comes first, with a peer at this address.
    tls: Option<(Tls, SocketAddr)>,
}

impl Syslog {
    pub(crate) fn new(
        live_settings: LiveSettings,
        connection_slots: Arc<ConnectionSlots>,
        producers: Arc<OwnProducers>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self { live_settings, connection_slots, producers, stop, readers: Calls::default() }
    }

    /// Reads datagrams until the daemon stops.
    pub(crate) fn read(&self, datagrams: Datagrams, settings: ListenerSettings) {
        let reader = self.readers.begin();
        let Self { live_settings, producers, stop, .. } = self.clone();
        tokio::spawn(async move {
            datagrams.serve(settings.rules, settings.max_message, live_settings, producers, stop).await;
            drop(reader);
        });
    }

    /// Waits until every datagram that came before the stop was read, with a timeout.
    pub(crate) async fn read_out(&self, until: std::time::Instant) {
        let _ = tokio::time::timeout_at(until.into(), self.readers.ended()).await;
    }

    /// Serves connections until the daemon stops.
    pub(crate) fn serve(&self, listener: Listener, settings: ListenerSettings) {
        let syslog = self.clone();
        tokio::spawn(async move { syslog.accept(listener, settings).await });
    }

    async fn accept(mut self, listener: Listener, settings: ListenerSettings) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = self.stop.wait_for(|stop| *stop) => return,
            };
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed on a socket for syslog");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let owner = accepted.peer.quota_owner();
            let Some(slot) = self.connection_slots.take(owner, accepted.transport) else {
                // The protocols have no words for it: the connection ends.
                count_refusal(AckLevel::Received, no_place(&self.connection_slots.quota_usage(), owner).code, 1);
                continue;
            };
            let (mut syslog, settings) = (self.clone(), settings.clone());
            tokio::spawn(async move {
                let timeout = syslog.live_settings.service().handshake_timeout;
                let accepted = tokio::select! {
                    accepted = accepted.after_handshake(timeout) => accepted,
                    _ = syslog.stop.wait_for(|stop| *stop) => None,
                };
                if let Some(accepted) = accepted {
                    syslog.serve_one(accepted, slot, settings).await;
                }
            });
        }
    }

    async fn serve_one(self, accepted: AcceptedStream, slot: ConnectionSlot, settings: ListenerSettings) {
        let AcceptedStream { socket, peer, transport, .. } = accepted;
        let service = self.live_settings.service();
        let (name, times) = (peer.name.clone(), service.peer_timeouts);
        let held = (service.buffers.handle(peer.quota_owner()), settings.max_message);
        let is_relp = transport == metrics::Transport::Relp;
        let level = if is_relp { settings.level } else { AckLevel::None };
        let begin = |peer: Peer| {
            let level = peer.rights().cap(level);
            StreamIntake::begin(service.admission.clone(), &self.producers, peer, level, settings.rules)
        };
        let (access, slot_state) = (&service.admission.access, slot.slot_state().clone());
        let judged = peer.judged(access, Shown::Nothing);
        let input = Incoming::new(socket, held, slot, transport, self.stop.clone());
        match judged.inspect(|peer| slot_state.serves(&Arc::new(peer.clone()), access)).and_then(begin) {
            Ok(intake) if is_relp => relp::serve(input, intake, settings.max_message, times, name).await,
            Ok(intake) => streams::serve(input, intake, settings.max_message, name).await,
            // The protocols have no words for it: a client keeps what it has, and comes again.
            Err(error) => {
                count_refusal(AckLevel::Received, error.code, 1);
                tracing::debug!(%error, "a connection of syslog is not taken");
            }
        }
    }
}

impl AcceptedStream {
    /// The connection within TLS, where its listener speaks that; nothing where the handshake came to nothing.
    async fn after_handshake(self, timeout: Duration) -> Option<Self> {
        let Self { socket, peer, transport, tls } = self;
        let (stream, (tls, address)) = match (socket, tls) {
            (StreamSocket::Tcp(stream), Some(tls)) => (stream, tls),
            (socket, tls) => return Some(Self { socket, peer, transport, tls }),
        };
        // The protocols have no words for a peer that speaks no TLS.
        let at = ("ingest.syslog.NAME.listen", address);
        let Established { stream, name } = tls.framed(stream, at, timeout, |_| Vec::new()).await?;
        let peer = Peer::over_tls(peer.transport, address, peer.quota_owner(), false, name);
        Some(Self { socket: StreamSocket::Tls(Box::new(stream)), peer, transport, tls: None })
    }
}

impl Listener {
    async fn accept(&self) -> std::io::Result<AcceptedStream> {
        match self {
            Self::Tcp(listener, tls) | Self::Relp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                let owner = sock_diag::owner(&stream, address).await;
                super::listen::keep_alive(&stream)?;
                let (transport, label) = match self {
                    Self::Relp(..) => (Transport::Relp, metrics::Transport::Relp),
                    _ => (Transport::SyslogTcp, metrics::Transport::SyslogTcp),
                };
                // An answer waits for no other.
                stream.set_nodelay(true)?;
                let peer = Peer::network(transport, Some(address), owner, false);
                let tls = tls.clone().map(|tls| (tls, address));
                Ok(AcceptedStream { socket: StreamSocket::Tcp(stream), peer, transport: label, tls })
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let cred = stream.peer_cred()?;
                let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
                let pid_start = pid.and_then(|pid| start_time_of_peer(&stream, pid));
                let peer = Peer::local(Transport::SyslogUnix, cred.uid(), cred.gid(), pid, pid_start);
                let (socket, transport) = (StreamSocket::Unix(stream), metrics::Transport::SyslogUnix);
                Ok(AcceptedStream { socket, peer, transport, tls: None })
            }
        }
    }
}

/// Names of this host, as its programs put them into messages.
pub(crate) fn own_names() -> Vec<String> {
    let whole = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = whole.split('.').next().unwrap_or_default().to_owned();
    if short == whole { vec![whole] } else { vec![whole, short] }
}

/// A message as records, by each format: for the fuzzer.
#[doc(hidden)]
#[must_use]
pub fn take_apart(bytes: &[u8]) -> Vec<clad_proto::Payload> {
    let mut appends = record::MessageBatch::new((
        clad_proto::limits::DEFAULT_MAX_APPEND_BYTES,
        clad_proto::limits::DEFAULT_MAX_RECORD_BYTES,
    ));
    for format in crate::config::SyslogFormat::ALL {
        for local_names in [None, Some(vec!["host".to_owned()])] {
            let rules = Rules { format: *format, zone: jiff::tz::TimeZone::UTC, local_names };
            let message = message::parse(bytes, &rules, 1_700_000_000_000_000_000);
            appends.push(&message, bytes, record::Arrived { at: 1, cut_from: None });
        }
    }
    appends.take()
}

/// Messages of a stream that is read in pieces of so many bytes, and whether it was one to its end: for the fuzzer.
#[doc(hidden)]
#[must_use]
pub fn split_syslog(stream: &[u8], piece: usize, max_message: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut framing, mut buf, mut messages) = (framing::Framing::new(max_message), BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece) {
        buf.extend_from_slice(piece);
        loop {
            match framing.next(&mut buf) {
                Ok(Some(message)) => messages.push(message.bytes.to_vec()),
                Ok(None) => break,
                Err(_) => return (messages, false),
            }
        }
    }
    messages.extend(framing.last(&mut buf).map(|message| message.bytes.to_vec()));
    (messages, true)
}

/// The same of a session of RELP.
#[doc(hidden)]
#[must_use]
pub fn split_relp(stream: &[u8], piece: usize, max_message: usize) -> (Vec<Vec<u8>>, bool) {
    relp::split(stream, piece, max_message)
}
