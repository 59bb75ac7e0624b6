//! Frames of RELP: `TXNR SP COMMAND SP DATALEN [SP DATA] LF`.
//!
//! Invariants: numbers have at most nine digits, as the specification says. Data beyond the longest message is skipped, and
//! never held.

use bytes::{Buf, Bytes, BytesMut};

use crate::ingest::syslog::framing::RawMessage;

const DIGITS_MAX: usize = 9;
/// Longest command.
const COMMAND_BYTES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Open,
    Syslog,
    Close,
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct RelpRequest {
    pub(super) transaction: u32,
    pub(super) command: Command,
    pub(super) data: RawMessage,
}

/// A frame whose header was read.
#[derive(Debug)]
struct OpenFrame {
    transaction: u32,
    command: Command,
    /// The kept part of its data, once that is complete.
    kept: Option<Bytes>,
    length: u64,
    /// Bytes that are still to be skipped, without the line's end.
    left: u64,
}

/// The frames of one session.
#[derive(Debug)]
pub(super) struct RelpFrames {
    open: Option<OpenFrame>,
    max: usize,
}

impl RelpFrames {
    pub(super) fn new(max: usize) -> Self {
        Self { open: None, max }
    }

    /// The next frame; nothing where more must come first.
    pub(super) fn next(&mut self, buf: &mut BytesMut) -> Result<Option<RelpRequest>, &'static str> {
        if self.open.is_none() {
            let Some((open, header)) = header(buf)? else { return Ok(None) };
            buf.advance(header);
            self.open = Some(open);
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        if open.kept.is_none() {
            let kept = (open.length as usize).min(self.max);
            if buf.len() < kept {
                return Ok(None);
            }
            open.kept = Some(buf.split_to(kept).freeze());
            open.left = open.length - kept as u64;
        }
        let skipped = open.left.min(buf.len() as u64);
        buf.advance(skipped as usize);
        open.left -= skipped;
        if open.left > 0 || buf.is_empty() {
            return Ok(None);
        }
        if buf.get_u8() != b'\n' {
            return Err("no line's end behind the data of a frame");
        }
        let Some(OpenFrame { transaction, command, kept, length, .. }) = self.open.take() else { return Ok(None) };
        let bytes = kept.unwrap_or_default();
        let cut_from = (length > bytes.len() as u64).then_some(length);
        Ok(Some(RelpRequest { transaction, command, data: RawMessage { bytes, cut_from } }))
    }
}

/// The header that a buffer begins with, and its length.
fn header(buf: &[u8]) -> Result<Option<(OpenFrame, usize)>, &'static str> {
    let Some((transaction, at)) = number(buf, 0)? else { return Ok(None) };
    match buf.get(at) {
        None => return Ok(None),
        Some(b' ') => {}
        Some(_) => return Err("no blank behind the number of a frame"),
    }
    let word = &buf[at + 1..];
    let Some(length) = word.iter().take(COMMAND_BYTES_MAX + 1).position(|byte| *byte == b' ') else {
        return if word.len() > COMMAND_BYTES_MAX { Err("a command that is too long") } else { Ok(None) };
    };
    let command = match &word[..length] {
        b"open" => Command::Open,
        b"syslog" => Command::Syslog,
        b"close" => Command::Close,
        word if !word.is_empty() && word.iter().all(u8::is_ascii_alphanumeric) => Command::Other,
        _ => return Err("a command that is no word"),
    };
    let Some((length, end)) = number(buf, at + 1 + length + 1)? else { return Ok(None) };
    let open = OpenFrame { transaction, command, kept: None, length: length.into(), left: 0 };
    match (buf.get(end), length) {
        (None, _) => Ok(None),
        (Some(b' '), _) => Ok(Some((open, end + 1))),
        // Without data there is no blank.
        (Some(b'\n'), 0) => Ok(Some((open, end))),
        _ => Err("no blank behind the length of a frame"),
    }
}

/// A number that begins at a place, and where it ends; nothing where more may come.
fn number(buf: &[u8], start: usize) -> Result<Option<(u32, usize)>, &'static str> {
    let digits = buf.get(start..).unwrap_or_default();
    let count = digits.iter().take(DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_digit()).count();
    if count > DIGITS_MAX {
        return Err("a number of more than nine digits");
    }
    if count == digits.len() {
        return Ok(None);
    }
    let text = std::str::from_utf8(&digits[..count]).unwrap_or_default();
    let number = text.parse().map_err(|_| "no number where one must be")?;
    Ok(Some((number, start + count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transaction, command, data, and its length where it was cut.
    type Found = (u32, Command, Vec<u8>, Option<u64>);

    fn frames(stream: &[u8], piece: usize, max: usize) -> Result<Vec<Found>, &'static str> {
        let (mut frames, mut buf, mut found) = (RelpFrames::new(max), BytesMut::new(), Vec::new());
        for piece in stream.chunks(piece) {
            buf.extend_from_slice(piece);
            while let Some(RelpRequest { transaction, command, data }) = frames.next(&mut buf)? {
                found.push((transaction, command, data.bytes.to_vec(), data.cut_from));
            }
            assert!(buf.len() <= max + 64, "{} bytes are held", buf.len());
        }
        Ok(found)
    }

    #[test]
    fn frames_are_found_however_they_come() {
        let stream = b"1 open 14 relp_version=0\n2 syslog 5 a\nb c\n3 syslog 0\n4 syslog 0 \n5 syslog 13 0123456789abc\n6 close 0\n7 starttls 0\n";
        let data = |data: &[u8]| data.to_vec();
        for piece in [1, 2, 5, 64] {
            assert_eq!(
                frames(stream, piece, 10),
                Ok(vec![
                    (1, Command::Open, data(b"relp_versi"), Some(14)),
                    (2, Command::Syslog, data(b"a\nb c"), None),
                    (3, Command::Syslog, data(b""), None),
                    (4, Command::Syslog, data(b""), None),
                    (5, Command::Syslog, data(b"0123456789"), Some(13)),
                    (6, Command::Close, data(b""), None),
                    (7, Command::Other, data(b""), None),
                ]),
                "in pieces of {piece}"
            );
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for wrong in [
            &b"x"[..],
            b"GET / HTTP/1.1\r\n",
            b"1234567890 syslog 1 a\n",
            b"1 syslog 1234567890 a\n",
            b"1 syslog 1 ab",
            b"1 syslog x a\n",
            b"1 syslog 1\n",
            b"1  1 a\n",
            b"1 sys\0log 1 a\n",
            b"1 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ] {
            for piece in [1, 64] {
                assert!(frames(wrong, piece, 10).is_err(), "{:?}", String::from_utf8_lossy(wrong));
            }
        }
    }
}
