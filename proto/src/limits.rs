//! Every bound of the protocol, by name, with the relations between them checked when the crate is compiled.
//!
//! Three kinds: what the encoding itself can hold (`MAX_…`), what a daemon offers unless its operator says otherwise
//! (`DEFAULT_…`), and sizes of fixed parts (`…_BYTES`). A peer's number is believed only after it was compared with one
//! of these.

/// Lowest version of the framed protocol that this crate speaks.
pub const MIN_VERSION: u16 = 1;
/// Highest version of the framed protocol that this crate speaks.
pub const MAX_VERSION: u16 = 2;

/// Length of the fixed header in front of every record.
pub const RECORD_HEADER_BYTES: usize = 32;
/// Length of the length that opens a group.
pub const GROUP_HEADER_BYTES: usize = 4;

/// Number of arrays and key-value lists that may lie inside each other in one value.
///
/// Protobuf libraries stop at 100 nested messages, and one list inside a list costs three of them. A record deeper
/// than this could be stored but never be handed out over gRPC.
pub const MAX_NESTING_DEPTH: usize = 30;

/// The longest record that the encoding allows, whatever a daemon is configured to.
pub const MAX_RECORD_BYTES: u32 = 64 * 1024 * 1024;
/// The longest group (resource and scope) that is taken.
pub const MAX_GROUP_BYTES: u32 = 1024 * 1024;
/// The longest payload of an append that the encoding allows, whatever a daemon is configured to.
pub const MAX_APPEND_BYTES: u32 = 256 * 1024 * 1024;
/// The most records in one append.
pub const MAX_APPEND_RECORDS: u32 = 1 << 20;

/// The longest record that a daemon takes by default (`[journal] max_record_bytes`).
pub const DEFAULT_MAX_RECORD_BYTES: u32 = 2 * 1024 * 1024;
/// The longest payload of an append that a daemon takes by default (`[limits] max_append_bytes`).
pub const DEFAULT_MAX_APPEND_BYTES: u32 = 4 * 1024 * 1024;
/// The longest name of a named cursor.
pub const MAX_CURSOR_NAME_BYTES: usize = 64;
/// The longest note of a named cursor.
pub const MAX_CURSOR_NOTE_BYTES: usize = 256;
/// Number of appends of a connection that may be unacknowledged by default.
pub const DEFAULT_WINDOW: u32 = 256;
/// The most unacknowledged appends that a daemon may offer.
pub const MAX_WINDOW: u32 = 65_536;

/// Length of the header in front of every frame.
pub const FRAME_HEADER_BYTES: usize = 16;
/// Length of the CRC-32C that ends every control body.
pub const BODY_CRC_BYTES: usize = 4;
/// The longest body of a frame that carries no payload, with its checksum.
pub const MAX_CONTROL_BODY_BYTES: u32 = 4096;
/// Length of the fixed part of an APPEND body, with its own checksum.
pub const APPEND_HEADER_BYTES: usize = 24;
/// Length of the fixed part of a RECORDS body, without the peer metadata and without its checksum.
pub const RECORDS_FIXED_BYTES: usize = 68;
/// Length of the part of a FORWARD body before that of RECORDS, with its own checksum.
pub const FORWARD_HEADER_BYTES: usize = 16;
/// The longest encoded peer metadata: [`MAX_OWN_PEER_META_BYTES`], [`MAX_HOPS_BYTES`] and [`MAX_ORIGIN_BYTES`].
pub const MAX_PEER_META_BYTES: usize = 1024;
/// The longest peer metadata that a daemon makes of its own peer; also the longest of protocol version 1.
pub const MAX_OWN_PEER_META_BYTES: usize = 256;
/// The longest name of a stream that is forwarded.
pub const MAX_STREAM_BYTES: usize = 24;
/// The most logs that an append may have come through.
pub const MAX_HOPS: usize = 6;
/// The longest path of the logs that an append came through, with its tag and length.
pub const MAX_HOPS_BYTES: usize = 128;
/// The longest origin of an append, as the first daemon saw it, with its tag and length.
pub const MAX_ORIGIN_BYTES: usize = 640;
/// The most that a frame of any type adds around a payload, its frame header not counted.
pub const MAX_PAYLOAD_OVERHEAD_BYTES: usize =
    FORWARD_HEADER_BYTES + RECORDS_FIXED_BYTES + MAX_PEER_META_BYTES + BODY_CRC_BYTES;

/// The longest name that a client may give itself.
pub const MAX_CLIENT_NAME_BYTES: usize = 128;
/// The longest secret that binds a producer id on TCP.
pub const MAX_SECRET_BYTES: usize = 32;
/// Epochs before the newest that a WELCOME reports.
pub const MAX_EARLIER_EPOCHS: usize = 32;
/// The longest text of an error; what is longer is cut when it is encoded.
pub const MAX_ERROR_TEXT_BYTES: usize = 1024;
/// The most READs that one connection may have open.
pub const MAX_READS_PER_CONNECTION: usize = 16;

/// The longest encoding of a filter. It leaves room in the body of a READ for fields that may come.
pub const MAX_FILTER_BYTES: usize = 3840;
/// Number of filters that may lie inside each other in a filter.
pub const MAX_FILTER_DEPTH: usize = 16;
/// The most conditions of a filter, those of inner filters included.
pub const MAX_FILTER_CONDITIONS: usize = 64;
/// The memory in bytes that a daemon gives to the compiled regular expression of a filter.
pub const MAX_FILTER_EXPRESSION_BYTES: usize = 64 * 1024;

/// A LEB128 number of 64 bits takes at most this many bytes.
pub(crate) const MAX_VARINT_BYTES: usize = 10;

const _: () = assert!(MAX_FILTER_BYTES + 128 < MAX_CONTROL_BODY_BYTES as usize);
const _: () = assert!(MIN_VERSION >= 1 && MIN_VERSION <= MAX_VERSION);
const _: () = assert!(RECORD_HEADER_BYTES == 4 + 1 + 1 + 2 + 8 + 8 + 4 + 4);
const _: () = assert!(FRAME_HEADER_BYTES == 1 + 1 + 2 + 4 + 4 + 4);
const _: () = assert!(APPEND_HEADER_BYTES == 8 + 4 + 1 + 1 + 2 + 4 + 4);
const _: () = assert!(RECORDS_FIXED_BYTES == 4 + 4 + 8 + 8 + 16 + 4 + 4 + 8 + 4 + 4 + 2 + 2);
// A header and an append header together keep the payload on an 8-byte boundary of the stream's start.
const _: () = assert!((FRAME_HEADER_BYTES + APPEND_HEADER_BYTES).is_multiple_of(8));
// The largest group and the largest record fit into one append, so that a single record is never unsendable.
const _: () = assert!(MAX_GROUP_BYTES + MAX_RECORD_BYTES <= MAX_APPEND_BYTES);
const _: () = assert!(MAX_GROUP_BYTES + DEFAULT_MAX_RECORD_BYTES <= DEFAULT_MAX_APPEND_BYTES);
const _: () = assert!(DEFAULT_MAX_RECORD_BYTES <= MAX_RECORD_BYTES);
const _: () = assert!(DEFAULT_MAX_APPEND_BYTES <= MAX_APPEND_BYTES);
const _: () = assert!(DEFAULT_WINDOW <= MAX_WINDOW);
// A body length is a u32 on the wire, payload and overhead together.
const _: () = assert!(MAX_APPEND_BYTES as u64 + MAX_PAYLOAD_OVERHEAD_BYTES as u64 <= u32::MAX as u64);
const _: () = assert!(MAX_APPEND_RECORDS as u64 * RECORD_HEADER_BYTES as u64 <= MAX_APPEND_BYTES as u64);
// Every variable part of a control body fits beside its fixed part.
const _: () = assert!(
    MAX_CLIENT_NAME_BYTES + MAX_SECRET_BYTES + MAX_ERROR_TEXT_BYTES + 256 + BODY_CRC_BYTES
        <= MAX_CONTROL_BODY_BYTES as usize
);
const _: () = assert!(MAX_PEER_META_BYTES <= u16::MAX as usize);
const _: () = assert!(FORWARD_HEADER_BYTES == 8 + 1 + 1 + 1 + 1 + 4);
// Tag, length and number of log ids before them, and the stream's name behind them.
const _: () = assert!(3 + MAX_HOPS * 16 + MAX_STREAM_BYTES <= MAX_HOPS_BYTES);
const _: () = assert!(3 + 64 + MAX_OWN_PEER_META_BYTES <= MAX_ORIGIN_BYTES);
const _: () = assert!(MAX_OWN_PEER_META_BYTES + MAX_HOPS_BYTES + MAX_ORIGIN_BYTES == MAX_PEER_META_BYTES);
