//! One value: how it is read from a file, a variable or a flag, and how it is shown.
//!
//! Invariants: a value is taken as it stands or refused with what was expected and what was found; what
//! [`Setting::show`] prints is read back as the same value.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::nearest::nearest;
use super::types::{Durability, IoEngine, LogFormat, LogLevel};
use super::units::{parse_duration, parse_size, show_duration, show_size};

/// A value before its type is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    /// From a variable or a flag: its type is the key's to say.
    Word(String),
    /// A TOML string.
    Text(String),
    /// A TOML integer.
    Integer(i64),
    /// A TOML boolean.
    Bool(bool),
    /// Any other TOML value, by the name of its type.
    Other(&'static str),
}

impl Raw {
    /// The text, where it is one.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Word(text) | Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As an error names it.
    fn describe(&self) -> String {
        match self {
            Self::Word(text) | Self::Text(text) => format!("{text:?}"),
            Self::Integer(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Other(kind) => format!("a TOML {kind}"),
        }
    }
}

/// Reason why a value was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// It is of the wrong kind, or not readable as its kind.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// Value that would be right.
        expected: &'static str,
        /// Value that stands there.
        found: String,
    },
    /// It is none of the words that the key takes.
    #[error("expected one of {words}, found {found}; nearest: {nearest:?}")]
    Word {
        /// The words that are right.
        words: String,
        /// Value that stands there.
        found: String,
        /// The most similar right one.
        nearest: &'static str,
    },
    /// It is a known word that this version does not offer.
    #[error("{word:?} is not in this version of clad; use one of {words}")]
    NotInThisVersion {
        /// Word that stands there.
        word: &'static str,
        /// The words that work.
        words: String,
    },
}

/// A value in the two forms in which `clad config` prints it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    /// As TOML, ready to stand behind `key = `.
    pub(super) toml: String,
    /// For programs: the value, with the unit in the name where it has one.
    pub(super) json: Vec<(&'static str, serde_json::Value)>,
}

impl Shown {
    fn plain(toml: String, value: serde_json::Value) -> Self {
        let json = vec![("value", value)];
        Self { toml, json }
    }

    fn text(text: &str) -> Self {
        // JSON's escapes are TOML's too, and keep any text on one line; DEL alone TOML wants escaped.
        let toml = json!(text).to_string().replace('\u{7f}', "\\u007f");
        Self::plain(toml, json!(text))
    }
}

/// A type that a key may have.
pub(super) trait Setting: Sized {
    /// Reads it.
    fn read(raw: &Raw) -> Result<Self, BadValue>;
    /// Shows it.
    fn show(&self) -> Shown;
}

fn expected<T>(expected: &'static str, raw: &Raw) -> Result<T, BadValue> {
    let found = raw.describe();
    Err(BadValue::Expected { expected, found })
}

/// A size in bytes.
impl Setting for u64 {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        let bytes = match raw {
            Raw::Integer(number) => Self::try_from(*number).ok(),
            _ => raw.text().and_then(parse_size),
        };
        bytes.map_or_else(|| expected("a size such as \"64MiB\" or a number of bytes", raw), Ok)
    }

    fn show(&self) -> Shown {
        let shown = show_size(*self);
        let toml = if shown.bytes().all(|byte| byte.is_ascii_digit()) { shown } else { format!("{shown:?}") };
        let json = vec![("bytes", json!(self))];
        Shown { toml, json }
    }
}

/// A count.
impl Setting for u32 {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        let count = match raw {
            Raw::Integer(number) => Self::try_from(*number).ok(),
            Raw::Word(word) => word.trim().parse().ok(),
            _ => None,
        };
        count.map_or_else(|| expected("a number up to 4294967295", raw), Ok)
    }

    fn show(&self) -> Shown {
        Shown::plain(self.to_string(), json!(self))
    }
}

impl Setting for Duration {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        let duration = match raw {
            Raw::Integer(0) => Some(Self::ZERO),
            _ => raw.text().and_then(parse_duration),
        };
        duration.map_or_else(|| expected("a duration with its unit, such as \"10ms\" or \"1h30m\"", raw), Ok)
    }

    fn show(&self) -> Shown {
        let shown = show_duration(*self);
        let toml = if shown == "0" { shown } else { format!("{shown:?}") };
        let json = vec![("seconds", json!(self.as_secs_f64()))];
        Shown { toml, json }
    }
}

impl Setting for bool {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        match raw {
            Raw::Bool(value) => Ok(*value),
            Raw::Word(word) if word == "true" => Ok(true),
            Raw::Word(word) if word == "false" => Ok(false),
            _ => expected("true or false", raw),
        }
    }

    fn show(&self) -> Shown {
        Shown::plain(self.to_string(), json!(self))
    }
}

impl Setting for String {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        raw.text().map_or_else(|| expected("a text", raw), |text| Ok(text.to_owned()))
    }

    fn show(&self) -> Shown {
        Shown::text(self)
    }
}

/// A path that must be there.
impl Setting for PathBuf {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        match raw.text() {
            Some(text) if !text.is_empty() && !text.contains('\0') => Ok(Self::from(text)),
            _ => expected("a path", raw),
        }
    }

    fn show(&self) -> Shown {
        Shown::text(&self.to_string_lossy())
    }
}

/// A path that turns its listener off when it is empty.
impl Setting for Option<PathBuf> {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        match raw.text() {
            Some("") => Ok(None),
            _ => PathBuf::read(raw).map(Some).or_else(|_| expected("a path, or \"\" to turn it off", raw)),
        }
    }

    fn show(&self) -> Shown {
        self.as_ref().map_or_else(|| Shown::text(""), Setting::show)
    }
}

/// An address that turns its listener off when it is empty. Names are not resolved: what a name stands
/// for can change behind the operator's back, and loopback must be provable.
impl Setting for Option<SocketAddr> {
    fn read(raw: &Raw) -> Result<Self, BadValue> {
        let address = match raw.text() {
            Some("") => Some(None),
            Some(text) => text.parse().ok().map(Some),
            None => None,
        };
        address.map_or_else(
            || {
                let right = "an IP address and port such as \"127.0.0.1:7440\", or \"\" to turn it off";
                expected(right, raw)
            },
            Ok,
        )
    }

    fn show(&self) -> Shown {
        let text = self.map_or_else(String::new, |address| address.to_string());
        Shown::text(&text)
    }
}

/// Makes a closed set of words a setting; the words behind `later` are known and refused.
macro_rules! word_setting {
    ($name:ident, later = [$($later:literal),*]) => {
        impl Setting for $name {
            fn read(raw: &Raw) -> Result<Self, BadValue> {
                const LATER: &[&str] = &[$($later),*];
                let words: Vec<&'static str> = Self::ALL.iter().map(|one| one.as_str()).collect();
                let listed = words.join(", ");
                let text = raw.text().unwrap_or_default();
                if let Some(found) = Self::ALL.iter().find(|one| one.as_str() == text) {
                    return Ok(*found);
                }
                if let Some(word) = LATER.iter().copied().find(|later| *later == text) {
                    return Err(BadValue::NotInThisVersion { word, words: listed });
                }
                Err(BadValue::Word {
                    nearest: nearest(text, &words),
                    words: listed,
                    found: raw.describe(),
                })
            }

            fn show(&self) -> Shown {
                Shown::text(self.as_str())
            }
        }
    };
}

word_setting!(Durability, later = []);
word_setting!(IoEngine, later = []);
word_setting!(LogLevel, later = []);
word_setting!(LogFormat, later = []);
