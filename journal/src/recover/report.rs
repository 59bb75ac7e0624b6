//! Findings and actions of a start, for one line in the log.

use std::fmt;

use crate::format::footer::Damage;

/// Events of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The log was made by this start.
    pub fresh: bool,
    /// The run before ended cleanly.
    pub clean: bool,
    /// A failure had been latched and not been recovered.
    pub latched: bool,
    /// The epoch from now on.
    pub epoch: u32,
    /// The next offset.
    pub next_offset: u64,
    /// Segments that were scanned.
    pub scanned: u32,
    /// Bytes that were read, the folder's listing apart.
    pub bytes_read: u64,
    /// Records above the proven durable end that were written again.
    pub rewritten_records: u64,
    /// Bytes that were written again.
    pub rewritten_bytes: u64,
    /// Bytes that were quarantined.
    pub quarantined_bytes: u64,
    /// The files in `quarantine/` with these bytes.
    pub quarantined: Vec<String>,
    /// Segments whose tails stay in them, for want of room to quarantine them, and the bytes.
    pub left_in_place: Vec<(u64, u64)>,
    /// Offset at which the log was cut.
    pub cut_at: Option<u64>,
    /// Offsets that were acknowledged, or may have been, and cannot be read any more.
    pub damage: Vec<Damage>,
    /// Numbers of segments that are not there and were not removed by retention.
    pub missing: Vec<u64>,
    /// Segments whose header cannot be read.
    pub unreadable: Vec<u64>,
    /// Segments that were sealed once and whose footers are gone: nothing proves where they ended.
    pub missing_footer: Vec<u64>,
    /// Files of segments that `clad.meta` does not know, which are not empty: in `quarantine/`, whole.
    pub unknown: Vec<String>,
    /// One of the two slots of `clad.meta` was not valid; it was rewritten from the other.
    pub meta_slot: bool,
    /// Segments with one wrong byte in their headers, and its index: it was corrected, and nothing is lost.
    pub corrected: Vec<(u64, usize)>,
    /// Duration, with the wait for a dead process's writes.
    pub took_ns: u64,
}

impl Report {
    /// True if it is certain that acknowledged records were lost. For a segment that has lost its footer this is
    /// unknown.
    pub fn has_lost(&self) -> bool {
        !self.damage.is_empty() || !self.missing.is_empty() || !self.unreadable.is_empty()
    }

    /// Notes segments that were moved to `quarantine/`: names and bytes.
    pub(crate) fn unknown(&mut self, quarantined: Vec<(String, u64)>) {
        for (name, bytes) in quarantined {
            self.quarantined_bytes += bytes;
            self.unknown.push(name.clone());
            self.quarantined.push(name);
        }
    }

    /// True if an operator should look, though no acknowledged data is known to be lost.
    pub fn is_remarkable(&self) -> bool {
        !self.clean || self.meta_slot || !self.corrected.is_empty() || !self.unknown.is_empty()
    }

    /// True if acknowledged records were lost, or may have been.
    pub fn is_damaged(&self) -> bool {
        self.has_lost() || !self.missing_footer.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match (self.fresh, self.clean) {
            (true, _) => "new log",
            (_, true) => "clean end",
            _ => "unclean end",
        };
        write!(f, "{how}: next offset {}, epoch {}", self.next_offset, self.epoch)?;
        if self.meta_slot {
            write!(f, "; one of the two copies in clad.meta was invalid: rewritten from the other")?;
        }
        for (segment, byte) in &self.corrected {
            write!(
                f,
                "; segment {segment} had a wrong byte in its header, at {byte}: corrected, the disk is not to be trusted"
            )?;
        }
        for name in &self.unknown {
            write!(f, "; a segment that is not in clad.meta, and not empty, was moved to quarantine: {name}")?;
        }
        if self.fresh || self.clean && !self.is_damaged() {
            return Ok(());
        }
        write!(f, "; {} segments scanned, {} bytes read", self.scanned, self.bytes_read)?;
        write!(f, "; {} records ({} bytes) written again", self.rewritten_records, self.rewritten_bytes)?;
        match self.cut_at {
            Some(at) => write!(f, "; cut at offset {at}, {} bytes moved to quarantine/", self.quarantined_bytes)?,
            None => write!(f, "; {} bytes moved to quarantine/", self.quarantined_bytes)?,
        }
        for (segment, bytes) in &self.left_in_place {
            write!(
                f,
                "; no space to move {bytes} bytes to quarantine/: they stay in segment {segment}, after its end"
            )?;
        }
        for d in &self.damage {
            write!(f, "; DAMAGE: offsets {} to {} are lost", d.from, d.to.saturating_sub(1))?;
        }
        for n in &self.missing {
            write!(f, "; DAMAGE: segment {n} is missing")?;
        }
        for n in &self.unreadable {
            write!(f, "; DAMAGE: the header of segment {n} cannot be read")?;
        }
        for n in &self.missing_footer {
            write!(f, "; DAMAGE: segment {n} has lost its footer, and may have lost records at its end")?;
        }
        if self.latched {
            write!(f, "; a failed write had been latched")?;
        }
        write!(f, "; {} ms", self.took_ns / 1_000_000)
    }
}
