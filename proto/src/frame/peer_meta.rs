//! Peer metadata of an append: what the daemon saw of the sender itself, not what the sender claims.
//!
//! Fields back to back, `u8 tag, LEB128 number`, tags ascending: 1 transport, 2 process id, 3 start of the process
//! (clock ticks since boot; with the process id it names one process for ever), 4 user id, 5 group id. Unknown tags are
//! preserved.

use crate::{
    fault::Fault,
    limits::MAX_PEER_META_BYTES,
    wire::{Reader, put_varint},
};
use bytes::{BufMut, BytesMut};

const PART: &str = "the peer metadata";
const TRANSPORT: u8 = 1;
const PID: u8 = 2;
const PID_START: u8 = 3;
const UID: u8 = 4;
const GID: u8 = 5;
const UNKNOWN: u8 = 6;

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
    /// Fields that this version does not know, tags ascending from 6.
    pub unknown: Vec<(u8, u64)>,
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
        for &(tag, value) in &self.unknown {
            let before = buf.len();
            buf.put_u8(tag);
            put_varint(buf, value);
            if tag <= last || buf.len() - start > MAX_PEER_META_BYTES {
                buf.truncate(before);
            } else {
                last = tag;
            }
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
                _ => peer_meta.unknown.push((tag, reader.varint(PART)?)),
            }
        }
        Ok(peer_meta)
    }
}
