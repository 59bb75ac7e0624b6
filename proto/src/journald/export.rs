//! The journal's export format: <https://systemd.io/JOURNAL_EXPORT_FORMATS/>.
//!
//! Invariants:
//! - What is kept of an entry is bounded, whatever lengths it states: a field has at most half of what is left, so that
//!   those behind a long one have room too. The rest is read and dropped, and the entry says how long it was.
//! - Memory grows with the bytes that came, not with a length that was stated.

use bytes::{Buf, BytesMut};

use super::entry::JournalEntry;

/// Longest name of a field; the journal's own limit is 64.
const NAME_BYTES_MAX: usize = 256;
/// Fields of an entry that are kept; the journal's own limit is 1,024.
const FIELDS_MAX: usize = 2048;
/// Bytes that a field counts beside its name and value: more than a record has for it.
const FIELD_BYTES: usize = 32;

/// Reason why bytes are no entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExportFault {
    /// A name is too long, empty, or has a byte that is no visible ASCII.
    #[error("the name of a field is empty, longer than {NAME_BYTES_MAX} bytes, or not visible ASCII")]
    Name,
    /// A value with a length has no end of line behind it.
    #[error("no end of line behind a field with a length")]
    ValueEnd,
    /// The end is in the middle of an entry.
    #[error("the end is in the middle of a field")]
    Truncated,
}

/// Field that is being read.
#[derive(Debug)]
struct OpenField {
    name: String,
    value: Vec<u8>,
    /// The bytes of the value that are kept.
    max: usize,
    length: u64,
}

/// Place in the format.
#[derive(Debug)]
enum At {
    Name,
    /// A value up to the end of its line.
    Line(OpenField),
    /// The length of a value.
    Length(String),
    /// A value, with the bytes that are to come.
    Value(OpenField, u64),
    /// The end of line behind a value.
    ValueEnd(OpenField),
}

/// Entries of a stream that comes in pieces.
#[derive(Debug)]
pub struct ExportEntries {
    max_bytes: usize,
    left: usize,
    /// Bytes of all values so far, and whether some are not kept.
    length: u64,
    is_cut: bool,
    fields: Vec<(String, Vec<u8>)>,
    at: At,
}

impl ExportEntries {
    /// Of each entry so many bytes are kept.
    #[must_use]
    pub const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, left: max_bytes, length: 0, is_cut: false, fields: Vec::new(), at: At::Name }
    }

    /// Takes bytes off the buffer up to the end of an entry: the entry, or nothing where more bytes are needed.
    ///
    /// # Errors
    /// It is not the format; the rest of the stream is lost.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<JournalEntry>, ExportFault> {
        loop {
            self.at = match std::mem::replace(&mut self.at, At::Name) {
                At::Name => {
                    let Some(end) = buf.iter().position(|byte| matches!(byte, b'=' | b'\n')) else {
                        return if buf.len() > NAME_BYTES_MAX { Err(ExportFault::Name) } else { Ok(None) };
                    };
                    let (has_length, name) = (buf[end] == b'\n', name_of(&buf[..end])?);
                    buf.advance(end + 1);
                    match name {
                        Some(name) if has_length => At::Length(name),
                        Some(name) => At::Line(self.open(name)),
                        None if !has_length => return Err(ExportFault::Name),
                        None => match self.take() {
                            Some(entry) => return Ok(Some(entry)),
                            None => At::Name,
                        },
                    }
                }
                At::Line(mut field) => {
                    let end = line_end(buf);
                    field.take(buf, end.unwrap_or(buf.len()));
                    if end.is_none() {
                        self.at = At::Line(field);
                        return Ok(None);
                    }
                    buf.advance(1);
                    self.close(field);
                    At::Name
                }
                At::Length(name) => {
                    let Some(length) = buf.first_chunk().copied().map(u64::from_le_bytes) else {
                        self.at = At::Length(name);
                        return Ok(None);
                    };
                    buf.advance(size_of::<u64>());
                    At::Value(self.open(name), length)
                }
                At::Value(mut field, to_come) => {
                    let here = usize::try_from(to_come).unwrap_or(usize::MAX).min(buf.len());
                    field.take(buf, here);
                    let to_come = to_come - here as u64;
                    if to_come > 0 {
                        self.at = At::Value(field, to_come);
                        return Ok(None);
                    }
                    At::ValueEnd(field)
                }
                At::ValueEnd(field) => {
                    match buf.first() {
                        Some(b'\n') => buf.advance(1),
                        Some(_) => return Err(ExportFault::ValueEnd),
                        None => {
                            self.at = At::ValueEnd(field);
                            return Ok(None);
                        }
                    }
                    self.close(field);
                    At::Name
                }
            };
        }
    }

    /// The entry before the end of the stream, where no empty line is behind it.
    ///
    /// # Errors
    /// The end is in the middle of a field.
    pub fn last(&mut self, buf: &BytesMut) -> Result<Option<JournalEntry>, ExportFault> {
        match self.at {
            At::Name if buf.is_empty() => Ok(self.take()),
            _ => Err(ExportFault::Truncated),
        }
    }

    fn open(&self, name: String) -> OpenField {
        let max = self.left.saturating_sub(name.len() + FIELD_BYTES) / 2;
        let max = if self.fields.len() < FIELDS_MAX { max } else { 0 };
        OpenField { name, value: Vec::new(), max, length: 0 }
    }

    fn close(&mut self, field: OpenField) {
        self.length = self.length.saturating_add(field.length);
        self.is_cut |= field.length > field.value.len() as u64;
        let bytes = field.name.len() + FIELD_BYTES + field.value.len();
        match self.left.checked_sub(bytes).filter(|_| self.fields.len() < FIELDS_MAX) {
            Some(left) => {
                self.left = left;
                self.fields.push((field.name, field.value));
            }
            None => self.is_cut = true,
        }
    }

    /// The entry so far; nothing where it has no fields.
    fn take(&mut self) -> Option<JournalEntry> {
        let next = Self::new(self.max_bytes);
        let Self { length, is_cut, mut fields, .. } = std::mem::replace(self, next);
        // Stable: values of one name stay in their order.
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        (!fields.is_empty()).then_some(JournalEntry { fields, cut_from: is_cut.then_some(length) })
    }
}

impl OpenField {
    /// Takes so many bytes off the buffer.
    fn take(&mut self, buf: &mut BytesMut, bytes: usize) {
        let kept = bytes.min(self.max - self.value.len());
        self.value.extend_from_slice(&buf[..kept]);
        self.length = self.length.saturating_add(bytes as u64);
        buf.advance(bytes);
    }
}

/// The first line feed. Most bytes are looked at many at once: the compiler makes one comparison of a block.
fn line_end(bytes: &[u8]) -> Option<usize> {
    const BLOCK_BYTES: usize = 32;
    let has_none = |block: &&[u8]| !block.iter().fold(false, |found, byte| found | (*byte == b'\n'));
    let before = BLOCK_BYTES * bytes.chunks_exact(BLOCK_BYTES).take_while(has_none).count();
    bytes[before..].iter().position(|byte| *byte == b'\n').map(|at| before + at)
}

/// A name; nothing of an empty line.
fn name_of(name: &[u8]) -> Result<Option<String>, ExportFault> {
    let is_name = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
    let name = String::from_utf8(name.to_vec()).ok().filter(|_| is_name);
    name.ok_or(ExportFault::Name).map(|name| Some(name).filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::line_end;

    #[test]
    fn the_end_of_a_line_is_found_wherever_it_is() {
        for length in 0..100 {
            assert_eq!(line_end(&vec![b'x'; length]), None);
            for end in 0..length {
                let mut line = vec![b'x'; length];
                line[end..].fill(b'\n');
                assert_eq!(line_end(&line), Some(end), "of {length}");
            }
        }
    }
}
