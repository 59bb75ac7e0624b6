//! One value: how it is read from a file, a variable or a flag, and how it is shown.
//!
//! Invariants: a value is taken as it stands or refused with what was expected and what was found; what
//! [`Setting::show`] prints is read back as the same value.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use config::{Value, ValueKind};
use serde_json::json;

use super::nearest::nearest;
use super::origin::Origin;
use super::types::{DefaultAck, Durability, IoEngine, LogFormat, LogLevel, SyslogAddress, SyslogFormat, TlsVersion};
use super::units::{parse_duration, parse_size, show_duration, show_size};

/// The text, where it is one.
fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        ValueKind::String(text) => Some(text),
        _ => None,
    }
}

/// The text of a variable or a flag: its type is the key's to say.
fn word(value: &Value) -> Option<&str> {
    text(value).filter(|_| Origin::from(value).kind() != "file")
}

/// A refusal of the value.
fn expected(expected: &str, value: &Value) -> String {
    let found = match &value.kind {
        ValueKind::String(text) => format!("{text:?}"),
        ValueKind::I64(_) | ValueKind::Boolean(_) => value.kind.to_string(),
        ValueKind::Float(_) => "a TOML float".to_owned(),
        ValueKind::Table(_) => "a TOML table".to_owned(),
        ValueKind::Array(_) => "a TOML array".to_owned(),
        // The one type of TOML that the crate does not have.
        ValueKind::Nil => "a TOML datetime".to_owned(),
        _ => "a TOML integer beyond 64 bits".to_owned(),
    };
    format!("expected {expected}, found {found}")
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
    /// Reads it, or says what would be right.
    fn read(value: &Value) -> Result<Self, String>;
    /// Shows it.
    fn show(&self) -> Shown;
}

/// A size in bytes.
impl Setting for u64 {
    fn read(value: &Value) -> Result<Self, String> {
        let bytes = match value.kind {
            ValueKind::I64(number) => Self::try_from(number).ok(),
            _ => text(value).and_then(parse_size),
        };
        bytes.ok_or_else(|| expected("a size such as \"64MiB\" or a number of bytes", value))
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
    fn read(value: &Value) -> Result<Self, String> {
        let count = match value.kind {
            ValueKind::I64(number) => Self::try_from(number).ok(),
            _ => word(value).and_then(|word| word.trim().parse().ok()),
        };
        count.ok_or_else(|| expected("a number up to 4294967295", value))
    }

    fn show(&self) -> Shown {
        Shown::plain(self.to_string(), json!(self))
    }
}

impl Setting for Duration {
    fn read(value: &Value) -> Result<Self, String> {
        let duration = match value.kind {
            ValueKind::I64(0) => Some(Self::ZERO),
            _ => text(value).and_then(parse_duration),
        };
        duration.ok_or_else(|| expected("a duration with its unit, such as \"10ms\" or \"1h30m\"", value))
    }

    fn show(&self) -> Shown {
        let shown = show_duration(*self);
        let toml = if shown == "0" { shown } else { format!("{shown:?}") };
        let json = vec![("seconds", json!(self.as_secs_f64()))];
        Shown { toml, json }
    }
}

impl Setting for bool {
    fn read(value: &Value) -> Result<Self, String> {
        let is_true = match value.kind {
            ValueKind::Boolean(is_true) => Some(is_true),
            _ => word(value).and_then(|word| word.parse().ok()),
        };
        is_true.ok_or_else(|| expected("true or false", value))
    }

    fn show(&self) -> Shown {
        Shown::plain(self.to_string(), json!(self))
    }
}

impl Setting for String {
    fn read(value: &Value) -> Result<Self, String> {
        text(value).map(str::to_owned).ok_or_else(|| expected("a text", value))
    }

    fn show(&self) -> Shown {
        Shown::text(self)
    }
}

/// A path that must be there.
impl Setting for PathBuf {
    fn read(value: &Value) -> Result<Self, String> {
        let path = text(value).filter(|text| !text.is_empty() && !text.contains('\0'));
        path.map(Self::from).ok_or_else(|| expected("a path", value))
    }

    fn show(&self) -> Shown {
        Shown::text(&self.to_string_lossy())
    }
}

/// A path that turns its listener off when it is empty.
impl Setting for Option<PathBuf> {
    fn read(value: &Value) -> Result<Self, String> {
        match text(value) {
            Some("") => Ok(None),
            _ => PathBuf::read(value).map(Some).map_err(|_| expected("a path, or \"\" to turn it off", value)),
        }
    }

    fn show(&self) -> Shown {
        self.as_ref().map_or_else(|| Shown::text(""), Setting::show)
    }
}

/// An address that turns its listener off when it is empty. Names are not resolved: what a name stands
/// for can change behind the operator's back, and loopback must be provable.
impl Setting for Option<SocketAddr> {
    fn read(value: &Value) -> Result<Self, String> {
        const ADDRESS: &str = "an IP address and port such as \"127.0.0.1:7440\", or \"\" to turn it off";
        match text(value) {
            Some("") => Ok(None),
            text => text.and_then(|text| text.parse().ok()).map(Some).ok_or_else(|| expected(ADDRESS, value)),
        }
    }

    fn show(&self) -> Shown {
        let text = self.map_or_else(String::new, |address| address.to_string());
        Shown::text(&text)
    }
}

/// Addresses: a TOML array of texts; in a variable or a flag, commas are between them.
impl Setting for Vec<SocketAddr> {
    fn read(value: &Value) -> Result<Self, String> {
        const ADDRESSES: &str = "addresses such as [\"127.0.0.1:4317\"] (127.0.0.1:4317,127.0.0.1:4318 outside of a file), or \"\" for none";
        let all: Option<Self> = match &value.kind {
            ValueKind::Array(all) => all.iter().map(|one| text(one)?.parse().ok()).collect(),
            _ => text(value).and_then(|text| {
                text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(|one| one.parse().ok()).collect()
            }),
        };
        all.ok_or_else(|| expected(ADDRESSES, value))
    }

    fn show(&self) -> Shown {
        let all: Vec<String> = self.iter().map(SocketAddr::to_string).collect();
        Shown::plain(json!(all).to_string(), json!(all))
    }
}

/// An address with its protocol before it.
impl Setting for Option<SyslogAddress> {
    fn read(value: &Value) -> Result<Self, String> {
        const ADDRESS: &str = "an address such as \"udp://127.0.0.1:514\", \"tcp://127.0.0.1:514\", \
            \"tls://0.0.0.0:6514\", \"relp://127.0.0.1:2514\", \"relps://0.0.0.0:2514\", \
            \"unix-dgram:///run/clad/syslog.sock\" or \"unix-stream:///run/clad/syslog.sock\"";
        text(value).and_then(SyslogAddress::parse).map(Some).ok_or_else(|| expected(ADDRESS, value))
    }

    fn show(&self) -> Shown {
        let text = self.as_ref().map_or_else(String::new, ToString::to_string);
        Shown::text(&text)
    }
}

/// Makes a closed set of words a setting.
macro_rules! word_setting {
    ($name:ident) => {
        impl Setting for $name {
            fn read(value: &Value) -> Result<Self, String> {
                let text = text(value).unwrap_or_default();
                Self::ALL.iter().copied().find(|one| one.as_str() == text).ok_or_else(|| {
                    let words: Vec<&'static str> = Self::ALL.iter().map(|one| one.as_str()).collect();
                    let refused = expected(&format!("one of {}", words.join(", ")), value);
                    format!("{refused}; nearest: {:?}", nearest(text, &words))
                })
            }

            fn show(&self) -> Shown {
                Shown::text(self.as_str())
            }
        }
    };
}

word_setting!(DefaultAck);
word_setting!(Durability);
word_setting!(IoEngine);
word_setting!(LogLevel);
word_setting!(LogFormat);
word_setting!(SyslogFormat);
word_setting!(TlsVersion);
