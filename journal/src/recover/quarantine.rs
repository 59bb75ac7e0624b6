//! Files outside the log: files that can hold no record are removed, the rest is quarantined.
//!
//! Invariant: a file is removed only when its content proves that it never was the only copy of a record. There are
//! three cases: a file with zeroes behind its header; a file with the header of a segment that retention had removed,
//! prepared for reuse; a reused file, whole, without its own batch. Every other file under the name of a segment that
//! `clad.meta` does not know is moved to `quarantine/`. That `clad.meta` may be the older copy, and the header or the
//! first batch of this file damaged.

use std::io;

use crate::env::Observer;
use crate::format::meta::Meta;
use crate::format::segment::SegmentHeader;
use crate::format::{QUARANTINE, parse_segment_name};
use crate::io::{Access, IoBuf, Storage};
use crate::write::segment_file;

use super::scan::scan;

const PIECE: usize = 1 << 20;

/// Moves a name to `quarantine/`, under a name that is free there, which is returned.
pub(crate) fn quarantine_name(storage: &dyn Storage, name: &str) -> io::Result<String> {
    storage.create_dir(QUARANTINE)?;
    let taken: Vec<String> = storage.list(QUARANTINE)?.into_iter().map(|entry| entry.name).collect();
    let flat = name.replace('/', "-");
    let free = (0..).map(|n| format!("{flat}.{n}")).find(|free| !taken.contains(free)).unwrap_or_default();
    let quarantined = format!("{QUARANTINE}/{free}");
    storage.rename(name, &quarantined)?;
    storage.sync_dir(QUARANTINE)?;
    storage.sync_dir("")?;
    Ok(quarantined)
}

/// Removes the segments from `from` on, which were prepared and never put to use, except `keep`. Returns those
/// quarantined instead: the name and its bytes.
pub(crate) fn clear_above(
    storage: &dyn Storage,
    meta: &Meta,
    from: u64,
    keep: Option<u64>,
    observer: &Observer,
) -> io::Result<Vec<(String, u64)>> {
    let mut quarantined = Vec::new();
    for entry in storage.list("")? {
        let Some(number) = parse_segment_name(&entry.name).filter(|n| *n >= from && Some(*n) != keep) else { continue };
        if holds_nothing(storage, meta, number, observer)? {
            storage.remove(&entry.name)?;
        } else {
            let name = quarantine_name(storage, &entry.name)?;
            quarantined.push((name, entry.len));
        }
    }
    Ok(quarantined)
}

fn holds_nothing(storage: &dyn Storage, meta: &Meta, number: u64, observer: &Observer) -> io::Result<bool> {
    let file = segment_file::open_alone(storage, number, Access::ReadDirect, observer)?;
    let (block, len) = (storage.block_size() as usize, file.len()?);
    let (head, read) = file.read_at(IoBuf::with_capacity(block), 0, block);
    let header = read.ok().and_then(|()| SegmentHeader::decode(&head).ok()).filter(|h| h.log_id == meta.log_id);
    match &header {
        Some(header) if header.number < meta.lowest_segment => return Ok(true),
        Some(header) if header.number == number && header.former.is_some() => {
            return Ok(scan(file, header)?.batches.is_empty());
        }
        _ => {}
    }
    // Without a header its first block counts as well, unless a header may have been on its way there.
    let mut at = if header.is_some() || head.iter().all(|b| *b == 0) { block as u64 } else { 0 };
    let mut buf = IoBuf::with_capacity(PIECE);
    while at < len {
        let want = PIECE.min((len - at) as usize);
        let (back, read) = file.read_at(buf, at, want);
        // A place that cannot be read may hold anything.
        if read.is_err() || back.iter().any(|b| *b != 0) {
            return Ok(false);
        }
        buf = back;
        at += want as u64;
    }
    Ok(true)
}
