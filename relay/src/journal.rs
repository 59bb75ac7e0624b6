//! systemd's journal, through `journalctl`: no library of it, no foreign file in this process.
//!
//! Invariants:
//! - Each record has its entry's cursor. A relay goes on behind the last one that the log has, so an entry is stored once.
//! - An entry that is left out moves the place too: a record without a body says so, once a minute.
//! - clad's own units are left out, or each of their lines would make another.
//! - journalctl is started again when it ends. Where the journal has lost the entry to go on behind, the log says so.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use clad_proto::AnyValue;
use clad_proto::journald::{CURSOR_ATTRIBUTE, ExportEntries, JournalEntry};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::Instant;

use crate::Stop;
use crate::config::{FromJournal, Start};
use crate::log::{LastRecord, Log};
use crate::metrics;

/// Units whose entries are never taken.
const OWN_UNITS: [&str; 3] = ["clad", "clad-relay", "clad@"];
/// The most that is kept of an entry.
const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Bytes of an append at which it is handed over.
const APPEND_BYTES: usize = 256 << 10;
/// Bytes that are read at once, and that journalctl's pipe holds. It writes 4 KiB at a time.
const PIECE_BYTES: usize = 256 << 10;
const PIPE_BYTES: usize = 1 << 20;
/// Rest behind a read of less than a quarter of a piece: each read has a wake-up, and an append of its own.
const READ_REST: Duration = Duration::from_millis(1);
/// Time between two notes of a place that only left-out entries have moved.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);
/// Waits before journalctl is started again, doubling.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Time between two looks at what the log has stored.
const TICK: Duration = Duration::from_millis(500);

/// The relay from the journal.
struct Journal<'a> {
    from: &'a FromJournal,
    log: Log,
    /// Behind this entry it goes on.
    cursor: Option<String>,
    /// Since when left-out entries have moved the place, and no record has said so.
    moved: Option<Instant>,
}

pub(crate) async fn run(from: &FromJournal, log: Log, place: Option<LastRecord>, mut stop: Stop) -> Result<()> {
    let cursor = match &place {
        None => None,
        Some(last) => match last.attribute(CURSOR_ATTRIBUTE) {
            Some(AnyValue::String(cursor)) => Some(cursor.clone()),
            _ if last.attribute(crate::files::POSITION).is_none() => None,
            _ => bail!("a relay of this name has stored files: one of the journal needs another name"),
        },
    };
    let mut journal = Journal { from, log, cursor, moved: None };
    tokio::select! {
        ended = journal.follow() => ended.map(|never| match never {}),
        _ = stop.wait_for(|stop| *stop) => journal.log.close().await,
    }
}

impl Journal<'_> {
    fn journalctl(&self) -> Command {
        let mut command = Command::new(&self.from.journalctl);
        // Without --merge it would follow the entries of the running boot alone, and pass over the last ones before it.
        command.args(["--output=export", "--all", "--quiet", "--no-pager", "--merge"]);
        if let Some(directory) = &self.from.directory {
            command.arg("--directory").arg(directory);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Fixes the last entry that there is as the place to go on behind, before any is stored.
    async fn begin_now(&mut self) -> Result<()> {
        let output = self.journalctl().arg("--lines=1").args(&self.from.matches).output().await;
        let output = output.with_context(|| format!("{} cannot be run", self.from.journalctl.display()))?;
        let mut entries = ExportEntries::new(ENTRY_BYTES_MAX);
        let last = entries.next(&mut BytesMut::from(&output.stdout[..]))?;
        if let Some(cursor) = last.as_ref().and_then(JournalEntry::cursor) {
            self.cursor = Some(cursor.to_owned());
            self.note(9, "the journal is taken from here on").await?;
            self.log.settle().await?;
        }
        Ok(())
    }

    /// A record of the relay's own, with its place.
    async fn note(&mut self, severity: i32, text: &str) -> Result<()> {
        self.moved = None;
        let place = self.cursor.clone().map(|cursor| (CURSOR_ATTRIBUTE, AnyValue::String(cursor)));
        self.log.note(severity, text, place.into_iter().collect()).await
    }

    fn start(&self) -> Result<Child> {
        let mut command = self.journalctl();
        command.args(["--follow", "--no-tail"]).args(&self.from.matches);
        if let Some(cursor) = &self.cursor {
            command.arg(format!("--cursor={cursor}"));
        }
        command.spawn().with_context(|| format!("{} cannot be run", self.from.journalctl.display()))
    }

    /// Reads the journal until an error.
    async fn follow(&mut self) -> Result<std::convert::Infallible> {
        if self.cursor.is_none() && self.from.start == Start::Now {
            self.begin_now().await?;
        }
        let mut backoff = BACKOFF.0;
        loop {
            let began = Instant::now();
            self.read().await?;
            metrics::restarted();
            backoff = if began.elapsed() > BACKOFF.1 { BACKOFF.0 } else { (2 * backoff).min(BACKOFF.1) };
            tracing::warn!("journalctl has ended; it is started again in {backoff:?}");
            tokio::time::sleep(backoff).await;
        }
    }

    /// Reads the journal until journalctl ends.
    async fn read(&mut self) -> Result<()> {
        let mut child = self.start()?;
        let mut output = child.stdout.take().context("no output of journalctl")?;
        // A user has a bound on the sizes of all pipes: without it this one stays as it was.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE_BYTES);
        if let Some(errors) = child.stderr.take() {
            tokio::spawn(async move {
                let mut lines = BufReader::new(errors).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    tracing::warn!("journalctl: {line}");
                }
            });
        }
        self.take(&mut output).await?;
        let _ = child.kill().await;
        Ok(())
    }

    async fn take(&mut self, output: &mut ChildStdout) -> Result<()> {
        let max_entry = ENTRY_BYTES_MAX.min(self.log.max_record.min(self.log.max_append) as usize / 2);
        let (mut entries, mut buf) = (ExportEntries::new(max_entry), BytesMut::new());
        // The first entry is the one to go on behind, if the journal still has it.
        let mut expected = self.cursor.clone();
        let mut tick = tokio::time::interval(TICK);
        loop {
            buf.reserve(PIECE_BYTES);
            let read = tokio::select! {
                read = output.read_buf(&mut buf) => match read? {
                    // What is half an entry comes again.
                    0 => return Ok(()),
                    read => read,
                },
                _ = tick.tick() => {
                    self.log.settle_ready()?;
                    if self.moved.is_some_and(|since| since.elapsed() >= NOTE_INTERVAL) {
                        self.note(1, "entries were left out").await?;
                    }
                    continue;
                }
            };
            loop {
                let entry = match entries.next(&mut buf) {
                    Ok(Some(entry)) => entry,
                    Ok(None) => break,
                    Err(fault) => {
                        tracing::error!("journalctl does not speak its export format: {fault}");
                        return Ok(());
                    }
                };
                if let Some(expected) = expected.take() {
                    if entry.cursor().is_some_and(|cursor| same_entry(cursor, &expected)) {
                        continue;
                    }
                    self.missing().await?;
                }
                self.push(&entry).await?;
            }
            self.log.submit().await?;
            if read < PIECE_BYTES / 4 {
                tokio::time::sleep(READ_REST).await;
            }
        }
    }

    /// The entry to go on behind is not there.
    async fn missing(&mut self) -> Result<()> {
        metrics::lost(metrics::Lost::Source);
        tracing::warn!("the journal has not kept the entry behind which this relay goes on: some may be missing");
        self.note(13, "the journal has not kept the entry behind which this relay goes on: some may be missing").await
    }

    async fn push(&mut self, entry: &JournalEntry) -> Result<()> {
        let Some(cursor) = entry.cursor() else {
            metrics::lost(metrics::Lost::Source);
            tracing::error!("an entry without a cursor is left out");
            return Ok(());
        };
        if self.is_left_out(entry) {
            self.cursor = Some(cursor.to_owned());
            self.moved.get_or_insert_with(Instant::now);
            return Ok(());
        }
        self.log.open_group(entry.component().unwrap_or_default(), || entry.group()).await?;
        if self.log.len_bytes() >= APPEND_BYTES {
            self.log.submit().await?;
        }
        if entry.push_to(self.log.records()).is_err() {
            // The append is full.
            self.log.submit().await?;
            entry.push_to(self.log.records()).context("an entry does not fit a record")?;
        }
        let place = self.cursor.get_or_insert_default();
        place.clear();
        place.push_str(cursor);
        self.moved = None;
        Ok(())
    }

    fn is_left_out(&self, entry: &JournalEntry) -> bool {
        let is_own = |unit: &[u8]| {
            let unit = String::from_utf8_lossy(unit);
            let name = unit.strip_suffix(".service").unwrap_or(&unit);
            OWN_UNITS.iter().any(|own| name == *own || (own.ends_with('@') && name.starts_with(own)))
                || name.starts_with("clad-relay@")
        };
        let is_excluded = |term: &String| {
            let (field, value) = term.split_once('=').unwrap_or_default();
            entry.values(field).any(|found| found == value.as_bytes())
        };
        entry.field("_SYSTEMD_UNIT").is_some_and(is_own) || self.from.exclude.iter().any(is_excluded)
    }
}

/// Two cursors are of one entry. Their last part is a hash, which is another one in a file that was written again.
fn same_entry(one: &str, other: &str) -> bool {
    let part = |cursor: &str, name: &str| {
        cursor.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    one == other || ["s", "i", "t", "b", "m"].iter().all(|name| part(one, name) == part(other, name))
}

#[cfg(test)]
mod tests {
    use super::same_entry;

    #[test]
    fn an_entry_is_known_by_what_its_cursor_says() {
        let one = "s=a;i=1;b=c;m=2;t=3;x=4";
        assert!(same_entry(one, "s=a;i=1;b=c;m=2;t=3;x=5"), "a file that was written again has another hash");
        for other in ["s=b;i=1;b=c;m=2;t=3;x=4", "s=a;i=2;b=c;m=2;t=3;x=4", "s=a;i=1;b=c;m=2;t=4;x=4", ""] {
            assert!(!same_entry(one, other), "{other}");
        }
    }
}
