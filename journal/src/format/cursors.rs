//! `cursors/table`: how far those who read the log have come, by name.
//!
//! Two slots of [`SLOT`] bytes, written in turn, each with a checksum and a generation; the valid slot with the greater
//! generation counts. A slot:
//!
//! ```text
//!  0 magic "CLADCURS"   8 version u16   10 reserved u16   12 length u32, with the checksum
//! 16 generation u64    24 log id       40 cursors u32    44 reserved u32
//! 48 cursors, by name: name length u8, name, owner u64, epoch u32, offset u64, committed i64, flags u8 (1 hold),
//!    note length u16, note
//!    then the CRC-32C of all before it
//! ```
//! A cursor says: everything below `offset` was read, in the history that `epoch` belongs to.

use super::bytes::{get, i64_at, u16_at, u32_at, u64_at};
use super::checksum::plain;

/// First bytes of a slot.
pub const MAGIC: [u8; 8] = *b"CLADCURS";
/// The version that this clad writes, and the newest that it reads.
pub const VERSION: u16 = 1;
/// Bytes of a slot.
pub const SLOT: usize = 96 * 1024;
/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 64;
/// Most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 256;
/// Most cursors in a slot.
pub const MAX_CURSORS: usize = 256;
const HEAD: usize = 48;
/// Bytes of a cursor beside its name and its note.
const FIXED: usize = 1 + 8 + 4 + 8 + 8 + 1 + 2;

const _: () = assert!(HEAD + MAX_CURSORS * (FIXED + NAME_BYTES_MAX + NOTE_BYTES_MAX) + 4 <= SLOT, "a full slot fits");

/// A named cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCursor {
    /// Its name, unique in the log.
    pub name: String,
    /// The owner that made it.
    pub owner: u64,
    /// The epoch whose history it is in.
    pub epoch: u32,
    /// Offset of the next record to read.
    pub offset: u64,
    /// Time of the last commit, real.
    pub committed_ns: i64,
    /// Retention passes over what it has not read, within a bound.
    pub hold: bool,
    /// The owner's own words.
    pub note: Vec<u8>,
}

/// Content of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CursorSlot {
    /// Rises with every write.
    pub generation: u64,
    /// The log that the cursors are of.
    pub log_id: [u8; 16],
    /// The cursors, by name.
    pub cursors: Vec<NamedCursor>,
}

/// Reason why a slot does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// Its checksum fails, or it is not one.
    #[error("damaged")]
    Damaged,
    /// A newer clad wrote it.
    #[error("cursors/table has version {found}, this clad reads up to {VERSION}: it was written by a newer one")]
    Newer {
        /// Its version.
        found: u16,
    },
}

/// True for a name that a cursor may have.
pub fn is_name(name: &str) -> bool {
    let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(of_a_name)
}

impl CursorSlot {
    /// Bytes of the slot, without what lies behind its checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(4096);
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&VERSION.to_le_bytes());
        b.extend_from_slice(&[0; 6]);
        b.extend_from_slice(&self.generation.to_le_bytes());
        b.extend_from_slice(&self.log_id);
        b.extend_from_slice(&(self.cursors.len() as u32).to_le_bytes());
        b.extend_from_slice(&[0; 4]);
        for cursor in &self.cursors {
            b.push(cursor.name.len() as u8);
            b.extend_from_slice(cursor.name.as_bytes());
            b.extend_from_slice(&cursor.owner.to_le_bytes());
            b.extend_from_slice(&cursor.epoch.to_le_bytes());
            b.extend_from_slice(&cursor.offset.to_le_bytes());
            b.extend_from_slice(&cursor.committed_ns.to_le_bytes());
            b.push(u8::from(cursor.hold));
            b.extend_from_slice(&(cursor.note.len() as u16).to_le_bytes());
            b.extend_from_slice(&cursor.note);
        }
        let len = b.len() as u32 + 4;
        b[12..16].copy_from_slice(&len.to_le_bytes());
        let crc = plain(&b);
        b.extend_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn decode(b: &[u8]) -> Result<Self, SlotError> {
        if b.len() < HEAD + 4 || b[..8] != MAGIC {
            return Err(SlotError::Damaged);
        }
        let len = u32_at(b, 12) as usize;
        if !(HEAD + 4..=b.len()).contains(&len) || plain(&b[..len - 4]) != u32_at(b, len - 4) {
            return Err(SlotError::Damaged);
        }
        let found = u16_at(b, 8);
        if found > VERSION {
            return Err(SlotError::Newer { found });
        }
        let mut rest = &b[HEAD..len - 4];
        let cursors = (0..u32_at(b, 40)).map(|_| take(&mut rest)).collect::<Option<Vec<_>>>();
        match cursors.filter(|_| rest.is_empty()) {
            Some(cursors) => Ok(Self { generation: u64_at(b, 16), log_id: get(b, 24), cursors }),
            None => Err(SlotError::Damaged),
        }
    }
}

/// Takes a cursor from the front.
fn take(rest: &mut &[u8]) -> Option<NamedCursor> {
    let (name_len, behind) = rest.split_first()?;
    let (name, behind) = behind.split_at_checked(usize::from(*name_len))?;
    let (fixed, behind) = behind.split_at_checked(FIXED - 1)?;
    let (note, behind) = behind.split_at_checked(usize::from(u16_at(fixed, 29)))?;
    let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?.to_owned();
    *rest = behind;
    Some(NamedCursor {
        name,
        owner: u64_at(fixed, 0),
        epoch: u32_at(fixed, 8),
        offset: u64_at(fixed, 12),
        committed_ns: i64_at(fixed, 20),
        hold: fixed[28] & 1 != 0,
        note: note.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> CursorSlot {
        let cursor = |name: &str, hold, note: &[u8]| NamedCursor {
            name: name.to_owned(),
            owner: 1 << 63 | 7,
            epoch: 3,
            offset: 1000,
            committed_ns: -5,
            hold,
            note: note.to_vec(),
        };
        let cursors = vec![cursor("a", true, b""), cursor("b.c-d_9", false, b"to the far log")];
        CursorSlot { generation: 9, log_id: [4; 16], cursors }
    }

    #[test]
    fn comes_back_and_every_flipped_byte_is_refused() {
        let bytes = example().encode();
        let mut slot = bytes.clone();
        slot.resize(SLOT, 0xee); // what a longer one left there
        assert_eq!(CursorSlot::decode(&slot), Ok(example()));
        for at in 0..bytes.len() {
            let mut bad = slot.clone();
            bad[at] ^= 1;
            assert_eq!(CursorSlot::decode(&bad), Err(SlotError::Damaged), "byte {at}");
            assert_eq!(CursorSlot::decode(&bytes[..at]), Err(SlotError::Damaged), "{at} bytes");
        }
        let none = CursorSlot { cursors: Vec::new(), ..example() };
        assert_eq!(CursorSlot::decode(&none.encode()), Ok(none));
    }

    #[test]
    fn a_newer_version_is_named_and_a_count_that_lies_is_damage() {
        let with = |at: usize, value: u8| {
            let mut bytes = example().encode();
            bytes[at] = value;
            let end = bytes.len() - 4;
            let crc = plain(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            CursorSlot::decode(&bytes)
        };
        assert_eq!(with(8, 2), Err(SlotError::Newer { found: 2 }));
        for (at, value) in [(40, 1), (40, 3), (43, 0xff), (48, 0), (48, 200), (49, b'.'), (49, 0xff)] {
            assert_eq!(with(at, value), Err(SlotError::Damaged), "byte {at} is {value}");
        }
    }

    #[test]
    fn a_full_slot_fits() {
        let longest = NamedCursor {
            name: "n".repeat(NAME_BYTES_MAX),
            note: vec![1; NOTE_BYTES_MAX],
            ..example().cursors[0].clone()
        };
        let slot = CursorSlot { cursors: vec![longest; MAX_CURSORS], ..example() };
        let bytes = slot.encode();
        assert!(bytes.len() <= SLOT && CursorSlot::decode(&bytes) == Ok(slot), "{} bytes", bytes.len());
    }

    #[test]
    fn names_are_safe_to_show_and_to_write_down() {
        let long = "n".repeat(65);
        for (name, right) in
            [("a", true), ("A-1_b.c", true), ("", false), (".a", false), ("a/b", false), (&long, false)]
        {
            assert_eq!(is_name(name), right, "{name:?}");
        }
        assert!(!is_name("a b") && !is_name("ä"));
    }
}
