//! From groups of lines to acks.
//!
//! Invariants: a line counts as acked only when it and every line before it has reached the level; what is in
//! flight stays below [`MAX_OUTSTANDING_BYTES`], one group excepted; after the first failure nothing more is handed over. Who
//! waits for long is notified of the reason, and again when that is another one; who is to stop takes no more lines, and
//! waits for those under way while their acks come: for [`NEXT_ACK_TIMEOUT`] each, [`LAST_ACKS_TIMEOUT`] in all. Then the producer ends,
//! and each append says whether it may be stored.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use clad_client::{Producer, Ticket};
use clad_proto::{AckLevel, Body, EncodeError, RecordHead, Severity};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::feed::{Fed, Group, Place};
use crate::clock;
use crate::format::human::counted;
use crate::interrupt::Interrupt;
use crate::output::say;

/// Nothing was acknowledged for so long: that is worth a word; after as long again, another reason is.
const STALL_REPORT_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for the next ack after a signal: some syncs of a disk that turns.
const NEXT_ACK_TIMEOUT: Duration = Duration::from_millis(200);
/// Longest wait for all of them.
const LAST_ACKS_TIMEOUT: Duration = Duration::from_secs(2);
/// Attribute that names the stream of a program, by OpenTelemetry's conventions.
const STREAM_ATTRIBUTE: &str = "log.iostream";
/// Attribute of a piece of a line whose next record continues it.
const CONTINUES_ATTRIBUTE: &str = "clad.continues";
/// Bytes that may wait for their acks.
const MAX_OUTSTANDING_BYTES: usize = 16 * 1024 * 1024;

/// Progress of the lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Lines that reached the level, all before them too.
    pub(crate) lines: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Offset of the first.
    pub(crate) first_offset: Option<u64>,
    /// Offset of the last.
    pub(crate) last_offset: Option<u64>,
    /// The last of them.
    pub(crate) last: Option<Place>,
    /// The epoch of its offset.
    pub(crate) epoch: Option<u32>,
}

/// A failure, with its input or line.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// The first line that is not known to have reached the level.
    pub(crate) at: Option<Place>,
    /// Why.
    pub(crate) error: anyhow::Error,
    /// Lines that were taken from the input and not sent.
    pub(crate) unsent: Option<Group>,
}

impl Trouble {
    pub(crate) fn new(at: Option<Place>, error: impl Into<anyhow::Error>) -> Self {
        Self { at, error: error.into(), unsent: None }
    }
}

/// Hands lines over and follows them to their level.
#[derive(Debug)]
pub(crate) struct Flow {
    /// There until it ends without its acks.
    producer: Option<Producer>,
    level: AckLevel,
    severity: Severity,
    outstanding: VecDeque<Outstanding>,
    outstanding_bytes: usize,
    /// Lines are kept until they have their level.
    keeps: bool,
    pub(crate) reached: Reached,
}

#[derive(Debug)]
struct Outstanding {
    ticket: Ticket,
    first: Place,
    lines: u64,
    /// Of the lines.
    bytes: u64,
    /// Of the append.
    held: usize,
    kept: Option<Group>,
}

impl Flow {
    /// Nothing handed over yet. The producer has no other handle.
    pub(crate) fn new(producer: Producer, level: AckLevel, severity: Severity) -> Self {
        let reached = Reached::default();
        let producer = Some(producer);
        Self { producer, level, severity, outstanding: VecDeque::new(), outstanding_bytes: 0, keeps: false, reached }
    }

    /// Likewise, and lines that do not reach the level can be had back.
    pub(crate) fn keeping(producer: Producer, level: AckLevel, severity: Severity) -> Self {
        Self { keeps: true, ..Self::new(producer, level, severity) }
    }

    /// The lines that are not known to have reached the level, in their order.
    pub(crate) fn unreached(&mut self) -> Vec<Group> {
        self.outstanding.drain(..).filter_map(|outstanding| outstanding.kept).collect()
    }

    /// The progress, and the producer where it has not ended.
    pub(crate) fn into_parts(self) -> (Reached, Option<Producer>) {
        (self.reached, self.producer)
    }

    /// Goes on until the input has ended and everything has its ack; `report` hears how far it is. A signal ends it early.
    pub(crate) async fn run(
        &mut self,
        fed: &mut mpsc::Receiver<Fed>,
        interrupt: &Interrupt,
        mut report: impl FnMut(&Reached),
    ) -> Result<(), Trouble> {
        let interrupted = interrupt.or(std::future::pending::<()>());
        tokio::pin!(interrupted);
        let stalled = tokio::time::sleep(STALL_REPORT_AFTER);
        tokio::pin!(stalled);
        let (mut since, mut said) = (Instant::now(), None);
        let mut more = true;
        let mut trouble = None;
        // When the waiting ends after a signal: without a further ack, and at the latest.
        let mut until: Option<(Instant, Instant)> = None;
        while more || !self.outstanding.is_empty() {
            let room = more && self.outstanding_bytes < MAX_OUTSTANDING_BYTES;
            tokio::select! {
                biased;
                Some(receipt) = front(&mut self.outstanding) => {
                    self.settle(receipt)?;
                    report(&self.reached);
                    let now = Instant::now();
                    stalled.as_mut().reset(now + STALL_REPORT_AFTER);
                    (since, said) = (now, None);
                    until = until.map(|(_, latest)| (latest.min(now + NEXT_ACK_TIMEOUT), latest));
                }
                group = fed.recv(), if room => match group {
                    Some(Ok(group)) => {
                        if self.outstanding.is_empty() {
                            since = Instant::now();
                            stalled.as_mut().reset(since + STALL_REPORT_AFTER);
                        }
                        // A ring that is full, or a buffer, may make it wait.
                        tokio::select! {
                            biased;
                            done = self.submit(group) => done?,
                            _ = &mut interrupted, if trouble.is_none() => {
                                (more, until, trouble) = (false, Some(deadlines()), Some(interruption()));
                            }
                        }
                    }
                    Some(Err((input, error))) => {
                        more = false;
                        trouble = Some(Trouble::new(Some(Place { input, line: 0 }), error));
                    }
                    None => more = false,
                },
                _ = &mut interrupted, if trouble.is_none() => {
                    (more, until, trouble) = (false, Some(deadlines()), Some(interruption()));
                }
                () = tokio::time::sleep_until(until.map_or_else(Instant::now, |(next, _)| next)), if until.is_some() => {
                    let why = self.why_waiting().map_or_else(String::new, |why| format!(": {why}"));
                    let lines = counted(self.lines(), "line");
                    let stored = if self.end().await { "which may be stored" } else { "certainly not stored" };
                    let error = anyhow!("interrupted, and no ack for {lines}, {stored}{why}");
                    return Err(Trouble::new(None, error));
                }
                () = &mut stalled, if !self.outstanding.is_empty() => {
                    let why = self.why_waiting();
                    if said.as_ref() != Some(&why) {
                        say(&self.waits(since.elapsed(), why.as_deref()));
                        said = Some(why);
                    }
                    stalled.as_mut().reset(Instant::now() + STALL_REPORT_AFTER);
                }
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Lines that wait for their acks.
    fn lines(&self) -> u64 {
        self.outstanding.iter().map(|waiting| waiting.lines).sum()
    }

    fn why_waiting(&self) -> Option<String> {
        self.producer.as_ref().and_then(Producer::why_waiting)
    }

    /// Ends the producer. Says whether a reader may find one of the lines that wait.
    async fn end(&mut self) -> bool {
        self.producer = None;
        let mut maybe_stored = false;
        for waiting in self.outstanding.drain(..) {
            let ended = tokio::time::timeout(NEXT_ACK_TIMEOUT, waiting.ticket).await;
            maybe_stored |= !matches!(ended, Ok(Err(error)) if !error.maybe_written());
        }
        maybe_stored
    }

    fn waits(&self, time: Duration, why: Option<&str>) -> String {
        let why = why.unwrap_or("the daemon is gone, or its disk is slow or full");
        format!(
            "clactl: nothing was acknowledged for {} s, and {} wait: {why} (`clactl status`); they are sent again when it is \
             over",
            time.as_secs(),
            counted(self.lines(), "line")
        )
    }

    fn settle(&mut self, receipt: Result<clad_client::Receipt, clad_client::AppendError>) -> Result<(), Trouble> {
        let Some(done) = self.outstanding.front() else { return Ok(()) };
        let receipt = receipt.map_err(|error| Trouble::new(Some(done.first), error))?;
        let Some(done) = self.outstanding.pop_front() else { return Ok(()) };
        self.outstanding_bytes -= done.held;
        let reached = &mut self.reached;
        reached.lines += done.lines;
        reached.bytes += done.bytes;
        reached.first_offset = reached.first_offset.or(receipt.first_offset);
        reached.last_offset = receipt.last_offset().or(reached.last_offset);
        reached.epoch = Some(receipt.epoch);
        reached.last = Some(Place { line: done.first.line + done.lines.saturating_sub(1), ..done.first });
        Ok(())
    }

    /// Hands a group over as one append, or as few as it fits into.
    async fn submit(&mut self, group: Group) -> Result<(), Trouble> {
        let mut at = 0;
        while at < group.lines.len() {
            let place = Place { line: group.first.line + at as u64, ..group.first };
            match self.submit_some(&group, at, place).await {
                Ok(taken) => at += taken,
                Err(error) => {
                    let lines = group.lines.get(at..).unwrap_or_default().to_vec();
                    return Err(Trouble {
                        at: Some(place),
                        error,
                        unsent: Some(Group { first: place, lines, ..group }),
                    });
                }
            }
        }
        Ok(())
    }

    /// Hands over one append of lines from `at` on; says how many.
    async fn submit_some(&mut self, group: &Group, at: usize, first: Place) -> anyhow::Result<usize> {
        let rest = group.lines.get(at..).unwrap_or_default();
        let Some(producer) = self.producer.clone() else { return Ok(rest.len()) };
        let mut batch = producer.batch();
        let taken = fill(&mut batch, rest, group, self.severity)?;
        let bytes = rest.iter().take(taken).map(|line| line.len() as u64).sum();
        let held = batch.len_bytes();
        let reservation = producer.reserve(held).await?;
        let ticket = reservation.at(self.level).submit_batch(&mut batch).context("not handed over")?;
        let lines = taken as u64;
        self.outstanding_bytes += held;
        let kept = self.keeps.then(|| Group {
            first,
            lines: rest.get(..taken).unwrap_or_default().to_vec(),
            continues: group.continues && taken == rest.len(),
            ..*group
        });
        self.outstanding.push_back(Outstanding { ticket, first, lines, bytes, held, kept });
        Ok(taken)
    }
}

fn interruption() -> Trouble {
    Trouble::new(None, anyhow!("interrupted"))
}

/// When the next ack must be there after a signal, and the last.
fn deadlines() -> (Instant, Instant) {
    let now = Instant::now();
    (now + NEXT_ACK_TIMEOUT, now + LAST_ACKS_TIMEOUT)
}

/// The answer to the oldest append; nothing when there is none.
async fn front(
    outstanding: &mut VecDeque<Outstanding>,
) -> Option<Result<clad_client::Receipt, clad_client::AppendError>> {
    Some((&mut outstanding.front_mut()?.ticket).await)
}

/// Puts as many lines into an append as go in; says how many, at least one.
fn fill(
    batch: &mut clad_client::Batch,
    lines: &[Bytes],
    group: &Group,
    severity: Severity,
) -> Result<usize, EncodeError> {
    let now = clock::unix_nanos();
    let severity = group.origin.severity.unwrap_or(severity);
    for (at, line) in lines.iter().enumerate() {
        let body = std::str::from_utf8(line).map_or(Body::Bytes(line), Body::Text);
        // When it happened nobody said; that it was seen now is sure.
        let pushed = match group.origin.stream {
            None => batch.push_body(0, now, severity.0, body),
            Some(stream) => {
                let head =
                    RecordHead { observed_time_unix_nano: now, severity_number: severity.0, ..RecordHead::default() };
                let continues = group.continues && at + 1 == lines.len();
                let mut record = batch.builder().record(head, body);
                record.attributes(|attributes| {
                    attributes.entry(STREAM_ATTRIBUTE).text(stream);
                    if continues {
                        attributes.entry(CONTINUES_ATTRIBUTE).boolean(true);
                    }
                });
                record.commit()
            }
        };
        match pushed {
            Ok(()) => {}
            Err(EncodeError::AppendFull { .. }) if at > 0 => return Ok(at),
            Err(error) => return Err(error),
        }
    }
    Ok(lines.len())
}
