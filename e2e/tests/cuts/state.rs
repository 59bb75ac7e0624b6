//! One crash image: mounted, recovered by a real `clad`, read back whole, asked about lost receipts, appended to, ended.

use std::path::Path;
use std::sync::Arc;

use clad_client::AckLevel;
use clad_e2e::cuts::disk::boot;
use clad_e2e::cuts::trace::Word;
use clad_e2e::cuts::{CutResult, Pages, Recorder, Trace};
use clad_e2e::raw::{hello_as, hello_reader};
use clad_e2e::readback::Stored;
use clad_e2e::tool::{clactl, run};
use clad_e2e::{Daemon, Raw, Rng};
use clad_proto::frame::{Frame, GapReason, Read, ReadFrom};
use clad_proto::{Cursor, ErrorCode, PayloadView, ProducerId, ValueRef};

use crate::cells::Cell;
use crate::client::{Client, id_of};
use crate::lab::Bench;
use crate::promise::{Counts, Found, Promise};

/// What came of an image.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) found: Found,
    /// Receipts from the lost part, of which the log said that they are.
    pub(crate) typed: u64,
    /// All requests to the device meanwhile.
    pub(crate) trace: Trace,
}

/// Does all of it. The image stays in the recorder if it fails.
pub(crate) fn check(
    bench: &mut Bench,
    cell: &Cell,
    image: Pages,
    promise: &Promise,
    rng: &mut Rng,
) -> CutResult<Outcome> {
    let recorder = bench.disk.recorder().clone();
    let image = Arc::new(image);
    recorder.insert(image.clone(), Pages::default());
    boot(&bench.folder, u128::from(rng.number()) << 64 | u128::from(rng.number()))?;
    bench.disk.mount()?;
    let dir = bench.disk.point().join("log");
    let done = on_mounted(cell, &dir, &recorder, promise, rng);
    // Whatever came out, the disk must be free for the next one.
    let unmounted = bench.disk.unmount();
    let (counts, found, typed) = done?;
    unmounted?;
    Ok(Outcome { counts, found, typed, trace: recorder.take(&image) })
}

fn on_mounted(
    cell: &Cell,
    dir: &Path,
    recorder: &Recorder,
    promise: &Promise,
    rng: &mut Rng,
) -> CutResult<(Counts, Found, u64)> {
    if promise.was_ready {
        verify(dir, "before the start")?;
    }
    let started = cell.setup(dir, promise.retention).try_start();
    let mut daemon = started.map_err(|ended| format!("clad does not start ({:?}):\n{}", ended.code, ended.said))?;
    let looked = with_daemon(cell, &daemon, recorder, promise, rng).map_err(|e| format!("{e}\n{}", daemon.said()));
    let clean = end(&mut daemon, rng.coin(), recorder);
    let (counts, found, typed) = looked?;
    if clean? {
        verify(dir, "after a clean end")?;
    }
    Ok((counts, found, typed))
}

/// Ends it, cleanly or not; whether it was.
pub(crate) fn end(daemon: &mut Daemon, clean: bool, recorder: &Recorder) -> CutResult<bool> {
    if clean {
        recorder.say(Word::Ending);
        let code = daemon.term();
        if code != Some(0) {
            return Err(format!("a clean end has exit code {code:?}:\n{}", daemon.said()));
        }
    } else {
        daemon.kill9();
    }
    recorder.say(Word::Ended { clean });
    Ok(clean)
}

/// `clactl verify` finds no damage: a tail that nobody was promised is a note.
fn verify(dir: &Path, when: &str) -> CutResult {
    let output = run(&mut clactl(&["verify", &dir.display().to_string()]), b"");
    match output.status.code() {
        Some(0) => Ok(()),
        code => Err(format!(
            "clactl verify {when} ends with {code:?}:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Says that a daemon is ready, and what its log is.
pub(crate) fn say_ready(daemon: &Daemon, recorder: &Recorder, retention: bool) -> CutResult<Found> {
    let mut found = Found::default();
    let mut raw = Raw::unix(&daemon.socket());
    let welcome = raw.greet(&hello_reader()).map_err(|e| format!("{e:?}"))?;
    (found.log_id, found.epoch, found.end) = (welcome.log_id.to_string(), welcome.epoch, welcome.received);
    let (log_id, epoch, first) = (found.log_id.clone(), found.epoch, welcome.epoch_first_offset);
    recorder.say(Word::Ready { log_id, epoch, first, retention });
    Ok(found)
}

fn with_daemon(
    cell: &Cell,
    daemon: &Daemon,
    recorder: &Recorder,
    promise: &Promise,
    rng: &mut Rng,
) -> CutResult<(Counts, Found, u64)> {
    let mut found = say_ready(daemon, recorder, promise.retention)?;
    let mut raw = Raw::unix(&daemon.socket());
    let welcome = raw.greet(&hello_reader()).map_err(|e| format!("{e:?}"))?;
    if welcome.highest_ack != cell.highest() {
        return Err(format!("it offers {} and not {}", welcome.highest_ack, cell.highest()));
    }
    read_all(&mut raw, &mut found)?;
    if promise.retention {
        let segments = daemon.admin().segments()?;
        found.sealed = segments.iter().filter(|one| one.sealed).map(|one| (one.number, one.bytes)).collect();
    }
    let counts = promise.check(&found)?;
    let typed = receipts(&mut raw, &welcome.log_id, promise, &found)?;
    check_resume(daemon, recorder, cell, promise, &found, rng)?;
    Ok((counts, found, typed))
}

fn read(from: ReadFrom) -> Read {
    let limit = None;
    Read {
        request_id: 3,
        from,
        follow: false,
        limit,
        min_level: AckLevel::Written,
        since: None,
        until: None,
        filter: None,
    }
}

/// Everything that it gives out, from wherever the log begins.
fn read_all(raw: &mut Raw, found: &mut Found) -> CutResult {
    let ask = read(ReadFrom::Offset(0));
    raw.send(|buf| ask.encode(buf));
    loop {
        match raw.answer() {
            // Retention goes on while this reads: then what was read is gone, and the log begins later.
            Frame::Gap(gap) if gap.reason == GapReason::Retention => {
                found.records.clear();
                found.first = gap.to;
            }
            Frame::Records(records) => {
                let (head, mut offset) = (records.head, records.head.first_offset);
                let view = PayloadView::parse(&records.payload, head.count).map_err(|e| format!("{e:?}"))?;
                for (sequence, record) in (head.first_seq..).zip(view.records()) {
                    let body = match record.body() {
                        Some(ValueRef::String(text)) => text.as_bytes().to_vec(),
                        Some(ValueRef::Bytes(bytes)) => bytes.to_vec(),
                        other => return Err(format!("a body of another kind: {other:?}")),
                    };
                    found.records.push(Stored { offset, producer: head.producer_id, sequence, body, is_cut: false });
                    offset += 1;
                }
            }
            Frame::ReadEnd(_) => return Ok(()),
            other => return Err(format!("in a READ: {other:?}")),
        }
    }
}

/// A cursor behind something that was lost gets an error that says so; one behind what was kept goes on.
fn receipts(raw: &mut Raw, log_id: &clad_proto::LogId, promise: &Promise, found: &Found) -> CutResult<u64> {
    let mut typed = 0;
    let lost = promise.given.values().find(|ack| ack.offset >= found.end);
    let kept = promise.given.values().rev().find(|ack| ack.offset >= found.first && ack.offset < found.end);
    for ack in lost.into_iter().chain(kept) {
        let cursor = Cursor { log_id: *log_id, epoch: ack.epoch, offset: ack.offset + u64::from(ack.count) };
        let ask = read(ReadFrom::Cursor(cursor));
        raw.send(|buf| ask.encode(buf));
        let is_lost = ack.offset >= found.end;
        loop {
            match raw.answer() {
                Frame::Error(error) if is_lost && error.error.code == ErrorCode::CursorAbandoned => {
                    let parts = error.error.cursor.map(|cursor| cursor.offset);
                    if parts.is_none_or(|at| at > ack.offset) {
                        return Err(format!("histories part at {parts:?}, and {ack:?} is lost"));
                    }
                    typed += 1;
                    break;
                }
                Frame::Records(_) if !is_lost => {}
                Frame::ReadEnd(_) if !is_lost => break,
                other => return Err(format!("from the receipt of {ack:?}, lost: {is_lost}: {other:?}")),
            }
        }
    }
    Ok(typed)
}

/// A client of before goes on: the daemon knows what it has of it, and takes what is sent again.
fn check_resume(
    daemon: &Daemon,
    recorder: &Recorder,
    cell: &Cell,
    promise: &Promise,
    found: &Found,
    rng: &mut Rng,
) -> CutResult {
    let mut clients: Vec<u64> = promise.sent.keys().copied().collect();
    clients.sort_unstable();
    let client = if clients.is_empty() { 0 } else { clients[rng.index(clients.len())] };
    let id: ProducerId = id_of(promise.seed, client);
    let mut raw = Raw::unix(&daemon.socket());
    let welcome = raw.greet(&hello_as(id, 0, b"")).map_err(|e| format!("{e:?}"))?;
    let theirs = found.records.iter().rev().find(|record| record.producer == id);
    let last = theirs.map(|record| (record.sequence, record.offset));
    let resumed_at = welcome.last.map(|last| (last.sequence, last.offset));
    // What retention has removed, the daemon may still remember.
    if resumed_at != last && !(promise.retention && last.is_none()) {
        return Err(format!("the last record of client {client} is {last:?}, the daemon says {resumed_at:?}"));
    }
    drop(raw);
    let mut client =
        Client::resumed(client, promise.seed, resumed_at.map_or(0, |(sequence, _)| sequence + 1), rng.number());
    client.run(&daemon.socket(), recorder, &[AckLevel::Received, cell.highest()], 3)
}
