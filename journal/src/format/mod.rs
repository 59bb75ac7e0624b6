//! The format on the disk, byte by byte. `docs/FORMAT.md` has the same for a reader in another language, and the golden
//! files in `journal/tests/golden/` check both against it.
//!
//! Invariants for every part: little-endian, explicit offsets, no serializer; a length is used only after the checksum
//! that covers it is valid. Unknown parts that are not marked incompatible are skipped. Decoding never panics and never
//! allocates more than the bytes it was given.

pub mod batch;
mod bytes;
pub mod checksum;
pub mod chunk;
pub mod cursors;
pub mod footer;
pub mod meta;
pub mod origin;
mod peer_meta;
pub mod resend;
pub mod segment;
pub mod tombstone;

/// Batches start on a multiple of this, and so does everything after them.
pub const ALIGN: u64 = 64;

/// The file that names the log.
pub const META_NAME: &str = "clad.meta";
/// The file whose lock keeps two daemons apart.
pub const LOCK_NAME: &str = "clad.lock";
/// Folder of the named cursors.
pub const CURSORS_DIR: &str = "cursors";
/// The file of the named cursors.
pub const CURSORS_NAME: &str = "cursors/table";
/// Folder for files that recovery quarantines.
pub const QUARANTINE: &str = "quarantine";

/// Rounds up to the next possible start of a batch.
pub fn align(pos: u64) -> u64 {
    pos.next_multiple_of(ALIGN)
}

/// The name of a segment.
pub fn segment_name(number: u64) -> String {
    format!("{number:020}.clog")
}

/// The number in a segment's name, if it is one.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".clog")?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_are_exact() {
        assert_eq!(segment_name(7), "00000000000000000007.clog");
        assert_eq!(parse_segment_name("00000000000000000007.clog"), Some(7));
        for foreign in
            ["7.clog", "00000000000000000007.clog.tmp", "0000000000000000000+.clog", "99999999999999999999.clog"]
        {
            assert_eq!(parse_segment_name(foreign), None, "{foreign}");
        }
    }
}
