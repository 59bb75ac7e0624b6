//! `[to.otlp]`: an endpoint of OTLP over HTTP.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// An endpoint of OTLP over HTTP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToOtlp {
    /// `http://HOST:PORT` or `https://…`; without a path it is `/v1/logs`.
    pub(crate) endpoint: String,
    #[serde(default = "super::yes")]
    pub(crate) gzip: bool,
    /// The longest time for one request.
    #[serde(default = "super::timeout")]
    pub(crate) timeout: String,
    /// File with the authorities that the endpoint's certificate is checked by (PEM); absent are those of the host.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// File of headers, each a line `Name: value`: secrets do not stand in this file.
    #[serde(default)]
    pub(crate) headers_file: Option<PathBuf>,
}

impl ToOtlp {
    pub(crate) fn url(&self) -> Result<reqwest::Url> {
        let mut url: reqwest::Url =
            self.endpoint.parse().with_context(|| format!("to.otlp.endpoint: {:?}", self.endpoint))?;
        ensure!(
            ["http", "https"].contains(&url.scheme()) && url.host().is_some(),
            "to.otlp.endpoint: http:// or https://, not {:?}",
            self.endpoint
        );
        ensure!(
            url.password().is_none() && url.username().is_empty(),
            "to.otlp.endpoint: a secret belongs into headers_file"
        );
        if url.path() == "/" {
            url.set_path("/v1/logs");
        }
        Ok(url)
    }

    pub(crate) fn timeout(&self) -> Result<std::time::Duration> {
        let timeout =
            humantime::parse_duration(&self.timeout).with_context(|| format!("to.otlp.timeout: {:?}", self.timeout))?;
        ensure!(!timeout.is_zero(), "to.otlp.timeout: more than 0");
        Ok(timeout)
    }

    /// Names and values of `headers_file`.
    pub(crate) fn headers(&self) -> Result<Vec<(String, String)>> {
        let Some(file) = &self.headers_file else { return Ok(Vec::new()) };
        let text =
            std::fs::read_to_string(file).with_context(|| format!("to.otlp.headers_file: {}", file.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let split = |line: &str| {
            let pair = line.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
            pair.with_context(|| format!("to.otlp.headers_file: {}: each line is `Name: value`", file.display()))
        };
        lines.map(split).collect()
    }
}
