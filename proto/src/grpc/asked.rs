//! Request of a client of `Ingest.Append`, read in place: an append is not decoded, for decoded it can be a hundred
//! times as large.

use super::generated::v1;
use crate::{
    level::AckLevel,
    otlp::{Content, Fields, Logs, NotProtobuf, Pieces},
};
use prost::Message;

/// An `AppendRequest`.
#[derive(Debug)]
pub enum Asked<'a> {
    /// The greeting.
    Hello(v1::Hello),
    /// Records to keep.
    Append(AskedAppend<'a>),
    /// A flush.
    Flush(v1::Flush),
    /// The end.
    Bye(v1::Bye),
}

/// An `Append`.
#[derive(Debug, Clone, Copy)]
pub struct AskedAppend<'a> {
    /// Sequence of the first record.
    pub first_seq: u64,
    /// The level that the answer waits for; nothing where it is not stated or not known.
    pub level: Option<AckLevel>,
    /// The sequence may jump ahead of what is expected.
    pub gap: bool,
    /// The records. They are looked at when they are encoded.
    pub logs: Logs<'a>,
}

impl<'a> Asked<'a> {
    /// Reads an encoded `AppendRequest`; nothing where it says nothing.
    ///
    /// # Errors
    /// When it is none. What is wrong with the records of an append is not looked for here.
    pub fn parse(message: &'a [u8]) -> Result<Option<Self>, NotProtobuf> {
        // A oneof: the last one counts, and continues what is before it of the same kind.
        let mut asked: Option<(u32, Pieces<'a>)> = None;
        for field in Fields(message) {
            match (field?, &mut asked) {
                ((number, content), Some((before, pieces))) if number == *before => pieces.push(content.bytes()?)?,
                ((number @ 1..=4, content), _) => asked = Some((number, Pieces::one(content.bytes()?))),
                _ => {}
            }
        }
        let Some((number, pieces)) = asked else { return Ok(None) };
        Ok(Some(match number {
            1 => Self::Hello(decode(pieces)?),
            2 => Self::Append(AskedAppend::read(pieces)?),
            3 => Self::Flush(decode(pieces)?),
            _ => Self::Bye(decode(pieces)?),
        }))
    }
}

fn decode<T: Message + Default>(pieces: Pieces<'_>) -> Result<T, NotProtobuf> {
    let mut message = T::default();
    for piece in pieces.pieces() {
        message.merge(piece).map_err(|_| NotProtobuf("a hello, flush or bye"))?;
    }
    Ok(message)
}

impl<'a> AskedAppend<'a> {
    fn read(pieces: Pieces<'a>) -> Result<Self, NotProtobuf> {
        let mut append = Self { first_seq: 0, level: None, gap: false, logs: Logs::default() };
        for field in pieces.fields() {
            match field? {
                (1, content) => append.first_seq = content.varint()?,
                (2, content) => append.level = level(content)?,
                (3, content) => append.gap = content.varint()? != 0,
                (4, content) => append.logs.0.push(content.bytes()?)?,
                _ => {}
            }
        }
        Ok(append)
    }
}

fn level(content: Content<'_>) -> Result<Option<AckLevel>, NotProtobuf> {
    let level = v1::AckLevel::try_from(content.varint()? as i32);
    Ok(level.ok().and_then(v1::AckLevel::level))
}
