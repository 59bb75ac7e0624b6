//! Frames of the socket protocol, as daemon and client read them.
//!
//! What must hold of any bytes:
//! - decoding ends, never panics, and never allocates more than the input and one step ask for;
//! - a stream cut at any place gives the same frames and the same error;
//! - a frame that decodes, encoded again, decodes to the same frame.

use bytes::{Buf, BytesMut};
use clad_proto::filter::{Filter, Matcher};
use clad_proto::frame::{
    Frame, FrameDecoder, FrameError, FrameType, encode_bye, encode_cancel_read, encode_ping, encode_pong,
};

use crate::reseal;

/// Longest payload that the decoders here take.
const MAX_APPEND_BYTES: u32 = 64 << 10;
/// Bytes that a decoder may allocate on the word of a header.
const PREALLOCATION_BYTES_MAX: usize = 64 << 10;

/// A stream of frames.
pub(crate) fn frame(data: &[u8]) {
    stream(data);
    stream(&reseal::frames(data));
}

/// The body of a HELLO, a WELCOME or another control frame, by the first byte.
pub(crate) fn handshake(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    for kind in [FrameType::Hello, FrameType::Welcome, any_kind(*first)] {
        stream(&reseal::control(kind, body));
    }
    // A whole frame, as the golden files hold it: its body alone.
    if data.len() > 20 {
        stream(&reseal::control(FrameType::Hello, &data[16..data.len() - 4]));
        stream(&reseal::control(FrameType::Welcome, &data[16..data.len() - 4]));
    }
}

fn any_kind(byte: u8) -> FrameType {
    let known: Vec<FrameType> = (0..=u8::MAX).filter_map(FrameType::from_code).collect();
    known[usize::from(byte) % known.len()]
}

fn stream(data: &[u8]) {
    let (frames, end) = decode(&[data]);
    for at in [1, 15, 16, 17, data.len() / 2, data.len().saturating_sub(1)] {
        let (front, back) = data.split_at(at.min(data.len()));
        let (parted, parted_end) = decode(&[front, back]);
        assert_eq!(frames, parted, "cut at {at}");
        assert_eq!(end, parted_end, "cut at {at}");
    }
    for frame in &frames {
        again(frame);
    }
    if let Some(error) = end {
        assert!(!error.to_string().is_empty());
        // The error that a peer gets.
        assert!(!error.info().to_string().is_empty());
    }
}

fn decode(parts: &[&[u8]]) -> (Vec<Frame>, Option<FrameError>) {
    let decoder = FrameDecoder::new(MAX_APPEND_BYTES);
    let (mut buf, mut frames) = (BytesMut::new(), Vec::new());
    for part in parts {
        buf.extend_from_slice(part);
        loop {
            let held = buf.len();
            match decoder.next(&mut buf) {
                Ok(Some(frame)) => {
                    assert!(buf.len() < held, "a frame of no bytes");
                    frames.push(frame);
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        let most = 2 * (PREALLOCATION_BYTES_MAX.max(buf.len()) + parts.iter().map(|p| p.len()).sum::<usize>());
        assert!(buf.capacity() <= most, "{} bytes allocated for {}", buf.capacity(), buf.len());
    }
    (frames, None)
}

/// A filter that a daemon would evaluate stays the same filter.
fn filter(bytes: &[u8]) {
    let Ok(filter) = Filter::from_bytes(bytes) else { return };
    let again = filter.to_bytes().expect("as long as it was");
    assert_eq!(again, bytes);
    assert!(Matcher::new(&filter, 0).is_ok() || filter.has_expression());
}

fn again(frame: &Frame) {
    let mut buf = BytesMut::new();
    match frame {
        Frame::Hello(f) => f.encode(&mut buf),
        Frame::Append(f) => f.encode(&mut buf),
        Frame::Flush(f) => f.encode(&mut buf),
        Frame::Forward(f) => f.encode(&mut buf),
        Frame::Ping(id) => encode_ping(&mut buf, *id),
        Frame::Read(f) => {
            filter(f.filter.as_deref().unwrap_or_default());
            f.encode(&mut buf);
        }
        Frame::CancelRead(id) => encode_cancel_read(&mut buf, *id),
        Frame::Bye => encode_bye(&mut buf),
        Frame::Welcome(f) => f.encode(&mut buf),
        Frame::Accepted(f) => f.encode(&mut buf),
        Frame::Watermark(f) => f.encode(&mut buf),
        Frame::Refused(f) => f.encode(&mut buf),
        Frame::Error(f) => f.encode(&mut buf),
        Frame::Pong(id) => encode_pong(&mut buf, *id),
        Frame::Records(f) => f.encode(&mut buf),
        Frame::Gap(f) => f.encode(&mut buf),
        Frame::CaughtUp(f) => f.encode(&mut buf),
        Frame::ReadEnd(f) => f.encode(&mut buf),
        Frame::Progress(f) => f.encode(&mut buf),
        Frame::CommitCursor(f) => f.encode(&mut buf),
        Frame::GetCursor(f) => f.encode(&mut buf),
        Frame::Cursor(f) => f.encode(&mut buf),
        Frame::Ring(f) => f.encode(&mut buf),
        Frame::RingGiven(f) => f.encode(&mut buf),
    }
    let second = FrameDecoder::new(MAX_APPEND_BYTES).next(&mut buf);
    assert_eq!(second.as_ref().ok().and_then(Option::as_ref), Some(frame), "it came back as {second:?}");
    assert!(!buf.has_remaining());
}
