//! Completed writes: counted, continued, or stored as the error of this writer.
//!
//! Invariants: a failure is stored once, and is that of the first place in the file among all that failed. It is
//! returned after everything in flight has come back, so the buffers are whole and the place does not change later.

use std::io;
use std::sync::Arc;

use super::BulkWriter;
use crate::io::bulk::error::{Error, Op};
use crate::io::bulk::write::{self, Done, MAX_RETRIES, Way};
use crate::io::is_transient;

impl BulkWriter {
    pub(super) fn drain(&mut self) -> Result<(), Error> {
        while self.issuer.in_flight() > 0 {
            self.settle_one()?;
        }
        self.check()
    }

    /// Waits for one attempt and handles it. After a failure, waits for all: the first failure in the file counts.
    pub(super) fn settle_one(&mut self) -> Result<(), Error> {
        self.settle()?;
        if self.failed.is_some() {
            while self.issuer.in_flight() > 0 {
                self.settle()?;
            }
        }
        self.check()
    }

    fn settle(&mut self) -> Result<(), Error> {
        match self.issuer.wait() {
            Ok(done) => {
                self.complete(done);
                Ok(())
            }
            Err(e) => self.fail(Op::Write, self.len, 0, e),
        }
    }

    fn complete(&mut self, done: Done) {
        let Done { mut write, result } = done;
        let left = write.to - write.from;
        // A failure is stored, and returned when all that is in flight has come back.
        let _kept = match result {
            Ok(n) if n > 0 => {
                self.count(write.way, n);
                if n < left {
                    self.stats.short_writes += 1;
                    // A direct write continues at its last whole block.
                    let n = if write.way == Way::Direct { n - n % self.target.block } else { n };
                    (write.from, write.pos) = (write.from + n, write.pos + n as u64);
                    write.retries += 1;
                    return self.again(write);
                }
                Ok(())
            }
            Ok(_) => self.fail(Op::Write, write.pos, left, io::ErrorKind::WriteZero.into()),
            Err(e) if is_transient(&e) && write.retries < MAX_RETRIES => {
                write.retries += 1;
                return self.again(write);
            }
            Err(e) if write.way == Way::Direct && e.kind() == io::ErrorKind::InvalidInput => {
                // The file system took the flag but refuses the write.
                if std::mem::take(&mut self.direct) {
                    self.stats.fallbacks.push(format!("a direct write was refused ({e}): the page cache is used"));
                }
                self.write_here(&write.buf, write.pos - write.from as u64, write.from..write.to)
            }
            Err(e) => self.fail(Op::Write, write.pos, left, e),
        };
        self.free.push(write.buf);
    }

    /// Sends the rest of a write, unless it was tried too often.
    fn again(&mut self, write: write::Write) {
        if write.retries <= MAX_RETRIES {
            return self.issuer.submit(&self.target, write);
        }
        let _kept = self.fail(Op::Write, write.pos, write.to - write.from, io::ErrorKind::WriteZero.into());
        self.free.push(write.buf);
    }

    pub(super) fn count(&mut self, way: Way, n: usize) {
        let (writes, bytes) = match way {
            Way::Direct => (&mut self.stats.direct_writes, &mut self.stats.direct_bytes),
            Way::Regular => (&mut self.stats.regular_writes, &mut self.stats.regular_bytes),
        };
        *writes += 1;
        *bytes += n as u64;
    }

    pub(super) fn checked(&mut self, op: Op, done: io::Result<()>) -> Result<(), Error> {
        done.or_else(|e| self.fail(op, self.len, 0, e))
    }

    /// Stores an error; of several writes the first in the file.
    pub(super) fn fail(&mut self, op: Op, position: u64, length: usize, source: io::Error) -> Result<(), Error> {
        let path = self.target.path.clone();
        let new = Error { op, path, position, length: length as u64, source: Arc::new(source) };
        self.failed = Some(match self.failed.take() {
            Some(old) if old.op != Op::Write || new.op != Op::Write || old.position <= new.position => old,
            _ => new,
        });
        self.check()
    }

    pub(super) fn check(&mut self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(error) => {
                self.reported = true;
                Err(error.clone())
            }
        }
    }
}
