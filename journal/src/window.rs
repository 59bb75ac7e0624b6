//! A moving view of one file, read in large aligned pieces.
//!
//! What must hold: memory is bounded by the piece and the largest single request; a place that cannot be read is
//! zeroes to the caller and is named in [`Window::bad`], so that a scan goes on behind it.

use std::io;
use std::sync::Arc;

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
    buf: Option<IoBuf>,
    /// Ranges that could not be read.
    pub(crate) bad: Vec<(u64, u64)>,
    pub(crate) bytes_read: u64,
}

impl Window {
    pub(crate) fn new(file: Arc<dyn File>, block: u32) -> io::Result<Self> {
        let len = file.len()?;
        let buf = Some(IoBuf::with_capacity(0));
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
        let at = (pos.saturating_sub(self.start)) as usize;
        let buf = self.buf.as_ref().expect("a buffer comes back from every read");
        let end = (at + want as usize).min(buf.len());
        Ok(&buf[at.min(end)..end])
    }

    /// For who must not take zeroes for bytes: an error where any place could not be read.
    pub(crate) fn all_was_read(&self) -> io::Result<()> {
        match self.bad.first() {
            None => Ok(()),
            Some((from, to)) => Err(io::Error::other(format!("bytes {from} to {to} cannot be read any more"))),
        }
    }

    /// Forgets what was read: the next look goes to the disk again.
    pub(crate) fn invalidate(&mut self) {
        if let Some(buf) = &mut self.buf {
            buf.clear();
        }
    }

    fn load(&mut self, pos: u64, want: usize) -> io::Result<()> {
        let start = pos - pos % self.block;
        let need = ((pos - start) as usize + want).max(PIECE).next_multiple_of(self.block as usize);
        let need = need.min((self.len - start).next_multiple_of(self.block) as usize);
        let mut buf = self.buf.take().unwrap_or_else(|| IoBuf::with_capacity(need));
        if buf.capacity() > 4 * PIECE && need <= PIECE {
            buf = IoBuf::with_capacity(need); // one large batch does not pin its memory for the whole scan
        }
        let (buf, read) = self.file.read_at(buf, start, need);
        self.start = start;
        match read {
            Ok(()) => {
                self.bytes_read += buf.len() as u64;
                self.buf = Some(buf);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::OutOfMemory => Err(e),
            Err(_) => {
                self.buf = Some(self.load_by_block(start, need));
                Ok(())
            }
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
