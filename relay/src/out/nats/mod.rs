//! From a clad to a stream of NATS JetStream: each record once, in order.
//!
//! Invariants:
//! - The stream is the checkpoint: its last message says where the relay goes on ([`super::message`]). Each message is stored only
//!   behind the one before it ([`stream`]), so neither a kill, nor a lost answer, nor a second relay doubles or leaves out one.
//! - The cursor's note has the stream's sequence. So a relay goes on though the server has removed old messages, and sees
//!   where a stream was replaced, or restored from an older copy: then it stops with both numbers, and sends nothing.
//! - The cursor moves when the server has answered; it holds what is not brought over.
//! - What is not brought over is a message without a record, with the reason.

mod stream;

use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
use clad_client::{Cursor, Event, Start};
use tokio::time::{Instant, sleep_until};

use super::Trouble;
use super::message::{self, Place};
use super::source::{Cursored, Source, other_than, start};
use crate::Stop;
use crate::config::{FromClad, ToNats};
use crate::metrics;
use stream::{Last, Stream};

/// Brings a log to a stream, until the relay is stopped.
pub(crate) async fn run(from: &FromClad, to: &ToNats, name: &str, dead_letters: &Path, mut stop: Stop) -> Result<()> {
    let mut stopping = stop.clone();
    super::again_and_again(&mut stop, async |brought| {
        connection(from, to, name, dead_letters, &mut stopping, brought).await
    })
    .await
}

/// One connection, to its end.
async fn connection(
    from: &FromClad,
    to: &ToNats,
    name: &str,
    dead_letters: &Path,
    stop: &mut Stop,
    brought: &mut bool,
) -> Result<(), Trouble> {
    let opened = tokio::select! {
        opened = open(from, to, name) => opened?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let (mut source, mut stream) = opened;
    let ended = loop {
        let (has_room, due) = (stream.has_room(), source.commit_due());
        tokio::select! {
            // What is here is put in line before answers are looked for: so messages go by hundreds a system call.
            biased;
            _ = stop.wait_for(|stop| *stop) => break Ok(()),
            next = source.next(), if has_room => {
                let (event, place) = next?;
                if let Err(trouble) = bring(&event, place, to, dead_letters, &mut stream).await {
                    break Err(trouble);
                }
                // Nothing is under way: what was passed over is not wanted, and is not held.
                if stream.is_idle() && !matches!(event, Event::Records(_) | Event::Gap(_)) {
                    source.done(place);
                }
            }
            receipt = stream.receipt(), if !stream.is_idle() => match receipt {
                Ok(receipt) => {
                    *brought = true;
                    metrics::answered(receipt.records);
                    metrics::stored(receipt.records.into(), receipt.bytes as u64);
                    source.note(note(&stream, receipt.sequence));
                    source.done(receipt.place.behind());
                }
                Err(trouble) => break Err(trouble),
            },
            // Nothing comes: the cursor still follows.
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
        source.commit_in_time().await?;
    };
    stream.records().for_each(metrics::answered);
    source.commit().await?;
    ended
}

/// Sends what an event brings.
async fn bring(
    event: &Event,
    behind: Cursor,
    to: &ToNats,
    dead_letters: &Path,
    stream: &mut Stream,
) -> Result<(), Trouble> {
    for message in message::of_event(event, behind, to.format, stream.max_bytes)? {
        message.note_if_dead(dead_letters)?;
        metrics::handed_over(message.records);
        stream.send(message).await?;
    }
    Ok(())
}

/// The note of a cursor: the stream, and the sequence at which all below the cursor is in it.
fn note(stream: &Stream, sequence: u64) -> String {
    format!("nats {} {sequence}", stream.created)
}

/// What a note says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Noted {
    created: i128,
    sequence: u64,
    /// A person has let the relay begin here: what is in the stream is not looked at.
    begins: bool,
}

impl Noted {
    fn of(note: &str) -> Option<Self> {
        let mut words = note.strip_prefix("nats ")?.split(' ');
        let (created, sequence) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { created, sequence, begins: words.next() == Some("begins") })
    }
}

/// Finds where the stream ends, and opens the log there.
async fn open(from: &FromClad, to: &ToNats, name: &str) -> Result<(Source, Stream), Trouble> {
    let address = from.address()?;
    let near = Cursored::connect(&address, name).await?;
    let noted =
        near.note().map(|note| Noted::of(note).ok_or_else(|| anyhow!("the cursor {name} is of another relay: {note}")));
    let noted = noted.transpose()?;
    let cursor = near.cursor.as_ref().map(|named| named.place);
    let Some(stream) = Stream::connect(to, name).await? else {
        if let (Some(cursor), Some(_)) = (cursor, noted) {
            return Err(Trouble::Stop(anyhow!(
                "there is no stream {} any more, and this relay has brought records up to offset {} there. Nothing was sent. \
                 `clad-relay begin` lets it begin in a new stream, where `start` says, or with --at-cursor where it was",
                to.stream,
                cursor.offset
            )));
        }
        return Err(Trouble::Later(format!("there is no stream {}: it is waited for", to.stream)));
    };
    let last = stream.last().await?;
    if let Some(noted) = noted {
        judge(to, &stream, noted, cursor)?;
    }
    let here = noted.zip(cursor).filter(|(noted, _)| noted.sequence == stream.sequence);
    let place = match (here, &last) {
        // Nothing came behind it: the cursor may have passed over what a filter leaves out.
        (Some((_, cursor)), _) => cursor,
        (None, Last::Of(place)) => {
            check_log(place, &near, to)?;
            place.behind()
        }
        (None, Last::Nothing) => Cursor { log_id: near.log_id, epoch: near.epoch, offset: start(from, &near) },
        (None, Last::Gone) => {
            return Err(Trouble::Stop(anyhow!(
                "the last message of stream {} (sequence {}) was removed before this relay's cursor was there{}. Nothing was sent. \
                 `clad-relay begin` lets it go on, with --at-cursor where its cursor is",
                to.stream,
                stream.sequence,
                noted.map_or_else(String::new, |noted| format!(": that is at {}", noted.sequence))
            )));
        }
        (None, Last::Foreign(subject)) => {
            return Err(Trouble::Stop(anyhow!(
                "the last message of stream {} (sequence {}, subject {subject}) is no relay's: a stream has one writer. Nothing was \
                 sent. `clad-relay begin` lets it go on behind that message, with --at-cursor where its cursor is",
                to.stream,
                stream.sequence
            )));
        }
    };
    if let (Last::Of(last), false) = (&last, noted.is_some_and(|noted| noted.begins && here.is_some())) {
        check_log(last, &near, to)?;
        if let Some(append) = &last.append
            && let Some(here) = other_than(&address, near.log_id, append, "of the stream").await?
        {
            return Err(Trouble::Stop(anyhow!(
                "the log and stream {} have parted: by the stream, {append}; here is {here}. A copy was restored, or \
                 records were lost. Nothing was sent. `clad-relay begin` lets it go on, where `start` says",
                to.stream
            )));
        }
    }
    let note = match here {
        Some((Noted { begins: true, .. }, _)) => format!("{} begins", note(&stream, stream.sequence)),
        _ => note(&stream, stream.sequence),
    };
    let source = Source::begin_at(from, near.cursors, name, Start::Cursor(place), Some(place), note).await?;
    Ok((source, stream))
}

/// The stream is the one that the cursor's note names, and has not less than that.
fn judge(to: &ToNats, stream: &Stream, noted: Noted, cursor: Option<Cursor>) -> Result<()> {
    let offset = cursor.map_or(0, |cursor| cursor.offset);
    ensure!(
        noted.created == stream.created,
        "stream {} is another one than this relay has brought records to, up to offset {offset}: it was made again. Nothing was \
         sent. `clad-relay begin` lets it begin there, where `start` says, or with --at-cursor where it was",
        to.stream
    );
    ensure!(
        noted.sequence <= stream.sequence,
        "stream {} ends at sequence {}, and this relay has brought records up to {} (offset {offset}): it was restored from an \
         older copy, or the server has lost what it had answered. Nothing was sent. `clad-relay begin` lets it go on",
        to.stream,
        stream.sequence,
        noted.sequence
    );
    Ok(())
}

fn check_log(place: &Place, near: &Cursored, to: &ToNats) -> Result<()> {
    ensure!(
        place.log_id == near.log_id,
        "the last message of stream {} is of log {}, and this is log {}: a stream has one writer. Nothing was sent. \
         `clad-relay begin` lets it go on behind that message",
        to.stream,
        place.log_id,
        near.log_id
    );
    Ok(())
}

/// Lets a relay begin behind what is in the stream: where `start` says, or where its cursor is.
pub(crate) async fn begin(from: &FromClad, to: &ToNats, name: &str, is_at_cursor: bool) -> Result<String> {
    let mut near = Cursored::connect(&from.address()?, name).await?;
    let stream = stream::at_once(to, name).await?;
    let place = match (is_at_cursor, &near.cursor) {
        (true, Some(named)) => named.place,
        (true, None) => bail!("the log has no cursor of this relay: without --at-cursor it begins where `start` says"),
        (false, _) => Cursor { log_id: near.log_id, epoch: near.epoch, offset: start(from, &near) },
    };
    near.cursors.remove(name).await?;
    let note = format!("{} begins", note(&stream, stream.sequence));
    near.cursors.commit(name, place, from.hold, note).await?;
    Ok(format!("{name} begins at offset {}, behind sequence {} of stream {}", place.offset, stream.sequence, to.stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let noted = Noted { created: 1_795_000_000_123_456_789, sequence: 7, begins: false };
        assert_eq!(Noted::of("nats 1795000000123456789 7"), Some(noted));
        assert_eq!(Noted::of("nats 1795000000123456789 7 begins"), Some(Noted { begins: true, ..noted }));
        assert_eq!(Noted::of("history 3 object 17"), None);
    }
}
