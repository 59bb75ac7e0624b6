//! Compressed bodies. A body is a few bytes that may stand for any number: nothing is taken for it beyond a limit.
//!
//! Invariants: the output takes the memory that it is given, and no more; zstd needs no window beside it. A length that
//! a body states is a hint. A body that is cut short, or has something behind its end, is an error.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

/// Length of the output by that of a body that does not state it; logs are about so much longer.
const USUAL_RATIO: usize = 8;

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

/// Reason why a body was not inflated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotInflated {
    /// It is longer than that.
    TooLong,
    /// It is not what its encoding says.
    Broken(String),
}

impl Encoding {
    /// Encoding of a name in a header.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name.trim() {
            "" | "identity" => Some(Self::Identity),
            "gzip" => Some(Self::Gzip),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Length that a body will have, as it says or as is usual.
    pub(super) fn hint(self, body: &[u8]) -> usize {
        let stated = match self {
            Self::Identity => Some(body.len()),
            // Of the last member, modulo 2^32.
            Self::Gzip => body.last_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize),
            Self::Zstd => zstd::zstd_safe::get_frame_content_size(body)
                .ok()
                .flatten()
                .and_then(|length| usize::try_from(length).ok()),
        };
        stated.unwrap_or_else(|| body.len().saturating_mul(USUAL_RATIO))
    }

    /// The bytes behind a body, if they are at most `max`.
    pub(super) fn inflate(self, body: &[u8], max: usize) -> Result<Vec<u8>, NotInflated> {
        match self {
            Self::Identity if body.len() <= max => Ok(body.to_vec()),
            Self::Identity => Err(NotInflated::TooLong),
            Self::Gzip => gunzip(body, max),
            Self::Zstd => unzstd(body, max),
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> NotInflated {
    NotInflated::Broken(error.to_string())
}

fn gunzip(body: &[u8], max: usize) -> Result<Vec<u8>, NotInflated> {
    // One byte more: an end there is no limit.
    let mut out = Vec::with_capacity(max + 1);
    let read = MultiGzDecoder::new(body).take(max as u64 + 1).read_to_end(&mut out);
    read.map_err(|error| broken(&error))?;
    if out.len() > max { Err(NotInflated::TooLong) } else { Ok(out) }
}

/// In one call: so its window is the output itself.
fn unzstd(body: &[u8], max: usize) -> Result<Vec<u8>, NotInflated> {
    if body.is_empty() {
        return Err(broken(&"nothing where zstd was announced"));
    }
    let mut out = Vec::with_capacity(max);
    let mut decompressor = zstd::bulk::Decompressor::new().map_err(|error| broken(&error))?;
    match decompressor.decompress_to_buffer(body, &mut out) {
        Ok(_) => Ok(out),
        // The crate gives the library's text alone.
        Err(error) if error.to_string().contains("too small") => Err(NotInflated::TooLong),
        Err(error) => Err(broken(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const MAX: usize = 1 << 20;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn both(bytes: &[u8]) -> [(Encoding, Vec<u8>); 2] {
        [(Encoding::Gzip, gzip(bytes)), (Encoding::Zstd, zstd::bulk::compress(bytes, 3).unwrap())]
    }

    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * n % 251) as u8).collect()
    }

    #[test]
    fn what_was_compressed_comes_back_up_to_the_limit() {
        for len in [0, 1, 100, 70_000, MAX] {
            for (encoding, body) in both(&text(len)) {
                assert_eq!(encoding.inflate(&body, MAX).unwrap(), text(len), "{encoding:?} {len}");
            }
        }
        for (encoding, body) in both(&text(MAX + 1)) {
            assert_eq!(encoding.inflate(&body, MAX), Err(NotInflated::TooLong), "{encoding:?}");
        }
    }

    /// A bomb: a thousandth of what it stands for. Its memory is the limit.
    #[test]
    fn nothing_is_taken_beyond_the_limit() {
        for (encoding, body) in both(&vec![0; 64 * MAX]) {
            assert!(body.len() < MAX / 10, "{}", body.len());
            assert_eq!(encoding.inflate(&body, MAX), Err(NotInflated::TooLong), "{encoding:?}");
            assert_eq!(encoding.hint(&body), 64 * MAX, "{encoding:?}");
        }
        for (encoding, body) in both(&text(MAX)) {
            let inflated = encoding.inflate(&body, MAX).unwrap();
            assert!(inflated.capacity() <= MAX + 1, "{encoding:?} {}", inflated.capacity());
        }
    }

    /// A length that lies is no more than a first guess.
    #[test]
    fn a_length_that_lies_changes_nothing() {
        let (_, mut body) = both(&text(5000)).into_iter().next().unwrap();
        let at = body.len() - 4;
        body[at..].fill(0xFF);
        assert_eq!(Encoding::Gzip.hint(&body), u32::MAX as usize);
        assert!(matches!(Encoding::Gzip.inflate(&body, MAX), Err(NotInflated::Broken(_))));
        assert_eq!(Encoding::Gzip.hint(b"abc"), 24);
        assert_eq!(Encoding::Zstd.hint(b"abc"), 24);
    }

    #[test]
    fn what_is_cut_short_or_has_something_behind_it_is_broken() {
        for (encoding, body) in both(&text(5000)) {
            for broken in [&body[..body.len() - 1], &body[..3], b"", &[&body[..], b"behind"].concat(), b"plain text"] {
                let inflated = encoding.inflate(broken, MAX);
                assert!(matches!(inflated, Err(NotInflated::Broken(_))), "{encoding:?} {inflated:?}");
            }
        }
    }

    /// Concatenated members and frames are one body, as the formats say.
    #[test]
    fn pieces_are_one_body() {
        for ((encoding, one), (_, two)) in both(&text(300)).into_iter().zip(both(&text(20))) {
            let body = [one, two].concat();
            assert_eq!(encoding.inflate(&body, MAX).unwrap(), [text(300), text(20)].concat());
        }
    }
}
