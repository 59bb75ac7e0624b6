//! A bucket, or a folder: what an archive asks of it.
//!
//! Invariants:
//! - Nothing is overwritten: every write is a conditional create.
//! - What may succeed later is tried again, for ever, with longer and longer pauses; the log keeps what is not stored.
//! - A create that found something says just that. Its answer may have been lost before, so the object itself says whose it is.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{Certificate, ClientOptions};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, BackoffConfig, Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig,
};
use parquet::file::metadata::ParquetMetaDataReader;
use tokio::time::sleep;

use super::names::{self, Names};
use super::object::Described;
use super::raw;
use crate::config::{Format, OBJECT_BYTES_MIN, Place, ToObjects};
use crate::metrics;

/// Pauses between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The end of a Parquet file: the length of its footer, and four letters.
const TAIL_BYTES: u64 = 8;

/// Name of a failure in the metrics: there was no answer in time.
const TIMEOUT: &str = "timeout";

/// The bucket.
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// A folder has none: the file alone says what it is.
    has_metadata: bool,
    pub(super) prefix: Path,
    url: String,
}

/// The end of a create.
pub(super) enum Created {
    Done,
    /// Something is there, or somebody writes it now.
    Exists,
    /// There is no bucket.
    NoBucket,
    /// It was not stored within the longest time of a request, and a smaller one may be. Or it is there, and the answer is late.
    TooSlow,
}

/// An object under one of our names.
pub(super) enum Found {
    Nothing,
    Ours(Box<Described>),
    /// Somebody else's, and why it is not ours.
    Foreign(String),
}

/// Pauses that double, each by chance up to a quarter shorter: relays that were away together do not come back together.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) const fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    pub(super) async fn pause(&mut self) {
        let chance = u32::try_from(crate::log::now() / 1000 % 256).unwrap_or_default();
        sleep(self.0 - self.0 * chance / 1024).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

impl Bucket {
    pub(super) fn open(to: &ToObjects) -> Result<Self> {
        let url = to.url.clone();
        match to.place()? {
            Place::Folder(folder) => {
                let store = LocalFileSystem::new_with_prefix(&folder)
                    .with_context(|| format!("to.objects.url: no folder {}", folder.display()))?;
                let store = Arc::new(store.with_fsync(true));
                Ok(Self { store, has_metadata: false, prefix: Path::default(), url })
            }
            Place::Bucket { bucket, prefix } => {
                let store = Arc::new(s3(to, &bucket)?);
                Ok(Self { store, has_metadata: true, prefix: Path::from(prefix), url })
            }
        }
    }

    /// Asks until there is an answer for good: what is there, or that nothing or something is.
    async fn ask<T>(&self, what: &str, question: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        self.ask_until(what, question, |_| false).await
    }

    /// As [`ask`](Self::ask), or until a failure with this name in the metrics.
    async fn ask_until<T>(
        &self,
        what: &str,
        question: impl AsyncFn() -> Result<T, Error>,
        is_enough: impl Fn(&str) -> bool,
    ) -> Result<T, Error> {
        let (mut pauses, mut said) = (Pauses::new(), false);
        loop {
            match question().await {
                Err(error) if !is_answer(&error) => {
                    let words = in_words(&error);
                    let reason = reason(&error, &words);
                    metrics::retried(reason);
                    if is_enough(reason) {
                        return Err(error);
                    }
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("{} does not {what} now, and is asked again: {words}", self.url);
                    }
                    pauses.pause().await;
                }
                answer => {
                    if said {
                        tracing::info!("{} answers again", self.url);
                    }
                    return answer;
                }
            }
        }
    }

    /// As [`ask`](Self::ask), where nothing can be missing but the bucket itself.
    async fn ask_for_all<T>(&self, what: &str, question: impl AsyncFn() -> Result<T, Error>) -> Result<T> {
        let (mut pauses, mut said) = (Pauses::new(), false);
        loop {
            match self.ask(what, &question).await {
                Err(Error::NotFound { .. }) => {
                    self.no_bucket(&mut said);
                    pauses.pause().await;
                }
                answer => return answer.with_context(|| format!("{} does not {what}", self.url)),
            }
        }
    }

    fn no_bucket(&self, said: &mut bool) {
        metrics::retried("forbidden");
        if !std::mem::replace(said, true) {
            tracing::warn!("{}: there is no such bucket now, and it is asked for again", self.url);
        }
    }

    /// The histories of a log, ascending.
    pub(super) async fn histories(&self, names: &Names) -> Result<Vec<u32>> {
        let question = async || self.store.list_with_delimiter(Some(names.log())).await;
        let listed = self.ask_for_all("list", question).await?;
        let mut histories: Vec<u32> =
            listed.common_prefixes.iter().filter_map(|folder| names.history_of(folder)).collect();
        histories.sort_unstable();
        Ok(histories)
    }

    /// First offsets of the objects of a history, ascending; those behind an offset alone, where one is given. And the names
    /// that are none of ours.
    pub(super) async fn objects(
        &self,
        names: &Names,
        history: u32,
        behind: Option<u64>,
    ) -> Result<(Vec<u64>, Vec<String>)> {
        let folder = names.history(history);
        let question = async || match behind {
            Some(first) => {
                let listed = self.store.list_with_offset(Some(&folder), &names.object(history, first));
                listed.try_collect::<Vec<_>>().await
            }
            None => self.store.list(Some(&folder)).try_collect().await,
        };
        let (mut firsts, mut others) = (Vec::new(), Vec::new());
        for object in self.ask_for_all("list", question).await? {
            match names.first_of(&object.location) {
                Some(first) => firsts.push(first),
                None if names::is_origin(&object.location) => {}
                None => others.push(object.location.to_string()),
            }
        }
        firsts.sort_unstable();
        Ok((firsts, others))
    }

    /// An object's content; nothing where there is none.
    pub(super) async fn read(&self, path: &Path) -> Result<Option<Bytes>> {
        let question = async || self.store.get(path).await?.bytes().await;
        match self.ask("read", question).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error).context("an object cannot be read"),
        }
    }

    /// What an object of a form says of itself.
    pub(super) async fn find(&self, path: &Path, format: Format) -> Result<Found> {
        let head = async || self.store.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await;
        let head = match self.ask("read", head).await {
            Ok(head) => head,
            Err(Error::NotFound { .. }) => return Ok(Found::Nothing),
            Err(error) => return Err(error).context("an object cannot be looked at"),
        };
        let said = match Described::of_attributes(&head.attributes) {
            Ok(None) => self.footer(path, head.meta.size, format).await,
            said => said,
        };
        Ok(match said {
            Ok(Some(described)) => Found::Ours(Box::new(described)),
            Ok(None) => Found::Foreign("it says nothing of a log".to_owned()),
            Err(error) => Found::Foreign(format!("{error:#}")),
        })
    }

    /// From the object itself: a folder keeps no metadata, and a copy may have lost it.
    async fn footer(&self, path: &Path, size: u64, format: Format) -> Result<Option<Described>> {
        let is_none = match format {
            Format::Parquet => "it is no Parquet file",
            Format::Raw => "it is no object of a raw archive",
        };
        let part = async |from: u64| self.ask("read", async || self.store.get_range(path, from..size).await).await;
        let from = size.checked_sub(TAIL_BYTES).context(is_none)?;
        let tail = part(from).await?;
        let length = match format {
            Format::Parquet => {
                tail.first_chunk().filter(|_| tail.ends_with(b"PAR1")).map(|length| u32::from_le_bytes(*length).into())
            }
            Format::Raw => raw::length_of_words(&tail),
        };
        let from = length.and_then(|length: u64| from.checked_sub(length)).context(is_none)?;
        let footer = part(from).await?;
        let footer = footer.get(..footer.len().saturating_sub(TAIL_BYTES as usize)).unwrap_or_default();
        match format {
            Format::Parquet => {
                Described::of_metadata(&ParquetMetaDataReader::decode_metadata(footer).context(is_none)?)
            }
            Format::Raw => raw::described(footer),
        }
    }

    /// Creates an object, if there is none. What is not stored in time is not sent again whole, where it can be smaller.
    pub(super) async fn create(&self, path: &Path, payload: &PutPayload, attributes: Attributes) -> Result<Created> {
        let attributes = if self.has_metadata { attributes } else { Attributes::new() };
        let options = || PutOptions { mode: PutMode::Create, attributes: attributes.clone(), ..PutOptions::default() };
        let question = async || self.store.put_opts(path, payload.clone(), options()).await;
        let is_small = payload.content_length() as u64 <= OBJECT_BYTES_MIN;
        let is_too_slow = |reason: &str| reason == TIMEOUT && !is_small;
        match self.ask_until("store", question, is_too_slow).await {
            Ok(_) => Ok(Created::Done),
            Err(error) if !is_answer(&error) => Ok(Created::TooSlow),
            Err(Error::AlreadyExists { .. }) => Ok(Created::Exists),
            Err(Error::NotFound { .. }) => {
                self.no_bucket(&mut false);
                Ok(Created::NoBucket)
            }
            Err(error) => Err(error).context("an object cannot be stored"),
        }
    }

    /// A store that takes a conditional create where something is would let two relays overwrite each other.
    pub(super) async fn ensure_conditional(&self, path: &Path, content: &Bytes) -> Result<()> {
        let payload = PutPayload::from(content.clone());
        // The first one may have found nothing: then it is there for the second.
        for _ in 0..2 {
            if !matches!(self.create(path, &payload, Attributes::new()).await?, Created::Done) {
                return Ok(());
            }
        }
        bail!(
            "{} overwrites what is there in spite of If-None-Match: an archive needs a store with conditional \
             writes",
            self.url
        )
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

fn s3(to: &ToObjects, bucket: &str) -> Result<object_store::aws::AmazonS3> {
    let is_http = to.endpoint()?.is_some_and(|endpoint| endpoint.scheme() == "http");
    let mut options = ClientOptions::new().with_timeout(to.timeout()?).with_allow_http(is_http);
    if let Some(ca) = &to.ca {
        let pem = std::fs::read(ca).with_context(|| format!("to.objects.ca: {}", ca.display()))?;
        let all = Certificate::from_pem_bundle(&pem).with_context(|| format!("to.objects.ca: {}", ca.display()))?;
        options = all.into_iter().fold(options, ClientOptions::with_root_certificate);
    }
    // It does not retry by itself: tries are counted and shown here, and wait as long as it takes.
    let retry = RetryConfig { max_retries: 0, backoff: BackoffConfig::default(), ..RetryConfig::default() };
    let mut builder =
        AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry).with_client_options(options);
    if let Some(region) = &to.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &to.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some((access, secret)) = to.keys()? {
        builder = builder.with_access_key_id(access).with_secret_access_key(secret);
    }
    builder.build().context("to.objects")
}

/// True of what is no failure: something is there, or nothing.
const fn is_answer(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::AlreadyExists { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
    )
}

/// A failure with its causes: the last of them is what a person can act on. Some repeat what is below them.
fn in_words(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}

/// A failure's name in the metrics.
fn reason(error: &Error, text: &str) -> &'static str {
    if matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) {
        return "forbidden";
    }
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match () {
        () if has(&["SlowDown", "429 "]) => "throttled",
        () if has(&["502 ", "503 ", "504 "]) => "unavailable",
        () if has(&["timed out", "Timeout", "timeout"]) => TIMEOUT,
        () if has(&["onnection refused", "connect error", "dns error"]) => "connect",
        () if has(&["status code", "error response", "LocalFileSystem"]) => "error",
        () => "connection",
    }
}
