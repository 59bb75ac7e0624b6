//! Words of a header.

/// Longest name of a program, and longest part of a header beside it.
const HEADER_PART_BYTES_MAX: usize = 255;

/// A part of a header: text without blanks and control characters, of a bounded length.
pub(super) fn header_part(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_fine = (1..=HEADER_PART_BYTES_MAX).contains(&text.len())
        && !text.contains(|c: char| c.is_control() || c.is_whitespace());
    is_fine.then_some(text)
}

/// The bytes before the first blank, and those behind it.
pub(super) fn word(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b' ') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}
