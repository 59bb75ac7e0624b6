//! Reading and writing the small pieces: little-endian integers, LEB128 numbers, tagged fields.
//!
//! LEB128 numbers are unsigned, at most 64 bits, and in their shortest form; signed numbers are zigzag-mapped first.
//! A tagged field is `u8 tag, LEB128 length, content`. Tags ascend, so that there is one order.

use crate::{fault::Fault, limits::MAX_VARINT_BYTES};
use bytes::BytesMut;

/// Reads from the front of a slice; every method gives nothing rather than read past the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A LEB128 number.
    pub(crate) fn varint(&mut self, part: &'static str) -> Result<u64, Fault> {
        let mut value = 0u64;
        for at in 0..MAX_VARINT_BYTES {
            let byte = *self.0.get(at).ok_or(Fault::Truncated(part))?;
            // The tenth byte has room for the 64th bit only.
            if at == MAX_VARINT_BYTES - 1 && byte > 1 {
                return Err(Fault::Number(part));
            }
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte & 0x80 == 0 {
                if byte == 0 && at > 0 {
                    return Err(Fault::Number(part)); // a shorter form exists
                }
                self.0 = self.0.get(at + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(Fault::Number(part))
    }

    /// A LEB128 number of 32 bits.
    pub(crate) fn varint32(&mut self, part: &'static str) -> Result<u32, Fault> {
        u32::try_from(self.varint(part)?).map_err(|_| Fault::Number(part))
    }

    /// A zigzag-mapped signed number.
    pub(crate) fn signed(&mut self, part: &'static str) -> Result<i64, Fault> {
        self.varint(part).map(unzigzag)
    }

    /// A length, then that many bytes.
    pub(crate) fn delimited(&mut self, part: &'static str) -> Result<&'a [u8], Fault> {
        let len = usize::try_from(self.varint(part)?).map_err(|_| Fault::Truncated(part))?;
        self.take(len).ok_or(Fault::Truncated(part))
    }

    /// A length, then that many bytes of UTF-8.
    pub(crate) fn text(&mut self, part: &'static str) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.delimited(part)?).map_err(|_| Fault::NotUtf8(part))
    }

    /// The next tagged field; nothing at the end.
    pub(crate) fn field(&mut self) -> Result<Option<(u8, &'a [u8])>, Fault> {
        match self.u8() {
            None => Ok(None),
            Some(tag) => Ok(Some((tag, self.delimited("a tagged field")?))),
        }
    }
}

pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Encodes a LEB128 number; gives the bytes and how many of them count.
pub(crate) fn varint_bytes(mut value: u64) -> ([u8; MAX_VARINT_BYTES], usize) {
    let mut bytes = [0; MAX_VARINT_BYTES];
    let mut len = 0;
    for byte in &mut bytes {
        len += 1;
        *byte = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            break;
        }
        *byte |= 0x80;
    }
    (bytes, len)
}

// `extend_from_slice` is inlined; `put_slice` and `put_u8` are calls, which cost more than what they store.
#[inline]
pub(crate) fn put_varint(buf: &mut BytesMut, value: u64) {
    if value < 0x80 {
        buf.extend_from_slice(&[value as u8]);
    } else {
        let (bytes, len) = varint_bytes(value);
        buf.extend_from_slice(bytes.get(..len).unwrap_or_default());
    }
}

#[inline]
pub(crate) fn put_delimited(buf: &mut BytesMut, bytes: &[u8]) {
    put_varint(buf, bytes.len() as u64);
    buf.extend_from_slice(bytes);
}

/// Writes a tagged field.
#[inline]
pub(crate) fn put_field(buf: &mut BytesMut, tag: u8, bytes: &[u8]) {
    buf.extend_from_slice(&[tag]);
    put_delimited(buf, bytes);
}

/// Puts the length of everything from `start` on in front of it.
///
/// One byte was left free at `start`; a longer length moves the content up. That costs a copy for content of 128 bytes
/// and more, and saves walking nested values twice.
pub(crate) fn close_delimited(buf: &mut BytesMut, start: usize) {
    let content = start + 1;
    let len = buf.len().saturating_sub(content);
    let (bytes, width) = varint_bytes(len as u64);
    if width > 1 {
        let more = [0; MAX_VARINT_BYTES];
        buf.extend_from_slice(more.get(..width - 1).unwrap_or_default());
        buf.copy_within(content..content + len, start + width);
    }
    if let Some(place) = buf.get_mut(start..start + width) {
        place.copy_from_slice(bytes.get(..width).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip(value: u64) {
            let mut buf = BytesMut::new();
            put_varint(&mut buf, value);
            let mut reader = Reader(&buf);
            prop_assert_eq!(reader.varint("x"), Ok(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn zigzag_round_trips(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }

        #[test]
        fn a_varint_that_decodes_was_the_shortest(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader(&bytes);
            if let Ok(value) = reader.varint("x") {
                let (again, len) = varint_bytes(value);
                prop_assert_eq!(&bytes[..bytes.len() - reader.0.len()], &again[..len]);
            }
        }

        #[test]
        fn late_lengths_equal_early_ones(content in proptest::collection::vec(any::<u8>(), 0..40_000)) {
            let mut late = BytesMut::from(&b"x\0"[..]);
            late.extend_from_slice(&content);
            close_delimited(&mut late, 1);
            let mut early = BytesMut::from(&b"x"[..]);
            put_delimited(&mut early, &content);
            prop_assert_eq!(late, early);
        }
    }

    #[test]
    fn numbers_that_are_refused() {
        assert_eq!(Reader(&[0x80, 0x00]).varint("x"), Err(Fault::Number("x")), "not the shortest form");
        assert_eq!(Reader(&[0xFF; 10]).varint("x"), Err(Fault::Number("x")), "more than 64 bits");
        assert_eq!(Reader(&[0x80]).varint("x"), Err(Fault::Truncated("x")));
        assert_eq!(Reader(&[0xFF, 0xFF, 0xFF, 0xFF, 0x10]).varint32("x"), Err(Fault::Number("x")));
    }
}
