//! Arguments of an export, and what is written down of them.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clad_proto::Cursor;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::read::FilterArgs;
use crate::read::filter::Priorities;

/// The forms of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The body and a newline, byte for byte
    Cat,
    /// One JSON object a line
    Json,
    /// Whole appends as their clients sent them, with their checksums (docs/FORMAT.md)
    Raw,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The file to write; an earlier export into it is continued. `-`, or none: standard output
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Form of the records
    #[arg(short, long, value_enum, default_value_t = Output::Json, value_name = "FORM")]
    pub(crate) output: Output,
    /// Read the files in this data folder; no daemon is needed, and none is disturbed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The first offset to copy
    #[arg(long, value_name = "OFFSET", conflicts_with = "after_cursor")]
    pub(crate) from: Option<u64>,
    /// The offset after the last to copy [default: everything that is durable now]
    #[arg(long, value_name = "OFFSET")]
    pub(crate) to: Option<u64>,
    /// Start after this cursor, from an earlier export or `query --show-cursor`
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after_cursor: Option<Cursor>,
    /// Which of them
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Start again, and overwrite FILE
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Permissions of a FILE that is made
    #[arg(long, value_name = "MODE", value_parser = mode, default_value = "0600")]
    pub(crate) mode: u32,
    /// Make FILE durable, and store the progress, each time this much was written
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) sync_every: ByteSize,
}

fn mode(text: &str) -> Result<u32, &'static str> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or("octal digits are wanted, as in 0640")
}

impl ExportArgs {
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| path.as_os_str() != "-")
    }

    pub(super) fn request(&self) -> Request {
        let form = self.output.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        Request {
            output: form,
            from: self.from,
            to: self.to,
            after_cursor: self.after_cursor.map(|cursor| cursor.to_string()),
            since: self.filter.since.clone(),
            until: self.filter.until.clone(),
            priority: self.filter.priority,
            component: self.filter.component.clone(),
            grep: self.filter.grep.clone(),
        }
    }
}

/// The request, as it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) output: String,
    pub(super) from: Option<u64>,
    pub(super) to: Option<u64>,
    pub(super) after_cursor: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    pub(super) priority: Option<Priorities>,
    pub(super) component: Vec<String>,
    pub(super) grep: Option<String>,
}
