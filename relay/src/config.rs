//! The file of a relay: one source, and the log that it goes to.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use clad_client::{AckLevel, Address};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The relay's name in the log. What it stored is found by this name: another name is another relay.
    pub(crate) name: String,
    pub(crate) from: From,
    pub(crate) to: To,
    #[serde(default)]
    pub(crate) metrics: Metrics,
}

/// The source; exactly one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum From {
    Journal(FromJournal),
    Files(FromFiles),
}

/// Place at which a relay begins that has stored nothing yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Start {
    #[default]
    Now,
    Beginning,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FromJournal {
    #[serde(default)]
    pub(crate) start: Start,
    /// `FIELD=VALUE`, as journalctl has them: one of each field's.
    #[serde(default, rename = "match")]
    pub(crate) matches: Vec<String>,
    /// `FIELD=VALUE`: entries that are left out.
    #[serde(default)]
    pub(crate) exclude: Vec<String>,
    /// The journal's folder; absent is the host's own.
    #[serde(default)]
    pub(crate) directory: Option<std::path::PathBuf>,
    #[serde(default = "journalctl")]
    pub(crate) journalctl: std::path::PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FromFiles {
    /// Patterns of paths.
    pub(crate) paths: Vec<String>,
    #[serde(default)]
    pub(crate) start: Start,
    /// Component of the records; absent is the relay's name.
    #[serde(default)]
    pub(crate) component: Option<String>,
    /// A regular expression: a line that matches begins a record, any other goes on with it.
    #[serde(default)]
    pub(crate) multiline: Option<String>,
    /// What is longer is cut.
    #[serde(default = "max_record")]
    pub(crate) max_record: ByteSize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct To {
    pub(crate) clad: ToClad,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToClad {
    #[serde(default = "server")]
    pub(crate) server: String,
    /// Level at which a record counts as stored; absent is the highest that the log offers.
    #[serde(default)]
    pub(crate) ack: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) listen: Option<SocketAddr>,
}

fn journalctl() -> std::path::PathBuf {
    "journalctl".into()
}

fn server() -> String {
    "unix:///run/clad/clad.sock".to_owned()
}

const fn max_record() -> ByteSize {
    ByteSize::kib(64)
}

impl Config {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let config: Self = toml::from_str(&text).with_context(|| format!("{} is not right", file.display()))?;
        config.judge().with_context(|| format!("{} is not right", file.display()))?;
        Ok(config)
    }

    fn judge(&self) -> Result<()> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        ensure!(
            !self.name.is_empty() && self.name.len() <= 64 && self.name.bytes().all(is_name),
            "name: 1 to 64 letters, digits, '.', '_' or '-', not {:?}",
            self.name
        );
        ensure!(!self.name.starts_with('.'), "name: no dot at its beginning");
        self.to.clad.address()?;
        self.to.clad.level()?;
        match &self.from {
            From::Journal(journal) => {
                for term in journal.matches.iter().chain(&journal.exclude) {
                    let field = term.split_once('=').map_or("", |(field, _)| field);
                    let is_field = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
                    ensure!(
                        !field.is_empty() && field.bytes().all(is_field),
                        "from.journal: FIELD=VALUE, not {term:?}"
                    );
                }
            }
            From::Files(files) => {
                ensure!(!files.paths.is_empty(), "from.files.paths: no pattern");
                for pattern in &files.paths {
                    glob::Pattern::new(pattern).with_context(|| format!("from.files.paths: {pattern:?}"))?;
                    ensure!(pattern.starts_with('/'), "from.files.paths: a whole path, not {pattern:?}");
                }
                files.begins()?;
                let bytes = files.max_record.as_u64();
                ensure!((256..=1 << 20).contains(&bytes), "from.files.max_record: 256 B to 1 MiB");
            }
        }
        Ok(())
    }

    /// What the file says, for a person.
    pub(crate) fn meaning(&self) -> String {
        let from = match &self.from {
            From::Journal(_) => "systemd's journal".to_owned(),
            From::Files(files) => format!("files: {}", files.paths.join(", ")),
        };
        let level = self.to.clad.ack.as_deref().unwrap_or("the highest level that the log offers");
        format!("relay {}\nfrom  {from}\nto    {} ({level})", self.name, self.to.clad.server)
    }
}

impl ToClad {
    pub(crate) fn address(&self) -> Result<Address> {
        let address: Address = self.server.parse().with_context(|| format!("to.clad.server: {:?}", self.server))?;
        match &address {
            Address::Unix(_) => {}
            Address::TcpTls(_) => {
                let host = address.check_tls().with_context(|| format!("to.clad.server: {}", self.server))?;
                ensure!(
                    host.is_some_and(|host| host.cert.is_some()),
                    "to.clad.server: cert=FILE and key=FILE, for a relay's place belongs to the name in its certificate"
                );
            }
            _ => anyhow::bail!(
                "to.clad.server: unix://PATH or tcp+tls://HOST:PORT, for a relay's place belongs to its user, or to the name \
                 in its certificate"
            ),
        }
        Ok(address)
    }

    /// The level; nothing is the highest.
    pub(crate) fn level(&self) -> Result<Option<AckLevel>> {
        let Some(name) = &self.ack else { return Ok(None) };
        match name.parse() {
            Ok(level @ (AckLevel::Written | AckLevel::Durable)) => Ok(Some(level)),
            _ => anyhow::bail!("to.clad.ack: written or durable, not {name:?}"),
        }
    }
}

impl FromFiles {
    /// The pattern of a line that begins a record.
    pub(crate) fn begins(&self) -> Result<Option<regex::bytes::Regex>> {
        let pattern = self.multiline.as_deref().map(regex::bytes::Regex::new);
        pattern.transpose().context("from.files.multiline")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text)?;
        config.judge()?;
        Ok(config)
    }

    #[test]
    fn what_is_wrong_is_said() {
        let right = "name = \"a\"\n[from.journal]\n[to.clad]\n";
        assert_eq!(judged(right).expect("right").to.clad.server, server());
        for (wrong, words) in [
            ("name = \"a/b\"\n[from.journal]\n[to.clad]\n", "name: 1 to 64"),
            ("name = \".a\"\n[from.journal]\n[to.clad]\n", "no dot"),
            ("[from.journal]\n[to.clad]\n", "missing field `name`"),
            ("name = \"a\"\n[to.clad]\n", "missing field `from`"),
            ("name = \"a\"\n[from.journal]\n[from.files]\npaths = []\n[to.clad]\n", "from"),
            ("name = \"a\"\n[from.journal]\nmach = []\n[to.clad]\n", "unknown field `mach`"),
            ("name = \"a\"\n[from.journal]\nmatch = [\"unit\"]\n[to.clad]\n", "FIELD=VALUE"),
            ("name = \"a\"\n[from.files]\npaths = []\n[to.clad]\n", "no pattern"),
            ("name = \"a\"\n[from.files]\npaths = [\"a\"]\n[to.clad]\n", "a whole path"),
            ("name = \"a\"\n[from.files]\npaths = [\"/a\"]\nmultiline = \"(\"\n[to.clad]\n", "multiline"),
            ("name = \"a\"\n[from.journal]\n[to.clad]\nack = \"received\"\n", "written or durable"),
            ("name = \"a\"\n[from.journal]\n[to.clad]\nserver = \"tcp://127.0.0.1:1\"\n", "unix://PATH"),
            ("name = \"a\"\n[from.journal]\n[to.clad]\nserver = \"shm:///run/clad.sock\"\n", "unix://PATH"),
            (
                "name = \"a\"\n[from.journal]\n[to.clad]\nserver = \"tcp+tls://h?ca=/nowhere/ca\"\n",
                "/nowhere/ca: No such file",
            ),
        ] {
            let said = format!("{:#}", judged(wrong).expect_err(wrong));
            assert!(said.contains(words), "{wrong}: {said}");
        }
    }
}
