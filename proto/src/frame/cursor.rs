//! COMMIT_CURSOR, GET_CURSOR and CURSOR: where a reader of the log goes on, kept by the daemon under a name.
//!
//! * COMMIT_CURSOR: `[16] log id, u32 epoch, u64 offset, u8 flags, [3] reserved`. Flags: 1 retention holds what is not
//!   read, 2 the cursor is removed (then the place is zero). Tagged: 1 name, 2 note.
//! * GET_CURSOR: `[4] reserved`. Tagged: 1 name.
//! * CURSOR, the answer to both: `u8 flags, [3] reserved, [16] log id, u32 epoch, u64 offset, u64 time of the last commit,
//!   u64 offset of the first record that it has not read in this history of the log`. Flags: 1 there is one, 2 it holds,
//!   4 records that it has not read are gone. Tagged: 2 note. Without flag 1 all else is zero.

use super::{
    control::{self, Fields},
    header::{FrameError, FrameType},
};
use crate::{ids::Cursor, limits, wire::put_field};
use bytes::{BufMut, Bytes, BytesMut};

const HOLD: u8 = 1;
const REMOVE: u8 = 2;
const EXISTS: u8 = 1;
const HOLDS: u8 = 2;
const LOST: u8 = 4;
const TAG_NAME: u8 = 1;
const TAG_NOTE: u8 = 2;

/// Sets a named cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitCursor {
    /// The client's number for it, not 0.
    pub request_id: u32,
    /// Its name.
    pub name: String,
    /// The place of the next record to read; nothing removes the cursor.
    pub place: Option<Cursor>,
    /// Retention is to pass over what is not read.
    pub hold: bool,
    /// The reader's own words.
    pub note: Bytes,
}

/// Asks for a named cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetCursor {
    /// The client's number for it, not 0.
    pub request_id: u32,
    /// Its name.
    pub name: String,
}

/// A named cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorState {
    /// The request id of what it answers.
    pub request_id: u32,
    /// The cursor, if there is one of the name.
    pub named: Option<NamedCursor>,
}

/// The place of a named cursor, and what holds for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCursor {
    /// The place of the next record to read.
    pub place: Cursor,
    /// Retention passes over what is not read.
    pub hold: bool,
    /// Records that are not read are gone: the next READ from here begins with a GAP.
    pub lost: bool,
    /// Time of the last commit, Unix nanoseconds.
    pub committed_ns: u64,
    /// Offset of the first record that is not read in this history of the log: lower than the place where the histories
    /// have parted.
    pub unread_from: u64,
    /// The reader's own words.
    pub note: Bytes,
}

const fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

fn put_place(b: &mut BytesMut, place: Cursor) {
    b.put_slice(place.log_id.as_bytes());
    b.put_u32_le(place.epoch);
    b.put_u64_le(place.offset);
}

fn place(fields: &mut Fields<'_>) -> Result<Cursor, FrameError> {
    Ok(Cursor { log_id: fields.id()?, epoch: fields.u32()?, offset: fields.u64()? })
}

/// The name and the note.
fn tagged(fields: &mut Fields<'_>) -> Result<(String, Bytes), FrameError> {
    let (mut name, mut note) = (String::new(), Bytes::new());
    while let Some((tag, content)) = fields.next_tagged()? {
        match tag {
            TAG_NAME => fields.text(content, limits::MAX_CURSOR_NAME_BYTES)?.clone_into(&mut name),
            TAG_NOTE if content.len() > limits::MAX_CURSOR_NOTE_BYTES => {
                return Err(fields.error("a note is longer than it may be"));
            }
            TAG_NOTE => note = Bytes::copy_from_slice(content),
            _ => {}
        }
    }
    Ok((name, note))
}

fn named(fields: &Fields<'_>, name: String) -> Result<String, FrameError> {
    match name.is_empty() || fields.request_id == 0 {
        true => Err(fields.error("it needs a name, and a request id that is not 0")),
        false => Ok(name),
    }
}

impl CommitCursor {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::CommitCursor, self.request_id, |b| {
            put_place(b, self.place.unwrap_or_default());
            b.put_u8(flag(self.hold, HOLD) | flag(self.place.is_none(), REMOVE));
            b.put_bytes(0, 3);
            put_field(b, TAG_NAME, self.name.as_bytes());
            if !self.note.is_empty() {
                put_field(b, TAG_NOTE, &self.note);
            }
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let place = place(&mut fields)?;
        let flags = fields.flags(HOLD | REMOVE)?;
        fields.reserved::<3>()?;
        let (name, note) = tagged(&mut fields)?;
        let name = named(&fields, name)?;
        let removes = flags & REMOVE != 0;
        if removes && (place != Cursor::default() || flags & HOLD != 0 || !note.is_empty()) {
            return Err(fields.error("a removal has no place, no hold and no note"));
        }
        let place = (!removes).then_some(place);
        Ok(Self { request_id: fields.request_id, name, place, hold: flags & HOLD != 0, note })
    }
}

impl GetCursor {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::GetCursor, self.request_id, |b| {
            b.put_bytes(0, 4);
            put_field(b, TAG_NAME, self.name.as_bytes());
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        fields.reserved::<4>()?;
        let (name, _) = tagged(&mut fields)?;
        let name = named(&fields, name)?;
        Ok(Self { request_id: fields.request_id, name })
    }
}

impl CursorState {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Cursor, self.request_id, |b| match &self.named {
            None => b.put_bytes(0, 48),
            Some(named) => {
                b.put_u8(EXISTS | flag(named.hold, HOLDS) | flag(named.lost, LOST));
                b.put_bytes(0, 3);
                put_place(b, named.place);
                b.put_u64_le(named.committed_ns);
                b.put_u64_le(named.unread_from);
                if !named.note.is_empty() {
                    put_field(b, TAG_NOTE, &named.note);
                }
            }
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let flags = fields.flags(EXISTS | HOLDS | LOST)?;
        fields.reserved::<3>()?;
        let place = place(&mut fields)?;
        let (committed_ns, unread_from) = (fields.u64()?, fields.u64()?);
        let (_, note) = tagged(&mut fields)?;
        let (hold, lost) = (flags & HOLDS != 0, flags & LOST != 0);
        let named = (flags & EXISTS != 0).then_some(NamedCursor { place, hold, lost, committed_ns, unread_from, note });
        Ok(Self { request_id: fields.request_id, named })
    }
}
