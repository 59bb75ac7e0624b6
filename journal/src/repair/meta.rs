//! What `clad.meta` said, from what the segments say.
//!
//! What must hold: no segment that holds a record is left outside; a start takes it for an unclean end, scans what has no
//! footer, and raises the epoch above every one that a header names. What retention removed cannot be known any more:
//! the log begins with the lowest segment that is there.

use std::io;

use super::Repair;
use crate::format::meta::{EpochStart, Meta};
use crate::recovery::{State, holds_a_batch};

pub(super) fn from_segments(repair: &Repair<'_>) -> io::Result<Meta> {
    let lowest = repair.files.keys().next().copied().unwrap_or(0);
    let mut meta = Meta {
        generation: 1,
        log_id: repair.report.log_id,
        clean: false,
        latched: false,
        lowest_segment: lowest,
        lowest_offset: 0,
        highest_segment: lowest,
        created_ns: repair.clock.real_ns(),
        least_epoch: 0,
        epochs: Vec::new(),
    };
    let mut lowest_offset = None;
    for number in repair.files.keys().copied() {
        let Some(segment) = repair.probe(number)? else { continue };
        let (epoch, first) = match &segment.state {
            State::Sealed { header, footer, .. } => (header.epoch, Some(footer.first_offset)),
            State::Unsealed { header } => {
                let lies_at = repair.files[&number].lies_at;
                (header.epoch, holds_a_batch(repair.storage, lies_at, header)?)
            }
            State::Unreadable(_) => (0, None),
        };
        // A prepared segment holds nothing: it is not in use, and its epoch may never have been in force.
        let Some(first) = first else { continue };
        meta.highest_segment = number;
        lowest_offset.get_or_insert(first);
        if epoch > meta.epochs.last().map_or(0, |e| e.epoch) {
            match meta.epochs.is_empty() {
                true => meta.epochs.push(EpochStart { epoch, first_offset: first }),
                false => meta.push_epoch(epoch, first),
            }
        }
    }
    // The lowest segment of all begins at 0, also when it cannot be read; what else was below is lost or was removed.
    meta.lowest_offset = if lowest == 0 { 0 } else { lowest_offset.unwrap_or(0) };
    if meta.epochs.is_empty() {
        meta.epochs.push(EpochStart { epoch: 1, first_offset: meta.lowest_offset });
    }
    Ok(meta)
}
