//! Datagrams: UDP, and a Unix socket, whose senders the kernel names.
//!
//! Invariants:
//! - The reader never waits for the disk: `syslog(3)` blocks its caller while the socket's queue is full. Where there is no
//!   room, the newest messages are dropped and counted.
//! - Sent = stored + counted: what the kernel dropped of UDP is counted, too. A record says so when there is room again.
//! - At a stop what the queue holds is read.

use std::io::{self, IoSliceMut};
use std::net::{self, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clad_proto::AckLevel;
use clad_proto::frame::Transport;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, UnixCredentials, recvmsg, setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::{UdpSocket, UnixDatagram};
use tokio::sync::watch;

use super::drops::ListenerDrops;
use super::framing::end_of;
use super::message::{self, Rules};
use super::record::{Arrived, MessageBatch};
use crate::access::RuleSet;
use crate::config::Right;
use crate::ingest::own_producers::{OwnProducer, OwnProducers};
use crate::ingest::quota::Owner;
use crate::ingest::{Admission, AppendQuota, LiveSettings, Peer, Shown, bind_unix_datagram};
use crate::ops::metrics::{self, Dropped};

/// Messages that are read before others get the thread.
const BATCH: usize = 64;
/// Bytes of them, beside the longest message.
const BATCH_BYTES: usize = 64 << 10;
/// Batches that are read at a stop, at most: a sender that never pauses must not keep the daemon.
const LAST_BATCHES: usize = 256;
/// Pause after an error of the socket.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// Time between two tries to store the record of drops.
const DROPS_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Room for datagrams in the kernel, as far as it allows: what comes while the reader is not scheduled.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// A socket of datagrams that is bound.
pub(crate) struct Datagrams {
    socket: DatagramSocket,
    transport: Transport,
    /// As records name it.
    name: String,
    kernel_drops: KernelDrops,
}

/// A socket of either kind.
enum DatagramSocket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl DatagramSocket {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.readable().await,
            Self::Unix(socket) => socket.readable().await,
        }
    }

    /// Calls the kernel, which may say that there is nothing.
    fn try_io<T>(&self, call: impl FnOnce(RawFd) -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Udp(socket) => socket.try_io(Interest::READABLE, || call(socket.as_raw_fd())),
            Self::Unix(socket) => socket.try_io(Interest::READABLE, || call(socket.as_raw_fd())),
        }
    }
}

/// The kernel's count of datagrams that it had no room for, since the socket was made.
struct KernelDrops {
    seen: u32,
    /// False until the first datagram, where an earlier daemon had the socket: it counted what was dropped before.
    is_known: bool,
}

impl KernelDrops {
    /// Drops since the last datagram. A datagram has no count while there are none.
    fn since(&mut self, count: Option<u32>) -> u64 {
        let count = count.unwrap_or(self.seen);
        let before = std::mem::replace(&mut self.seen, count);
        let is_known = std::mem::replace(&mut self.is_known, true);
        if is_known { count.wrapping_sub(before).into() } else { 0 }
    }
}

/// Sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DatagramSender {
    Process { pid: u32, uid: u32, gid: u32 },
    Network(SocketAddr),
    Unknown,
}

/// A datagram in the buffer.
struct Received {
    sender: DatagramSender,
    start: usize,
    length: usize,
    cut_from: Option<u64>,
}

impl Datagrams {
    /// # Errors
    /// The address cannot be had.
    pub(crate) fn udp(address: SocketAddr, inherited: Option<net::UdpSocket>) -> io::Result<Self> {
        let is_ours = inherited.is_none();
        let socket = inherited.map_or_else(|| net::UdpSocket::bind(address), Ok)?;
        let name = format!("udp://{}", socket.local_addr()?);
        setsockopt(&socket, sockopt::RxqOvfl, &1)?;
        prepare(&socket)?;
        let socket = DatagramSocket::Udp(UdpSocket::from_std(socket)?);
        Ok(Self::new(socket, Transport::SyslogUdp, name, is_ours))
    }

    /// # Errors
    /// The path cannot be had.
    pub(crate) fn unix(path: &Path, inherited: Option<OwnedFd>) -> io::Result<Self> {
        let is_ours = inherited.is_none();
        let socket = inherited.map_or_else(|| bind_unix_datagram(path, 0o666), Ok)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        prepare(&socket)?;
        let socket = DatagramSocket::Unix(UnixDatagram::from_std(socket.into())?);
        Ok(Self::new(socket, Transport::SyslogUnix, format!("unix-dgram://{}", path.display()), is_ours))
    }

    fn new(socket: DatagramSocket, transport: Transport, name: String, is_ours: bool) -> Self {
        Self { socket, transport, name, kernel_drops: KernelDrops { seen: 0, is_known: is_ours } }
    }

    /// The address, as records name it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads until the stop.
    pub(super) async fn serve(
        self,
        rules: Rules,
        max_message: usize,
        live_settings: LiveSettings,
        producers: Arc<OwnProducers>,
        mut stop: watch::Receiver<bool>,
    ) {
        let Self { socket, transport, name, kernel_drops } = self;
        let mut intake = DatagramIntake {
            rules,
            admission: live_settings.service().admission,
            producers,
            peer: None,
            drops: ListenerDrops::new(name),
            transport,
            messages: MessageBatch::new((0, 0)),
        };
        let mut reader = DatagramReader {
            buffer: vec![0; BATCH_BYTES + max_message],
            max_message,
            control: nix::cmsg_space!(UnixCredentials, u32),
            kernel_drops,
            has_failed: false,
        };
        loop {
            let ready = tokio::select! {
                ready = socket.readable() => ready,
                () = tokio::time::sleep(DROPS_RETRY_INTERVAL), if intake.has_drops() => {
                    intake.report_drops();
                    continue;
                }
                _ = stop.wait_for(|stop| *stop) => break,
            };
            if let Err(error) = ready {
                tracing::error!(%error, "reading of datagrams has ended");
                return;
            }
            // A reload may have changed the limits.
            intake.admission = live_settings.service().admission;
            reader.batch(&socket, &mut intake);
            // An error that stays is waited out, never spun on.
            match std::mem::take(&mut reader.has_failed) {
                true => tokio::time::sleep(ERROR_PAUSE).await,
                false => tokio::task::yield_now().await,
            }
        }
        for _ in 0..LAST_BATCHES {
            if !reader.batch(&socket, &mut intake) {
                break;
            }
        }
        intake.report_drops();
    }
}

/// Reads datagrams.
struct DatagramReader {
    buffer: Vec<u8>,
    /// For what the kernel says beside a datagram.
    control: Vec<u8>,
    max_message: usize,
    kernel_drops: KernelDrops,
    /// The last batch ended with an error.
    has_failed: bool,
}

impl DatagramReader {
    /// Reads and stores what is there, at most a batch; false if nothing was.
    fn batch(&mut self, socket: &DatagramSocket, intake: &mut DatagramIntake) -> bool {
        let now = intake.now();
        let (mut batch, mut used) = (Vec::with_capacity(BATCH), 0);
        while batch.len() < BATCH && used <= BATCH_BYTES {
            match self.receive(socket, used) {
                Ok((received, dropped)) => {
                    if dropped > 0 {
                        intake.drops.add(Dropped::KernelQueue, dropped, now);
                    }
                    used += received.length;
                    batch.push(received);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "a datagram could not be read");
                    self.has_failed = true;
                    break;
                }
            }
        }
        intake.store(&self.buffer, &batch, now);
        !batch.is_empty()
    }

    /// One datagram into the buffer, and how many the kernel has dropped before it.
    fn receive(&mut self, socket: &DatagramSocket, start: usize) -> io::Result<(Received, u64)> {
        let Self { buffer, control, max_message, kernel_drops, .. } = self;
        socket.try_io(|socket| {
            let mut slices = [IoSliceMut::new(&mut buffer[start..start + *max_message])];
            let flags = MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
            let message = recvmsg::<SockaddrStorage>(socket, &mut slices, Some(&mut *control), flags)?;
            let mut sender =
                message.address.as_ref().and_then(network).map_or(DatagramSender::Unknown, DatagramSender::Network);
            let mut count = None;
            for control in message.cmsgs()? {
                match control {
                    ControlMessageOwned::ScmCredentials(cred) => {
                        let pid = u32::try_from(cred.pid()).unwrap_or(0);
                        sender = DatagramSender::Process { pid, uid: cred.uid(), gid: cred.gid() };
                    }
                    ControlMessageOwned::RxqOvfl(drops) => count = Some(drops),
                    _ => {}
                }
            }
            // The whole length, also of one that is cut.
            let whole = message.bytes;
            let cut_from = (whole > *max_message).then_some(whole as u64);
            Ok((Received { sender, start, length: whole.min(*max_message), cut_from }, kernel_drops.since(count)))
        })
    }
}

/// Gives a socket the room that it may have.
fn prepare(socket: &impl AsFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    // More than the system's limit is for root alone.
    if setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
    }
    Ok(())
}

fn network(address: &SockaddrStorage) -> Option<SocketAddr> {
    let four = address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    four.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

/// Way of messages into the log.
struct DatagramIntake {
    rules: Rules,
    admission: Arc<Admission>,
    producers: Arc<OwnProducers>,
    /// The last sender, and the rules by which it was judged.
    peer: Option<(DatagramSender, Arc<RuleSet>, KnownSender)>,
    drops: ListenerDrops,
    transport: Transport,
    messages: MessageBatch,
}

/// Peer, producer and quota of a sender.
#[derive(Clone)]
struct KnownSender {
    peer: Peer,
    producer: Arc<OwnProducer>,
    quota: AppendQuota,
}

impl DatagramIntake {
    fn now(&self) -> u64 {
        u64::try_from(self.admission.arrival().moment().real_ns).unwrap_or(0)
    }

    /// Stores a batch: messages in a row of one sender and program are one append.
    fn store(&mut self, buffer: &[u8], batch: &[Received], now: u64) {
        self.report_drops();
        self.messages.set_limits((self.admission.max_append, self.admission.max_record));
        for run in batch.chunk_by(|one, next| one.sender == next.sender) {
            for received in run {
                let whole = &buffer[received.start..received.start + received.length];
                let whole = &whole[..end_of(whole)];
                let message = message::parse(whole, &self.rules, now);
                self.messages.push(&message, whole, Arrived { at: now, cut_from: received.cut_from });
            }
            let sender = run.first().map_or(DatagramSender::Unknown, |received| received.sender);
            self.append(sender, now);
        }
    }

    fn append(&mut self, sender: DatagramSender, now: u64) {
        let payloads = self.messages.take();
        let known = self.known(sender);
        for payload in payloads {
            let records = u64::from(payload.count);
            let known = match &known {
                Ok(known) => known,
                // No record says so: who may not append makes none.
                Err(Dropped::Denied) => {
                    metrics::dropped(Dropped::Denied, records);
                    continue;
                }
                Err(reason) => {
                    self.drops.add(*reason, records, now);
                    continue;
                }
            };
            let admitted = Admission::try_admit(&known.quota, payload.bytes.len(), self.admission.arrival());
            let Some(admitted) = admitted else {
                self.drops.add(Dropped::Busy, records, now);
                continue;
            };
            let appended =
                known.producer.append(&self.admission, &known.peer, AckLevel::None, (&payload, None), admitted);
            match appended.map_err(|error| crate::ingest::dropped(error.code)) {
                Ok(_) => {}
                Err(Dropped::Denied) => metrics::dropped(Dropped::Denied, records),
                Err(reason) => self.drops.add(reason, records, now),
            }
        }
    }

    /// Peer, producer and quota of a sender; a reason to drop what it sends where it may not append, or the journal closes.
    fn known(&mut self, sender: DatagramSender) -> Result<KnownSender, Dropped> {
        let rules = self.admission.access.rules();
        if let Some((last, by, known)) = &self.peer
            && *last == sender
            && Arc::ptr_eq(by, &rules)
        {
            return Ok(known.clone());
        }
        let transport = self.transport;
        let peer = match sender {
            DatagramSender::Process { pid, uid, gid } => Peer::local(transport, uid, gid, Some(pid), None),
            DatagramSender::Network(address) => Peer::network(transport, Some(address), Owner::Network, false),
            DatagramSender::Unknown => Peer::network(transport, None, Owner::Network, false),
        };
        let peer = peer.judged(&self.admission.access, Shown::Nothing).map_err(|_| Dropped::Denied)?;
        peer.check(Right::Append).map_err(|_| Dropped::Denied)?;
        let known = self.sender(peer)?;
        self.peer = Some((sender, rules, known.clone()));
        Ok(known)
    }

    fn sender(&self, peer: Peer) -> Result<KnownSender, Dropped> {
        let producer = self.producers.of(&peer).map_err(|_| Dropped::Stopping)?;
        Ok(KnownSender { producer, quota: AppendQuota::of(&peer, &self.admission.budget), peer })
    }

    fn has_drops(&self) -> bool {
        self.drops.record(0).is_some()
    }

    /// Stores the record of drops, where there is room.
    fn report_drops(&mut self) {
        let now = self.now();
        let Some(record) = self.drops.record(now) else { return };
        let mut appends = MessageBatch::new((self.admission.max_append, self.admission.max_record));
        appends.push_own(&record);
        let Ok(known) = self.sender(Peer::daemon(self.transport)) else { return };
        let is_stored = appends.take().iter().all(|payload| {
            let admitted = Admission::try_admit(&known.quota, payload.bytes.len(), self.admission.arrival());
            admitted.is_some_and(|admitted| {
                known.producer.append(&self.admission, &known.peer, AckLevel::None, (payload, None), admitted).is_ok()
            })
        });
        if is_stored {
            self.drops.clear();
        }
    }
}
