//! Lines from a stream of bytes, in groups.
//!
//! Invariants: a line ends at `\n` and nowhere else, and the `\n` is no part of it; what follows the last `\n` is a
//! line if it is not empty; every byte of the input is in exactly one line. A group is what is already here, up to
//! [`GroupSize`]: a full pipe gives large groups, a slow one gives each line at once. No more is held than one group,
//! one read and one line of the longest length; a longer line is refused by its number before it is whole, or split.

use std::io::{self, Read};

use bytes::{Bytes, BytesMut};

/// Bytes that one read asks for.
const READ_BYTES: usize = 256 * 1024;

/// The largest group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupSize {
    /// Lines, at least 1.
    pub(crate) lines: usize,
    /// Bytes of lines; a single line may be longer.
    pub(crate) bytes: usize,
    /// Wait for a full group, whatever is already here.
    pub(crate) wait: bool,
}

/// Why there is no further line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// A line that no record can hold.
    #[error(
        "line {line} is longer than {limit} bytes, the longest that goes this way (journal.max_record_bytes; by a ring a quarter of ingest.shm.ring_bytes)"
    )]
    TooLong {
        /// Its number, counted from 1.
        line: u64,
        /// The longest that goes.
        limit: usize,
    },
    /// The input cannot be read.
    #[error("line {line}: {source}")]
    Read {
        /// The line that was being read.
        line: u64,
        /// The system's error.
        source: io::Error,
    },
}

/// Takes lines out of an input.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    buffer: BytesMut,
    /// No `\n` lies in the buffer before this.
    searched: usize,
    taken: u64,
    limit: usize,
    /// A longer line is split, and not refused.
    splits: bool,
    /// The line that was taken last is a piece, and its line continues.
    continues: bool,
    ended: bool,
    /// Met while a group was being read; returned with the next one.
    failed: Option<LineError>,
}

impl<R: Read> Lines<R> {
    /// Lines of at most `limit` bytes.
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self {
            input,
            buffer: BytesMut::new(),
            searched: 0,
            taken: 0,
            limit,
            splits: false,
            continues: false,
            ended: false,
            failed: None,
        }
    }

    /// Lines in pieces of at most `limit` bytes.
    pub(crate) fn split(input: R, limit: usize) -> Self {
        Self { splits: true, ..Self::new(input, limit) }
    }

    /// Returns true if the last line of the last group is a piece, and its line continues in the next group.
    pub(crate) const fn continues(&self) -> bool {
        self.continues
    }

    /// The next lines; at least one, or none at the end. After an error there are no more.
    pub(crate) fn next_group(&mut self, size: GroupSize) -> Result<Vec<Bytes>, LineError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut group = Vec::new();
        let mut bytes = 0;
        self.continues = false;
        while group.len() < size.lines.max(1) && bytes < size.bytes && !self.continues {
            match self.take() {
                Ok(Some(line)) => {
                    bytes += line.len();
                    group.push(line);
                }
                Ok(None) if self.ended => break,
                Ok(None) if !group.is_empty() && !size.wait => break,
                Ok(None) => self.failed = self.fill().err(),
                Err(error) => self.failed = Some(error),
            }
            if self.failed.is_some() {
                break;
            }
        }
        match self.failed.take() {
            Some(error) if group.is_empty() => Err(error),
            // What came before it is given first.
            later => {
                self.failed = later;
                Ok(group)
            }
        }
    }

    /// The next line that is whole in the buffer.
    fn take(&mut self) -> Result<Option<Bytes>, LineError> {
        let rest = self.buffer.get(self.searched..).unwrap_or_default();
        let found = rest.iter().position(|&byte| byte == b'\n').map(|at| self.searched + at);
        let len = found.unwrap_or(self.buffer.len());
        if len > self.limit && self.splits {
            self.continues = true;
            self.searched = 0;
            self.taken += 1;
            return Ok(Some(self.buffer.split_to(self.limit).freeze()));
        }
        if len > self.limit {
            return Err(LineError::TooLong { line: self.taken + 1, limit: self.limit });
        }
        let line = match found {
            Some(end) => {
                let mut line = self.buffer.split_to(end + 1);
                line.truncate(end);
                line
            }
            None if self.ended && !self.buffer.is_empty() => self.buffer.split(),
            None => {
                self.searched = len;
                return Ok(None);
            }
        };
        self.searched = 0;
        self.taken += 1;
        Ok(Some(line.freeze()))
    }

    fn fill(&mut self) -> Result<(), LineError> {
        let len = self.buffer.len();
        self.buffer.resize(len + READ_BYTES, 0);
        let read = loop {
            match self.input.read(self.buffer.get_mut(len..).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(source) => return Err(LineError::Read { line: self.taken + 1, source }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: GroupSize = GroupSize { lines: 3, bytes: 1 << 20, wait: false };

    /// Gives the input in pieces, as a pipe does.
    struct Pieces<'a>(Vec<&'a [u8]>);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn all(pieces: Vec<&[u8]>, limit: usize) -> Result<Vec<Vec<u8>>, LineError> {
        let mut lines = Lines::new(Pieces(pieces), limit);
        let mut out = Vec::new();
        loop {
            let group = lines.next_group(SIZE)?;
            if group.is_empty() {
                return Ok(out);
            }
            assert!(group.len() <= SIZE.lines);
            out.extend(group.iter().map(|line| line.to_vec()));
        }
    }

    #[test]
    fn a_line_ends_at_a_newline_and_nowhere_else() {
        for (input, golden) in [
            (&b""[..], &[][..]),
            (b"\n", &[&b""[..]]),
            (b"\n\n", &[b"", b""]),
            (b"a", &[b"a"]),
            (b"a\n", &[b"a"]),
            (b"a\n\nb", &[b"a", b"", b"b"]),
            (b"crlf\r\ncr\ronly\r\n", &[b"crlf\r", b"cr\ronly\r"]),
            (b"nul\0\n\0\n", &[b"nul\0", b"\0"]),
            (b"\xff\xfe\nvt\x0bff\x0c\xe2\x80\xa8ls\n", &[b"\xff\xfe", b"vt\x0bff\x0c\xe2\x80\xa8ls"]),
        ] {
            assert_eq!(all(vec![input], 100).expect("short lines"), golden, "{input:?}");
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            assert_eq!(all(bytes, 100).expect("short lines"), golden, "{input:?} byte by byte");
        }
    }

    #[test]
    fn long_lines() {
        let mut input = vec![b'x'; 1 << 20];
        input.push(b'\n');
        input.extend_from_slice(&vec![b'y'; 1 << 20]);
        let lines = all(input.chunks(100_000).collect(), 1 << 20).expect("just short enough");
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [1 << 20, 1 << 20]);
    }

    #[test]
    fn a_line_too_long_is_named_after_what_came_before_was_given() {
        let mut lines = Lines::new(&b"1234\n12345\n1\n"[..], 4);
        assert_eq!(lines.next_group(SIZE).expect("the first line"), ["1234"]);
        for _ in 0..2 {
            let error = lines.next_group(SIZE).expect_err("the second is too long");
            assert!(matches!(error, LineError::TooLong { line: 2, limit: 4 }), "{error}");
        }
        // It need not be whole to be refused.
        let endless = all(vec![b"1\n", b"123", b"45", b"678"], 4).expect_err("too long");
        assert!(matches!(endless, LineError::TooLong { line: 2, .. }));
    }

    #[test]
    fn a_long_line_comes_in_pieces_where_it_may_be_split() {
        let mut lines = Lines::split(Pieces(vec![b"1\n123", b"4567", b"89\n", b"abcd\ne"]), 4);
        let mut groups = Vec::new();
        loop {
            let group = lines.next_group(GroupSize { wait: true, ..SIZE }).expect("no line is too long");
            if group.is_empty() {
                break;
            }
            groups.push((group, lines.continues()));
        }
        let golden: [(&[&str], bool); 4] =
            [(&["1", "1234"], true), (&["5678"], true), (&["9", "abcd", "e"], false), (&[], false)];
        for ((group, continues), golden) in groups.iter().zip(golden) {
            assert_eq!(
                (&group[..], *continues),
                (&golden.0.iter().map(|line| Bytes::from(*line)).collect::<Vec<_>>()[..], golden.1)
            );
        }
        assert_eq!(groups.len(), 3);
    }

    #[test]
    fn a_group_is_what_is_here() {
        let pieces = || Pieces(vec![b"a\nb\nc", b"c\nd\n", b"e\n"]);
        let mut lines = Lines::new(pieces(), 10);
        let mut groups = Vec::new();
        while let Ok(group) = lines.next_group(SIZE) {
            if group.is_empty() {
                break;
            }
            groups.push(group.len());
        }
        assert_eq!(groups, [2, 2, 1]);
        let mut lines = Lines::new(pieces(), 10);
        let full = GroupSize { wait: true, ..SIZE };
        assert_eq!(lines.next_group(full).expect("lines").len(), 3);
        assert_eq!(lines.next_group(full).expect("lines").len(), 2);
        let mut lines = Lines::new(&b"12345\n12345\n"[..], 10);
        assert_eq!(lines.next_group(GroupSize { bytes: 4, ..SIZE }).expect("lines").len(), 1, "one line at least");
    }
}
