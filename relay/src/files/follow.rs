//! A file that is followed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::lines::{Found, Rules};
use super::place::{FileId, Place};

/// Bytes that are read of a file at once.
const PIECE_BYTES: usize = 256 << 10;
/// Silence after which a record of several lines has ended.
const RECORD_END: Duration = Duration::from_secs(1);
/// Silence after which nobody writes to a renamed file any more: a writer has it open until it opens the next.
const RENAMED_END: Duration = Duration::from_secs(5);
/// Bytes at the beginning by which a copy is known.
const HEAD_BYTES: u64 = 64 << 10;

/// Limits of an append.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) records: usize,
}

impl Limits {
    /// Records of a piece fit an append, however short they are: a record has less than 64 bytes beside its text, and the
    /// last one has its place.
    pub(super) fn of(max_append: u32) -> Self {
        let bytes = PIECE_BYTES.min(max_append as usize / 4);
        Self { bytes, records: bytes / 64 }
    }
}

/// A file.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) place: Place,
    pub(super) file: File,
    /// No pattern finds it any more.
    pub(super) is_renamed: bool,
    /// Its length and time of change at the last look, and since when they are so.
    length: u64,
    modified: Option<SystemTime>,
    since: Instant,
    /// The bytes before the place are what they were.
    is_checked: bool,
    /// Up to here there is no end of a line.
    no_newline_to: u64,
}

/// Records of a file, and its place behind them.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    pub(super) records: Vec<Found>,
    pub(super) place: Place,
}

/// What is there behind the place.
#[derive(Debug)]
pub(super) enum Look {
    /// Nothing now.
    Nothing,
    /// Nothing, and the file is done.
    Done,
    /// Other bytes than those that were read.
    Truncated,
    Records(Piece),
}

impl Followed {
    pub(super) fn new(place: Place, file: File) -> Self {
        let since = Instant::now();
        Self { place, file, is_renamed: false, length: 0, modified: None, since, is_checked: false, no_newline_to: 0 }
    }

    /// Bytes that are not stored.
    pub(super) fn behind(&self) -> u64 {
        self.length.saturating_sub(self.place.position)
    }

    pub(super) fn stored(&mut self, place: Place) {
        self.place = place;
    }

    /// It begins again: its bytes are others.
    pub(super) fn begins_again(&mut self) {
        let place = Place::at_start(self.place.id, &self.place.path);
        (self.place, self.length, self.no_newline_to, self.is_checked) = (place, 0, 0, false);
    }

    /// Looks behind the place.
    pub(super) fn look(&mut self, rules: &Rules, limits: Limits) -> io::Result<Look> {
        let metadata = self.file.metadata()?;
        let (length, modified) = (metadata.len(), metadata.modified().ok());
        if length != self.length || modified != self.modified {
            (self.length, self.modified, self.since, self.is_checked) = (length, modified, Instant::now(), false);
        }
        let position = self.place.position;
        if length < position {
            return Ok(Look::Truncated);
        }
        let is_end = self.is_renamed && self.since.elapsed() >= RENAMED_END;
        // Also where nothing is behind the place: the number of a file that is gone may be that of another one as long.
        if !std::mem::replace(&mut self.is_checked, true) && !self.place.fits(&self.file)? {
            return Ok(Look::Truncated);
        }
        if length == position {
            return Ok(if is_end { Look::Done } else { Look::Nothing });
        }
        if self.no_newline_to == length && !is_end {
            return Ok(Look::Nothing);
        }
        let piece = self.read(limits.bytes)?;
        let is_whole = position + piece.len() as u64 >= length;
        let is_last = is_whole && self.since.elapsed() >= RECORD_END;
        let mut records = rules.split(&piece, limits.records, (is_last, is_whole && is_end));
        if records.is_empty() && piece.len() == limits.bytes {
            // Lines of one record fill the piece, or one line does.
            records = rules.split(&piece, limits.records, (true, false));
            if records.is_empty() {
                records.extend(self.long_line(rules, length, is_end)?);
            }
        }
        let Some(end) = records.last().map(|record| position + record.end as u64) else { return Ok(Look::Nothing) };
        // Truncated meanwhile: the next look finds that by the place as it was, and the rest in a copy.
        let Some(place) = self.place.moved(end, &self.file)? else { return Ok(Look::Nothing) };
        Ok(Look::Records(Piece { bytes: piece, records, place }))
    }

    fn read(&self, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; max.min(usize::try_from(self.behind()).unwrap_or(usize::MAX))];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], self.place.position + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// A line that is longer than a piece: its end is looked for, and its beginning is the record.
    fn long_line(&mut self, rules: &Rules, length: u64, is_end: bool) -> io::Result<Option<Found>> {
        let begin = self.place.position;
        let mut at = self.no_newline_to.max(begin);
        let mut bytes = vec![0; PIECE_BYTES];
        let end = loop {
            let read = self.file.read_at(&mut bytes, at)?;
            if let Some(newline) = bytes[..read].iter().position(|byte| *byte == b'\n') {
                break Some((at + newline as u64, 1));
            }
            if read == 0 {
                break is_end.then_some((at, 0));
            }
            at += read as u64;
        };
        self.no_newline_to = if end.is_some() { 0 } else { length };
        Ok(end.map(|(end, newline)| {
            let line = usize::try_from(end - begin).unwrap_or(usize::MAX);
            let cut_from = (line > rules.max_record).then_some(line);
            Found { body: 0..line.min(rules.max_record), end: line + newline, cut_from }
        }))
    }

    /// Another file is, or is becoming, a copy of this one.
    pub(super) fn is_copied_to(&self, other: &File, path: &Path) -> io::Result<bool> {
        if !self.place.may_be_named(path) {
            return Ok(false);
        }
        if self.place.position > 0 && self.place.fits(other)? {
            return Ok(true);
        }
        let same = HEAD_BYTES.min(self.file.metadata()?.len()).min(other.metadata()?.len());
        Ok(same > 0 && head(&self.file, same)? == head(other, same)?)
    }
}

/// The first bytes of a file; less where it is shorter by now.
fn head(file: &File, bytes: u64) -> io::Result<Vec<u8>> {
    let mut head = vec![0; bytes as usize];
    let read = file.read_at(&mut head, 0)?;
    head.truncate(read);
    Ok(head)
}

/// Opens a file; nothing where it is gone, or not readable as one.
pub(super) fn open(path: &Path) -> io::Result<Option<(FileId, File)>> {
    match File::open(path) {
        Ok(file) => {
            let metadata = file.metadata()?;
            Ok(metadata.is_file().then(|| (FileId::of(&metadata), file)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
