//! Peer metadata of an append: what the daemon saw of the sender itself, not what the sender claims.
//!
//! Fields back to back, tags ascending. Up to tag 31: `u8 tag, LEB128 number`: 1 transport, 2 process id, 3 start of the
//! process (clock ticks since boot; with the process id it names one process for ever), 4 user id, 5 group id. From tag
//! 32 on: `u8 tag, LEB128 length, bytes`: 32 address of a network peer, 33 name in its certificate (UTF-8), 64 and 65 where a
//! forwarded append came from ([`Path`], [`FirstOrigin`]). Unknown tags are preserved.
//!
//! Protocol version 1 has the numbers alone: its peers get the part before tag 32 ([`numbers`]).

use super::origin::{BYTES, FirstOrigin, ORIGIN, PATH, Path};
use crate::{
    fault::Fault,
    limits::{MAX_OWN_PEER_META_BYTES, MAX_PEER_META_BYTES},
    wire::{Reader, put_varint},
};
use bytes::{BufMut, BytesMut};
use std::net::{IpAddr, SocketAddr};

const PART: &str = "the peer metadata";
const TRANSPORT: u8 = 1;
const PID: u8 = 2;
const PID_START: u8 = 3;
const UID: u8 = 4;
const GID: u8 = 5;
const UNKNOWN: u8 = 6;
const ADDRESS: u8 = 32;
const IDENTITY: u8 = 33;

/// The way an append came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Framed TCP.
    Tcp,
    /// A Unix socket.
    Unix,
    /// gRPC.
    Grpc,
    /// Shared memory.
    Shm,
    /// OTLP over gRPC.
    OtlpGrpc,
    /// OTLP over HTTP.
    OtlpHttp,
    /// Syslog over UDP.
    SyslogUdp,
    /// Syslog over TCP.
    SyslogTcp,
    /// Syslog over a Unix socket.
    SyslogUnix,
    /// RELP.
    Relp,
    /// The journal of systemd.
    Journal,
    /// A relay.
    Relay,
    /// One of a newer version.
    Other(u32),
}

impl Transport {
    /// The code on the wire and on the disk.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Tcp => 1,
            Self::Unix => 2,
            Self::Grpc => 3,
            Self::Shm => 4,
            Self::OtlpGrpc => 5,
            Self::OtlpHttp => 6,
            Self::SyslogUdp => 7,
            Self::SyslogTcp => 8,
            Self::SyslogUnix => 9,
            Self::Relp => 10,
            Self::Journal => 11,
            Self::Relay => 12,
            Self::Other(code) => code,
        }
    }

    /// The transport of a code.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Tcp,
            2 => Self::Unix,
            3 => Self::Grpc,
            4 => Self::Shm,
            5 => Self::OtlpGrpc,
            6 => Self::OtlpHttp,
            7 => Self::SyslogUdp,
            8 => Self::SyslogTcp,
            9 => Self::SyslogUnix,
            10 => Self::Relp,
            11 => Self::Journal,
            12 => Self::Relay,
            other => Self::Other(other),
        }
    }

    /// The name in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Grpc => "grpc",
            Self::Shm => "shm",
            Self::OtlpGrpc => "otlp_grpc",
            Self::OtlpHttp => "otlp_http",
            Self::SyslogUdp => "syslog_udp",
            Self::SyslogTcp => "syslog_tcp",
            Self::SyslogUnix => "syslog_unix",
            Self::Relp => "relp",
            Self::Journal => "journal",
            Self::Relay => "relay",
            Self::Other(_) => "other",
        }
    }
}

/// Peer metadata: what the daemon saw of a sender.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerMeta {
    /// The way it came.
    pub transport: Option<Transport>,
    /// Process id.
    pub pid: Option<u32>,
    /// Start of the process, clock ticks since boot.
    pub pid_start: Option<u64>,
    /// User id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Address of a network peer.
    pub address: Option<SocketAddr>,
    /// Name in the certificate of a network peer: its URI, else its DNS name.
    pub identity: Option<String>,
    /// Logs that a forwarded append came through.
    pub path: Option<Path>,
    /// The forwarded append in the first of them.
    pub origin: Option<FirstOrigin>,
    /// Numbers that this version does not know, tags ascending from 6 to 31.
    pub unknown: Vec<(u8, u64)>,
    /// Bytes that this version does not know, tags ascending from 34.
    pub unknown_bytes: Vec<(u8, Vec<u8>)>,
}

/// The part of encoded peer metadata that protocol version 1 has: the numbers. Nothing where even those are too long for
/// it.
#[must_use]
pub fn numbers(peer_meta: &[u8]) -> &[u8] {
    let mut reader = Reader(peer_meta);
    loop {
        let before = peer_meta.len() - reader.0.len();
        let is_number = reader.u8().is_some_and(|tag| tag < BYTES);
        if !is_number || reader.varint(PART).is_err() {
            return peer_meta.get(..before).filter(|part| part.len() <= MAX_OWN_PEER_META_BYTES).unwrap_or_default();
        }
    }
}

impl PeerMeta {
    /// Writes the fields. Unknown ones that would pass [`MAX_PEER_META_BYTES`] are left out, whole.
    pub fn encode(&self, buf: &mut BytesMut) {
        let start = buf.len();
        let known = [
            (TRANSPORT, self.transport.map(|transport| transport.code().into())),
            (PID, self.pid.map(u64::from)),
            (PID_START, self.pid_start),
            (UID, self.uid.map(u64::from)),
            (GID, self.gid.map(u64::from)),
        ];
        for (tag, value) in known {
            if let Some(value) = value {
                buf.put_u8(tag);
                put_varint(buf, value);
            }
        }
        let mut last = UNKNOWN - 1;
        let mut add = |buf: &mut BytesMut, tag: u8, is_in_place: bool, put: &dyn Fn(&mut BytesMut)| {
            let before = buf.len();
            buf.put_u8(tag);
            put(buf);
            if tag <= last || !is_in_place || buf.len() - start > MAX_PEER_META_BYTES {
                buf.truncate(before);
            } else {
                last = tag;
            }
        };
        for &(tag, value) in &self.unknown {
            add(buf, tag, tag < BYTES, &|buf| put_varint(buf, value));
        }
        let address = self.address.map(address_bytes);
        let address = address.as_ref().map(|(bytes, len)| (ADDRESS, bytes.get(..*len).unwrap_or_default()));
        let identity = self.identity.as_ref().map(|identity| (IDENTITY, identity.as_bytes()));
        let (path, origin) = (self.path.as_ref().map(Path::to_bytes), self.origin.as_ref().map(FirstOrigin::to_bytes));
        let path = path.as_ref().map(|path| (PATH, path.as_slice()));
        let origin = origin.as_ref().map(|origin| (ORIGIN, origin.as_slice()));
        let (below, above): (Vec<_>, Vec<_>) =
            self.unknown_bytes.iter().map(|(tag, bytes)| (*tag, bytes.as_slice())).partition(|(tag, _)| *tag <= PATH);
        let known = address.into_iter().chain(identity);
        for (tag, bytes) in known.chain(below).chain(path).chain(origin).chain(above) {
            add(buf, tag, tag >= BYTES, &|buf| {
                put_varint(buf, bytes.len() as u64);
                buf.put_slice(bytes);
            });
        }
    }

    /// The fields as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut buf = BytesMut::new();
        self.encode(&mut buf);
        buf.to_vec()
    }

    /// Reads the fields; all of the bytes must be fields.
    ///
    /// # Errors
    /// Says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.len() > MAX_PEER_META_BYTES {
            return Err(Fault::TooLarge { len: bytes.len() as u64, max: MAX_PEER_META_BYTES as u64 });
        }
        let mut peer_meta = Self::default();
        let mut reader = Reader(bytes);
        let mut last = 0;
        while let Some(tag) = reader.u8() {
            if tag <= last {
                return Err(Fault::FieldOrder(tag)); // catches the tag 0 too
            }
            last = tag;
            match tag {
                TRANSPORT => peer_meta.transport = Some(Transport::from_code(reader.varint32(PART)?)),
                PID => peer_meta.pid = Some(reader.varint32(PART)?),
                PID_START => peer_meta.pid_start = Some(reader.varint(PART)?),
                UID => peer_meta.uid = Some(reader.varint32(PART)?),
                GID => peer_meta.gid = Some(reader.varint32(PART)?),
                UNKNOWN..BYTES => peer_meta.unknown.push((tag, reader.varint(PART)?)),
                _ => {
                    let len = reader.varint(PART)?;
                    let bytes = usize::try_from(len).ok().and_then(|len| reader.take(len));
                    let bytes = bytes.ok_or(Fault::Truncated(PART))?;
                    let is_known = match tag {
                        ADDRESS => address(bytes).map(|address| peer_meta.address = Some(address)),
                        IDENTITY => {
                            let identity = std::str::from_utf8(bytes).ok();
                            identity.map(|identity| peer_meta.identity = Some(identity.to_owned()))
                        }
                        PATH => Path::from_bytes(bytes).map(|path| peer_meta.path = Some(path)),
                        ORIGIN => FirstOrigin::from_bytes(bytes).map(|origin| peer_meta.origin = Some(origin)),
                        _ => None,
                    };
                    if is_known.is_none() {
                        peer_meta.unknown_bytes.push((tag, bytes.to_vec()));
                    }
                }
            }
        }
        Ok(peer_meta)
    }
}

/// 4 or 16 bytes of the IP address, then the port, both in the order of the network.
fn address_bytes(address: SocketAddr) -> ([u8; 18], usize) {
    let mut bytes = [0; 18];
    let len = match address.ip() {
        IpAddr::V4(ip) => put(&mut bytes, &ip.octets()),
        IpAddr::V6(ip) => put(&mut bytes, &ip.octets()),
    };
    let len = len + put(bytes.get_mut(len..).unwrap_or_default(), &address.port().to_be_bytes());
    (bytes, len)
}

fn put(bytes: &mut [u8], part: &[u8]) -> usize {
    bytes.iter_mut().zip(part).map(|(to, from)| *to = *from).count()
}

fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let mut reader = Reader(bytes);
    let ip = match bytes.len() {
        6 => IpAddr::from(reader.array::<4>()?),
        18 => IpAddr::from(reader.array::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(reader.array()?)))
}
