//! A folder with the objects of a raw archive, as `clad-relay` stores them (docs/ARCHIVE.md): raw exports within zstd.
//!
//! Invariants:
//! - Nothing is written. One object is open at a time; memory is that of an append and of a zstd frame.
//! - What is missing, or does not fit a checksum, is a gap and never a record.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clad_proto::frame::{FrameHeader, FrameType, GapReason, RecordsView};
use clad_proto::limits::{FRAME_HEADER_BYTES, MAX_APPEND_BYTES};
use clad_proto::raw_export::{self, HEAD_BYTES};
use clad_proto::{Cursor, LogId, PayloadView};
use serde_json::Value;

use super::piece::{Gap, Whole};
use crate::exit::Stop;

/// The object that names the first offset.
const ORIGIN: &str = "_origin";
/// The end of an object's name; before it stand the digits of its first offset.
const SUFFIX: &str = ".raw.zst";
const OFFSET_DIGITS: usize = 20;
/// The beginnings of an archive's folders; those of the other form are for engines that read Parquet.
const FOLDERS: [&str; 3] = ["log=", "raw=", "history="];
/// Behind what an object says of itself: the number of its bytes, and four letters.
const TAIL_BYTES: u64 = 8;
const MARK: &[u8; 4] = b"clad";
/// No object says more of itself.
const WORDS_BYTES_MAX: u64 = 1 << 20;

/// A history of an archive.
pub(crate) struct Archive {
    dir: PathBuf,
    first: u64,
    end: Cursor,
    objects: Vec<Object>,
    faults: Vec<String>,
}

struct Object {
    path: PathBuf,
    log_id: LogId,
    first: u64,
    end: u64,
    end_epoch: u32,
    gap: Option<GapReason>,
}

impl Archive {
    /// True of a folder that `clad-relay` stored, and no data folder of a daemon.
    pub(crate) fn is_one(dir: &Path) -> bool {
        let Ok(entries) = dir.read_dir() else { return false };
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name == ORIGIN || name.ends_with(SUFFIX) || FOLDERS.iter().any(|start| name.starts_with(start))
        })
    }

    /// Opens a history's folder, and looks at what each object says of itself.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let names = names(dir)?;
        let (mut objects, mut faults) = (Vec::new(), Vec::new());
        for name in names.iter().filter(|name| name.ends_with(SUFFIX)) {
            match Object::look(dir, name) {
                Ok(object) => objects.push(object),
                Err(error) => faults.push(format!("{name}: {error:#}")),
            }
        }
        objects.sort_unstable_by_key(|object| object.first);
        let origin = if names.iter().any(|name| name == ORIGIN) { Some(origin(dir)?) } else { None };
        let begin = origin.or_else(|| objects.first().map(|first| (first.log_id, first.first, first.end_epoch)));
        let Some((log_id, first, epoch)) = begin else {
            bail!(
                "{} is no history of a raw archive: name a folder `log=LOG-ID/raw=N` (what is in `history=N` is Parquet, for engines \
                 that read it){}",
                dir.display(),
                faults.first().map(|fault| format!("; {fault}")).unwrap_or_default()
            );
        };
        let mut end = Cursor { log_id, epoch, offset: first };
        for object in &objects {
            ensure!(
                object.log_id == log_id,
                "{} is of log {}, and the folder of log {log_id}",
                object.path.display(),
                object.log_id
            );
            if object.first != end.offset {
                let (from, to) = (end.offset.min(object.first), end.offset.max(object.first));
                let how = if object.first > end.offset { "in no object" } else { "in two objects" };
                faults.push(format!("offsets {from} to {} are {how}", to - 1));
            }
            if object.end > end.offset {
                end = Cursor { log_id, epoch: object.end_epoch, offset: object.end };
            }
        }
        Ok(Self { dir: dir.to_owned(), first, end, objects, faults })
    }

    pub(crate) const fn first_offset(&self) -> u64 {
        self.first
    }

    /// The place behind the last object.
    pub(crate) const fn end(&self) -> Cursor {
        self.end
    }

    /// Objects that cannot be read, and offsets that none has.
    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        self.faults.iter().map(|fault| format!("{}: {fault}", self.dir.display()))
    }

    /// Reads from an offset on.
    pub(crate) const fn read(&self, from: u64) -> ArchiveReader<'_> {
        ArchiveReader { archive: self, next: from, at: 0, open: None }
    }
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = dir.read_dir().with_context(|| format!("{} cannot be read", dir.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().with_context(|| format!("{} cannot be read", dir.display()))
}

/// The log, the first offset and its epoch.
fn origin(dir: &Path) -> Result<(LogId, u64, u32)> {
    let path = dir.join(ORIGIN);
    let text = std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let origin: Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is no origin of an archive", path.display()))?;
    let read = || {
        let log_id = origin["log"].as_str()?.parse().ok()?;
        Some((log_id, origin["first"].as_u64()?, u32::try_from(origin["epoch"].as_u64()?).ok()?))
    };
    read().with_context(|| format!("{} is no origin of an archive", path.display()))
}

impl Object {
    /// Reads the end of an object, which describes it.
    fn look(dir: &Path, name: &str) -> Result<Self> {
        let digits = name.strip_suffix(SUFFIX).unwrap_or_default();
        let is_number = digits.len() == OFFSET_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        ensure!(is_number, "it has another name than an object of an archive");
        let path = dir.join(name);
        let mut file = File::open(&path)?;
        let len = file.metadata()?.len();
        let cut = "it ends before its end: it was not copied whole";
        let mut tail = [0; TAIL_BYTES as usize];
        file.seek(SeekFrom::Start(len.checked_sub(TAIL_BYTES).context(cut)?))?;
        file.read_exact(&mut tail)?;
        let length = tail.first_chunk::<4>().filter(|_| tail.ends_with(MARK)).map(|bytes| u32::from_le_bytes(*bytes));
        let length = length.map(u64::from).filter(|length| *length < len.min(WORDS_BYTES_MAX)).context(cut)?;
        file.seek(SeekFrom::Start(len - TAIL_BYTES - length))?;
        let mut words = String::new();
        file.take(length).read_to_string(&mut words).context("what it says of itself is no text")?;
        let word = |key: &str| {
            let line = words.lines().find_map(|line| line.strip_prefix("clad-")?.strip_prefix(key)?.strip_prefix(": "));
            line.with_context(|| format!("it does not say its {key}"))
        };
        let number = |key: &str| word(key)?.parse::<u64>().with_context(|| format!("no number as its {key}"));
        let gap = match word("gap") {
            Ok("retention") => Some(GapReason::Retention),
            Ok(_) => Some(GapReason::Damage),
            Err(_) => None,
        };
        let (first, end) = (number("first")?, number("end")?);
        ensure!(first < end && digits.parse() == Ok(first), "it says that it has offsets {first} to below {end}");
        let (log_id, end_epoch) = (word("log")?.parse().context("its log")?, u32::try_from(number("end-epoch")?)?);
        Ok(Self { path, log_id, first, end, end_epoch, gap })
    }
}

type Stream = BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>;

/// Reads appends in order.
pub(crate) struct ArchiveReader<'a> {
    archive: &'a Archive,
    next: u64,
    at: usize,
    open: Option<Stream>,
}

impl ArchiveReader<'_> {
    /// The append that has the next offset (it may begin before it), or what is missing there; nothing at the end.
    pub(crate) fn next_whole(&mut self) -> Result<Option<Whole>, Stop> {
        while let Some(object) = self.archive.objects.get(self.at) {
            if object.end <= self.next {
                (self.at, self.open) = (self.at + 1, None);
                continue;
            }
            if object.first > self.next {
                return Ok(Some(self.gap(object.first, GapReason::Damage)));
            }
            if let Some(reason) = object.gap {
                return Ok(Some(self.gap(object.end, reason)));
            }
            let failed = |error: io::Error| {
                let path = object.path.display();
                Stop::Failed(anyhow::Error::new(error).context(format!("{path} cannot be read")))
            };
            let stream = match &mut self.open {
                Some(stream) => stream,
                none => {
                    let file = File::open(&object.path).map_err(failed)?;
                    let mut stream = BufReader::new(zstd::stream::read::Decoder::new(file).map_err(failed)?);
                    let mut head = [0; HEAD_BYTES];
                    match stream.read_exact(&mut head) {
                        Ok(()) if head[..] == raw_export::head(self.archive.end.log_id) => {}
                        Err(error) if error.raw_os_error().is_some() => return Err(failed(error)),
                        _ => return Ok(Some(self.gap(object.end, GapReason::Damage))),
                    }
                    none.insert(stream)
                }
            };
            let (head, peer_meta, payload) = match append(stream) {
                Ok(Some(append)) => append,
                // The disk or the network fails: nothing is known about the bytes.
                Err(error) if error.raw_os_error().is_some() => return Err(failed(error)),
                // Where the next append begins in a damaged object is not known.
                Ok(None) | Err(_) => return Ok(Some(self.gap(object.end, GapReason::Damage))),
            };
            let end = head.first_offset.saturating_add(head.count.into());
            if end <= self.next {
                continue;
            }
            if head.first_offset > self.next && head.first_offset > object.first {
                return Ok(Some(self.gap(object.end, GapReason::Damage)));
            }
            if PayloadView::parse(&payload, head.count).is_err() {
                return Ok(Some(self.gap(end.min(object.end), GapReason::Damage)));
            }
            self.next = end;
            return Ok(Some(Whole::Append { head, peer_meta, payload }));
        }
        Ok(None)
    }

    fn gap(&mut self, to: u64, reason: GapReason) -> Whole {
        let from = std::mem::replace(&mut self.next, to);
        Whole::Gap(Gap { from, to, reason })
    }
}

/// The next append of an object; nothing at its end. One that does not fit its checksum is an error of the kind `InvalidData`.
fn append(stream: &mut impl BufRead) -> io::Result<Option<(clad_proto::frame::RecordsHead, Bytes, Bytes)>> {
    if stream.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut header = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = FrameHeader::decode(&header, MAX_APPEND_BYTES).map_err(io::Error::other)?;
    if header.kind != FrameType::Records {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    // Room comes with the bytes: a length alone takes none.
    if stream.take(header.body_len.into()).read_to_end(&mut body)? < header.body_len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let body = Bytes::from(body);
    let view = RecordsView::parse(&body).map_err(io::Error::other)?;
    if !view.checksum_holds() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some((view.head, body.slice_ref(view.peer_meta), body.slice_ref(view.payload))))
}
