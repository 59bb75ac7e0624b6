//! `[to.nats]`: a stream of NATS JetStream.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::MessageFormat;

/// A stream of NATS JetStream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToNats {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`; several are one cluster.
    pub(crate) servers: Vec<String>,
    /// The stream. Nobody else writes to it.
    pub(crate) stream: String,
    /// Subject of the messages; one that the stream takes.
    pub(crate) subject: String,
    #[serde(default)]
    pub(crate) format: MessageFormat,
    /// Who the relay is: a file of credentials, as `nsc` makes it; or a user with a password; or a token.
    #[serde(default)]
    pub(crate) credentials_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) user: Option<String>,
    #[serde(default)]
    pub(crate) password_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the authorities that the server's certificate is checked by (PEM); absent are those of the host.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// The relay's own certificate and key (PEM), where the server asks for one.
    #[serde(default)]
    pub(crate) cert: Option<PathBuf>,
    #[serde(default)]
    pub(crate) key: Option<PathBuf>,
    /// Lets a server of another host be `nats://`.
    #[serde(default)]
    pub(crate) allow_plaintext: bool,
    /// The longest time for an answer.
    #[serde(default = "super::timeout")]
    pub(crate) timeout: String,
}

/// How the relay says who it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Nobody,
    Credentials(PathBuf),
    User(String, String),
    Token(String),
}

impl ToNats {
    pub(super) fn judge(&self) -> Result<()> {
        self.addresses()?;
        self.timeout()?;
        let is_name = |text: &str| {
            !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c))
        };
        ensure!(
            is_name(&self.stream),
            "to.nats.stream: a name without '.', '*', '>', '/' and spaces, not {:?}",
            self.stream
        );
        ensure!(
            self.subject.split('.').all(is_name),
            "to.nats.subject: words with '.' between them, without '*' and '>', not {:?}",
            self.subject
        );
        ensure!(self.user.is_some() == self.password_file.is_some(), "to.nats: user and password_file go together");
        ensure!(self.cert.is_some() == self.key.is_some(), "to.nats: cert and key go together");
        let ways = [self.credentials_file.is_some(), self.user.is_some(), self.token_file.is_some()];
        ensure!(
            ways.iter().filter(|way| **way).count() <= 1,
            "to.nats: one of credentials_file, user with password_file, and token_file"
        );
        Ok(())
    }

    /// The servers, and whether TLS is demanded.
    pub(crate) fn addresses(&self) -> Result<(Vec<async_nats::ServerAddr>, bool)> {
        ensure!(!self.servers.is_empty(), "to.nats.servers: no server");
        let mut is_tls = true;
        let mut addresses = Vec::new();
        for text in &self.servers {
            let address: async_nats::ServerAddr = text.parse().with_context(|| format!("to.nats.servers: {text:?}"))?;
            ensure!(!address.has_user_pass(), "to.nats.servers: a secret belongs into a file");
            match address.scheme() {
                "tls" => {}
                "nats" => {
                    let host = address.host().trim_matches(['[', ']']);
                    let is_loopback =
                        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
                    ensure!(
                        is_loopback || self.allow_plaintext,
                        "to.nats.servers: {text} is read by whoever is in between. tls://, or allow_plaintext = true"
                    );
                    is_tls = false;
                }
                _ => bail!("to.nats.servers: nats://HOST:PORT or tls://HOST:PORT, not {text:?}"),
            }
            addresses.push(address);
        }
        Ok((addresses, is_tls))
    }

    pub(crate) fn timeout(&self) -> Result<std::time::Duration> {
        let timeout =
            humantime::parse_duration(&self.timeout).with_context(|| format!("to.nats.timeout: {:?}", self.timeout))?;
        ensure!(!timeout.is_zero(), "to.nats.timeout: more than 0");
        Ok(timeout)
    }

    /// Who the relay is, with what the files have.
    pub(crate) fn who(&self) -> Result<Who> {
        let read = |key: &str, path: &PathBuf| {
            let text = std::fs::read_to_string(path).with_context(|| format!("to.nats.{key}: {}", path.display()))?;
            let text = text.trim().to_owned();
            ensure!(!text.is_empty(), "to.nats.{key}: {} is empty", path.display());
            Ok(text)
        };
        Ok(match (&self.credentials_file, &self.user, &self.password_file, &self.token_file) {
            (Some(file), ..) => Who::Credentials(file.clone()),
            (None, Some(user), Some(file), _) => Who::User(user.clone(), read("password_file", file)?),
            (None, _, _, Some(file)) => Who::Token(read("token_file", file)?),
            _ => Who::Nobody,
        })
    }
}
