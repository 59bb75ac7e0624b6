//! How far a file is stored, as a record has it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use clad_proto::AnyValue;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::log::LastRecord;

const DEVICE: &str = "log.file.device";
const INODE: &str = "log.file.inode";
const BORN: &str = "clad.source.born";
/// Bytes of the file up to the end of a record.
pub(crate) const POSITION: &str = "log.file.position";
pub(super) const PATH: &str = "log.file.path";
const CHECK: &str = "clad.source.check";
/// Offset of the last record with the places of all files.
pub(super) const CHECKPOINT: &str = "clad.source.checkpoint";
/// Attribute with these places.
pub(super) const PLACES: &str = "clad.source.places";
/// Bytes before a place that are checked.
const CHECK_BYTES: u64 = 256;

/// A file, whatever it is called. The number of one that is gone is soon given to another, so it is known by its birth too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Unix nanoseconds; 0 where the file system does not say.
    born: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born = born.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        Self { device: metadata.dev(), inode: metadata.ino(), born }
    }
}

/// How far a file is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    #[serde(flatten)]
    pub(super) id: FileId,
    pub(super) path: PathBuf,
    pub(super) position: u64,
    /// Of the bytes before it.
    pub(super) check: u64,
}

impl Place {
    pub(super) fn at_start(id: FileId, path: &Path) -> Self {
        Self { id, path: path.to_owned(), position: 0, check: 0 }
    }

    /// The place at a position of the file; nothing where the file has become shorter.
    pub(super) fn moved(&self, position: u64, file: &File) -> io::Result<Option<Self>> {
        Ok(check_of(file, position)?.map(|check| Self { position, check, ..self.clone() }))
    }

    /// The file has the bytes before the place that it had.
    pub(super) fn fits(&self, file: &File) -> io::Result<bool> {
        Ok(self.position == 0 || check_of(file, self.position)? == Some(self.check))
    }

    /// A name that logrotate could give this file, or a copy of it.
    pub(super) fn may_be_named(&self, path: &Path) -> bool {
        let stem = self.path.file_stem().unwrap_or_default().as_encoded_bytes();
        path.parent() == self.path.parent()
            && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(stem))
    }

    /// Attributes of the last record of an append.
    pub(super) fn attributes(&self, checkpoint: u64) -> [(&'static str, i64); 6] {
        [
            (DEVICE, self.id.device.cast_signed()),
            (INODE, self.id.inode.cast_signed()),
            (BORN, self.id.born.cast_signed()),
            (POSITION, self.position.cast_signed()),
            (CHECK, self.check.cast_signed()),
            (CHECKPOINT, checkpoint.cast_signed()),
        ]
    }

    /// The place that a record says, whose append is of a file of this path.
    pub(super) fn of_record(record: &LastRecord, path: &str) -> Option<Self> {
        let number = |key| match record.attribute(key) {
            Some(AnyValue::Int(number)) => Some(number.cast_unsigned()),
            _ => None,
        };
        let id = FileId { device: number(DEVICE)?, inode: number(INODE)?, born: number(BORN)? };
        Some(Self { id, path: path.into(), position: number(POSITION)?, check: number(CHECK)? })
    }
}

/// Places of all files, as a record has them.
pub(super) fn to_text(places: &[Place]) -> Result<String> {
    serde_json::to_string(places).context("places as JSON")
}

pub(super) fn of_text(text: &str) -> Result<Vec<Place>> {
    serde_json::from_str(text).context("a record of places is broken")
}

/// Sum of the bytes before a position; nothing where the file is shorter.
pub(super) fn check_of(file: &File, position: u64) -> io::Result<Option<u64>> {
    let mut bytes = [0; CHECK_BYTES as usize];
    let bytes = &mut bytes[..position.min(CHECK_BYTES) as usize];
    match file.read_exact_at(bytes, position - bytes.len() as u64) {
        Ok(()) => {
            let mut sum = [0; 8];
            sum.copy_from_slice(&Sha256::digest(bytes)[..8]);
            Ok(Some(u64::from_le_bytes(sum)))
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
