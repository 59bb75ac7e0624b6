//! The framed protocol of the TCP and Unix sockets.
//!
//! Every frame is a header of 16 bytes and a body. The header has its own checksum, so a length is believed only when
//! it is what the peer wrote; then it is still compared with what the type may have.
//!
//! | at | size | what |
//! |---|---|---|
//! | 0 | 1 | 0xC1 |
//! | 1 | 1 | frame type |
//! | 2 | 2 | reserved, 0 |
//! | 4 | 4 | length of the body |
//! | 8 | 4 | request id: the client's own number for a PING, FLUSH or READ, repeated in every answer to it; else 0 |
//! | 12 | 4 | CRC-32C of the 12 bytes before |
//!
//! Bodies come in two kinds. A *control body* is fixed fields, then tagged fields (`u8 tag`, LEB128 length, content;
//! ascending; tags that are not known are skipped), then the CRC-32C of all of that. APPEND, RECORDS and FORWARD are a fixed
//! part with its own CRC-32C, then a payload whose CRC-32C is in the fixed part: the client's own, which also lies on
//! the disk.
//!
//! A frame whose framing holds but whose payload does not (its checksum, a record) is not an error here. The daemon
//! refuses that append and the connection continues.

mod answer;
mod append;
mod bare;
mod control;
mod cursor;
mod decoder;
mod error_body;
mod forward;
mod handshake;
mod header;
mod hop;
mod origin;
mod peer_meta;
mod raw;
mod read;
mod records;
mod ring;

pub use crate::ids::RingId;
pub use answer::{Accepted, Refused, Watermark};
pub use append::{Append, AppendHead, AppendView, append_prefix, encode_append};
pub use bare::{encode_bye, encode_cancel_read, encode_ping, encode_pong};
pub use cursor::{CommitCursor, CursorState, GetCursor, NamedCursor};
pub use decoder::{Frame, FrameDecoder};
pub use error_body::ErrorFrame;
pub use forward::{Forward, ForwardHead, ForwardView, SkipReason, encode_forward, forward_prefix};
pub use handshake::{EpochStart, Forwarding, Hello, Intent, LastStored, OriginState, Welcome};
pub use header::{FrameError, FrameHeader, FrameType, KnownHeader, MAGIC};
pub use hop::{ForwardFault, forwarded_peer_meta};
pub use origin::{FirstOrigin, Origin, Path, StreamName};
pub use peer_meta::{PeerMeta, Transport, numbers};
pub use raw::{RawFrame, peek, peek_known};
pub use read::{CaughtUp, Flush, Gap, GapReason, Progress, Read, ReadEnd, ReadEndReason, ReadFrom};
pub use records::{Records, RecordsHead, RecordsView, encode_records, records_prefix};
pub use ring::{RingAppendTrailer, RingGiven, RingWanted};
