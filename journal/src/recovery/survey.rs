//! Which segments are there, which of them are proven, and which must be scanned.
//!
//! What must hold: nothing is changed here. The newest footer is found from the end; the walk goes on below a segment
//! that supersedes its predecessor, because that one may still be without a footer.

use std::collections::BTreeMap;
use std::io;

use crate::env::Observer;
use crate::error::OpenError;
use crate::format::footer::{Footer, TRAILER};
use crate::format::meta::{Meta, NONE};
use crate::format::segment::{HeaderError, SegmentHeader};
use crate::format::{LOCK_NAME, META_NAME, QUARANTINE, parse_segment_name, segment_name};
use crate::io::{Access, Entry, EntryKind, File, IoBuf, Lock, Storage};
use crate::segment_file;

/// A segment's file as the survey saw it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file_len: u64,
    pub(crate) state: State,
    pub(crate) bytes_read: u64,
}

/// Sealed or not.
#[derive(Debug)]
pub(crate) enum State {
    /// Its footer holds.
    Sealed { header: SegmentHeader, footer: Box<Footer>, head_checksum: u32 },
    /// Its header holds, no footer does.
    Unsealed { header: SegmentHeader },
    /// Its header does not hold.
    Unreadable(HeaderError),
}

impl Segment {
    /// Whether it was sealed once, and its footer is gone: what it held at its end may be gone too. A segment is made
    /// shorter only when its footer is durable, and a clean end leaves none without one.
    pub(crate) fn has_lost_its_footer(&self, clean: bool) -> bool {
        match &self.state {
            State::Unsealed { header } => clean || self.file_len < header.capacity,
            State::Sealed { .. } | State::Unreadable(_) => false,
        }
    }
}

/// The result.
pub(crate) struct Survey {
    /// Every segment that should be there and is, below those in `open`, by number, with its bytes.
    pub(crate) proven: BTreeMap<u64, u64>,
    /// The newest proven segment.
    pub(crate) newest: Option<Segment>,
    /// From the first segment without a footer on, ascending (superseding sealed ones included).
    pub(crate) open: Vec<Segment>,
    /// Numbers that should be there and are not.
    pub(crate) missing: Vec<u64>,
    pub(crate) bytes_read: u64,
}

/// Refuses a folder that holds what is none of ours.
pub(crate) fn check_foreign(storage: &dyn Storage, dir: &str) -> Result<(), OpenError> {
    for entry in storage.list("").map_err(OpenError::io(format!("list {dir}")))? {
        let ours = match entry.kind {
            EntryKind::File => {
                let name = entry.name.strip_suffix(".tmp").unwrap_or(&entry.name);
                name == META_NAME || name == LOCK_NAME || parse_segment_name(name).is_some()
            }
            // lost+found: a file system of its own is the best place for a log.
            EntryKind::Dir => [QUARANTINE, "cursors", "lost+found"].contains(&entry.name.as_str()),
            // Sockets lie in the data folder by default.
            EntryKind::Other => entry.name.ends_with(".sock"),
        };
        if !ours {
            return Err(OpenError::Foreign { dir: dir.to_owned(), name: entry.name });
        }
    }
    Ok(())
}

/// The segments of a listing, by number, with their bytes.
pub(crate) fn segments(entries: &[Entry]) -> BTreeMap<u64, u64> {
    entries.iter().filter_map(|e| Some((parse_segment_name(&e.name)?, e.len))).collect()
}

/// Looks at one segment: its header, and its footer from the end of the file. For who changes nothing.
pub(crate) fn probe(storage: &dyn Storage, number: u64, file_len: u64) -> io::Result<Segment> {
    let file = storage.open(&segment_name(number), Access::ReadDirect)?;
    look(file.as_ref(), storage.block_size(), number, file_len)
}

/// The same for recovery: unless its footer holds, nobody writes to the segment any more when this is read.
pub(crate) fn probe_alone(storage: &dyn Storage, number: u64, observer: &Observer) -> io::Result<Segment> {
    let file = storage.open(&segment_name(number), Access::ReadDirect)?;
    let look = || look(file.as_ref(), storage.block_size(), number, file.len()?);
    if !file.try_lock(Lock::Exclusive)? {
        // A reader of a sealed segment may hold it, and is not to hold up anybody.
        if let Ok(segment @ Segment { state: State::Sealed { .. }, .. }) = look() {
            return Ok(segment);
        }
        segment_file::lock_alone(file.as_ref(), number, observer)?;
    }
    look()
}

fn look(file: &dyn File, block: u32, number: u64, file_len: u64) -> io::Result<Segment> {
    let block = u64::from(block);
    let read = |pos: u64, len: u64| {
        let (buf, done) = file.read_at(IoBuf::with_capacity(len as usize), pos, len as usize);
        done.map(|()| buf)
    };
    let mut bytes_read = block.min(file_len);
    let state = match SegmentHeader::decode(&read(0, block)?) {
        Err(e) => State::Unreadable(e),
        Ok(header) => {
            let seed = header.seed();
            let mut state = State::Unsealed { header: header.clone() };
            let tail_at = file_len.saturating_sub(TRAILER as u64) / block * block;
            // A footer ends on a block: a file that does not has none at its end, and could not be read directly there.
            let whole = file_len.is_multiple_of(block);
            let tail = || read(tail_at, file_len.saturating_sub(tail_at));
            // Thrice: a segment that is taken for unsealed is scanned, and what it supersedes is forgotten.
            let tail = if whole { tail().or_else(|_| tail()).or_else(|_| tail()).ok() } else { None };
            // One that cannot be read proves nothing: the scan steps over bad places.
            let tail = tail.unwrap_or_else(|| IoBuf::with_capacity(0));
            bytes_read += tail.len() as u64;
            if let Some((pos, len)) = Footer::locate(&tail, file_len, &seed)
                && pos.is_multiple_of(block)
            {
                let whole = if pos == tail_at { tail } else { read(pos, u64::from(len))? };
                bytes_read += u64::from(len);
                if let Some((footer, head_checksum)) = Footer::decode(&whole, &seed, pos) {
                    state = State::Sealed { header, footer: Box::new(footer), head_checksum };
                }
            }
            state
        }
    };
    Ok(Segment { number, file_len, state, bytes_read })
}

/// Looks from the newest segment down to the first that is proven and supersedes nothing.
pub(crate) fn survey(
    storage: &dyn Storage,
    meta: &Meta,
    found: &BTreeMap<u64, u64>,
    observer: &Observer,
) -> Result<Survey, OpenError> {
    let mut survey = Survey {
        proven: BTreeMap::new(),
        newest: None,
        open: Vec::new(),
        missing: Vec::new(),
        bytes_read: 2 * crate::format::meta::SLOT as u64,
    };
    if meta.highest_segment == NONE {
        return Ok(survey);
    }
    for number in (meta.lowest_segment..=meta.highest_segment).rev() {
        let Some(file_len) = found.get(&number) else {
            survey.missing.push(number);
            continue;
        };
        if survey.newest.is_some() {
            survey.proven.insert(number, *file_len);
            continue;
        }
        let segment = probe_alone(storage, number, observer).map_err(OpenError::io(segment_name(number)))?;
        survey.bytes_read += segment.bytes_read;
        check_ours(&segment, meta)?;
        match &segment.state {
            State::Sealed { footer, .. } if footer.supersedes_from.is_none() => {
                survey.proven.insert(number, segment.file_len);
                survey.newest = Some(segment);
            }
            _ => survey.open.push(segment),
        }
    }
    survey.open.reverse();
    survey.missing.reverse();
    Ok(survey)
}

/// A recovery in the process was cut between the rename of what it had written elsewhere and its name in `clad.meta`:
/// that segment may hold the only good copy of records acknowledged as written. It is whole, for it was sealed first.
pub(crate) fn adopt_renamed(
    storage: &dyn Storage,
    meta: &mut Meta,
    found: &BTreeMap<u64, u64>,
    observer: &Observer,
) -> io::Result<()> {
    let next = if meta.highest_segment == NONE { 0 } else { meta.highest_segment + 1 };
    if !found.contains_key(&next) {
        return Ok(());
    }
    if let State::Sealed { header, footer, .. } = probe_alone(storage, next, observer)?.state
        && header.log_id == meta.log_id
        && footer.supersedes_from.is_some()
    {
        storage.sync_dir("")?; // its new name may not be durable yet, and now it will be counted on
        meta.highest_segment = next;
        meta.clean = false;
    }
    Ok(())
}

fn check_ours(segment: &Segment, meta: &Meta) -> Result<(), OpenError> {
    let header = match &segment.state {
        State::Sealed { header, .. } => header,
        State::Unsealed { header } => {
            header.check_writable().map_err(|e| OpenError::Newer(format!("segment {}: {e}", segment.number)))?;
            header
        }
        State::Unreadable(e @ (HeaderError::Newer { .. } | HeaderError::Feature { .. })) => {
            return Err(OpenError::Newer(format!("segment {}: {e}", segment.number)));
        }
        State::Unreadable(_) => return Ok(()),
    };
    if header.log_id == meta.log_id {
        return Ok(());
    }
    let hex = |id: &[u8; 16]| id.iter().map(|b| format!("{b:02x}")).collect::<String>();
    Err(OpenError::ForeignSegment { segment: segment.number, found: hex(&header.log_id), expected: hex(&meta.log_id) })
}

/// Removes what an interrupted run of ours left half made: temporary files, and segments that retention had durably
/// passed. Nothing in either was ever the only copy of a record.
pub(crate) fn tidy_up(storage: &dyn Storage, meta: &Meta, entries: &[Entry]) -> Result<(), OpenError> {
    for entry in entries.iter().filter(|e| e.kind == EntryKind::File) {
        let passed = parse_segment_name(&entry.name).is_some_and(|n| n < meta.lowest_segment);
        if passed || entry.name.ends_with(".clog.tmp") {
            storage.remove(&entry.name).map_err(OpenError::io(format!("remove {}", entry.name)))?;
        }
    }
    Ok(())
}
