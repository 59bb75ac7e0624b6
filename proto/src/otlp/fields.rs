//! The fields of a protobuf message, read in place.
//!
//! prost reads the numbers, so that what it takes is taken here and what it skips is skipped as it does it.

use crate::fault::EncodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The bytes are not what protobuf has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not protobuf, or not by its .proto file: {0}")]
pub struct NotProtobuf(pub(crate) &'static str);

impl From<NotProtobuf> for EncodeError {
    fn from(error: NotProtobuf) -> Self {
        Self::NotProtobuf(error.0)
    }
}

/// Content of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// One of these was skipped.
    Group,
}

impl<'a> Content<'a> {
    pub(crate) fn varint(self) -> Result<u64, NotProtobuf> {
        let Self::Varint(number) = self else { return Err(NotProtobuf("a varint of another type")) };
        Ok(number)
    }

    pub(crate) fn fixed32(self) -> Result<u32, NotProtobuf> {
        let Self::Fixed32(number) = self else { return Err(NotProtobuf("a number of 32 bits of another type")) };
        Ok(number)
    }

    pub(crate) fn fixed64(self) -> Result<u64, NotProtobuf> {
        let Self::Fixed64(number) = self else { return Err(NotProtobuf("a number of 64 bits of another type")) };
        Ok(number)
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], NotProtobuf> {
        let Self::Bytes(bytes) = self else { return Err(NotProtobuf("bytes, text or a message of another type")) };
        Ok(bytes)
    }

    pub(crate) fn text(self) -> Result<&'a str, NotProtobuf> {
        std::str::from_utf8(self.bytes()?).map_err(|_| NotProtobuf("text that is not UTF-8"))
    }
}

/// A field: its number and what it holds.
pub(crate) type Field<'a> = Result<(u32, Content<'a>), NotProtobuf>;

/// The fields of one message, in the order in which they lie there. Nothing comes after an error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn read(&mut self) -> Field<'a> {
        let rest = &mut self.0;
        let (number, wire_type) = decode_key(rest).map_err(|_| NotProtobuf("the key of a field"))?;
        let content = match wire_type {
            WireType::Varint => Content::Varint(decode_varint(rest).map_err(|_| NotProtobuf("a varint"))?),
            WireType::ThirtyTwoBit => Content::Fixed32(u32::from_le_bytes(array(rest)?)),
            WireType::SixtyFourBit => Content::Fixed64(u64::from_le_bytes(array(rest)?)),
            WireType::LengthDelimited => {
                let len = decode_varint(rest).map_err(|_| NotProtobuf("a length"))?;
                let split = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
                let (bytes, after) = split.ok_or(NotProtobuf("a length that is beyond the end"))?;
                *rest = after;
                Content::Bytes(bytes)
            }
            WireType::StartGroup | WireType::EndGroup => {
                let skipped = skip_field(wire_type, number, rest, DecodeContext::default());
                skipped.map_err(|_| NotProtobuf("a group"))?;
                Content::Group
            }
        };
        Ok((number, content))
    }
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], NotProtobuf> {
    let (bytes, after) = rest.split_first_chunk().ok_or(NotProtobuf("a number that is cut short"))?;
    *rest = after;
    Ok(*bytes)
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Pieces of one message. An encoder makes one. Protobuf allows any number, but a list of them would be memory that the
/// sender decides on.
const MAX_PIECES: usize = 4;

/// A message that may be there once, in the pieces in which it came: they count as one, as if they lay back to back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pieces<'a> {
    pieces: [&'a [u8]; MAX_PIECES],
    len: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) const fn one(piece: &'a [u8]) -> Self {
        let mut pieces: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        pieces[0] = piece;
        Self { pieces, len: 1 }
    }

    pub(crate) fn push(&mut self, piece: &'a [u8]) -> Result<(), NotProtobuf> {
        let place = self.pieces.get_mut(self.len).ok_or(NotProtobuf("one message in more than 4 pieces"))?;
        *place = piece;
        self.len += 1;
        Ok(())
    }

    /// One more piece of what may not be there yet.
    pub(crate) fn add(to: &mut Option<Self>, piece: Content<'a>) -> Result<(), NotProtobuf> {
        to.get_or_insert_default().push(piece.bytes()?)
    }

    pub(crate) fn pieces(self) -> impl Iterator<Item = &'a [u8]> {
        self.pieces.into_iter().take(self.len)
    }

    pub(crate) fn fields(self) -> impl Iterator<Item = Field<'a>> {
        self.pieces().flat_map(Fields)
    }
}

/// Each element of a list, up to one that is an error.
pub(crate) fn each<'a>(
    fields: impl Iterator<Item = Field<'a>>,
    number: u32,
    mut element: impl FnMut(Content<'a>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    for field in fields {
        match field? {
            (found, content) if found == number => element(content)?,
            _ => {}
        }
    }
    Ok(())
}
