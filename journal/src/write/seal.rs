//! Writing a footer: the one way in which a segment becomes sealed.
//!
//! Invariant: the caller has synced the segment's data. On return, footer, length and mode are durable. If cut
//! anywhere before that, the segment has no footer at its end, is scanned, and gets the same footer again. The file is
//! made shorter only after its footer is durable. So a file that is shorter than created and has no footer at its end
//! has lost its end, which is reported.

use std::io;

use crate::format::checksum::Seed;
use crate::format::footer::Footer;
use crate::io::{Durability, File, IoBuf, Storage};

/// Result of sealing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedFile {
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Checksum of the footer's head.
    pub(crate) head_checksum: u32,
}

/// Writes the footer at `pos`, ends the file behind it, makes it readable for the group, and syncs all of it.
///
/// # Errors
/// Error of the kernel.
#[allow(clippy::too_many_arguments)]
pub(crate) fn seal(
    storage: &dyn Storage,
    name: &str,
    file: &dyn File,
    seed: &Seed,
    footer: &Footer,
    pos: u64,
    block: u32,
) -> io::Result<SealedFile> {
    assert!(
        footer.first_offset <= footer.end_offset,
        "the footer of {name} ends at {}, below its begin {}: its records would be lost",
        footer.end_offset,
        footer.first_offset
    );
    assert!(
        footer.data_end <= pos && pos.is_multiple_of(block.into()),
        "the footer of {name} at {pos} is written over data that ends at {}: its last batch would be lost",
        footer.data_end
    );
    let (bytes, head_checksum) = footer.encode(seed, pos, block as usize);
    let end = pos + bytes.len() as u64;
    file.write_at(IoBuf::copy_of(&bytes), pos, Durability::Synced).1?;
    file.set_len(end)?;
    storage.set_sealed_mode(name, true)?;
    file.sync_all()?;
    Ok(SealedFile { bytes: end, head_checksum })
}
