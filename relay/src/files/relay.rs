//! The relay from files.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clad_client::{Body, Event, Group, RecordHead};
use clad_proto::{AnyValue, KeyValue};

use super::follow::{Followed, Limits, Look, Piece, open};
use super::lines::Rules;
use super::place::{self, CHECKPOINT, FileId, PATH, PLACES, Place};
use crate::Stop;
use crate::config::{FromFiles, Start};
use crate::log::{LastRecord, Log, last_in, now};
use crate::metrics;

/// Time between two looks at files that have nothing new, and between two looks for new files.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
const FIND_INTERVAL: Duration = Duration::from_secs(1);
/// Records, and time, after which the places of all files are stored again.
const CHECKPOINT_RECORDS: usize = 100_000;
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Files that are followed at once: their places fit a record.
const FILES_MAX: usize = 1000;

struct Files<'a> {
    from: &'a FromFiles,
    component: &'a str,
    rules: Rules,
    limits: Limits,
    log: Log,
    /// A file of some name is before a later one of that name.
    followed: Vec<Followed>,
    /// Offset of the last record with all places, and what was stored since.
    checkpoint: u64,
    records_since: usize,
    checkpoint_at: Instant,
    find_at: Instant,
    is_full: bool,
}

pub(crate) async fn run(
    from: &FromFiles,
    name: &str,
    log: Log,
    place: Option<LastRecord>,
    mut stop: Stop,
) -> Result<()> {
    let limits = Limits::of(log.max_append);
    let max_record = (from.max_record.as_u64() as usize).min(log.max_record as usize / 2).min(limits.bytes / 2);
    let mut files = Files {
        from,
        component: from.component.as_deref().unwrap_or(name),
        rules: Rules { begins: from.begins()?, max_record },
        limits,
        log,
        followed: Vec::new(),
        checkpoint: 0,
        records_since: 0,
        checkpoint_at: Instant::now(),
        find_at: Instant::now(),
        is_full: false,
    };
    let followed = async {
        files.restore(place).await?;
        files.follow().await
    };
    tokio::select! {
        ended = followed => ended.map(|never| match never {}),
        _ = stop.wait_for(|stop| *stop) => files.log.close().await,
    }
}

impl Files<'_> {
    /// Finds the files as the log has them, or begins.
    async fn restore(&mut self, last: Option<LastRecord>) -> Result<()> {
        let checkpoint = last.as_ref().and_then(|last| match last.attribute(PLACES) {
            Some(_) => Some(last.offset),
            None => match last.attribute(CHECKPOINT) {
                Some(AnyValue::Int(offset)) => Some(offset.cast_unsigned()),
                _ => None,
            },
        });
        let Some(checkpoint) = checkpoint else {
            if last.is_some_and(|last| last.attribute(clad_proto::journald::CURSOR_ATTRIBUTE).is_some()) {
                bail!("a relay of this name has stored the journal: one of files needs another name");
            }
            self.find(self.from.start)?;
            return self.store_places().await;
        };
        self.checkpoint = checkpoint;
        for place in self.places_from(checkpoint).await? {
            match found(&place)? {
                Some(file) => self.followed.push(Followed::new(place, file)),
                None => {
                    let text = format!(
                        "{} is gone; what it had from byte {} on, if anything, is lost",
                        place.path.display(),
                        place.position
                    );
                    self.lost(&text).await?;
                }
            }
        }
        self.find(Start::Beginning)?;
        self.store_places().await
    }

    /// Places of all files, by the record that has all of them and what was stored behind it.
    async fn places_from(&self, checkpoint: u64) -> Result<Vec<Place>> {
        let mut reader = self.log.own_from(checkpoint).await?;
        let mut places: Vec<Place> = Vec::new();
        let mut begun = false;
        while let Some(event) = reader.next().await? {
            let Event::Records(chunk) = event else { continue };
            let Some(last) = last_in(&chunk) else { continue };
            begun |= chunk.first_offset() == checkpoint;
            if !begun {
                break;
            }
            if let Some(AnyValue::String(text)) = last.attribute(PLACES) {
                places = place::of_text(text)?;
                continue;
            }
            let group =
                chunk.group().and_then(|group| group.resource()?.attributes().get(PATH).map(|path| path.to_owned()));
            let Some(AnyValue::String(path)) = group else { continue };
            let Some(place) = Place::of_record(&last, &path) else { continue };
            match places.iter_mut().find(|known| known.id == place.id) {
                Some(known) => *known = place,
                None => places.push(place),
            }
        }
        if !begun {
            bail!(
                "the log has not kept the record with the places of all files (offset {checkpoint}): retention has removed \
                 it. `clad-relay begin` does not help, for later records are there: give the relay another name"
            );
        }
        Ok(places)
    }

    /// Follows until an error.
    async fn follow(&mut self) -> Result<std::convert::Infallible> {
        loop {
            if self.find_at.elapsed() >= FIND_INTERVAL {
                self.find(Start::Beginning)?;
            }
            let is_idle = self.round().await?;
            self.log.settle_ready()?;
            metrics::behind(self.followed.iter().map(Followed::behind).sum());
            let is_due = self.records_since >= CHECKPOINT_RECORDS
                || self.records_since > 0 && self.checkpoint_at.elapsed() >= CHECKPOINT_INTERVAL;
            if is_due {
                self.store_places().await?;
            }
            if is_idle {
                tokio::time::sleep(LOOK_INTERVAL).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes a piece of each file; true if there was nothing.
    async fn round(&mut self) -> Result<bool> {
        // A file waits for an earlier one of its name.
        let mut waits: HashSet<PathBuf> = HashSet::new();
        let (mut done, mut is_idle, mut at) = (Vec::new(), true, 0);
        while at < self.followed.len() {
            let file = &mut self.followed[at];
            if waits.contains(&file.place.path) {
                at += 1;
                continue;
            }
            let path = file.place.path.clone();
            let look = file.look(&self.rules, self.limits);
            match look.with_context(|| format!("{} cannot be read", path.display()))? {
                Look::Nothing => {}
                Look::Done => done.push(file.place.id),
                Look::Truncated => {
                    is_idle = false;
                    waits.insert(path);
                    self.truncated(at).await?;
                    // The copy that was found stands before it now, or it begins again: the next round.
                }
                Look::Records(piece) => {
                    is_idle = false;
                    waits.insert(path);
                    self.store(at, piece).await?;
                }
            }
            at += 1;
        }
        if !done.is_empty() {
            self.followed.retain(|file| !done.contains(&file.place.id));
            self.is_full = false;
            self.store_places().await?;
        }
        Ok(is_idle)
    }

    /// Hands over the records of a piece as an append, whose last one has the place behind it.
    async fn store(&mut self, at: usize, piece: Piece) -> Result<()> {
        let path = piece.place.path.display().to_string();
        let (component, key) = (self.component, format!("{}\0{path}", self.component));
        self.log.open_group(&key, || group(component, &path)).await?;
        // Nothing is awaited from here until all are in: an append without its place would be read again.
        let (records, count) = (self.log.records(), piece.records.len());
        let head = RecordHead { observed_time_unix_nano: now(), ..RecordHead::default() };
        for (index, found) in piece.records.iter().enumerate() {
            let bytes = &piece.bytes[found.body.clone()];
            let body = std::str::from_utf8(bytes).map_or(Body::Bytes(bytes), Body::Text);
            let is_last = index + 1 == count;
            let mut record = records.record(head, body);
            if is_last || found.cut_from.is_some() {
                record.attributes(|attributes| {
                    if let Some(length) = found.cut_from {
                        attributes.entry("log.truncated").boolean(true);
                        attributes.entry("log.original_length").int(i64::try_from(length).unwrap_or(i64::MAX));
                    }
                    if is_last {
                        for (key, value) in piece.place.attributes(self.checkpoint) {
                            attributes.entry(key).int(value);
                        }
                    }
                });
            }
            record.commit().context("records of a file do not fit an append")?;
        }
        self.records_since += count;
        self.followed[at].stored(piece.place);
        self.log.submit().await
    }

    /// Begins a file again whose bytes are others. What of the old ones was not read is in a copy, if there is one.
    async fn truncated(&mut self, at: usize) -> Result<()> {
        let file = &self.followed[at];
        let (position, path) = (file.place.position, file.place.path.clone());
        let copy = self.copy_of(file)?;
        let behind = file.behind();
        self.followed[at].begins_again();
        match copy {
            Some(copy) => {
                tracing::info!("{} was truncated; it goes on in a copy from byte {position} on", path.display());
                self.followed.insert(at, copy);
            }
            None if behind > 0 => {
                let name = path.display();
                let text = format!(
                    "{name} was truncated; {behind} bytes from byte {position} on were not read, and no copy has them"
                );
                self.lost(&text).await?;
            }
            None => tracing::info!("{} was truncated; it begins again", path.display()),
        }
        self.store_places().await
    }

    /// The copy of a file that was made before it was truncated.
    fn copy_of(&self, file: &Followed) -> Result<Option<Followed>> {
        let place = &file.place;
        let Some(folder) = place.path.parent().filter(|_| place.position > 0) else { return Ok(None) };
        for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let path = entry?.path();
            if !place.may_be_named(&path) {
                continue;
            }
            let Ok(Some((id, other))) = open(&path) else { continue };
            if self.followed.iter().all(|file| file.place.id != id) && place.fits(&other)? {
                let mut copy = Followed::new(Place { id, ..place.clone() }, other);
                copy.is_renamed = true;
                return Ok(Some(copy));
            }
        }
        Ok(None)
    }

    /// Looks for new files, and for those that have lost their name.
    fn find(&mut self, start: Start) -> Result<()> {
        self.find_at = Instant::now();
        let mut found: BTreeMap<FileId, (SystemTime, PathBuf)> = BTreeMap::new();
        for pattern in &self.from.paths {
            for path in glob::glob(pattern).context("from.files.paths")?.flatten() {
                let Ok(metadata) = fs::metadata(&path) else { continue };
                if metadata.is_file() {
                    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.entry(FileId::of(&metadata)).or_insert((modified, path));
                }
            }
        }
        for file in &mut self.followed {
            file.is_renamed = !found.contains_key(&file.place.id);
        }
        found.retain(|id, _| self.followed.iter().all(|file| file.place.id != *id));
        let mut new: Vec<(SystemTime, PathBuf)> = found.into_values().collect();
        new.sort();
        for (_, path) in new {
            self.begin(&path, start)?;
        }
        Ok(())
    }

    /// Follows a new file, unless it is a copy of another.
    fn begin(&mut self, path: &Path, start: Start) -> Result<()> {
        let (id, file) = match open(path) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::warn!("{} cannot be read: {error}", path.display());
                return Ok(());
            }
        };
        // What is empty has no content by which a copy could be known.
        let length = file.metadata()?.len();
        let is_copy = |other: &Followed| other.is_copied_to(&file, path);
        if length == 0 && start == Start::Beginning || self.followed.iter().any(|other| is_copy(other).unwrap_or(false))
        {
            return Ok(());
        }
        if self.followed.len() >= FILES_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                metrics::lost(metrics::Lost::Source);
                tracing::error!("{FILES_MAX} files are followed: {} and later ones are not read", path.display());
            }
            return Ok(());
        }
        let mut place = Place::at_start(id, path);
        if start == Start::Now {
            let end = last_line_end(&file, length)?;
            place = place.moved(end, &file)?.with_context(|| format!("{} was truncated", path.display()))?;
        }
        tracing::info!("{} from byte {} on", path.display(), place.position);
        self.followed.push(Followed::new(place, file));
        Ok(())
    }

    /// Stores the places of all files, and waits for it.
    async fn store_places(&mut self) -> Result<()> {
        let places: Vec<Place> = self.followed.iter().map(|file| file.place.clone()).collect();
        let text = place::to_text(&places)?;
        self.log.note(1, &format!("places of {} files", places.len()), vec![(PLACES, AnyValue::String(text))]).await?;
        self.checkpoint = self.log.settle().await?.context("a record of places is not stored")?;
        (self.records_since, self.checkpoint_at) = (0, Instant::now());
        Ok(())
    }

    /// Says in the log that something could not be brought over.
    async fn lost(&mut self, text: &str) -> Result<()> {
        metrics::lost(metrics::Lost::Source);
        tracing::warn!("{text}");
        self.log.note(13, text, vec![(CHECKPOINT, AnyValue::Int(self.checkpoint.cast_signed()))]).await
    }
}

fn group(component: &str, path: &str) -> Group {
    let mut group = Group::component_named(component);
    let path = KeyValue { key: PATH.to_owned(), value: Some(AnyValue::String(path.to_owned())), ..KeyValue::default() };
    group.resource.get_or_insert_default().attributes.push(path);
    group
}

/// The file of a place, under its name or another one in its folder. Numbers of files are used again: under another name
/// its bytes must be what they were.
fn found(place: &Place) -> Result<Option<File>> {
    let is_it =
        |path: &Path| Ok::<_, anyhow::Error>(open(path)?.filter(|(id, _)| *id == place.id).map(|(_, file)| file));
    if let Some(file) = is_it(&place.path).with_context(|| format!("{} cannot be read", place.path.display()))? {
        return Ok(Some(file));
    }
    let Some(folder) = place.path.parent() else { return Ok(None) };
    let Ok(entries) = fs::read_dir(folder) else { return Ok(None) };
    for entry in entries {
        let path = entry?.path();
        if !place.may_be_named(&path) {
            continue;
        }
        if let Ok(Some(file)) = is_it(&path)
            && place.fits(&file)?
        {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Where the last whole line ends.
fn last_line_end(file: &File, length: u64) -> Result<u64> {
    use std::os::unix::fs::FileExt;
    let mut end = length;
    let mut bytes = vec![0; 64 << 10];
    while end > 0 {
        let begin = end.saturating_sub(bytes.len() as u64);
        let piece = &mut bytes[..(end - begin) as usize];
        file.read_exact_at(piece, begin)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}
