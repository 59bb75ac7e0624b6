//! Survey of the segments: which exist, which are proven, and which must be scanned.
//!
//! Invariant: nothing is changed here. The newest footer is found from the end. The walk continues below a segment
//! that supersedes its predecessor, because that one may still be without a footer.

use std::collections::BTreeMap;
use std::io;

use crate::env::Observer;
use crate::error::OpenError;
use crate::format::batch::BatchHeader;
use crate::format::footer::{Footer, TRAILER};
use crate::format::meta::{Meta, NONE};
use crate::format::segment::{HeaderError, SegmentHeader};
use crate::format::{CURSORS_DIR, LOCK_NAME, META_NAME, QUARANTINE, parse_segment_name, segment_name};
use crate::io::{Access, Entry, EntryKind, File, IoBuf, Lock, Storage, if_there, is_bad_place, read_thrice};
use crate::recover::scan::scan;
use crate::write::segment_file;

use super::header::{self, head};

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
    /// Its footer is valid.
    Sealed { header: SegmentHeader, footer: Box<Footer>, head_checksum: u32 },
    /// Its header is valid, no footer is.
    Unsealed { header: SegmentHeader },
    /// Its header is not valid.
    Unreadable(HeaderError),
}

impl State {
    fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed { .. })
    }

    /// The header, if it is valid.
    pub(crate) fn header(&self) -> Option<&SegmentHeader> {
        match self {
            Self::Sealed { header, .. } | Self::Unsealed { header } => Some(header),
            Self::Unreadable(_) => None,
        }
    }
}

impl Segment {
    /// The epoch in its header, if that can be read.
    pub(crate) fn epoch(&self) -> Option<u32> {
        self.state.header().map(|header| header.epoch)
    }

    /// True if it was sealed once and its footer is gone: data at its end may be gone too. A segment is made shorter
    /// only when its footer is durable, and a clean end leaves none without one.
    pub(crate) fn has_lost_its_footer(&self, clean: bool) -> bool {
        match &self.state {
            State::Unsealed { header } => clean || self.file_len < header.capacity,
            State::Sealed { .. } | State::Unreadable(_) => false,
        }
    }
}

/// The result.
pub(crate) struct Survey {
    /// Every expected segment that exists, below those in `open`, by number, with its bytes.
    pub(crate) proven: BTreeMap<u64, u64>,
    /// The newest proven segment.
    pub(crate) newest: Option<Segment>,
    /// From the first segment without a footer on, ascending (superseding sealed ones included).
    pub(crate) open: Vec<Segment>,
    /// Numbers of expected segments that do not exist.
    pub(crate) missing: Vec<u64>,
    /// Segments of these with a wrong byte in their headers: index, and the header as it was.
    pub(crate) corrected: Vec<(usize, SegmentHeader)>,
    pub(crate) bytes_read: u64,
}

/// True if a name in the log's folder is part of a log.
pub(crate) fn is_ours(entry: &Entry) -> bool {
    match entry.kind {
        EntryKind::File => {
            let name = entry.name.strip_suffix(".tmp").unwrap_or(&entry.name);
            name == META_NAME || name == LOCK_NAME || parse_segment_name(name).is_some()
        }
        // lost+found: a file system of its own is the best place for a log.
        EntryKind::Dir => [QUARANTINE, CURSORS_DIR, "lost+found"].contains(&entry.name.as_str()),
        // Sockets lie in the data folder by default.
        EntryKind::Other => entry.name.ends_with(".sock"),
    }
}

/// Lists a log's folder.
pub(crate) fn list(storage: &dyn Storage, dir: &str) -> Result<Vec<Entry>, OpenError> {
    storage.list("").map_err(OpenError::io(format!("list {dir}")))
}

/// Refuses a folder that contains foreign files.
pub(crate) fn check_foreign(storage: &dyn Storage, dir: &str) -> Result<(), OpenError> {
    match list(storage, dir)?.into_iter().find(|entry| !is_ours(entry)) {
        Some(entry) => Err(OpenError::Foreign { dir: dir.to_owned(), name: entry.name }),
        None => Ok(()),
    }
}

/// Refuses to begin a new log without a readable `clad.meta`, if quarantined remains of another log exist: its records
/// must not disappear silently. To get a new log, the operator moves the remains away.
pub(crate) fn check_no_remains(storage: &dyn Storage, dir: &str, entries: &[Entry]) -> Result<(), OpenError> {
    // The new segment of a recovery in the process may be the only copy of some records.
    let half = |entry: &Entry| entry.name.strip_suffix(".tmp").is_some_and(|name| parse_segment_name(name).is_some());
    let is_quarantine = |entry: &Entry| entry.kind == EntryKind::Dir && entry.name == QUARANTINE;
    let in_quarantine = match entries.iter().any(is_quarantine) {
        true => storage.list(QUARANTINE).map_err(OpenError::io(QUARANTINE))?,
        false => Vec::new(),
    };
    match in_quarantine.is_empty() && !entries.iter().any(half) {
        true => Ok(()),
        false => Err(OpenError::Remains { dir: dir.to_owned() }),
    }
}

/// The segments of a listing, by number, with their bytes.
pub(crate) fn segments(entries: &[Entry]) -> BTreeMap<u64, u64> {
    let files = entries.iter().filter(|e| e.kind == EntryKind::File);
    files.filter_map(|e| Some((parse_segment_name(&e.name)?, e.len))).collect()
}

/// Reads the header of one segment, and its footer from the end of the file. For callers that change nothing.
pub(crate) fn probe(storage: &dyn Storage, number: u64, file_len: u64) -> io::Result<Segment> {
    let block = storage.block_size() as usize;
    let header = SegmentHeader::decode(&head(storage, number)?);
    let mut segment = probe_as(storage, number, number, file_len, header)?;
    segment.bytes_read += (block as u64).min(file_len);
    Ok(segment)
}

/// As [`probe`], for recovery: unless its footer is valid, no process writes to the segment any more when this is
/// read.
pub(crate) fn probe_alone(storage: &dyn Storage, number: u64, observer: &Observer) -> io::Result<Segment> {
    let file = storage.open(&segment_name(number), Access::ReadDirect)?;
    let look = || probe(storage, number, file.len()?);
    if !file.try_lock(Lock::Exclusive)? {
        // A reader of a sealed segment may hold the lock, and must not delay anything.
        if let Ok(segment @ Segment { state: State::Sealed { .. }, .. }) = look() {
            return Ok(segment);
        }
        segment_file::lock_alone(file.as_ref(), number, observer)?;
    }
    look()
}

/// As [`probe`], with a known header, for a file that may lie under the name of another number.
pub(crate) fn probe_as(
    storage: &dyn Storage,
    number: u64,
    lies_at: u64,
    file_len: u64,
    header: Result<SegmentHeader, HeaderError>,
) -> io::Result<Segment> {
    let file = storage.open(&segment_name(lies_at), Access::ReadDirect)?;
    let mut bytes_read = 0;
    let state = match header {
        Err(e) => State::Unreadable(e),
        // Its checksums are valid in this place, because they use the number in its header; its offsets do not belong
        // here.
        Ok(header) if header.number != number => State::Unreadable(HeaderError::Misplaced { number: header.number }),
        Ok(header) => {
            let (state, read) = footer_at_end(file.as_ref(), header, file_len, storage.block_size());
            bytes_read += read;
            state
        }
    };
    Ok(Segment { number, file_len, state, bytes_read })
}

/// Tests for a valid footer at the end of the file; also returns the bytes read for that.
fn footer_at_end(file: &dyn File, header: SegmentHeader, file_len: u64, block: u32) -> (State, u64) {
    let (block, seed) = (u64::from(block), header.seed());
    let tail_at = file_len.saturating_sub(TRAILER as u64) / block * block;
    // A footer ends on a block: a file with another length has none at its end, and could not be read directly there.
    let whole = file_len.is_multiple_of(block);
    let tail = if whole { read_thrice(file, tail_at, (file_len - tail_at) as usize).ok() } else { None };
    // An unreadable footer proves nothing: the scan skips bad places.
    let tail = tail.unwrap_or_else(|| IoBuf::with_capacity(0));
    let mut bytes_read = tail.len() as u64;
    let located = Footer::locate(&tail, file_len, &seed).filter(|(pos, _)| pos.is_multiple_of(block));
    let Some((pos, len)) = located else { return (State::Unsealed { header }, bytes_read) };
    let whole = if pos == tail_at { Ok(tail) } else { read_thrice(file, pos, len as usize) };
    bytes_read += u64::from(len);
    match whole.ok().and_then(|whole| Footer::decode(&whole, &seed, pos)) {
        Some((footer, head_checksum)) => {
            (State::Sealed { header, footer: Box::new(footer), head_checksum }, bytes_read)
        }
        None => (State::Unsealed { header }, bytes_read),
    }
}

/// Walks from the newest segment down to the first that is proven and supersedes nothing.
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
        corrected: Vec::new(),
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
        let segment = probe_alone(storage, number, observer);
        let corrected = segment.and_then(|segment| put_right(storage, segment, &meta.log_id));
        let (segment, byte) = corrected.map_err(|e| unread(number, e))?;
        survey.bytes_read += segment.bytes_read;
        if let (Some(byte), Some(header)) = (byte, segment.state.header()) {
            survey.corrected.push((byte, header.clone()));
        }
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

/// Makes the file names durable: a repair may have been cut after it moved a segment, and a segment that is reported
/// missing must not be back after a power cut.
pub(crate) fn sync_names(storage: &dyn Storage, entries: &[Entry]) -> io::Result<()> {
    if entries.iter().any(|entry| entry.name == QUARANTINE) {
        storage.sync_dir(QUARANTINE)?;
    }
    storage.sync_dir("")
}

/// Returns the segment with its header as it was, and the one byte of it that is wrong, if exactly one is: its
/// checksum, its number and the log's id prove that. Nothing is written.
fn put_right(storage: &dyn Storage, segment: Segment, log_id: &[u8; 16]) -> io::Result<(Segment, Option<usize>)> {
    let Segment {
        number, file_len, state: State::Unreadable(HeaderError::Checksum | HeaderError::NotASegment), ..
    } = segment
    else {
        return Ok((segment, None));
    };
    match header::correct(storage, number)? {
        Some((byte, header)) if header.log_id == *log_id => {
            let right = probe_as(storage, number, number, file_len, Ok(header))?;
            Ok((Segment { bytes_read: right.bytes_read + segment.bytes_read, ..right }, Some(byte)))
        }
        _ => Ok((segment, None)),
    }
}

/// Finds segments above the highest that `clad.meta` names, and that contain records anyway. Two ways lead there, and
/// in both the segment may hold the only copy of acknowledged records:
/// - a recovery in the process was cut between the rename of its new segment and the entry in `clad.meta`;
/// - the newest slot of `clad.meta` is lost, or the file is an older copy: it lacks a later rotation.
///
/// A prepared segment holds no batch that is intact under its own header, also where it lies on old blocks.
///
/// `sure`: `clad.meta` is whole and no failure is latched in it, so neither case is possible. Then a segment that the
/// device does not return, or whose header has bit rot, was prepared and holds nothing. Otherwise it counts, or its
/// state is unknown.
pub(crate) fn in_use_above(
    storage: &dyn Storage,
    meta: &Meta,
    found: &BTreeMap<u64, u64>,
    sure: bool,
) -> io::Result<Above> {
    let mut above = Above::default();
    for (number, file_len) in found.range(meta.next_segment()..) {
        let used = match probe(storage, *number, *file_len) {
            // A reader without the daemon's permissions; a start opens every file, or fails later.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
            Err(e) if is_bad_place(&e) => {
                if !sure {
                    above.unknown.get_or_insert((*number, e));
                }
                continue;
            }
            Err(e) => return Err(e),
            Ok(segment) => {
                let state = put_right(storage, segment, &meta.log_id)?.0.state;
                is_used(storage, *number, &state, &meta.log_id, sure)?
            }
        };
        if used {
            above.highest = Some(*number);
        }
    }
    Ok(above)
}

/// Segments above the highest that `clad.meta` names.
#[derive(Debug, Default)]
pub(crate) struct Above {
    /// The highest that is in use.
    pub(crate) highest: Option<u64>,
    /// A segment of unknown state, and the error.
    pub(crate) unknown: Option<(u64, io::Error)>,
}

/// True if a segment, whose bytes lie under the name of number `lies_at`, was put to use.
pub(crate) fn is_used(
    storage: &dyn Storage,
    lies_at: u64,
    state: &State,
    log_id: &[u8; 16],
    sure: bool,
) -> io::Result<bool> {
    Ok(match state {
        State::Sealed { header, .. } | State::Unsealed { header } if header.log_id != *log_id => false,
        State::Sealed { .. } => true,
        State::Unsealed { header } if holds_a_batch(storage, lies_at, header)?.is_some() => true,
        // Its first batch may have bit rot.
        State::Unsealed { header } if !sure => {
            let scan = scan(storage.open(&segment_name(lies_at), Access::ReadDirect)?, header)?;
            !scan.batches.is_empty() || !scan.garbage.is_empty()
        }
        // A header is written when the rest is ready: before that the block is empty, or another segment's.
        State::Unreadable(HeaderError::NotASegment) if !sure => head(storage, lies_at)?.iter().any(|b| *b != 0),
        State::Unreadable(HeaderError::Checksum) => !sure,
        State::Unsealed { .. } | State::Unreadable(_) => false,
    })
}

/// Returns the first offset of a segment, if its first batch is there: the first that is written, and nothing before
/// it. A place that the device does not return is no batch.
pub(crate) fn holds_a_batch(storage: &dyn Storage, lies_at: u64, header: &SegmentHeader) -> io::Result<Option<u64>> {
    let file = storage.open(&segment_name(lies_at), Access::ReadDirect)?;
    let pos = u64::from(header.block_size);
    match read_thrice(file.as_ref(), pos, pos as usize) {
        Err(e) if is_bad_place(&e) => Ok(None),
        head => Ok(BatchHeader::decode(&head?, &header.seed(), pos).map(|found| found.header.first_offset)),
    }
}

/// Adopts the segments from [`in_use_above`] into `meta`, which the caller then writes. `whole`: both slots of
/// `clad.meta` are valid.
pub(crate) fn adopt(
    storage: &dyn Storage,
    meta: &mut Meta,
    found: &BTreeMap<u64, u64>,
    whole: bool,
    observer: &Observer,
) -> Result<(), OpenError> {
    let io = || OpenError::io("look for segments in use");
    for (number, _) in found.range(meta.next_segment()..) {
        match probe_alone(storage, *number, observer) {
            Err(e) if !is_bad_place(&e) => return Err(io()(e)),
            _ => {} // no process writes to it any more during the check
        }
    }
    let sure = whole && !meta.latched;
    let above = in_use_above(storage, meta, found, sure).map_err(io())?;
    if let Some((number, e)) = above.unknown {
        return Err(unread(number, e));
    }
    if let Some(highest) = above.highest {
        storage.sync_dir("").map_err(io())?; // its new name may not be durable yet, and is needed from now on
        tracing::warn!(highest, said = meta.highest_segment, "clad.meta does not know the newest segments: they count");
        meta.highest_segment = highest;
        meta.clean = false;
    }
    Ok(())
}

/// An unreadable header refuses the start, which would have to overwrite it. Only the salt in it separates this
/// segment's records from noise, and a device that fails now may return it tomorrow.
fn unread(segment: u64, source: io::Error) -> OpenError {
    match is_bad_place(&source) {
        true => OpenError::Unreadable { segment, source },
        false => OpenError::io(segment_name(segment))(source),
    }
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

/// Temporary files of segments that a start may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Those without a seal, before the segments were recovered: they hold no record, and their room may be needed.
    Unsealed,
    /// All, after the recovery of the segments.
    Any,
}

/// Removes half-made files of an interrupted run: temporary files, and segments that retention had durably passed.
/// Neither was ever the only copy of a record, except a segment that a recovery in the process has sealed: that stays
/// until the segments were recovered.
pub(crate) fn tidy_up(storage: &dyn Storage, meta: &Meta, entries: &[Entry], half: Half) -> Result<(), OpenError> {
    for entry in entries.iter().filter(|e| e.kind == EntryKind::File) {
        let passed = parse_segment_name(&entry.name).is_some_and(|n| n < meta.lowest_segment);
        let temporary = entry.name.strip_suffix(".tmp").is_some_and(|name| parse_segment_name(name).is_some());
        if passed || temporary && (half == Half::Any || is_unsealed(storage, &entry.name)) {
            // It may have gone before the segments were recovered.
            if_there(storage.remove(&entry.name)).map_err(OpenError::io(format!("remove {}", entry.name)))?;
        }
    }
    Ok(())
}

/// True if a temporary file certainly has no footer. A file that a dead process may still write to may have one, and
/// so may an unreadable file.
fn is_unsealed(storage: &dyn Storage, name: &str) -> bool {
    let look = || {
        let (file, block) = (storage.open(name, Access::ReadDirect)?, storage.block_size());
        let header = SegmentHeader::decode(&read_thrice(file.as_ref(), 0, block as usize)?);
        let alone = file.try_lock(Lock::Exclusive)?;
        let len = file.len()?;
        Ok::<_, io::Error>(
            alone && !header.is_ok_and(|header| footer_at_end(file.as_ref(), header, len, block).0.is_sealed()),
        )
    };
    look().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::meta::EpochStart;
    use crate::format::segment::example;
    use crate::io::{Durability, OsStorage};
    use crate::write::active::Active;

    fn meta(highest_segment: u64) -> Meta {
        Meta {
            generation: 1,
            log_id: example().log_id,
            clean: true,
            latched: false,
            lowest_segment: 0,
            lowest_offset: 0,
            highest_segment,
            created_ns: 0,
            least_epoch: 0,
            proof: None,
            lost: Vec::new(),
            epochs: vec![EpochStart { epoch: 3, first_offset: 0 }],
        }
    }

    /// Puts a sealed segment that supersedes, with the number 7 in its header, under a name.
    fn put_superseding(storage: &OsStorage, name: &str) -> u64 {
        let header = example();
        let active = Active::new(header.clone(), Vec::new(), 100, None);
        let footer = Footer { supersedes_from: Some(50), ..active.footer() };
        let mut bytes = vec![0; 4096];
        bytes[..header.encode().len()].copy_from_slice(&header.encode());
        bytes.extend(footer.encode(&header.seed(), 4096, 4096).0);
        let file = storage.create(name, Access::WriteCached).unwrap();
        file.write_at(IoBuf::copy_of(&bytes), 0, Durability::Written).1.unwrap();
        bytes.len() as u64
    }

    /// True if a start adopts that segment under the name of segment `number`, where `highest` is the last that was
    /// put to use.
    fn is_adopted(number: u64, highest: u64) -> bool {
        let dir = crate::io::real_folder();
        let storage = OsStorage::open(dir.path(), 4096, true).unwrap();
        let bytes = put_superseding(&storage, &segment_name(number));
        let probed = probe(&storage, number, bytes).unwrap();
        assert_eq!(probed.state.is_sealed(), number == example().number);
        let mut meta = meta(highest);
        let observer: Observer = std::sync::Arc::new(|_| {});
        adopt(&storage, &mut meta, &segments(&storage.list("").unwrap()), true, &observer).unwrap();
        assert_eq!(meta.clean, meta.highest_segment == highest);
        meta.highest_segment == number
    }

    #[test]
    fn a_rewritten_segment_is_adopted_and_a_file_on_its_way_to_be_used_again_is_not() {
        assert!(is_adopted(7, 6), "it was cut before clad.meta named it");
        // Renamed from 7, which retention had removed, to 12, and cut before it had a new header.
        assert!(!is_adopted(12, 11), "what it holds was removed long ago");
    }

    /// A segment that a recovery in the process has sealed may be the only copy of some records until the segments
    /// were recovered. Half-made files, and those that retention has passed, only take room.
    #[test]
    fn what_may_hold_a_record_stays_until_the_segments_were_recovered() {
        let dir = crate::io::real_folder();
        let storage = OsStorage::open(dir.path(), 4096, true).unwrap();
        let (sealed, half, passed) =
            ("00000000000000000007.clog.tmp", "00000000000000000008.clog.tmp", segment_name(3));
        put_superseding(&storage, sealed);
        for (name, bytes) in [(half, [vec![0; 4096], vec![7; 8192]].concat()), (&passed, vec![0; 4096])] {
            let file = storage.create(name, Access::WriteCached).unwrap();
            file.write_at(IoBuf::copy_of(&bytes), 0, Durability::Written).1.unwrap();
        }
        let meta = Meta { lowest_segment: 4, ..meta(6) };
        let entries = storage.list("").unwrap();
        let left = || storage.list("").unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        // A dead process may be about to seal it.
        let writes = storage.open(half, Access::WriteDirect).unwrap();
        writes.lock(Lock::Shared).unwrap();
        tidy_up(&storage, &meta, &entries, Half::Unsealed).unwrap();
        assert!(left().contains(&half.to_owned()) && !left().contains(&passed), "{:?}", left());
        drop(writes);
        tidy_up(&storage, &meta, &entries, Half::Unsealed).unwrap();
        assert_eq!(left(), [sealed]);
        tidy_up(&storage, &meta, &entries, Half::Any).unwrap();
        assert!(left().is_empty(), "{:?}", left());
    }
}
