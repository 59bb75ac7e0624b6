//! Names of an archive's objects.
//!
//! Invariants: a name is made of the log, the history and the first offset alone, so that two relays that write the same offsets
//! meet at one name. The order of the names is that of the offsets. Each form has folders of its own: its chain is complete.

use clad_client::LogId;
use object_store::path::Path;

use crate::config::Format;

/// Digits of a history and of an offset: their greatest numbers fit.
const HISTORY_DIGITS: usize = 10;
const OFFSET_DIGITS: usize = 20;
const ORIGIN: &str = "_origin";

/// How the folders of a form begin, and how its objects end.
const fn parts(format: Format) -> (&'static str, &'static str) {
    match format {
        Format::Parquet => ("history=", ".parquet"),
        Format::Raw => ("raw=", ".raw.zst"),
    }
}

/// The names of one log's objects.
#[derive(Debug, Clone)]
pub(super) struct Names {
    log: Path,
    format: Format,
}

impl Names {
    pub(super) fn new(prefix: &Path, log_id: LogId, format: Format) -> Self {
        Self { log: Path::from_iter(prefix.parts().chain([format!("log={log_id}").into()])), format }
    }

    pub(super) const fn format(&self) -> Format {
        self.format
    }

    /// Folder of the log.
    pub(super) const fn log(&self) -> &Path {
        &self.log
    }

    /// Folder of a history.
    pub(super) fn history(&self, history: u32) -> Path {
        self.log.clone().join(format!("{}{history:0HISTORY_DIGITS$}", parts(self.format).0))
    }

    /// The object that names the first offset of a history.
    pub(super) fn origin(&self, history: u32) -> Path {
        self.history(history).join(ORIGIN)
    }

    /// The object that begins at an offset.
    pub(super) fn object(&self, history: u32, first: u64) -> Path {
        self.history(history).join(format!("{first:0OFFSET_DIGITS$}{}", parts(self.format).1))
    }

    /// The history of a folder.
    pub(super) fn history_of(&self, folder: &Path) -> Option<u32> {
        let digits = folder.filename()?.strip_prefix(parts(self.format).0)?;
        (digits.len() == HISTORY_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse().ok())?
    }

    /// The first offset of an object; nothing where it has another name.
    pub(super) fn first_of(&self, object: &Path) -> Option<u64> {
        let digits = object.filename()?.strip_suffix(parts(self.format).1)?;
        (digits.len() == OFFSET_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse().ok())?
    }
}

/// True of the object that names the first offset.
pub(super) fn is_origin(object: &Path) -> bool {
    object.filename() == Some(ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_log_history_and_first_offset() {
        let log_id = LogId::from_bytes([0xab; 16]);
        for (format, folder, suffix) in [(Format::Parquet, "history", "parquet"), (Format::Raw, "raw", "raw.zst")] {
            let names = Names::new(&Path::from("logs/host-1"), log_id, format);
            let object = names.object(3, 65_536);
            let folder = format!("logs/host-1/log={log_id}/{folder}=0000000003");
            assert_eq!(object.as_ref(), format!("{folder}/00000000000000065536.{suffix}"));
            assert_eq!(names.origin(3).as_ref(), format!("{folder}/_origin"));
            assert_eq!((names.first_of(&object), names.history_of(&names.history(3))), (Some(65_536), Some(3)));
            assert_eq!(names.first_of(&names.object(3, u64::MAX)), Some(u64::MAX));
            assert_eq!(names.history_of(&names.history(u32::MAX)), Some(u32::MAX));
            let without = Names::new(&Path::default(), log_id, format);
            assert_eq!(without.log().as_ref(), format!("log={log_id}"));
        }
    }

    #[test]
    fn names_are_in_the_order_of_their_offsets() {
        let names = Names::new(&Path::default(), LogId::from_bytes([1; 16]), Format::Parquet);
        let offsets = [0, 9, 10, 99, 1 << 32, u64::MAX];
        let all: Vec<_> = offsets.iter().map(|&first| names.object(1, first).to_string()).collect();
        assert!(all.is_sorted(), "{all:?}");
    }

    #[test]
    fn another_name_is_none_of_ours() {
        let names = Names::new(&Path::default(), LogId::from_bytes([1; 16]), Format::Parquet);
        let raw = Names::new(&Path::default(), LogId::from_bytes([1; 16]), Format::Raw);
        for name in ["a/00000000000000000001.parquet.new", "a/1.parquet", "a/+0000000000000000001.parquet", "a/_origin"]
        {
            assert_eq!(names.first_of(&Path::from(name)), None, "{name}");
        }
        assert!(is_origin(&Path::from("a/_origin")));
        assert_eq!(names.history_of(&Path::from("a/history=3")), None);
        // The other form's folders and objects are none of this one's.
        assert_eq!(raw.history_of(&names.history(3)), None);
        assert_eq!(names.first_of(&raw.object(3, 1)), None);
    }
}
