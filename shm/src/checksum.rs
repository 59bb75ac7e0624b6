//! CRC-32C, as everywhere in clad (PROTOCOL.md, section 1).

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of some bytes.
pub(crate) fn of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of what `sum` is the checksum of, followed by `more`.
pub(crate) fn extend(sum: u32, more: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(more);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_and_pieces() {
        assert_eq!(of(b"123456789"), 0xE306_9283);
        for cut in 0..=9 {
            let (a, b) = b"123456789".split_at(cut);
            assert_eq!(extend(of(a), b), 0xE306_9283, "{cut}");
        }
    }
}
