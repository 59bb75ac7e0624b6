//! Fields of peer metadata, as far as the journal itself needs them.
//!
//! A tag below 32 has a number, `u8 tag, LEB128 number`; any other has bytes, `u8 tag, LEB128 length, bytes`.
//! Invariant: bytes that are no fields, wherever they come from, have no field; nothing panics on them.

/// First tag of a field with a length and bytes; below it stands a number.
const FIRST_BYTES_TAG: u8 = 32;
/// Bits of a LEB128 number in the peer metadata, at most.
const NUMBER_BITS: u32 = 64;

/// The bytes of the field with a tag, which is 32 or above.
pub(crate) fn find_field(peer_meta: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = peer_meta;
    while let Some((tag, behind)) = rest.split_first() {
        let (number, behind) = leb128(behind)?;
        if *tag < FIRST_BYTES_TAG {
            rest = behind;
            continue;
        }
        let (bytes, behind) = behind.split_at_checked(usize::try_from(number).ok()?)?;
        if *tag == wanted {
            return Some(bytes);
        }
        rest = behind;
    }
    None
}

/// Reads a LEB128 number; returns it with the bytes behind it.
fn leb128(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let shift = 7 * at as u32;
        let bits = u64::from(byte & 0x7F);
        if shift >= NUMBER_BITS || bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}
