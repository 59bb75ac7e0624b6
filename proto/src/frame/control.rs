//! Control bodies: fixed fields, tagged fields, checksum.

use super::header::{FrameError, FrameHeader, FrameType};
use crate::{
    checksum::crc32c,
    level::AckLevel,
    limits::{BODY_CRC_BYTES, FRAME_HEADER_BYTES},
    wire::Reader,
};
use bytes::{BufMut, BytesMut};

/// Writes a whole control frame; `body` writes its fields.
pub(super) fn put(buf: &mut BytesMut, kind: FrameType, request_id: u32, body: impl FnOnce(&mut BytesMut)) {
    let start = buf.len();
    buf.put_bytes(0, FRAME_HEADER_BYTES);
    let body_start = buf.len();
    body(buf);
    let crc = crc32c(buf.get(body_start..).unwrap_or_default());
    buf.put_u32_le(crc);
    // Every field of a control body is bounded, so its length is far from 32 bits.
    let body_len = (buf.len() - body_start) as u32;
    let header = FrameHeader { kind, body_len, request_id }.encode();
    if let Some(place) = buf.get_mut(start..body_start) {
        place.copy_from_slice(&header);
    }
}

/// Reads the fields of a control body.
pub(super) struct Fields<'a> {
    kind: FrameType,
    pub(super) request_id: u32,
    reader: Reader<'a>,
    last_tag: u8,
}

impl<'a> Fields<'a> {
    /// Checks the checksum before anything is looked at.
    pub(super) fn open(header: FrameHeader, body: &'a [u8]) -> Result<Self, FrameError> {
        let kind = header.kind;
        let (fields, crc) =
            body.split_last_chunk::<BODY_CRC_BYTES>().ok_or(FrameError::TooShort { kind, len: header.body_len })?;
        if u32::from_le_bytes(*crc) != crc32c(fields) {
            return Err(FrameError::BodyChecksum(kind));
        }
        Ok(Self { kind, request_id: header.request_id, reader: Reader(fields), last_tag: 0 })
    }

    pub(super) const fn error(&self, what: &'static str) -> FrameError {
        FrameError::Malformed { kind: self.kind, what }
    }

    fn need<T>(&self, value: Option<T>) -> Result<T, FrameError> {
        value.ok_or_else(|| self.error("it ends inside its fixed fields"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        let value = self.reader.u8();
        self.need(value)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        let value = self.reader.u16();
        self.need(value)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        let value = self.reader.u32();
        self.need(value)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        let value = self.reader.u64();
        self.need(value)
    }

    pub(super) fn level(&mut self) -> Result<AckLevel, FrameError> {
        AckLevel::from_code(self.u8()?).ok_or_else(|| self.error("unknown level"))
    }

    pub(super) fn id<T: From<[u8; 16]>>(&mut self) -> Result<T, FrameError> {
        let value = self.reader.array::<16>();
        self.need(value).map(T::from)
    }

    /// Bytes that must be zero: a newer version may use them only after both sides agreed on it.
    pub(super) fn reserved<const N: usize>(&mut self) -> Result<(), FrameError> {
        let bytes = self.reader.array::<N>();
        match self.need(bytes)? {
            bytes if bytes == [0; N] => Ok(()),
            _ => Err(self.error("reserved bytes are set")),
        }
    }

    /// A byte of flags of which only `known` may be set.
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, FrameError> {
        match self.u8()? {
            flags if flags & !known == 0 => Ok(flags),
            _ => Err(self.error("unknown flags are set")),
        }
    }

    /// The next tagged field; nothing at the end.
    pub(super) fn next_tagged(&mut self) -> Result<Option<(u8, &'a [u8])>, FrameError> {
        let field = self.reader.field().map_err(|_| self.error("a tagged field does not end where it says"))?;
        if let Some((tag, _)) = field {
            if tag <= self.last_tag {
                return Err(self.error("tagged fields are out of order, or there twice"));
            }
            self.last_tag = tag;
        }
        Ok(field)
    }

    /// Skips the tagged fields of a frame that has none in this version.
    pub(super) fn end(&mut self) -> Result<(), FrameError> {
        while self.next_tagged()?.is_some() {}
        Ok(())
    }

    /// The content of a tagged field that has a fixed length.
    pub(super) fn exactly<const N: usize>(&self, content: &[u8]) -> Result<[u8; N], FrameError> {
        content.try_into().map_err(|_| self.error("a tagged field has the wrong length"))
    }

    /// The content of a tagged field that is text of at most `max` bytes.
    pub(super) fn text(&self, content: &'a [u8], max: usize) -> Result<&'a str, FrameError> {
        match std::str::from_utf8(content) {
            Ok(text) if text.len() <= max => Ok(text),
            Ok(_) => Err(self.error("a text is longer than it may be")),
            Err(_) => Err(self.error("a text is not UTF-8")),
        }
    }
}

/// As much of a text as fits, cut between characters.
pub(super) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}
