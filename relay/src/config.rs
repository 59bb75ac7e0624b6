//! The file of a relay: one source, and the log that it goes to.

mod kafka;
mod nats;
mod objects;
mod otlp;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use clad_client::{AckLevel, Address};
use serde::Deserialize;

pub(crate) use kafka::ToKafka;
#[cfg(feature = "kafka")]
pub(crate) use kafka::{Compression, PartitionBy};
pub(crate) use nats::{ToNats, Who as NatsWho};
pub(crate) use objects::{Format, OBJECT_BYTES_MIN, Place, ToObjects};
pub(crate) use otlp::ToOtlp;

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
    Clad(FromClad),
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
    pub(crate) directory: Option<PathBuf>,
    #[serde(default = "journalctl")]
    pub(crate) journalctl: PathBuf,
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

/// A log of clad's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FromClad {
    #[serde(default = "server")]
    pub(crate) server: String,
    #[serde(default)]
    pub(crate) start: Start,
    /// The log keeps what is not brought over, as far as `[retention] max_held_bytes` lets it.
    #[serde(default = "yes")]
    pub(crate) hold: bool,
    /// Records of this component alone.
    #[serde(default)]
    pub(crate) component: Option<String>,
    /// Records of this severity or a higher one alone: its name.
    #[serde(default)]
    pub(crate) min_severity: Option<String>,
}

/// The destination; exactly one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum To {
    Clad(ToClad),
    Otlp(ToOtlp),
    Objects(ToObjects),
    Kafka(ToKafka),
    Nats(ToNats),
}

/// Form of a message of NATS or Kafka.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MessageFormat {
    /// An append each: `ExportLogsServiceRequest` of OTLP as protobuf.
    #[default]
    Otlp,
    /// A record each: the same as JSON.
    OtlpJson,
    /// A record each: its body.
    Body,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToClad {
    #[serde(default = "server")]
    pub(crate) server: String,
    /// Level at which a record counts as stored; absent is the highest that the log offers.
    #[serde(default)]
    pub(crate) ack: Option<String>,
    /// Name of what is forwarded, where it is a log: the far log goes on with it by this name.
    #[serde(default = "stream")]
    pub(crate) stream: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) listen: Option<SocketAddr>,
}

fn journalctl() -> PathBuf {
    "journalctl".into()
}

const fn yes() -> bool {
    true
}

fn timeout() -> String {
    "10s".to_owned()
}

fn stream() -> String {
    "main".to_owned()
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
        match (&self.from, &self.to) {
            (From::Clad(from), To::Nats(to)) => {
                from.judge()?;
                to.judge()?;
            }
            (From::Clad(from), To::Kafka(to)) => {
                from.judge()?;
                to.judge()?;
            }
            (From::Clad(from), To::Otlp(to)) => {
                from.judge()?;
                to.url()?;
                to.timeout()?;
            }
            (From::Clad(from), To::Clad(to)) => {
                from.address()?;
                ensure!(from.server != to.server, "from.clad and to.clad are one log");
                to.address()?;
                to.level()?;
                ensure!(
                    clad_client::StreamName::new(&to.stream).is_some(),
                    "to.clad.stream: 1 to 24 letters, digits, '.', '_' or '-', not {:?}",
                    to.stream
                );
            }
            (From::Clad(from), To::Objects(to)) => {
                from.address()?;
                ensure!(
                    from.component.is_none() && from.min_severity.is_none(),
                    "from.clad: no component and no min_severity with to.objects: an archive has every offset, so that what is \
                     missing can be seen; queries choose"
                );
                to.judge()?;
            }
            (From::Journal(_) | From::Files(_), To::Otlp(_) | To::Objects(_) | To::Kafka(_) | To::Nats(_)) => {
                bail!(
                    "to.otlp, to.objects, to.kafka, to.nats: from.clad; journal and files go to a clad first, where they are safe"
                )
            }
            (From::Journal(_) | From::Files(_), To::Clad(to)) => {
                to.address()?;
                to.level()?;
            }
        }
        match &self.from {
            From::Clad(_) => {}
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
            From::Clad(from) => {
                format!("the log at {}{}", from.server, if from.hold { ", which holds what is not read" } else { "" })
            }
            From::Journal(_) => "systemd's journal".to_owned(),
            From::Files(files) => format!("files: {}", files.paths.join(", ")),
        };
        let to = match &self.to {
            To::Clad(to) => {
                format!("{} ({})", to.server, to.ack.as_deref().unwrap_or("the highest level that the log offers"))
            }
            To::Otlp(to) => format!("{} (OTLP, each record at least once)", to.endpoint),
            To::Kafka(to) => {
                let once = if to.exactly_once { "once" } else { "at least once" };
                format!("topic {} of Kafka at {}, each record {once}", to.topic, to.servers.join(", "))
            }
            To::Nats(to) => format!("stream {} of NATS at {}, as {}", to.stream, to.servers.join(", "), to.subject),
            To::Objects(to) => {
                let form = match to.format {
                    Format::Parquet => "Parquet",
                    Format::Raw => "raw: whole appends",
                };
                format!("{} ({form}, an object every {} or at {})", to.url, to.max_age, to.object_bytes)
            }
        };
        format!("relay {}\nfrom  {from}\nto    {to}", self.name)
    }
}

impl FromClad {
    fn judge(&self) -> Result<()> {
        self.address()?;
        ensure!(
            self.min_severity.is_none() || self.severity().is_some(),
            "from.clad.min_severity: trace, debug, info, warn, error or fatal, not {:?}",
            self.min_severity.as_deref().unwrap_or_default()
        );
        Ok(())
    }

    pub(crate) fn address(&self) -> Result<Address> {
        let address: Address = self.server.parse().with_context(|| format!("from.clad.server: {:?}", self.server))?;
        match &address {
            Address::Unix(_) => {}
            Address::TcpTls(_) => {
                drop(address.check_tls().with_context(|| format!("from.clad.server: {}", self.server))?)
            }
            _ => bail!("from.clad.server: unix://PATH or tcp+tls://HOST:PORT, not {:?}", self.server),
        }
        Ok(address)
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
            _ => bail!(
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
            _ => bail!("to.clad.ack: written or durable, not {name:?}"),
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
        let To::Clad(to) = judged(right).expect("right").to else { panic!("another destination") };
        assert_eq!(to.server, server());
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
            ("name = \"a\"\n[from.journal]\n[to.otlp]\nendpoint = \"http://h\"\n", "from.clad"),
            ("name = \"a\"\n[from.clad]\n[to.clad]\n", "are one log"),
            ("name = \"a\"\n[from.clad]\n[to.clad]\nserver = \"unix:///a\"\nstream = \"a/b\"\n", "to.clad.stream"),
            ("name = \"a\"\n[from.clad]\n[to.otlp]\nendpoint = \"ftp://h\"\n", "http:// or https://"),
            ("name = \"a\"\n[from.clad]\n[to.otlp]\nendpoint = \"http://u:p@h\"\n", "headers_file"),
            (
                "name = \"a\"\n[from.clad]\nmin_severity = \"loud\"\n[to.otlp]\nendpoint = \"http://h\"\n",
                "min_severity",
            ),
            ("name = \"a\"\n[from.clad]\n[to.otlp]\nendpoint = \"http://h\"\ntimeout = \"0s\"\n", "more than 0"),
            ("name = \"a\"\n[from.clad]\n[to.nats]\nservers = []\nstream = \"s\"\nsubject = \"s\"\n", "no server"),
            (
                "name = \"a\"\n[from.clad]\n[to.nats]\nservers = [\"nats://h\"]\nstream = \"s\"\nsubject = \"s\"\n",
                "allow_plaintext = true",
            ),
            (
                "name = \"a\"\n[from.clad]\n[to.nats]\nservers = [\"tls://u:p@h\"]\nstream = \"s\"\nsubject = \"s\"\n",
                "a secret belongs into a file",
            ),
            (
                "name = \"a\"\n[from.clad]\n[to.nats]\nservers = [\"tls://h\"]\nstream = \"s.a\"\nsubject = \"s\"\n",
                "to.nats.stream",
            ),
            (
                "name = \"a\"\n[from.clad]\n[to.nats]\nservers = [\"tls://h\"]\nstream = \"s\"\nsubject = \"s.*\"\n",
                "to.nats.subject",
            ),
            (
                "name = \"a\"\n[from.clad]\n[to.nats]\nservers = [\"tls://h\"]\nstream = \"s\"\nsubject = \"s\"\nuser = \"u\"\n",
                "go together",
            ),
            ("name = \"a\"\n[from.journal]\n[to.objects]\nurl = \"s3://b\"\n", "from.clad"),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"b\"\n", "s3://BUCKET/PREFIX"),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3:///p\"\n", "the bucket's name"),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3://b/a//b\"\n", "a prefix of"),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"file://a\"\n", "a whole path"),
            (
                "name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3://b\"\nendpoint = \"http://h\"\n",
                "allow_http = true",
            ),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3://b\"\naccess_key_file = \"/a\"\n", "go together"),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3://b\"\nobject_bytes = \"1KiB\"\n", "64 KiB to 1 GiB"),
            ("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3://b\"\nformat = \"csv\"\n", "unknown variant"),
            ("name = \"a\"\n[from.clad]\ncomponent = \"c\"\n[to.objects]\nurl = \"s3://b\"\n", "every offset"),
            (
                "name = \"a\"\n[from.journal]\n[to.clad]\nserver = \"tcp+tls://h?ca=/nowhere/ca\"\n",
                "/nowhere/ca: No such file",
            ),
        ] {
            let said = format!("{:#}", judged(wrong).expect_err(wrong));
            assert!(said.contains(words), "{wrong}: {said}");
        }
    }
    #[test]
    fn plain_http_is_for_the_host_itself_or_on_request() {
        let with = |more: &str| {
            judged(&format!("name = \"a\"\n[from.clad]\n[to.objects]\nurl = \"s3://b/p/q/\"\n{more}"))
                .map(|config| config.to)
        };
        for right in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://h"] {
            let To::Objects(to) = with(&format!("endpoint = \"{right}\"\n")).expect(right) else { panic!("another") };
            let place = Place::Bucket { bucket: "b".to_owned(), prefix: "p/q".to_owned() };
            assert_eq!(to.place().expect("a place"), place);
        }
        assert!(with("endpoint = \"http://h\"\nallow_http = true\n").is_ok());
        assert!(with("endpoint = \"http://127.0.0.1.example\"\n").is_err());
    }
}
