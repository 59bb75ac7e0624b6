//! `[to.kafka]`: a topic of Kafka.

#[cfg(feature = "kafka")]
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::MessageFormat;

/// Longest name of a topic that Kafka takes.
const NAME_LEN_MAX: usize = 249;

/// A topic of Kafka.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "what is left out is only judged"))]
pub(crate) struct ToKafka {
    /// `HOST:PORT` of some servers of one cluster.
    pub(crate) servers: Vec<String>,
    pub(crate) topic: String,
    /// Others write to the topic too: a relay that nothing is known of begins in spite of their messages.
    #[serde(default)]
    pub(crate) shared_topic: bool,
    /// The partition of all records: so they are in the log's order. Absent is 0.
    #[serde(default)]
    pub(crate) partition: Option<i32>,
    /// Parts the log over all partitions by this; each part is in the log's order.
    #[serde(default)]
    pub(crate) partition_by: Option<PartitionBy>,
    #[serde(default)]
    pub(crate) format: MessageFormat,
    #[serde(default)]
    pub(crate) compression: Compression,
    /// Each record once, by transactions. Without it a record comes at least once, and the server needs no transactions.
    #[serde(default = "super::yes")]
    pub(crate) exactly_once: bool,
    /// Topic of this relay's own that says how far it is; absent is `clad-progress.LOG.NAME`.
    #[serde(default)]
    pub(crate) progress_topic: Option<String>,
    /// Speaks TLS to the servers.
    #[serde(default)]
    pub(crate) tls: bool,
    /// File with the authorities that the servers' certificates are checked by (PEM); absent are those of the host.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// The relay's own certificate and key (PEM), where the servers ask for one.
    #[serde(default)]
    pub(crate) cert: Option<PathBuf>,
    #[serde(default)]
    pub(crate) key: Option<PathBuf>,
    /// Lets servers of other hosts be without TLS.
    #[serde(default)]
    pub(crate) allow_plaintext: bool,
    #[serde(default)]
    pub(crate) user: Option<String>,
    #[serde(default)]
    pub(crate) password_file: Option<PathBuf>,
    /// How a password is shown; absent is `SCRAM-SHA-512`.
    #[serde(default)]
    pub(crate) sasl: Option<Sasl>,
    /// The longest time for an answer.
    #[serde(default = "timeout")]
    pub(crate) timeout: String,
}

/// What chooses a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PartitionBy {
    Component,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compression {
    None,
    Lz4,
    #[default]
    Zstd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Sasl {
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    Scram256,
    #[serde(rename = "SCRAM-SHA-512")]
    Scram512,
}

fn timeout() -> String {
    "30s".to_owned()
}

impl ToKafka {
    pub(super) fn judge(&self) -> Result<()> {
        ensure!(
            cfg!(feature = "kafka"),
            "to.kafka: this clad-relay was built without it (`cargo build --features kafka`)"
        );
        ensure!(!self.servers.is_empty(), "to.kafka.servers: no server");
        for text in &self.servers {
            let host = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            let Some((host, _)) = host else { bail!("to.kafka.servers: HOST:PORT, not {text:?}") };
            ensure!(!host.contains([',', '/', '@']), "to.kafka.servers: HOST:PORT, not {text:?}");
            let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
            let is_loopback = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
            ensure!(
                is_loopback || self.tls || self.allow_plaintext,
                "to.kafka.servers: {text} is read by whoever is in between. tls = true, or allow_plaintext = true"
            );
        }
        for (key, name) in [("topic", Some(&self.topic)), ("progress_topic", self.progress_topic.as_ref())] {
            let is_right = |name: &String| {
                let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
                (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_part) && name != "." && name != ".."
            };
            ensure!(
                name.is_none_or(is_right),
                "to.kafka.{key}: 1 to {NAME_LEN_MAX} letters, digits, '.', '_' or '-', not {:?}",
                name.map_or("", |name| name)
            );
        }
        ensure!(self.partition.is_none() || self.partition_by.is_none(), "to.kafka: one of partition and partition_by");
        ensure!(self.partition.is_none_or(|partition| partition >= 0), "to.kafka.partition: 0 or more");
        ensure!(self.progress_topic.as_ref() != Some(&self.topic), "to.kafka.progress_topic: another one than topic");
        ensure!(
            self.exactly_once || self.progress_topic.is_none(),
            "to.kafka.progress_topic is for exactly_once = true"
        );
        ensure!(self.user.is_some() == self.password_file.is_some(), "to.kafka: user and password_file go together");
        ensure!(self.user.is_some() || self.sasl.is_none(), "to.kafka.sasl is for user and password_file");
        ensure!(self.cert.is_some() == self.key.is_some(), "to.kafka: cert and key go together");
        ensure!(
            self.tls || (self.ca.is_none() && self.cert.is_none()),
            "to.kafka: ca, cert and key are for tls = true"
        );
        self.timeout()?;
        Ok(())
    }

    pub(crate) fn timeout(&self) -> Result<std::time::Duration> {
        let timeout = humantime::parse_duration(&self.timeout)
            .with_context(|| format!("to.kafka.timeout: {:?}", self.timeout))?;
        ensure!((1..=600).contains(&timeout.as_secs()), "to.kafka.timeout: 1 s to 10 min");
        Ok(timeout)
    }

    /// What any client of these servers is set to, by librdkafka's names. Reads the password.
    #[cfg(feature = "kafka")]
    pub(crate) fn properties(&self) -> Result<BTreeMap<&'static str, String>> {
        let mut set = BTreeMap::from([("bootstrap.servers", self.servers.join(","))]);
        let protocol = match (self.tls, &self.user) {
            (false, None) => "plaintext",
            (false, Some(_)) => "sasl_plaintext",
            (true, None) => "ssl",
            (true, Some(_)) => "sasl_ssl",
        };
        set.insert("security.protocol", protocol.to_owned());
        let files =
            [("ssl.ca.location", &self.ca), ("ssl.certificate.location", &self.cert), ("ssl.key.location", &self.key)];
        for (name, file) in files {
            if let Some(file) = file {
                set.insert(name, file.display().to_string());
            }
        }
        if let (Some(user), Some(file)) = (&self.user, &self.password_file) {
            let password = std::fs::read_to_string(file);
            let password = password.with_context(|| format!("to.kafka.password_file: {}", file.display()))?;
            let password = password.trim();
            ensure!(!password.is_empty(), "to.kafka.password_file: {} is empty", file.display());
            let mechanism = match self.sasl.unwrap_or(Sasl::Scram512) {
                Sasl::Plain => "PLAIN",
                Sasl::Scram256 => "SCRAM-SHA-256",
                Sasl::Scram512 => "SCRAM-SHA-512",
            };
            set.insert("sasl.mechanism", mechanism.to_owned());
            set.insert("sasl.username", user.clone());
            set.insert("sasl.password", password.to_owned());
        }
        Ok(set)
    }
}
