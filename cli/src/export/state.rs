//! The progress of an export into a file: a small file beside it, `FILE.export`.
//!
//! Invariants: it is replaced as a whole, durably, and only after the file was synced. It is one JSON object, so that
//! a person can read it; what is asked for stands in it as it was said, so that a call that asks for something else is
//! refused instead of mixing two exports in a file.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clad_proto::{Cursor, LogId, payload_checksum};
use serde::{Deserialize, Serialize};

use super::args::{ExportArgs, Request};
use super::durable::{replace, sync_folder};
use crate::exit::Stop;
use crate::read::filter::Filter;

/// The version of the form.
const VERSION: u32 = 1;

/// Progress of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// [`VERSION`]
    pub(super) version: u32,
    /// The log that it is from.
    pub(super) log_id: String,
    /// Where to go on; nothing before the first record.
    pub(super) cursor: Option<String>,
    /// The offset in it, or where it began.
    pub(super) next: u64,
    /// Bytes of the file that are durable.
    pub(super) bytes: u64,
    /// CRC-32C of the last 4096 of them.
    pub(super) tail_crc32c: u32,
    /// Records in them.
    pub(super) records: u64,
    /// Damage was met.
    pub(super) damaged: bool,
    /// Meaning of `--since` when it was said.
    pub(super) since_unix_ns: Option<i64>,
    /// Meaning of `--until` then.
    pub(super) until_unix_ns: Option<i64>,
    /// The request.
    pub(super) request: Request,
}

impl State {
    /// Nothing done yet.
    pub(super) fn begin(log_id: LogId, args: &ExportArgs, filter: &Filter) -> Self {
        Self {
            version: VERSION,
            log_id: log_id.to_string(),
            cursor: None,
            next: args.from.unwrap_or(0),
            bytes: 0,
            tail_crc32c: payload_checksum(&[]),
            records: 0,
            damaged: false,
            since_unix_ns: filter.since,
            until_unix_ns: filter.until,
            request: args.request(),
        }
    }

    /// Everything below a place was looked at.
    pub(super) fn pass(&mut self, cursor: Cursor) {
        self.next = cursor.offset;
        self.cursor = Some(cursor.to_string());
    }

    /// Where to go on.
    pub(super) fn place(&self) -> Result<Option<Cursor>, Stop> {
        let parsed = self.cursor.as_deref().map(str::parse).transpose();
        parsed.map_err(|error| Stop::Failed(anyhow!("the state of the export names no place: {error}")))
    }

    /// Writes it beside the file.
    pub(super) fn write(&self, file: &Path) -> Result<(), Stop> {
        let path = beside(file);
        let text = serde_json::to_string_pretty(self).map_err(anyhow::Error::new)? + "\n";
        Ok(replace(&path, text.as_bytes()).with_context(|| path.display().to_string())?)
    }
}

/// The name of the state of a file.
pub(super) fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".export");
    name.into()
}

/// The state of an earlier export into a file; nothing where there is none, and the file may be begun.
pub(super) fn find(file: &Path, request: &Request, fresh: bool) -> Result<Option<State>, Stop> {
    if fresh {
        return Ok(None);
    }
    let path = beside(file);
    let name = path.display();
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return match fs::metadata(file) {
                Ok(found) if !found.is_file() => {
                    Err(Stop::usage(format!("{} is no plain file; use a pipe instead", file.display())))
                }
                Ok(found) if found.len() > 0 => Err(Stop::Failed(anyhow!(
                    "{} exists without {name}, which holds the progress of an export; --fresh starts again",
                    file.display()
                ))),
                _ => Ok(None),
            };
        }
        Err(e) => return Err(Stop::Failed(anyhow::Error::new(e).context(name.to_string()))),
    };
    let state: State = serde_json::from_slice(&text).with_context(|| format!("{name}; --fresh starts again"))?;
    if !file.exists() && state.bytes > 0 {
        return Err(Stop::Failed(anyhow!(
            "{name} describes {}, which does not exist; --fresh starts again",
            file.display()
        )));
    }
    if state.version != VERSION {
        return Err(Stop::Failed(anyhow!("{name} is of version {}, this clactl knows {VERSION}", state.version)));
    }
    if state.request != *request {
        return Err(Stop::Failed(anyhow!(
            "{} holds an export that asked for something else ({}); give another file, or --fresh",
            file.display(),
            serde_json::to_string(&state.request).unwrap_or_default()
        )));
    }
    Ok(Some(state))
}

/// Removes the state of a file that is begun again, durably: before the file is touched.
pub(super) fn remove(file: &Path) -> Result<(), Stop> {
    let path = beside(file);
    match fs::remove_file(&path).and_then(|()| sync_folder(&path)) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(Stop::Failed(anyhow::Error::new(e).context(path.display().to_string())))
        }
        _ => Ok(()),
    }
}
