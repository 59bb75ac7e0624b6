//! A moving view of one file, read in large aligned pieces.
//!
//! Invariant: memory is bounded by the piece and the largest single request. An unreadable place is zeroes to the
//! caller and is named in [`Window::bad`], so that a scan continues behind it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::io::body::Body;
use crate::io::{File, IoBuf};

const PIECE: usize = 256 * 1024;
/// A block that cannot be read is asked for so often before it counts as lost: some errors pass.
const READ_TRIES: u32 = 3;

/// The view.
pub(crate) struct Window {
    file: Arc<dyn File>,
    len: u64,
    block: u64,
    start: u64,
    /// Read into again only when there is no other reference to a part of it.
    buf: Option<Arc<IoBuf>>,
    /// Ranges that could not be read.
    pub(crate) bad: Vec<(u64, u64)>,
    pub(crate) bytes_read: u64,
}

impl Window {
    pub(crate) fn new(file: Arc<dyn File>, block: u32) -> io::Result<Self> {
        let len = file.len()?;
        let buf = Some(Arc::new(IoBuf::with_capacity(0)));
        Ok(Self { file, len, block: u64::from(block.max(512)), start: 0, buf, bad: Vec::new(), bytes_read: 0 })
    }

    /// Bytes in the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes from `pos`, `want` of them, or fewer where the file ends.
    pub(crate) fn get(&mut self, pos: u64, want: usize) -> io::Result<&[u8]> {
        let want = (want as u64).min(self.len.saturating_sub(pos));
        let held = self.start + self.buf.as_ref().map_or(0, |b| b.len() as u64);
        if pos < self.start || pos + want > held {
            self.load(pos, want as usize)?;
        }
        let (buf, range) = self.held(pos, want as usize);
        Ok(&buf[range])
    }

    fn held(&self, pos: u64, want: usize) -> (&Arc<IoBuf>, Range<usize>) {
        let at = (pos.saturating_sub(self.start)) as usize;
        let buf = self.buf.as_ref().expect("a buffer comes back from every read");
        let end = (at + want).min(buf.len());
        (buf, at.min(end)..end)
    }

    /// The last result of [`Self::get`], to store: not copied, shared.
    pub(crate) fn share(&self, pos: u64, want: usize) -> Body {
        let (buf, range) = self.held(pos, want);
        Body::part(buf, range)
    }

    /// For callers that must not take zeroes for bytes: an error where a place between these could not be read.
    pub(crate) fn was_read(&self, from: u64, to: u64) -> io::Result<()> {
        match self.bad.iter().find(|bad| bad.0 < to && from < bad.1) {
            None => Ok(()),
            Some((from, to)) => Err(io::Error::other(format!("bytes {from} to {to} cannot be read any more"))),
        }
    }

    /// Forgets the data that was read: the next read goes to the disk again.
    pub(crate) fn invalidate(&mut self) {
        if let Some(buf) = self.buf.take() {
            let mut buf = Arc::into_inner(buf).unwrap_or_else(|| IoBuf::with_capacity(0));
            buf.clear();
            self.buf = Some(Arc::new(buf));
        }
    }

    fn load(&mut self, pos: u64, want: usize) -> io::Result<()> {
        let start = pos - pos % self.block;
        let need = ((pos - start) as usize + want).max(PIECE).next_multiple_of(self.block as usize);
        let need = need.min((self.len - start).next_multiple_of(self.block) as usize);
        let buf = self.kept_from(start, need);
        let kept = buf.len();
        let (buf, read) = self.file.read_behind(buf, start + kept as u64, need - kept);
        self.start = start;
        match read {
            Ok(()) => {
                self.bytes_read += (buf.len() - kept) as u64;
                self.buf = Some(Arc::new(buf));
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::OutOfMemory => Err(e),
            Err(_) => {
                self.buf = Some(Arc::new(self.load_by_block(start, need)));
                Ok(())
            }
        }
    }

    /// A buffer for `need` bytes from `start` on, with those that were read already: whole blocks, so that what follows
    /// can be read behind them, and none where a place could not be read, for that is tried again.
    fn kept_from(&mut self, start: u64, need: usize) -> IoBuf {
        let Some(old) = self.buf.take() else { return IoBuf::with_capacity(need) };
        let end = self.start + old.len() as u64;
        let from = match (self.start..end).contains(&start) && end.is_multiple_of(self.block) && self.bad.is_empty() {
            true => (start - self.start) as usize,
            false => old.len(),
        };
        match Arc::try_unwrap(old) {
            // One large batch does not pin its memory for the whole scan.
            Ok(mut own) if own.capacity() <= 4 * PIECE || need > PIECE => {
                let kept = own.len() - from;
                own.copy_within(from.., 0);
                own.set_len(kept);
                own
            }
            Ok(large) => copy_with_room(&large[from..], need),
            Err(shared) => copy_with_room(&shared[from..], need),
        }
    }

    /// Some block of the piece cannot be read: take the others.
    fn load_by_block(&mut self, start: u64, need: usize) -> IoBuf {
        let mut out = IoBuf::with_capacity(need);
        let mut one = IoBuf::with_capacity(self.block as usize);
        let mut pos = start;
        while pos < (start + need as u64).min(self.len) {
            let want = self.block.min(self.len - pos) as usize;
            // Asked for whole, as a direct read must be; the file may end inside it.
            let mut read = Err(io::ErrorKind::Other.into());
            for _ in 0..READ_TRIES {
                (one, read) = self.file.read_at(one, pos, self.block as usize);
                if read.is_ok() {
                    break;
                }
            }
            if read.is_ok() && one.len() >= want {
                self.bytes_read += want as u64;
                out.extend_from_slice(&one[..want]);
            } else {
                out.set_len(out.len() + want);
                let at = out.len() - want;
                out[at..].fill(0);
                let known = self.bad.iter().any(|(from, to)| *from <= pos && pos < *to);
                match self.bad.last_mut() {
                    _ if known => {}
                    Some((_, end)) if *end == pos => *end += want as u64,
                    _ => self.bad.push((pos, pos + want as u64)),
                }
            }
            pos += want as u64;
        }
        out
    }
}

fn copy_with_room(kept: &[u8], need: usize) -> IoBuf {
    let mut buf = IoBuf::with_capacity(need.max(kept.len()));
    buf.extend_from_slice(kept);
    buf
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Access, Durability, OsStorage, Storage};

    const BLOCK: usize = 4096;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }

    /// A file of these bytes, and the folder that it is in.
    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<dyn File>) {
        let dir = crate::io::real_folder();
        let storage = OsStorage::open(dir.path(), BLOCK as u32, true).unwrap();
        let file = storage.create("file", Access::WriteCached).unwrap();
        file.write_at(IoBuf::copy_of(bytes), 0, Durability::Written).1.unwrap();
        (dir, file)
    }

    /// Requests of many sizes, one behind the other, as batches are.
    fn row(len: usize) -> Vec<Range<usize>> {
        let mut row = Vec::new();
        let (mut at, mut size) = (0, 90);
        while at < len {
            row.push(at..len.min(at + size));
            (at, size) = (at + size, (size * 7 + 11) % 120_001);
        }
        row
    }

    #[test]
    fn from_begin_to_end_each_byte_is_read_once_and_none_is_copied_to_be_kept() {
        let bytes = pattern(5 * PIECE + 3 * BLOCK + 77);
        let (_dir, file) = file(&bytes);
        let mut window = Window::new(file, BLOCK as u32).unwrap();
        let mut memory = std::collections::BTreeSet::new();
        for range in row(bytes.len()) {
            let got = window.get(range.start as u64, range.len()).unwrap();
            assert!(got == &bytes[range.clone()], "{range:?}");
            let place = got.as_ptr();
            let body = window.share(range.start as u64, range.len());
            assert!(body.as_ptr() == place && body.len() == range.len(), "{range:?} was copied");
            drop(body);
            memory.insert(window.buf.as_ref().unwrap().as_ptr() as usize);
        }
        assert_eq!(window.bytes_read, bytes.len() as u64);
        // The empty one of the beginning, the one that was made for the first piece, and one that a long request made
        // longer.
        assert!(memory.len() <= 3, "{} buffers were made", memory.len());
    }

    #[test]
    fn what_is_kept_stays_as_it_was_read() {
        let bytes = pattern(4 * PIECE);
        let (_dir, file) = file(&bytes);
        let mut window = Window::new(file.clone(), BLOCK as u32).unwrap();
        let mut kept = Vec::new();
        for range in row(bytes.len()) {
            window.get(range.start as u64, range.len()).unwrap();
            kept.push((range.clone(), window.share(range.start as u64, range.len())));
        }
        assert_eq!(window.bytes_read, bytes.len() as u64);
        // The file now has other content; a later read gets that.
        file.write_at(IoBuf::zeroed(bytes.len()), 0, Durability::Written).1.unwrap();
        let (last, _) = kept.last().unwrap().clone();
        window.invalidate();
        assert!(window.get(last.start as u64, last.len()).unwrap().iter().all(|b| *b == 0));
        for (range, body) in kept {
            assert!(body[..] == bytes[range.clone()], "{range:?}");
        }
    }

    /// A file with one block that cannot be read.
    struct Scratched(Arc<dyn File>, u64);

    impl File for Scratched {
        fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
            match (pos..pos + want as u64).contains(&self.1) {
                true => (buf, Err(io::Error::other("scratched"))),
                false => self.0.read_at(buf, pos, want),
            }
        }
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn write_at(&self, buf: IoBuf, _: u64, _: Durability) -> (IoBuf, io::Result<()>) {
            (buf, Err(io::ErrorKind::Unsupported.into()))
        }
        fn sync_data(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn sync_all(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn overwrites_in_place(&self, _: u64) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn allocate(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn try_lock(&self, _: crate::io::Lock) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn lock(&self, _: crate::io::Lock) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn a_block_that_cannot_be_read_is_zeroes_and_named_and_the_others_are_there() {
        let mut bytes = pattern(3 * PIECE);
        let (_dir, file) = file(&bytes);
        let at = PIECE + 5 * BLOCK;
        let mut window = Window::new(Arc::new(Scratched(file, at as u64)), BLOCK as u32).unwrap();
        bytes[at..at + BLOCK].fill(0);
        for range in row(bytes.len()) {
            assert!(window.get(range.start as u64, range.len()).unwrap() == &bytes[range.clone()], "{range:?}");
        }
        assert_eq!(window.bad, [(at as u64, (at + BLOCK) as u64)]);
        assert!(window.was_read(0, window.len()).is_err());
    }
}
