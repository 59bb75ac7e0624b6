//! `[to.objects]`: object storage.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use serde::Deserialize;

/// Sizes of an object: below it is no more than its footer, and above it one request takes no more.
pub(crate) const OBJECT_BYTES_MIN: u64 = 64 << 10;
const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// Object storage.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToObjects {
    /// `s3://BUCKET/PREFIX`, or `file:///FOLDER`.
    pub(crate) url: String,
    /// `https://HOST:PORT` of a store that is not Amazon's; absent is Amazon's of the region.
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
    /// Absent is what `AWS_REGION` says.
    #[serde(default)]
    pub(crate) region: Option<String>,
    #[serde(default)]
    pub(crate) format: Format,
    /// Files with the access key and its secret; absent is what the environment says, as with other tools of S3.
    #[serde(default)]
    pub(crate) access_key_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) secret_key_file: Option<PathBuf>,
    /// An object is stored when its first record is this old.
    #[serde(default = "max_age")]
    pub(crate) max_age: String,
    /// An object is stored when it has about so many bytes. Until then it is in memory.
    #[serde(default = "object_bytes")]
    pub(crate) object_bytes: ByteSize,
    /// Lets `endpoint` be `http://` of another host.
    #[serde(default)]
    pub(crate) allow_http: bool,
    /// File with the authorities that the endpoint's certificate may also be checked by (PEM).
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// The longest time for one request.
    #[serde(default = "object_timeout")]
    pub(crate) timeout: String,
}

/// Form of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Columns, for engines that query them.
    #[default]
    Parquet,
    /// Whole appends as they came, compressed: a backup that loses nothing.
    Raw,
}

/// Where objects go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Folder(PathBuf),
    Bucket { bucket: String, prefix: String },
}

fn max_age() -> String {
    "1h".to_owned()
}

const fn object_bytes() -> ByteSize {
    ByteSize::mib(64)
}

fn object_timeout() -> String {
    "2m".to_owned()
}

impl ToObjects {
    pub(super) fn judge(&self) -> Result<()> {
        let place = self.place()?;
        self.endpoint()?;
        self.timeout()?;
        ensure!(!self.max_age()?.is_zero(), "to.objects.max_age: more than 0");
        let bytes = self.object_bytes.as_u64();
        ensure!((OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&bytes), "to.objects.object_bytes: 64 KiB to 1 GiB");
        ensure!(
            self.access_key_file.is_some() == self.secret_key_file.is_some(),
            "to.objects: access_key_file and secret_key_file go together"
        );
        let of_s3 = [self.endpoint.is_some(), self.region.is_some(), self.ca.is_some(), self.access_key_file.is_some()];
        ensure!(
            matches!(place, Place::Bucket { .. }) || of_s3 == [false; 4],
            "to.objects: endpoint, region, ca and keys are for s3://"
        );
        Ok(())
    }

    /// Where objects go.
    pub(crate) fn place(&self) -> Result<Place> {
        if let Some(folder) = self.url.strip_prefix("file://") {
            ensure!(folder.starts_with('/'), "to.objects.url: file:///FOLDER with a whole path, not {:?}", self.url);
            return Ok(Place::Folder(folder.into()));
        }
        let rest = self.url.strip_prefix("s3://");
        let rest =
            rest.with_context(|| format!("to.objects.url: s3://BUCKET/PREFIX or file:///FOLDER, not {:?}", self.url))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        ensure!(
            !bucket.is_empty() && bucket.bytes().all(is_name),
            "to.objects.url: the bucket's name stands behind s3://, not {:?}",
            self.url
        );
        let prefix = prefix.trim_end_matches('/');
        ensure!(
            prefix.is_empty()
                || prefix
                    .split('/')
                    .all(|part| !part.is_empty() && part.bytes().all(|byte| is_name(byte) || byte == b'=')),
            "to.objects.url: a prefix of letters, digits, '.', '_', '-' and '=', not {prefix:?}"
        );
        Ok(Place::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// The endpoint, where the file names one.
    pub(crate) fn endpoint(&self) -> Result<Option<reqwest::Url>> {
        let Some(text) = &self.endpoint else { return Ok(None) };
        let url: reqwest::Url = text.parse().with_context(|| format!("to.objects.endpoint: {text:?}"))?;
        ensure!(
            ["http", "https"].contains(&url.scheme()) && url.host().is_some(),
            "to.objects.endpoint: https://HOST:PORT, not {text:?}"
        );
        ensure!(
            url.password().is_none() && url.username().is_empty(),
            "to.objects.endpoint: keys belong into access_key_file and secret_key_file"
        );
        let is_loopback = url.host_str().is_some_and(|host| {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        });
        ensure!(
            url.scheme() == "https" || is_loopback || self.allow_http,
            "to.objects.endpoint: {text} is read by whoever is in between. https://, or allow_http = true"
        );
        Ok(Some(url))
    }

    pub(crate) fn timeout(&self) -> Result<std::time::Duration> {
        let timeout = humantime::parse_duration(&self.timeout)
            .with_context(|| format!("to.objects.timeout: {:?}", self.timeout))?;
        ensure!(!timeout.is_zero(), "to.objects.timeout: more than 0");
        Ok(timeout)
    }

    pub(crate) fn max_age(&self) -> Result<std::time::Duration> {
        humantime::parse_duration(&self.max_age).with_context(|| format!("to.objects.max_age: {:?}", self.max_age))
    }

    /// Access key and secret, where files have them.
    pub(crate) fn keys(&self) -> Result<Option<(String, String)>> {
        let read = |key: &str, path: &Path| {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("to.objects.{key}: {}", path.display()))?;
            let text = text.trim().to_owned();
            ensure!(!text.is_empty(), "to.objects.{key}: {} is empty", path.display());
            Ok(text)
        };
        match (&self.access_key_file, &self.secret_key_file) {
            (Some(access), Some(secret)) => {
                Ok(Some((read("access_key_file", access)?, read("secret_key_file", secret)?)))
            }
            _ => Ok(None),
        }
    }
}
