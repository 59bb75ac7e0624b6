//! To another clad: each append once, in order, with its first client's checksum.
//!
//! Invariants:
//! - The far log is the checkpoint. It stores an append only where what it has of this stream ends; the relay asks it, and
//!   goes on there. The cursor here only holds what is not brought over, and shows how far that is.
//! - Before it goes on, the relay reads the last append once more. If that is another one than the far log has, or the far log
//!   has nothing of a stream that was brought over, the histories have parted: the relay stops and sends nothing.
//! - Offsets that are left out are stated with their reason: a filter, retention, damage, or an append that the far log does
//!   not take.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clad_client::{
    AckLevel, Address, Cursor, Event, ForwardAs, ForwardError, Forwarder, ForwarderOptions, GapReason, LogId,
    OriginState, SkipReason, Start, StreamName,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::source::{Append, Cursored, Source, other_than, start};
use crate::Stop;
use crate::config::{FromClad, ToClad};
use crate::metrics;

/// Pauses between two connections to the far log.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What ends a connection to the far log.
enum End {
    Stopped,
    /// It can be tried again.
    Lost(ForwardError),
}

/// Brings a log to another one, until the relay is stopped.
pub(crate) async fn run(from: &FromClad, to: &ToClad, name: &str, mut stop: Stop) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut brought = false;
        match connection(from, to, name, &mut stop, &mut brought).await? {
            End::Stopped => return Ok(()),
            End::Lost(error) => {
                metrics::retried("connection");
                tracing::warn!("the far log takes nothing now, and is asked again: {error}");
            }
        }
        pause = if brought { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::select! {
            () = sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

/// One connection, to its end.
async fn connection(from: &FromClad, to: &ToClad, name: &str, stop: &mut Stop, brought: &mut bool) -> Result<End> {
    let stream = StreamName::new(&to.stream).context("to.clad.stream")?;
    let opened = tokio::select! {
        opened = open(from, to, name, stream) => opened?,
        _ = stop.wait_for(|stop| *stop) => return Ok(End::Stopped),
    };
    let (mut source, mut far, mut expected, mut is_safe) = match opened {
        Ok(opened) => opened,
        Err(error) => return lost(error),
    };
    let level = to.level()?.unwrap_or(far.log().highest_ack);
    let (mut begins, mut skip) = (far.state().is_none(), None);
    let mut places = std::collections::VecDeque::new();
    loop {
        let (has_room, due) = (far.has_room(), source.commit_due());
        tokio::select! {
            // What is here is put in line before anything is sent: so appends of one record go by hundreds a system call.
            biased;
            _ = stop.wait_for(|stop| *stop) => {
                source.commit().await?;
                return Ok(End::Stopped);
            }
            next = source.next(), if has_room => {
                let (event, place) = next?;
                match event {
                    Event::Records(chunk) => {
                        let raw = chunk.raw().context("the source gives no whole appends")?;
                        let (first, end) = (raw.head().first_offset, raw.end_offset());
                        // A stream that begins states nothing: it begins where its first append does.
                        let previous = if begins { first } else { expected };
                        let skip_now = (first > previous).then(|| skip.unwrap_or(SkipReason::Filter));
                        let how = ForwardAs { previous, skip: skip_now, begins, level };
                        match far.forward(how, &raw).await {
                            Ok(()) => {
                                let (count, bytes) = (raw.head().count, raw.payload().len() as u64);
                                metrics::handed_over(count);
                                metrics::behind_since(Some(chunk.append_time()));
                                places.push_back((Cursor { offset: end, ..place }, count, bytes));
                                (begins, skip, expected) = (false, None, end);
                            }
                            Err(error @ ForwardError::TooLarge { .. }) => {
                                tracing::error!("the append of offsets {first} to {} is left out: {error}", end - 1);
                                metrics::dead_letters(u64::from(raw.head().count));
                                skip = Some(SkipReason::TooLarge);
                            }
                            Err(error) => return lost(error),
                        }
                    }
                    Event::Gap(gap) => {
                        let reason = match gap.reason {
                            GapReason::Retention => SkipReason::Retention,
                            GapReason::Damage => SkipReason::Damage,
                        };
                        metrics::lost(metrics::Lost::Source);
                        tracing::error!("offsets {} to {} of the log cannot be read: {reason:?}", gap.from, gap.to - 1);
                        skip = Some(reason);
                    }
                    Event::CaughtUp { .. } => metrics::behind_since(None),
                    _ => {}
                }
                // Nothing is under way: what was passed over is not wanted, and is not held.
                if places.is_empty() && !begins && is_safe {
                    source.done(place);
                }
            },
            receipt = far.next() => match receipt {
                Ok(receipt) => {
                    // What the far log had before has the level too: it lies below.
                    (*brought, is_safe) = (true, true);
                    if let Some((place, count, bytes)) = places.pop_front() {
                        metrics::answered(count);
                        metrics::stored(receipt.end - receipt.first, bytes);
                        source.done(place);
                    }
                }
                Err(error) => {
                    places.iter().for_each(|(_, count, _)| metrics::answered(*count));
                    source.commit().await?;
                    return lost(error);
                }
            },
            // Nothing comes: the cursor still follows.
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
        source.commit_in_time().await?;
    }
}

fn lost(error: ForwardError) -> Result<End> {
    if error.is_retryable() {
        return Ok(End::Lost(error));
    }
    Err(anyhow::Error::from(error).context("the far log refuses what this relay brings"))
}

/// Connects to both, and finds the place to go on at: the source, the far log, the source offset that it expects, and
/// whether all before that has its level there.
async fn open(
    from: &FromClad,
    to: &ToClad,
    name: &str,
    stream: StreamName,
) -> Result<Result<(Source, Forwarder, u64, bool), ForwardError>> {
    let (address, far_address) = (from.address()?, to.address()?);
    let near = Cursored::connect(&address, name).await?;
    let options = ForwarderOptions { name: format!("clad-relay {name}"), ..ForwarderOptions::default() };
    let far = match Forwarder::connect(&far_address, near.log_id, stream, &options).await {
        Ok(far) => far,
        Err(error) => return Ok(Err(error)),
    };
    let far_log = far.log().log_id;
    let note = |begin: u64| format!("log {far_log} from {begin}");
    let before = near.note();
    ensure!(
        before.is_none_or(|before| before.starts_with(&format!("log {far_log} "))),
        "this relay has brought records to {}, and at {} is log {far_log}: nothing was sent. `clad-relay begin` lets it begin \
         again there",
        before.unwrap_or_default(),
        to.server
    );
    match (far.state().copied(), &near.cursor) {
        (Some(state), cursor) => {
            compare(&address, near.log_id, &state).await?;
            let place = Cursor { log_id: near.log_id, epoch: state.epoch, offset: state.end };
            let note = before.map_or_else(|| note(state.first), str::to_owned);
            // What the far log has is only received so far: until it has the level, the cursor stays where it is.
            let is_safe = far.state_level().is_some_and(|level| level >= far.log().highest_ack.min(AckLevel::Durable));
            let held = cursor.as_ref().map(|named| named.place).filter(|_| !is_safe).unwrap_or(place);
            let source = Source::begin_at(from, near.cursors, name, Start::Cursor(place), Some(held), note).await?;
            Ok(Ok((source, far, state.end, is_safe)))
        }
        (None, Some(named)) => {
            let begin = before.and_then(|note| note.rsplit(' ').next()?.parse().ok());
            ensure!(
                begin == Some(named.place.offset),
                "the log at {} ({far_log}) has nothing of stream {}, and this relay has brought records up to offset {} there: it was \
                 dropped, or restored from an older copy. Nothing was sent. `clad-relay begin` lets it begin again",
                to.server,
                to.stream,
                named.place.offset
            );
            let place = named.place;
            let source =
                Source::begin_at(from, near.cursors, name, Start::Cursor(place), Some(place), note(place.offset))
                    .await?;
            Ok(Ok((source, far, place.offset, true)))
        }
        (None, None) => {
            let offset = start(from, &near);
            let place = Cursor { log_id: near.log_id, epoch: near.epoch, offset };
            let source =
                Source::begin_at(from, near.cursors, name, Start::Offset(offset), Some(place), note(offset)).await?;
            Ok(Ok((source, far, offset, true)))
        }
    }
}

/// The last append that the far log has is still the same here.
async fn compare(address: &Address, log_id: LogId, state: &OriginState) -> Result<()> {
    if state.count == 0 {
        return Ok(()); // its content is not known there any more
    }
    let OriginState { epoch, first, count, payload_crc, .. } = *state;
    let last = Append { epoch, first, count, payload_crc };
    let Some(here) = other_than(address, log_id, &last, "of the far log").await? else { return Ok(()) };
    bail!(
        "the log here and the far log have parted: the far log's last append has {} records from offset {} on with CRC {:08x}; here \
         is {here}. A copy was restored, or records were lost. Nothing was sent: a person decides (`clactl origins` there)",
        state.count,
        state.first,
        state.payload_crc
    )
}
