//! From a clad to a topic of Kafka: each record once, by transactions.
//!
//! Invariants:
//! - How far the relay is stands in a topic of its own, and changes in the transaction that brings the records ([`writer`]).
//!   So neither a kill, nor a lost answer, nor a second process doubles or leaves out one for a consumer that reads what is committed.
//! - The cursor moves when a transaction is committed; it holds what is not brought over. Its note has the progress's offset:
//!   where the servers have less than that, or another topic of the name, the relay stops with both numbers, and sends nothing.
//! - Without transactions (`exactly_once = false`) the cursor alone says where the relay goes on: a record comes at least once.
//! - What is not brought over is a message without a record, with the reason.

mod client;
mod writer;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clad_client::{Cursor, Event, LogId, Start};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use super::Trouble;
use super::message::{self, Message};
use super::source::{Cursored, Source, other_than, start};
use crate::Stop;
use crate::config::{FromClad, ToKafka};
use crate::metrics;
use client::Looking;
use writer::{Progress, Writer};

/// A transaction has so much, or what comes in the time.
const MESSAGES_MAX: usize = 16_000;
const BYTES_MAX: usize = 4 << 20;
const LINGER: Duration = Duration::from_millis(100);

/// What goes in one transaction.
#[derive(Default)]
struct Batch {
    messages: Vec<Message>,
    bytes: usize,
    records: u32,
    due: Option<Instant>,
}

impl Batch {
    fn has_room(&self, messages_max: usize) -> bool {
        self.messages.len() < messages_max && self.bytes < BYTES_MAX
    }

    /// The first messages, so many at most. The others are due at once.
    fn first(&mut self, messages_max: usize) -> Self {
        let rest = self.messages.split_off(messages_max.min(self.messages.len()));
        let mut first = std::mem::take(self);
        if !rest.is_empty() {
            rest.into_iter().for_each(|message| self.push(message));
            self.due = first.due;
            first.bytes -= self.bytes;
            first.records -= self.records;
        }
        first
    }

    fn push(&mut self, message: Message) {
        self.bytes += message.payload.len();
        self.records += message.records;
        self.messages.push(message);
        self.due.get_or_insert_with(|| Instant::now() + LINGER);
    }
}

/// What a transaction has brought.
struct Brought {
    writer: Writer,
    place: Cursor,
    /// Where the progress is in its topic.
    progress: i64,
    bytes: usize,
}

/// Brings a log to a topic, until the relay is stopped.
pub(crate) async fn run(from: &FromClad, to: &ToKafka, name: &str, dead_letters: &Path, mut stop: Stop) -> Result<()> {
    let mut stopping = stop.clone();
    // Half of a transaction that came to nothing, twice one that is committed: a server that throttles takes longer for a
    // large one than an answer may take, again and again.
    let mut messages_max = MESSAGES_MAX;
    super::again_and_again(&mut stop, async |brought| {
        connection(from, to, name, dead_letters, &mut stopping, brought, &mut messages_max).await
    })
    .await
}

/// One connection, to its end.
async fn connection(
    from: &FromClad,
    to: &ToKafka,
    name: &str,
    dead_letters: &Path,
    stop: &mut Stop,
    brought: &mut bool,
    messages_max: &mut usize,
) -> Result<(), Trouble> {
    let opened = tokio::select! {
        opened = open(from, to, name) => opened?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let (mut source, writer) = opened;
    let max_bytes = writer.max_bytes;
    let mut writer = Some(writer);
    let mut batch = Batch::default();
    let mut under_way: Option<UnderWay> = None;
    let (mut is_stopping, mut messages) = (false, 0);
    let done = loop {
        let is_due = batch.due.is_some_and(|due| !batch.has_room(*messages_max) || Instant::now() >= due);
        if let Some(writer) = writer.take_if(|_| is_due) {
            let first = batch.first(*messages_max);
            messages = first.messages.len();
            under_way = Some((first.records, spawn_blocking(|| write(writer, first))));
        }
        if is_stopping && under_way.is_none() {
            break Ok(());
        }
        let (has_room, commit_due) = (batch.has_room(*messages_max) && !is_stopping, source.commit_due());
        let due = batch.due.filter(|_| under_way.is_none());
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                is_stopping = true;
                // What is under way is ended; what waits is read again by the next process.
                metrics::answered(batch.records);
                batch = Batch::default();
            }
            (records, done) = ended(&mut under_way) => {
                under_way = None;
                metrics::answered(records);
                match done.context("the thread of a transaction has panicked")? {
                    Ok(done) => {
                        *brought = true;
                        *messages_max = (*messages_max * 2).min(MESSAGES_MAX);
                        metrics::stored(records.into(), done.bytes as u64);
                        source.note(note(done.progress));
                        source.done(done.place);
                        writer = Some(done.writer);
                    }
                    Err(trouble) => {
                        *messages_max = (messages / 2).max(1);
                        break Err(trouble);
                    }
                }
            }
            next = source.next(), if has_room => {
                let (event, place) = next?;
                for message in message::of_event(&event, place, to.format, max_bytes)? {
                    message.note_if_dead(dead_letters)?;
                    metrics::handed_over(message.records);
                    batch.push(message);
                }
                // Nothing is under way: what was passed over is not wanted, and is not held.
                if under_way.is_none() && batch.messages.is_empty() && !matches!(event, Event::Records(_) | Event::Gap(_)) {
                    source.done(place);
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            // Nothing comes: the cursor still follows.
            () = sleep_until(commit_due.unwrap_or_else(Instant::now)), if commit_due.is_some() => {}
        }
        source.commit_in_time().await?;
    };
    metrics::answered(batch.records);
    source.commit().await?;
    done
}

/// A transaction and its records.
type UnderWay = (u32, JoinHandle<Result<Brought, Trouble>>);

/// The end of the transaction that is under way; never, where there is none. Cancel safe.
async fn ended(under_way: &mut Option<UnderWay>) -> (u32, Result<Result<Brought, Trouble>, JoinError>) {
    match under_way {
        Some((records, done)) => (*records, done.await),
        None => std::future::pending().await,
    }
}

/// One transaction.
fn write(mut writer: Writer, batch: Batch) -> Result<Brought, Trouble> {
    let last = batch.messages.last().context("a transaction of nothing")?;
    let place = last.place.behind();
    let progress = writer.write(&batch.messages, last.place.append)?.progress;
    Ok(Brought { writer, place, progress, bytes: batch.bytes })
}

/// The note of a cursor: where the progress was with which all below the cursor is in the topic.
fn note(progress: i64) -> String {
    format!("kafka {progress}")
}

/// Finds how far the relay is, and opens the log there.
async fn open(from: &FromClad, to: &ToKafka, name: &str) -> Result<(Source, Writer), Trouble> {
    let address = from.address()?;
    let near = Cursored::connect(&address, name).await?;
    let noted = match near.note() {
        None => None,
        Some(text) => {
            let noted = text.strip_prefix("kafka ").and_then(|text| text.parse::<i64>().ok());
            Some(noted.with_context(|| format!("the cursor {name} is of another relay: {text}"))?)
        }
    };
    let cursor = near.cursor.as_ref().map(|named| named.place);
    let beginning = Cursor { log_id: near.log_id, epoch: near.epoch, offset: start(from, &near) };
    let found = on_a_thread(to, name, move |to, name| found(to, name, beginning, noted.zip(cursor))).await?;
    if let Some(append) = &found.append
        && let Some(here) = other_than(&address, near.log_id, append, "of the topic").await?
    {
        return Err(Trouble::Stop(anyhow!(
            "the log and topic {} have parted: by the topic, {append}; here is {here}. A copy was restored, or records were \
             lost. Nothing was sent. `clad-relay begin` lets it go on, where `start` says",
            to.topic
        )));
    }
    let place = found.place;
    let source = Source::begin_at(from, near.cursors, name, Start::Cursor(place), Some(place), note(found.progress));
    Ok((source.await?, found.writer))
}

/// A topic, and where the relay goes on.
struct Found {
    writer: Writer,
    place: Cursor,
    append: Option<super::source::Append>,
    progress: i64,
}

/// Opens the topic, and finds how far the relay is. `noted` is the offset of the progress by the cursor, and the cursor.
fn found(to: &ToKafka, name: &str, beginning: Cursor, noted: Option<(i64, Cursor)>) -> Result<Found, Trouble> {
    let log_id = beginning.log_id;
    let looking = Looking::new(to, name)?;
    let Some(mut writer) = Writer::open(to, name, log_id, &looking)? else {
        return Err(match noted {
            Some((_, cursor)) => Trouble::Stop(anyhow!(
                "there is no topic {} any more, and this relay has brought records up to offset {} there. Nothing was sent. \
                 `clad-relay begin` lets it begin in a new topic, where `start` says, or with --at-cursor where it was",
                to.topic,
                cursor.offset
            )),
            None => Trouble::Later(format!("there is no topic {}: it is waited for", to.topic)),
        });
    };
    let Some(once) = writer.once() else {
        let place = noted.map_or(beginning, |(_, cursor)| cursor);
        return Ok(Found { writer, place, append: None, progress: 0 });
    };
    let progress_topic = once.topic.clone();
    match (writer.progress(&looking)?, noted) {
        (Some((progress, offset)), noted) => {
            judge(to, &progress_topic, &progress, offset, log_id, noted)?;
            check_ends(to, &progress, log_id, &looking)?;
            let place = match noted {
                // Nothing was brought behind it: the cursor may have passed over what a filter leaves out.
                Some((noted, cursor)) if noted == offset => cursor,
                Some((_, cursor)) => {
                    let place = progress.place()?;
                    tracing::info!(
                        "topic {} is ahead of the cursor: offset {}, not {}",
                        to.topic,
                        place.offset,
                        cursor.offset
                    );
                    place
                }
                None => progress.place()?,
            };
            let append = progress.append();
            Ok(Found { writer, place, append, progress: offset })
        }
        (None, Some((_, cursor))) => Err(Trouble::Stop(anyhow!(
            "topic {progress_topic} says nothing of this relay, and it has brought records up to offset {} to topic {}: the \
             progress was removed. Nothing was sent. `clad-relay begin --at-cursor` lets it go on there",
            cursor.offset,
            to.topic
        ))),
        (None, None) => {
            let Some(topic) = looking.topic(&to.topic)? else {
                return Err(Trouble::Later(format!("there is no topic {}", to.topic)));
            };
            // Others' messages say nothing of this relay where others write too.
            for partition in topic.partitions.into_iter().filter(|_| !to.shared_topic) {
                let (_, end) = looking.ends(&to.topic, partition)?;
                if end > 0 {
                    return Err(Trouble::Stop(anyhow!(
                        "topic {} has messages (partition {partition} ends at {end}), and nothing says how far this relay is with \
                         them. Nothing was sent. `shared_topic = true` says that others write there; `clad-relay begin` lets it begin behind \
                         them, where `start` says",
                        to.topic
                    )));
                }
            }
            // Before the first message: so whatever is in the topic later, something says how far the relay is.
            let progress = writer.write_at(beginning)?.progress;
            Ok(Found { writer, place: beginning, append: None, progress })
        }
    }
}

/// The progress is of this relay's log and topic, and has not less than the cursor's note.
fn judge(
    to: &ToKafka,
    progress_topic: &str,
    progress: &Progress,
    offset: i64,
    log_id: LogId,
    noted: Option<(i64, Cursor)>,
) -> Result<()> {
    let place = progress.place()?;
    ensure!(
        place.log_id == log_id,
        "topic {progress_topic} is of log {}, and this is log {log_id}. Nothing was sent",
        place.log_id
    );
    ensure!(
        progress.topic == to.topic,
        "topic {progress_topic} is of a relay to topic {}, and this one is to {}. Nothing was sent. `clad-relay begin` lets it \
         begin there, where `start` says, or with --at-cursor where it was",
        progress.topic,
        to.topic
    );
    if let Some((noted, cursor)) = noted {
        ensure!(
            noted <= offset,
            "topic {progress_topic} ends at {offset} (offset {} of the log), and this relay has brought records up to {noted} \
             (offset {}): it was restored from an older copy, or the servers have lost what they had committed. Nothing was \
             sent. `clad-relay begin` lets it go on",
            place.offset,
            cursor.offset
        );
    }
    Ok(())
}

/// The topic has the last messages that the progress names, where they have not expired.
fn check_ends(to: &ToKafka, progress: &Progress, log_id: LogId, looking: &Looking) -> Result<(), Trouble> {
    for (&partition, &offset) in &progress.last {
        let (low, end) = looking.ends(&to.topic, partition)?;
        if offset >= end {
            return Err(Trouble::Stop(anyhow!(
                "topic {} ends at {end} in partition {partition}, and this relay has brought records up to {offset} there: it \
                 was restored from an older copy, or made again. Nothing was sent. `clad-relay begin` lets it go on",
                to.topic
            )));
        }
        if offset < low {
            continue;
        }
        let place = looking.place_at(&to.topic, partition, offset)?;
        if place.is_none_or(|place| place.log_id != log_id) {
            return Err(Trouble::Stop(anyhow!(
                "topic {} is another one than this relay has brought records to: what is at {offset} in partition {partition} is \
                 not its own. Nothing was sent. `clad-relay begin` lets it begin there, where `start` says, or with --at-cursor \
                 where it was",
                to.topic
            )));
        }
    }
    Ok(())
}

/// Lets a relay begin behind what is in the topic: where `start` says, or where its cursor is.
pub(crate) async fn begin(from: &FromClad, to: &ToKafka, name: &str, is_at_cursor: bool) -> Result<String> {
    let mut near = Cursored::connect(&from.address()?, name).await?;
    let place = match (is_at_cursor, &near.cursor) {
        (true, Some(named)) => named.place,
        (true, None) => bail!("the log has no cursor of this relay: without --at-cursor it begins where `start` says"),
        (false, _) => Cursor { log_id: near.log_id, epoch: near.epoch, offset: start(from, &near) },
    };
    let begun = on_a_thread(to, name, move |to, name| {
        let looking = Looking::new(to, name)?;
        let Some(mut writer) = Writer::open(to, name, place.log_id, &looking)? else {
            return Err(Trouble::Later(format!("there is no topic {}", to.topic)));
        };
        Ok(if writer.once().is_some() { writer.write_at(place)?.progress } else { 0 })
    });
    let progress = match begun.await {
        Ok(progress) => progress,
        Err(Trouble::Later(text)) => bail!("{text}"),
        Err(Trouble::Stop(error)) => return Err(error),
    };
    near.cursors.remove(name).await?;
    near.cursors.commit(name, place, from.hold, note(progress)).await?;
    Ok(format!("{name} begins at offset {}, behind what is in topic {}", place.offset, to.topic))
}

/// Calls what waits for the servers.
async fn on_a_thread<T: Send + 'static>(
    to: &ToKafka,
    name: &str,
    of: impl FnOnce(&ToKafka, &str) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let (to, name) = (to.clone(), name.to_owned());
    let done = spawn_blocking(move || of(&to, &name)).await;
    done.context("a thread has panicked").map_err(Trouble::Stop)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_parted_and_the_rest_is_due() {
        let log_id: LogId = "0123456789abcdef0123456789abcdef".parse().expect("an id");
        let message = |first| Message {
            place: message::Place { log_id, epoch: 1, first, end: first + 1, append: None, gap: None },
            payload: vec![0; 10].into(),
            records: 1,
            time: None,
            component: None,
        };
        let mut batch = Batch::default();
        (0..5).for_each(|number| batch.push(message(number)));
        let due = batch.due;
        let numbers = |batch: &Batch| batch.messages.iter().map(|message| message.place.first).collect::<Vec<_>>();
        let first = batch.first(2);
        assert_eq!((numbers(&first), first.bytes, first.records), (vec![0, 1], 20, 2));
        assert_eq!((numbers(&batch), batch.bytes, batch.records, batch.due), (vec![2, 3, 4], 30, 3, due));
        let rest = batch.first(10);
        assert_eq!((numbers(&rest), rest.bytes), (vec![2, 3, 4], 30));
        assert!(batch.messages.is_empty() && batch.due.is_none() && batch.bytes == 0);
    }
}
