//! A segment's header with one wrong byte: corrected by a start where it needs the segment, and by a repair anywhere.
//!
//! Invariant: a header is corrected only where one changed byte makes its own checksum hold **and** it then names
//! the segment under whose name it lies. By chance that happens to a header of random bytes once in 2^32 / (128 × 255)
//! ≈ 130,000 times, and the number would still have to fit: 2^64 more to one.

use std::io;

use crate::format::segment::{HeaderError, LEN, SegmentHeader};
use crate::format::{QUARANTINE, segment_name};
use crate::io::{Access, Durability, IoBuf, Storage, if_there, read_thrice};

/// The first block of a segment. Also used to retry where the file cannot be opened once: where this read fails, the
/// caller reads none of it, or moves it away.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn head(storage: &dyn Storage, number: u64) -> io::Result<IoBuf> {
    let (name, block) = (segment_name(number), storage.block_size() as usize);
    let look = || read_thrice(storage.open(&name, Access::ReadDirect)?.as_ref(), 0, block);
    look().or_else(|_| look())
}

/// The header of a segment's file, as it stands there.
pub(crate) fn read(storage: &dyn Storage, number: u64) -> io::Result<Result<SegmentHeader, HeaderError>> {
    Ok(SegmentHeader::decode(&head(storage, number)?))
}

/// Index of the wrong byte, and the corrected header; nothing if no single byte corrects it.
pub(crate) fn correct(storage: &dyn Storage, number: u64) -> io::Result<Option<(usize, SegmentHeader)>> {
    let block = head(storage, number)?;
    Ok(block.get(..LEN).and_then(|head| correct_bytes(head, number)))
}

fn correct_bytes(head: &[u8], number: u64) -> Option<(usize, SegmentHeader)> {
    let mut head = head.to_vec();
    for at in 0..head.len() {
        let was = head[at];
        for change in 1..=u8::MAX {
            head[at] = was ^ change;
            if let Ok(header) = SegmentHeader::decode(&head)
                && header.number == number
            {
                return Some((at, header));
            }
        }
        head[at] = was;
    }
    None
}

/// Copies the block as it was to `quarantine/`, then writes the header.
pub(crate) fn keep_and_write(storage: &dyn Storage, header: &SegmentHeader) -> io::Result<()> {
    let name = segment_name(header.number);
    let block = head(storage, header.number)?;
    storage.create_dir(QUARANTINE)?;
    let kept = format!("{QUARANTINE}/{:020}.{:08x}.header", header.number, crate::format::checksum::plain(&block));
    if_there(storage.remove(&kept))?; // a repair that was cut had begun the same copy
    let copy = storage.create(&kept, Access::WriteCached)?;
    copy.write_at(IoBuf::copy_of(&block), 0, Durability::Written).1?;
    copy.sync_all()?;
    storage.sync_dir(QUARANTINE)?;
    storage.sync_dir("")?;
    let mut right = IoBuf::copy_of(&block);
    right[..LEN].copy_from_slice(&header.encode());
    right.pad_to(storage.block_size() as usize); // a file may have been cut inside its first block
    let file = crate::write::segment_file::open(storage, &name, Access::WriteDirect)?;
    file.write_at(right, 0, Durability::Synced).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::segment::example;

    #[test]
    fn every_single_wrong_byte_is_found_and_two_are_not() {
        let right = example();
        let bytes = right.encode();
        for at in 0..LEN {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= 0x5A;
            assert_eq!(correct_bytes(&wrong, right.number), Some((at, right.clone())), "byte {at}");
            wrong[(at + 50) % LEN] ^= 1;
            assert_eq!(correct_bytes(&wrong, right.number), None, "bytes {at} and {}", (at + 50) % LEN);
        }
    }

    #[test]
    fn another_number_is_no_correction() {
        let right = example();
        let mut wrong = right.encode();
        wrong[60] ^= 1;
        assert_eq!(correct_bytes(&wrong, right.number + 1), None);
    }
}
