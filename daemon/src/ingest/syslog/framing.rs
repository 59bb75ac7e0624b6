//! Messages in a stream: both framings of RFC 6587.
//!
//! Invariants:
//! - The first bytes of a connection decide: digits and a blank are the length of a message, anything else is a line.
//! - A message over the limit is cut, and the stream goes on behind it.
//! - Not more than one message of the longest size is held.

use bytes::{Buf, Bytes, BytesMut};

/// Longest length in digits: beyond that nobody means a message.
const LENGTH_DIGITS_MAX: usize = 7;

/// A message as it came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawMessage {
    pub(super) bytes: Bytes,
    /// The length that it had, where it was cut.
    pub(super) cut_from: Option<u64>,
}

impl RawMessage {
    fn whole(bytes: Bytes) -> Self {
        Self { bytes, cut_from: None }
    }
}

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FramingError {
    #[error("a length was expected, as the first message had one (RFC 6587, 3.4.1)")]
    NoLength,
    #[error("the length of a message has more than {LENGTH_DIGITS_MAX} digits")]
    LongLength,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamKind {
    Unknown,
    Counted,
    Lines,
}

/// A message that is cut: what is kept of it, and what was left out so far.
#[derive(Debug)]
struct CutMessage {
    kept: Bytes,
    total: u64,
    /// Bytes that are still to come; absent for a line.
    left: Option<u64>,
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct Framing {
    kind: StreamKind,
    cut: Option<CutMessage>,
    max: usize,
}

impl Framing {
    /// With the longest message.
    pub(super) fn new(max: usize) -> Self {
        Self { kind: StreamKind::Unknown, cut: None, max }
    }

    /// The next message; nothing where more must come first.
    pub(super) fn next(&mut self, buf: &mut BytesMut) -> Result<Option<RawMessage>, FramingError> {
        loop {
            if let Some(cut) = self.cut.take() {
                match self.skipped(cut, buf) {
                    done @ Some(_) => return Ok(done),
                    None => return Ok(None),
                }
            }
            if self.kind == StreamKind::Unknown {
                match kind_of(buf) {
                    Some(kind) => self.kind = kind,
                    None => return Ok(None),
                }
            }
            let found = if self.kind == StreamKind::Lines { self.line(buf) } else { self.counted(buf)? };
            match found {
                Some(frame) if frame.bytes.is_empty() => {}
                None if self.cut.is_some() => {}
                found => return Ok(found),
            }
        }
    }

    /// The last message, which its end has no mark of, at the end of the stream.
    pub(super) fn last(&mut self, buf: &mut BytesMut) -> Option<RawMessage> {
        if let Some(cut) = self.cut.take() {
            return Some(RawMessage { bytes: cut.kept, cut_from: Some(cut.total) });
        }
        let is_counted = self.kind == StreamKind::Counted;
        let mut rest = buf.split().freeze();
        let mut cut_from = None;
        if is_counted {
            let digits = digits_of(&rest);
            cut_from = length_in(&rest[..digits]);
            rest.advance((digits + 1).min(rest.len()));
        }
        let bytes = without_end(rest);
        (!bytes.is_empty()).then_some(RawMessage { bytes, cut_from })
    }

    fn line(&mut self, buf: &mut BytesMut) -> Option<RawMessage> {
        match buf.iter().position(|byte| *byte == b'\n') {
            Some(end) if end <= self.max => {
                let line = buf.split_to(end + 1).freeze();
                Some(RawMessage::whole(without_end(line)))
            }
            None if buf.len() <= self.max => None,
            _ => {
                let kept = buf.split_to(self.max).freeze();
                self.cut = Some(CutMessage { total: kept.len() as u64, kept, left: None });
                None
            }
        }
    }

    fn counted(&mut self, buf: &mut BytesMut) -> Result<Option<RawMessage>, FramingError> {
        // Some senders end a counted message with a line's end, too.
        let between = buf.iter().take_while(|byte| matches!(byte, b'\n' | b'\r' | 0)).count();
        buf.advance(between);
        let digits = digits_of(buf);
        if digits > LENGTH_DIGITS_MAX {
            return Err(FramingError::LongLength);
        }
        match buf.get(digits) {
            None => return Ok(None),
            Some(b' ') if digits > 0 => {}
            Some(_) => return Err(FramingError::NoLength),
        }
        let length = length_in(&buf[..digits]).unwrap_or(0);
        let (start, wanted) = (digits + 1, length as usize);
        if wanted > self.max {
            let here = (buf.len() - start).min(self.max);
            if here < self.max {
                return Ok(None);
            }
            buf.advance(start);
            let kept = buf.split_to(self.max).freeze();
            self.cut = Some(CutMessage { kept, total: length, left: Some(length - self.max as u64) });
            return Ok(None);
        }
        if buf.len() < start + wanted {
            return Ok(None);
        }
        buf.advance(start);
        Ok(Some(RawMessage::whole(without_end(buf.split_to(wanted).freeze()))))
    }

    /// Skips what is left out of a message; the message, once all of it was skipped.
    fn skipped(&mut self, mut cut: CutMessage, buf: &mut BytesMut) -> Option<RawMessage> {
        match cut.left {
            Some(left) => {
                let here = left.min(buf.len() as u64);
                buf.advance(here as usize);
                cut.left = Some(left - here);
                if here == left {
                    return Some(RawMessage { bytes: cut.kept, cut_from: Some(cut.total) });
                }
            }
            None => {
                let end = buf.iter().position(|byte| *byte == b'\n');
                let skipped = end.unwrap_or(buf.len());
                cut.total += skipped as u64;
                buf.advance(skipped + usize::from(end.is_some()));
                if end.is_some() {
                    return Some(RawMessage { bytes: cut.kept, cut_from: Some(cut.total) });
                }
            }
        }
        self.cut = Some(cut);
        None
    }
}

/// Kind of a stream by its first bytes; nothing where there are too few.
fn kind_of(buf: &[u8]) -> Option<StreamKind> {
    let digits = digits_of(buf);
    match buf.get(digits) {
        Some(b' ') if digits > 0 => Some(StreamKind::Counted),
        Some(_) => Some(StreamKind::Lines),
        None if digits > LENGTH_DIGITS_MAX => Some(StreamKind::Lines),
        None => None,
    }
}

fn digits_of(buf: &[u8]) -> usize {
    buf.iter().take(LENGTH_DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_digit()).count()
}

fn length_in(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The message without the end that its framing gives it: a line's end, or the NUL of C programs.
pub(super) fn without_end(mut bytes: Bytes) -> Bytes {
    bytes.truncate(end_of(&bytes));
    bytes
}

/// Length of a message without such an end.
pub(super) fn end_of(bytes: &[u8]) -> usize {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.strip_suffix(b"\0").unwrap_or(line).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message, and the length that it had where it was cut.
    type Found = (Vec<u8>, Option<u64>);

    /// All messages of a stream that comes in pieces of so many bytes.
    fn framed(stream: &[u8], piece: usize, max: usize) -> (Vec<Found>, Option<FramingError>) {
        let (mut framing, mut buf, mut frames) = (Framing::new(max), BytesMut::new(), Vec::new());
        for piece in stream.chunks(piece) {
            buf.extend_from_slice(piece);
            loop {
                match framing.next(&mut buf) {
                    Ok(Some(frame)) => frames.push((frame.bytes.to_vec(), frame.cut_from)),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
            assert!(buf.len() <= max + 16, "{} bytes are held", buf.len());
        }
        frames.extend(framing.last(&mut buf).map(|frame| (frame.bytes.to_vec(), frame.cut_from)));
        (frames, None)
    }

    fn check(stream: &[u8], max: usize, expected: &[(&[u8], Option<u64>)], error: Option<FramingError>) {
        for piece in [1, 2, 3, 7, 16] {
            let (frames, found) = framed(stream, piece, max);
            let frames: Vec<(&[u8], Option<u64>)> = frames.iter().map(|(bytes, cut)| (&bytes[..], *cut)).collect();
            assert_eq!((&frames[..], found), (expected, error), "in pieces of {piece}");
        }
    }

    #[test]
    fn lines_end_as_senders_end_them() {
        let stream = b"<13>one\n<13>two\r\n\n<13>three\0\n<13>no end";
        let lines: [(&[u8], _); 4] =
            [(b"<13>one", None), (b"<13>two", None), (b"<13>three", None), (b"<13>no end", None)];
        check(stream, 64, &lines, None);
        check(b"2026-11-27 plain\n", 64, &[(b"2026-11-27 plain", None)], None);
        check(b"1234567890\n", 64, &[(b"1234567890", None)], None);
    }

    #[test]
    fn a_length_holds_whatever_is_in_the_message() {
        check(b"8 <13>a\nb\n3 xyz\n\n5 12 34", 64, &[(b"<13>a\nb", None), (b"xyz", None), (b"12 34", None)], None);
        check(b"3 abc1 d", 64, &[(b"abc", None), (b"d", None)], None);
        check(b"0 3 abc", 64, &[(b"abc", None)], None);
        // The end in the middle of a message.
        check(b"3 abc10 defg", 64, &[(b"abc", None), (b"defg", Some(10))], None);
    }

    #[test]
    fn what_is_too_long_is_cut_and_the_next_is_whole() {
        check(b"0123456789abc\nnext\n", 10, &[(b"0123456789", Some(13)), (b"next", None)], None);
        check(b"0123456789\nnext\n", 10, &[(b"0123456789", None), (b"next", None)], None);
        check(b"13 0123456789abc4 next", 10, &[(b"0123456789", Some(13)), (b"next", None)], None);
        check(b"0123456789abc", 10, &[(b"0123456789", Some(13))], None);
        check(b"20 0123456789abc", 10, &[(b"0123456789", Some(20))], None);
    }

    #[test]
    fn a_length_that_lies_ends_the_connection() {
        check(b"3 abcxyz", 64, &[(b"abc", None)], Some(FramingError::NoLength));
        check(b"3 abc1000000000 xyz", 64, &[(b"abc", None)], Some(FramingError::LongLength));
    }
}
