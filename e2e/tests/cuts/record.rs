//! The workload that is recorded: a daemon on a slow disk, under clients that mix the levels, through two lives.

use std::thread;
use std::time::Duration;

use clad_e2e::cuts::trace::Word;
use clad_e2e::cuts::{CutResult, Pages, Recorder, Trace};
use clad_e2e::{Daemon, Rng, Setup};

use crate::cells::Cell;
use crate::client::{Client, LEVELS, WINDOWS};
use crate::lab::{Bench, DEVICE_DELAY_MAX_US};
use crate::saved_trace::words_of;
use crate::state::{end, say_ready};

const CLIENTS: u64 = 3;
/// Appends of each client in each of the two lives.
const APPENDS: usize = 60;
/// Segments that a record must have used, at least, or it shows nothing of rotations.
const SEGMENTS_MIN: u64 = 6;
/// The longest pause between two orders of the operator, in milliseconds: at times long enough for a commit marker.
const ORDER_PAUSE_MAX_MS: u64 = 120;

/// A recorded workload.
pub(crate) struct Record {
    pub(crate) seed: u64,
    pub(crate) trace: Trace,
    /// Cuts are from here on: the folder is there.
    pub(crate) from: usize,
    /// Segments that were used, and that retention removed.
    pub(crate) segments: u64,
    pub(crate) removed: u64,
    /// Of these, that became the next segment.
    pub(crate) recycled: u64,
    /// Appends that were sent again.
    pub(crate) resent: u64,
}

/// Two lives of a daemon under load: the second has retention. Each ends by a kill or cleanly.
pub(crate) fn record(bench: &mut Bench, cell: &Cell, rng: &mut Rng) -> CutResult<Record> {
    let seed = rng.number() >> 16;
    let recorder = bench.disk.recorder().clone();
    recorder.insert(bench.empty.clone(), Pages::default());
    bench.disk.mount()?;
    recorder.slow(DEVICE_DELAY_MAX_US.0, DEVICE_DELAY_MAX_US.1, Rng::new(rng.number()));
    let from = recorder.say(Word::Note(format!("{cell}, seed {seed}")));
    let window = WINDOWS[rng.index(WINDOWS.len())];
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed, window)).collect();
    let (mut segments, mut removed, mut recycled) = (0, 0, 0);
    let choices = choices(rng);
    let dir = bench.disk.point().join("log");
    let done = (|| {
        for retention in [false, true] {
            let setup = choices.iter().fold(cell.setup(&dir, retention), |setup, (key, value)| setup.set(key, value));
            let started = Setup::try_start(setup);
            let mut daemon = started.map_err(|ended| format!("clad does not start:\n{}", ended.said))?;
            let engine = daemon.status().io_engine;
            if engine != cell.engine {
                return Err(format!("it runs with the engine {engine}"));
            }
            say_ready(&daemon, &recorder, retention)?;
            life(&daemon, cell, &mut clients, &recorder, rng).map_err(|e| format!("{e}\n{}", daemon.said()))?;
            let numbers: Vec<u64> = daemon.admin().segments()?.iter().map(|segment| segment.number).collect();
            segments = numbers.iter().max().copied().unwrap_or(0);
            let lowest = numbers.iter().min().copied().unwrap_or(0);
            removed = if retention { lowest - removed } else { lowest };
            recycled += daemon.status().segments_recycled;
            end(&mut daemon, rng.coin(), &recorder)?;
        }
        Ok(())
    })();
    recorder.slow(0, 0, Rng::new(0));
    let unmounted = bench.disk.unmount();
    let trace = recorder.take(&bench.empty);
    done.and(unmounted).map_err(|e: String| format!("while it was recorded: {e}"))?;
    if segments < SEGMENTS_MIN || removed == 0 {
        return Err(format!("{segments} segments and {removed} removed: nothing is shown of rotations"));
    }
    let resent = clients.iter().map(|client| client.resent).sum();
    Ok(Record { seed, trace, from, segments, removed, recycled, resent })
}

/// What differs from record to record: how much comes while a write is under way, and how often `fire_and_forget`
/// syncs.
fn choices(rng: &mut Rng) -> [(&'static str, &'static str); 3] {
    let one = |rng: &mut Rng, of: [&'static str; 3]| of[rng.index(of.len())];
    [
        ("journal.group_commit.max_delay", one(rng, ["100us", "1ms", "5ms"])),
        ("journal.group_commit.in_flight", one(rng, ["1", "2", "8"])),
        ("journal.fire_and_forget.sync_interval", one(rng, ["5ms", "50ms", "1s"])),
    ]
}

/// Clients append, and an operator syncs and rotates.
fn life(daemon: &Daemon, cell: &Cell, clients: &mut [Client], recorder: &Recorder, rng: &mut Rng) -> CutResult {
    let levels: Vec<_> = LEVELS.into_iter().filter(|level| *level <= cell.highest()).collect();
    let (socket, admin) = (daemon.socket(), daemon.admin());
    let pauses: Vec<u64> = (0..3).map(|_| rng.below(ORDER_PAUSE_MAX_MS)).collect();
    thread::scope(|scope| {
        let (levels, socket) = (&levels, &socket);
        let mut running = Vec::new();
        for client in clients {
            running.push(scope.spawn(move || client.run(socket, recorder, levels, APPENDS)));
        }
        let ordered = pauses.into_iter().try_for_each(|pause| {
            thread::sleep(Duration::from_millis(pause));
            let below = admin.sync()?;
            recorder.say(Word::Durable { below });
            admin.rotate().map(drop)
        });
        // All are waited for, whatever became of one.
        let joined: Vec<_> = running.into_iter().map(|one| one.join()).collect();
        let clients = joined.into_iter().map(|one| one.unwrap_or_else(|panic| Err(words_of(&*panic))));
        clients.fold(ordered, |sum, client| sum.and(client))
    })
}
