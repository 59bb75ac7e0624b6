//! CRC-32C, as everywhere in clad (PROTOCOL.md, section 1).
//!
//! Long inputs go through `crc-fast`, which uses the widest instructions there are. What follows a payload are 20 bytes
//! of header, for which finding the way there costs more than the sum: they take the processor's own instruction.
#![allow(unsafe_code)]

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of some bytes.
#[inline]
pub(crate) fn of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of what `sum` is the checksum of, followed by a word, little-endian.
#[inline(always)]
pub(crate) fn extend_word(sum: u32, word: u64) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { extend_word_x86(sum, word) };
    }
    extend(sum, &word.to_le_bytes())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn extend_word_x86(sum: u32, word: u64) -> u32 {
    !std::arch::x86_64::_mm_crc32_u64(u64::from(!sum), word) as u32
}

/// The CRC-32C of what `sum` is the checksum of, followed by `more`.
pub(crate) fn extend(sum: u32, more: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(more);
    digest.finalize() as u32
}

/// [`of`], where it is rare: all its ways are not to stand in the middle of others.
#[cold]
fn of_all(bytes: &[u8]) -> u32 {
    of(bytes)
}

/// Up to here the processor's own instruction, one word after the other, is as quick as anything.
const SHORT: usize = 256;

/// The CRC-32C of bytes of which that of the first ones is known: how many, and their sum.
#[inline]
pub(crate) fn of_rest(bytes: &[u8], (upto, sum): (usize, u32)) -> u32 {
    let Some(rest) = bytes.get(upto..) else { return of_all(bytes) };
    #[cfg(target_arch = "x86_64")]
    if rest.len() <= SHORT && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { extend_short_x86(sum, rest) };
    }
    if rest.is_empty() { sum } else { extend(sum, rest) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn extend_short_x86(sum: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};
    let (words, mut rest) = bytes.as_chunks::<8>();
    let state = words.iter().fold(u64::from(!sum), |state, word| _mm_crc32_u64(state, u64::from_le_bytes(*word)));
    let mut state = state as u32;
    if let Some((half, more)) = rest.split_first_chunk() {
        (state, rest) = (_mm_crc32_u32(state, u32::from_le_bytes(*half)), more);
    }
    if let Some((two, more)) = rest.split_first_chunk() {
        (state, rest) = (_mm_crc32_u16(state, u16::from_le_bytes(*two)), more);
    }
    if let [last] = rest {
        state = _mm_crc32_u8(state, *last);
    }
    !state
}

/// The CRC-32C of what `sum` is the checksum of, followed by two words and a half, little-endian.
#[inline(always)]
pub(crate) fn extend_words(sum: u32, words: [u64; 2], half: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { extend_x86(sum, words[0], words[1], half) };
    }
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..16].copy_from_slice(&words[1].to_le_bytes());
    bytes[16..].copy_from_slice(&half.to_le_bytes());
    extend(sum, &bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn extend_x86(sum: u32, first: u64, second: u64, half: u32) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};
    let state = _mm_crc32_u64(u64::from(!sum), first);
    let state = _mm_crc32_u64(state, second);
    !_mm_crc32_u32(state as u32, half)
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

    #[test]
    fn what_is_known_of_the_first_bytes_is_gone_on_with() {
        let bytes: Vec<u8> = (0..700_u32).map(|at| ((at * 167) >> 3) as u8).collect();
        for len in (0..=40).chain(SHORT - 9..=SHORT + 9).chain([700]) {
            for upto in [0, 1, 7, 8, 13, len / 2, len].into_iter().filter(|upto| *upto <= len) {
                assert_eq!(of_rest(&bytes[..len], (upto, of(&bytes[..upto]))), of(&bytes[..len]), "{upto} of {len}");
            }
        }
        assert_eq!(of_rest(&bytes[..5], (6, 0)), of(&bytes[..5]), "more than there are");
    }

    #[test]
    fn words_are_bytes() {
        let bytes: Vec<u8> = (1..=20).collect();
        let words = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight")));
        let half = u32::from_le_bytes(bytes[16..].try_into().expect("four"));
        for sum in [0, 1, 0xE306_9283, u32::MAX] {
            assert_eq!(extend_word(sum, words[0]), extend(sum, &bytes[..8]));
            assert_eq!(extend_words(sum, words, half), extend(sum, &bytes));
        }
    }
}
