//! CRC-32C, the one checksum of clad: in frames, in payloads and on the disk.
//!
//! Parameters (the catalogue calls it CRC-32/ISCSI): polynomial 0x1EDC6F41, initial value 0xFFFFFFFF, input and output
//! reflected, final XOR 0xFFFFFFFF; the checksum of the nine bytes `123456789` is 0xE3069283.

/// The CRC-32C of some bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The client's own checksum of a payload: made once by the maker of the payload, stored on the disk, checked by its
/// readers.
#[must_use]
pub fn payload_checksum(payload: &[u8]) -> u32 {
    crc32c(payload)
}

/// [`payload_checksum`] of a payload that comes in pieces.
#[derive(Debug)]
pub struct PayloadChecksum(crc_fast::Digest);

impl PayloadChecksum {
    /// The checksum of no bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        // The digest is 64 bits wide for all algorithms; a 32-bit one fills the low half only.
        self.0.finalize() as u32
    }
}

impl Default for PayloadChecksum {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn pieces_give_the_same() {
        let mut sum = PayloadChecksum::new();
        sum.update(b"1234");
        sum.update(b"");
        sum.update(b"56789");
        assert_eq!(sum.finish(), crc32c(b"123456789"));
    }
}
