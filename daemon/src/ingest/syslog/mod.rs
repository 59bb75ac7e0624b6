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

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::AckLevel;
use clad_proto::frame::Transport;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::http::Calls;
use super::{
    ConnectionSlots, LiveSettings, OwnProducers, Peer, count_refusal, no_place, sock_diag, start_time_of_peer,
};
use crate::ops::metrics;
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
    Tcp(TcpListener),
    Relp(TcpListener),
    Unix(UnixListener),
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
            let (socket, peer, transport) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed on a socket for syslog");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let owner = peer.quota_owner();
            let Some(slot) = self.connection_slots.take(owner, transport) else {
                // The protocols have no words for it: the connection ends.
                count_refusal(AckLevel::Received, no_place(&self.connection_slots.quota_usage(), owner).code, 1);
                continue;
            };
            let service = self.live_settings.service();
            let (name, times) = (peer.name.clone(), service.peer_timeouts);
            let input = Incoming::new(
                socket,
                (service.buffers.handle(owner), settings.max_message),
                slot,
                transport,
                self.stop.clone(),
            );
            let is_relp = matches!(listener, Listener::Relp(_));
            let level = if is_relp { settings.level } else { AckLevel::None };
            let intake = StreamIntake::begin(service.admission, &self.producers, peer, level, settings.rules.clone());
            match intake {
                Ok(intake) if is_relp => {
                    tokio::spawn(relp::serve(input, intake, settings.max_message, times, name));
                }
                Ok(intake) => {
                    tokio::spawn(streams::serve(input, intake, settings.max_message, name));
                }
                Err(error) => tracing::info!(%error, "a connection of syslog is not taken"),
            }
        }
    }
}

impl Listener {
    async fn accept(&self) -> std::io::Result<(StreamSocket, Peer, metrics::Transport)> {
        match self {
            Self::Tcp(listener) | Self::Relp(listener) => {
                let (stream, address) = listener.accept().await?;
                let owner = sock_diag::owner(&stream, address).await;
                super::listen::keep_alive(&stream)?;
                let (transport, label) = match self {
                    Self::Relp(_) => (Transport::Relp, metrics::Transport::Relp),
                    _ => (Transport::SyslogTcp, metrics::Transport::SyslogTcp),
                };
                // An answer waits for no other.
                stream.set_nodelay(true)?;
                Ok((StreamSocket::Tcp(stream), Peer::network(transport, Some(address), owner, false), label))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let cred = stream.peer_cred()?;
                let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
                let pid_start = pid.and_then(|pid| start_time_of_peer(&stream, pid));
                let peer = Peer::local(Transport::SyslogUnix, cred.uid(), cred.gid(), pid, pid_start);
                Ok((StreamSocket::Unix(stream), peer, metrics::Transport::SyslogUnix))
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
