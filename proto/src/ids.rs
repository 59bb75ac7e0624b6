//! Names of things that live longer than a connection: a log, a producer, a ring, a place in a log.
//!
//! Text forms: an id is 32 lower-case hex digits; a cursor is `<log id>:<epoch>:<offset>` with both numbers in decimal.

use std::{fmt, str::FromStr};

/// Why a text is not an id or a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseIdError {
    /// An id is 32 hex digits.
    #[error("`{0}` is not an id: 32 hex digits are wanted")]
    Id(String),
    /// A cursor has three parts.
    #[error("`{0}` is not a cursor: <log id>:<epoch>:<offset> is wanted")]
    Cursor(String),
}

macro_rules! id {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id that is none: all bits zero.
            pub const ZERO: Self = Self([0; 16]);

            /// An id of these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The bytes, as they lie on the wire and on the disk.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0
            }

            /// The bytes, borrowed.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// True for [`Self::ZERO`].
            #[must_use]
            pub fn is_zero(&self) -> bool {
                self.0 == [0; 16]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self).ok_or_else(|| ParseIdError::Id(text.to_owned()))
            }
        }

        impl From<[u8; 16]> for $name {
            fn from(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }
        }
    };
}

id!(LogId, "The 128 random bits that were made with a log and name it for ever.");
id!(RingId, "A ring's name, for as long as it lives: 128 random bits.");
id!(ProducerId, "The 128 bits that name an appending program across its connections; all zero asks for a new one.");

/// A place in one history of one log: the next record to read.
///
/// The epoch is part of it because offsets may be given again after a loss: the same offset in another epoch may be
/// another record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cursor {
    /// The log.
    pub log_id: LogId,
    /// The epoch of the record before this place, or any later one whose history has that record.
    pub epoch: u32,
    /// The offset of the next record to read.
    pub offset: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.log_id, self.epoch, self.offset)
    }
}

impl FromStr for Cursor {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let bad = || ParseIdError::Cursor(text.to_owned());
        let mut parts = text.split(':');
        let (Some(log), Some(epoch), Some(offset), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        Ok(Self {
            log_id: log.parse().map_err(|_| bad())?,
            epoch: decimal(epoch).and_then(|n| u32::try_from(n).ok()).ok_or_else(bad)?,
            offset: decimal(offset).ok_or_else(bad)?,
        })
    }
}

/// `u64::from_str` would take a leading `+`, which is not the text form.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high << 4 | low) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_text_round_trips() {
        let cursor = Cursor { log_id: LogId::from_bytes([0xAB; 16]), epoch: 7, offset: u64::MAX };
        let text = cursor.to_string();
        assert_eq!(text, format!("{}:7:18446744073709551615", "ab".repeat(16)));
        assert_eq!(text.parse(), Ok(cursor));
    }

    #[test]
    fn texts_that_are_no_cursor() {
        let id = "ab".repeat(16);
        for bad in ["", "::", "1:2:3", &id, &format!("{id}:1"), &format!("{id}:1:2:3"), &format!("{id}:+1:2")] {
            assert_eq!(bad.parse::<Cursor>(), Err(ParseIdError::Cursor(bad.to_owned())));
        }
        assert!(format!("{id}:4294967296:0").parse::<Cursor>().is_err(), "an epoch is 32 bits");
        assert!(format!("{id}:0:").parse::<Cursor>().is_err());
    }

    #[test]
    fn ids_are_32_hex_digits() {
        assert!("zz".repeat(16).parse::<LogId>().is_err());
        assert!("ä".repeat(16).parse::<LogId>().is_err(), "32 bytes, but not 32 digits");
        assert_eq!("AB".repeat(16).parse::<LogId>(), Ok(LogId::from_bytes([0xAB; 16])));
        assert!(ProducerId::ZERO.is_zero());
    }
}
