//! Checks every byte of a log that carries meaning, and reports the invalid ones.
//!
//! Invariant: nothing is changed. A torn tail of the active segment is a note. Every other failure is a problem with
//! its segment, its place and its offsets; the check continues behind it. Damage by one cause is one problem: it
//! includes the lost offsets, and the following data that no longer fits.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::error::OpenError;
use crate::format::checksum::plain;
use crate::format::footer::Before;
use crate::read::offline::{BrokenSegment, Content, OfflineLog, Part};

const LOST: &str = "these offsets are lost";

/// Findings of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// The log.
    pub log_id: [u8; 16],
    /// Segments that were read.
    pub segments: u64,
    /// Records whose checksums hold.
    pub records: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// First offset that should be there.
    pub first_offset: u64,
    /// One past the last.
    pub end_offset: u64,
    /// Failed checks.
    pub problems: Vec<Problem>,
    /// Remarks that are no damage.
    pub notes: Vec<String>,
}

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In which segment.
    pub segment: Option<u64>,
    /// Position in its file.
    pub position: Option<u64>,
    /// Offsets that it costs, end exclusive.
    pub offsets: Option<(u64, u64)>,
    /// In words.
    pub text: String,
}

/// Checks the log in a folder. `progress` receives the bytes done and the bytes in all.
///
/// # Errors
/// [`OpenError`] when there is no log, or the disk says no.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport, OpenError> {
    let log = OfflineLog::open(dir)?;
    let mut check = Check {
        report: VerifyReport {
            log_id: log.log_id(),
            first_offset: log.first_offset(),
            end_offset: log.end_offset(),
            ..VerifyReport::default()
        },
        expected: log.first_offset(),
        before: None,
        before_is_cut: false,
    };
    check.report.notes.extend_from_slice(log.notes());
    for BrokenSegment { segment, text } in log.faults() {
        check.problem(Some(*segment), None, None, text);
    }
    let total: u64 = log.parts().iter().map(|p| p.bytes).sum();
    for part in log.parts() {
        check.part(&log, part)?;
        check.report.segments += 1;
        check.report.bytes += part.bytes;
        progress(check.report.bytes, total);
    }
    let end = log.end_offset();
    check.resumes_at(None, end);
    Ok(check.report)
}

struct Check {
    report: VerifyReport,
    expected: u64,
    before: Option<Before>,
    /// That segment has lost its end, which was reported there.
    before_is_cut: bool,
}

impl Check {
    fn problem(&mut self, segment: Option<u64>, position: Option<u64>, offsets: Option<(u64, u64)>, text: &str) {
        self.report.problems.push(Problem { segment, position, offsets, text: text.to_owned() });
    }

    /// Offsets that are lost with one of these segments, if one of them is not there in whole; else all that is known
    /// is in front of which segment.
    fn lost_with(&mut self, segments: Range<u64>, here: Option<u64>, lost: (u64, u64)) {
        let fault = |problem: &&mut Problem| {
            let whole = (problem.position, problem.offsets) == (None, None);
            whole && problem.segment.is_some_and(|segment| segments.contains(&segment))
        };
        match self.report.problems.iter_mut().find(fault) {
            Some(problem) => problem.offsets = Some(lost),
            None => self.problem(here, None, Some(lost), LOST),
        }
    }

    /// The next segment (or the log's end) continues at `offset`.
    fn resumes_at(&mut self, segment: Option<u64>, offset: u64) {
        if self.expected < offset {
            let behind = self.before.map_or(0, |before| before.number + 1);
            self.lost_with(behind..segment.unwrap_or(u64::MAX), segment, (self.expected, offset));
            self.expected = offset;
        }
    }

    /// Retention of a daemon that runs was faster.
    fn passed_over(&mut self, part: &Part) {
        let (number, first, end) = (part.number, part.first_offset, part.end_offset);
        self.report.notes.push(format!(
            "segment {number}: removed by retention meanwhile, offsets {first} to {} were not read",
            end.saturating_sub(1)
        ));
        self.expected = self.expected.max(end);
        self.before = None;
    }

    fn part(&mut self, log: &OfflineLog, part: &Part) -> Result<(), OpenError> {
        let number = Some(part.number);
        let mut reader = match log.batches_of(part) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && log.retained_past(part).is_some() => {
                self.passed_over(part);
                return Ok(());
            }
            reader => reader.map_err(OpenError::io(format!("segment {}", part.number)))?,
        };
        self.resumes_at(number, part.first_offset);
        let mut chain = 0;
        let complete = loop {
            let (pos, before) = (reader.pos(), reader.bad_bytes);
            let batch = reader.next_batch().map_err(OpenError::io(format!("segment {}", part.number)))?;
            let text = match reader.bad_bytes > before {
                true => Some("a batch that fails its checksum, or bytes that are none"),
                false => None,
            };
            let batch = batch.filter(|b| b.first_offset < part.end_offset);
            // Left by a recovery that was cut, and whose segment was no whole one yet: those before hold these records,
            // and the next batch may name this one.
            if batch.as_ref().is_some_and(|b| b.end_offset() <= part.first_offset) {
                chain = reader.last_checksum;
                continue;
            }
            // Nothing that lies before the first batch of a segment is of the log.
            let text = text.filter(|_| batch.as_ref().is_none_or(|b| b.first_offset != part.first_offset));
            // At the end of what is there: up to where the part is said to go.
            let lost = (self.expected, batch.as_ref().map_or(part.end_offset, |b| b.first_offset));
            if lost.0 < lost.1 {
                match (text, &batch) {
                    (None, None) => self.lost_with(part.number..part.number + 1, number, lost),
                    (text, _) => self.problem(number, Some(pos), Some(lost), text.unwrap_or(LOST)),
                }
            } else if lost.0 > lost.1 && batch.is_some() {
                self.problem(number, Some(pos), None, "a batch that begins below the end of the one before");
            } else if let Some(text) = text {
                match part.content {
                    Content::Sealed(_) => self.problem(number, Some(pos), None, text),
                    // A power cut tears a write behind its batch, too; the next start quarantines that.
                    _ => self.report.notes.push(format!(
                        "segment {}, from {pos} on: bytes that are in no batch, in a segment that is not sealed; nothing is lost",
                        part.number
                    )),
                }
            } else if batch.is_some() && reader.last_header.as_ref().is_some_and(|h| h.previous != chain) {
                self.problem(number, Some(pos), None, "the chain does not name the batch before");
            }
            let Some(batch) = batch else { break lost.0 >= lost.1 };
            chain = reader.last_checksum;
            self.batch(part.number, pos, &batch);
            self.expected = batch.end_offset();
        };
        self.expected = self.expected.max(part.end_offset);
        if let Content::Sealed(proof) = &part.content {
            let footer = &proof.footer;
            // A later segment repeats what lies behind the part's end: nothing was read of that here.
            let superseded = part.end_offset < footer.end_offset;
            // With the last batch its checksum is lost.
            if complete && !superseded && footer.last_batch_checksum != chain {
                self.problem(number, None, None, "the footer names another last batch");
            }
            if let (Some(said), Some(is)) = (footer.before, self.before)
                && said.number == is.number
                && said != is
            {
                // The chain of checksums is in the last batch: only the footer behind it is another.
                // And of one that has lost its end another batch is the last.
                if said.last_batch_checksum == is.last_batch_checksum || self.before_is_cut {
                    let text =
                        format!("segment {}: its footer was rebuilt after segment {} was", is.number, part.number);
                    self.report.notes.push(text);
                } else {
                    let text = "the segment before is not the one that was there when this was sealed";
                    self.problem(number, None, None, text);
                }
            }
            self.before_is_cut = footer.damage.last().is_some_and(|lost| lost.to == footer.end_offset);
            self.before = Some(footer.as_before(proof.head_checksum));
        }
        Ok(())
    }

    fn batch(&mut self, segment: u64, pos: u64, batch: &crate::write::batch::Batch) {
        let mut records = 0;
        for chunk in batch.chunks() {
            match chunk {
                Err(e) => return self.problem(Some(segment), Some(pos), None, &e.to_string()),
                Ok((first, chunk)) => {
                    if plain(chunk.payload) != chunk.header.payload_checksum {
                        let offsets = (first, first + u64::from(chunk.header.count));
                        self.problem(Some(segment), Some(pos), Some(offsets), "an append fails its client's checksum");
                    }
                    records += u64::from(chunk.header.count);
                }
            }
        }
        if records != u64::from(batch.count) {
            self.problem(Some(segment), Some(pos), None, "a batch holds another number of records than it says");
        }
        self.report.records += records;
    }
}
