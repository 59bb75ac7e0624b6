//! Every policy × engine × file system × cache: a workload against a real daemon is recorded, the power is cut at many
//! places of the record, and once more during each recovery.

use std::any::Any;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use clad_e2e::cuts::disk::is_of_filesystem;
use clad_e2e::cuts::inside::inside;
use clad_e2e::cuts::trace::Word;
use clad_e2e::cuts::{Cut, Event, Filesystem, Pages, Told, Trace};
use clad_e2e::{Daemon, Rng, seed};

use crate::cells::Cell;
use crate::client::Client;
use crate::lab::{Bench, Lab, SLOW, places};
use crate::promise::{Counts, Promise};
use crate::state::{Outcome, check, end, say_ready};

/// States of each cell, where `CLAD_CUTS_STATES` says nothing else.
const STATES: usize = 20;
/// States that are cut from one record; then the workload runs anew.
const STATES_A_RECORD: usize = 50;
const CLIENTS: u64 = 3;
/// Appends of each client in each of the two lives.
const APPENDS: usize = 45;
/// Segments that a record must have used, at least, or it shows nothing of rotations.
const LEAST_SEGMENTS: u64 = 6;

/// One state in so many may be one that the file system itself does not survive torn.
const UNTORN: u64 = 20;

/// What came of a cell.
#[derive(Debug)]
enum Result {
    Kept(Sums),
    /// The daemon does not do that here, and says so.
    Refused(String),
    /// Not in this version of clad, as the daemon says.
    Absent(String),
    Failed(String),
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    states: u64,
    seconds: u64,
    /// States, of these and the second cuts, that the file system itself did not survive torn.
    unmounted: u64,
    counts: Counts,
    typed: u64,
    segments: u64,
    removed: u64,
    resent: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.seconds += other.seconds;
        self.unmounted += other.unmounted;
        self.counts.add(other.counts);
        self.typed += other.typed;
        self.segments += other.segments;
        self.removed += other.removed;
        self.resent += other.resent;
    }
}

fn states() -> usize {
    std::env::var("CLAD_CUTS_STATES").map_or(STATES, |text| text.parse().expect("CLAD_CUTS_STATES"))
}

/// Where a failure is kept: it outlives the test.
fn kept_folder() -> PathBuf {
    std::env::var_os("CLAD_CUTS_KEEP")
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuts"), PathBuf::from)
}

#[test]
#[ignore = "needs root, FUSE and loop devices: cargo xtask ci cuts"]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn what_was_acknowledged_survives() {
    let Some(folder) = inside("matrix::what_was_acknowledged_survives") else { return };
    let (seed, states, began) = (seed(), states(), Instant::now());
    // `CLAD_CUTS_CELLS=ext4` or `"group_commit blocking"`: only the cells with these words in their name.
    let only = std::env::var("CLAD_CUTS_CELLS").unwrap_or_default();
    let lab = Lab::new(&folder, &Filesystem::ALL).expect("a recording device");
    let results: Vec<(Cell, Result)> = thread::scope(|scope| {
        let run = |mut bench: Bench| {
            let only = &only;
            scope.spawn(move || {
                let cells = Cell::all(bench.disk.filesystem());
                let wanted = |cell: &Cell| only.split_whitespace().all(|word| cell.to_string().contains(word));
                let run = |cell: Cell| {
                    let result = cell_of(&mut bench, &cell, states, seed);
                    println!("  {cell}: {}", tell(&result));
                    (cell, result)
                };
                cells.into_iter().filter(wanted).map(run).collect::<Vec<_>>()
            })
        };
        let running: Vec<_> = lab.benches.into_iter().map(run).collect();
        running.into_iter().flat_map(|one| one.join().expect("a file system's part")).collect()
    });
    let mut sums = Sums::default();
    let (mut kept, mut refused, mut absent, mut failed) = (0, 0, 0, 0);
    for (_, result) in &results {
        match result {
            Result::Kept(more) => {
                sums.add(more);
                kept += 1;
            }
            Result::Refused(_) => refused += 1,
            Result::Absent(_) => absent += 1,
            Result::Failed(_) => failed += 1,
        }
    }
    println!(
        "cuts: {kept} cells kept everything, {refused} refused as they must, {absent} not in this version, {failed} \
         failed; {}; lost = {failed}; seed {seed}, {} s",
        sums.words(),
        began.elapsed().as_secs()
    );
    assert_eq!(failed, 0, "see above");
    let most = (sums.states + sums.seconds) / UNTORN + 2;
    assert!(sums.unmounted <= most, "the file systems themselves did not survive: is the device right?");
    assert!(kept > 0, "no cell ran");
}

impl Sums {
    fn words(&self) -> String {
        let Self { states, seconds, unmounted, counts, typed, segments, removed, resent } = self;
        let Counts { acks, durable, gone } = counts;
        format!(
            "{states} states and {seconds} second cuts ({unmounted} had to be made again untorn), {acks} appends looked for, {durable} of them durable, {gone} lost \
             that were not, {typed} lost receipts typed; {segments} segments, {removed} removed, {resent} appends resent"
        )
    }
}

fn tell(result: &Result) -> String {
    match result {
        Result::Kept(sums) => sums.words(),
        Result::Refused(why) => format!("refused as it must: {why}"),
        Result::Absent(why) => format!("NOT IN THIS VERSION: {why}"),
        Result::Failed(why) => format!("FAILED: {why}"),
    }
}

/// Calls what may panic.
fn caught<T>(body: impl FnOnce() -> Told<T>) -> Told<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(words_of(&*panic)))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

fn cell_of(bench: &mut Bench, cell: &Cell, states: usize, seed: u64) -> Result {
    caught(|| try_cell(bench, cell, states, seed)).unwrap_or_else(|error| {
        let _ = bench.disk.unmount();
        Result::Failed(error)
    })
}

fn try_cell(bench: &mut Bench, cell: &Cell, states: usize, seed: u64) -> Told<Result> {
    bench.disk.set_cache(cell.cache)?;
    if let Some(refused) = refusal(bench, cell)? {
        return Ok(refused);
    }
    let mut sums = Sums::default();
    let name: u64 = cell.to_string().bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut rng = Rng::new(seed ^ name << 20);
    let mut left = states;
    while left > 0 {
        let now = left.min(STATES_A_RECORD);
        left -= now;
        let record = record(bench, cell, &mut rng)?;
        sums.add(&record.sums);
        for cut in places(&record.trace, record.from, now, &mut rng, is_told) {
            let mut image = Case { seed: record.seed, trace: &record.trace, cut, promise: Promise::new(record.seed) };
            let chance = rng.number();
            let outcome = checked(bench, cell, &mut image, chance, None, &mut sums)?;
            let after = image.promise_then()?.having_found(&outcome.found);
            let cut = somewhere(&outcome.trace, &mut rng);
            let mut second = Case { seed: record.seed, trace: &outcome.trace, cut, promise: after };
            let again = checked(bench, cell, &mut second, rng.number(), Some((&image, chance)), &mut sums)?;
            sums.states += 1;
            sums.seconds += 1;
            for outcome in [outcome, again] {
                sums.counts.add(outcome.counts);
                sums.typed += outcome.typed;
            }
        }
    }
    Ok(Result::Kept(sums))
}

/// A trace and where it is cut.
struct Case<'a> {
    seed: u64,
    trace: &'a Trace,
    cut: Cut,
    /// What was promised before the trace began.
    promise: Promise,
}

impl Case<'_> {
    fn promise_then(&self) -> Told<Promise> {
        self.promise.clone().after(self.trace.words(self.cut.at))
    }

    fn image(&self, cell: &Cell) -> Pages {
        self.trace.base.under(&self.cut.leaves(self.trace, cell.cache))
    }
}

fn is_told(event: &Event) -> bool {
    matches!(event, Event::Word(_))
}

fn somewhere(trace: &Trace, rng: &mut Rng) -> Cut {
    places(trace, 0, 1, rng, is_told)[0]
}

/// Checks one image; what fails is kept, with the words that try it again.
fn checked(
    bench: &mut Bench,
    cell: &Cell,
    case: &mut Case<'_>,
    chance: u64,
    first: Option<(&Case<'_>, u64)>,
    sums: &mut Sums,
) -> Told<Outcome> {
    let promise = case.promise_then()?;
    let mut once = |case: &Case<'_>| {
        let done = caught(|| check(bench, cell, case.image(cell), &promise, &mut Rng::new(chance)));
        let unmounted = bench.disk.unmount();
        done.and_then(|outcome| unmounted.map(|()| outcome))
    };
    let mut done = once(case);
    if done.as_ref().is_err_and(|error| is_of_filesystem(error)) {
        sums.unmounted += 1;
        case.cut = case.cut.in_blocks();
        done = once(case);
    }
    done.map_err(|error| {
        let kept = keep(cell, case, chance, first).unwrap_or_else(|e| format!("the trace is not kept: {e}"));
        format!("{error}\ncut at {} ({:?}); {kept}", case.cut, case.cut.survival())
    })
}

/// Keeps a trace; the words that check it again.
fn keep(cell: &Cell, case: &Case<'_>, chance: u64, first: Option<(&Case<'_>, u64)>) -> Told<String> {
    let folder = kept_folder().join(format!("{}-{}", cell.to_string().replace(' ', "-"), case.cut.seed));
    let (origin, origin_chance) = first.unwrap_or((case, chance));
    origin.trace.save(&folder)?;
    let mut text = format!("cell={cell}\nseed={}\ncut={}\nchance={origin_chance}\n", case.seed, origin.cut);
    if first.is_some() {
        case.trace.save(&folder.join("second"))?;
        let _ = write!(text, "second_cut={}\nsecond_chance={chance}\n", case.cut);
    }
    std::fs::write(folder.join("case"), text).map_err(|e| e.to_string())?;
    Ok(format!("again: CLAD_CUTS_TRACE={} cargo xtask ci cuts", folder.display()))
}

/// What the daemon says where it does not start, if it does not.
fn refusal(bench: &mut Bench, cell: &Cell) -> Told<Option<Result>> {
    let recorder = bench.disk.recorder().clone();
    recorder.insert(bench.empty.clone(), Pages::default());
    bench.disk.mount()?;
    let started = cell.setup(&bench.disk.point().join("log"), false).try_start();
    let ended = match started {
        Ok(mut daemon) => {
            daemon.kill9();
            None
        }
        Err(ended) => Some(ended),
    };
    bench.disk.unmount()?;
    let must = cell.must_be_refused();
    let Some(ended) = ended else {
        return must.map_or(Ok(None), |word| Err(format!("it starts, and must refuse and say {word:?}")));
    };
    let said = ended.said.trim().replace('\n', " / ");
    if ended.code != Some(78) {
        return Err(format!("it ends with {:?}, and not with 78: {said}", ended.code));
    }
    if said.contains("not in this version") {
        return Ok(Some(Result::Absent(said)));
    }
    match must {
        Some(word) if said.contains(word) => Ok(Some(Result::Refused(said))),
        must => Err(format!("it refuses, and must say {must:?}: {said}")),
    }
}

/// A recorded workload.
struct Record {
    seed: u64,
    trace: Trace,
    /// Cuts are from here on: the folder is there.
    from: usize,
    sums: Sums,
}

/// Two lives of a daemon under load: the second has retention. Each ends by a kill or cleanly.
fn record(bench: &mut Bench, cell: &Cell, rng: &mut Rng) -> Told<Record> {
    let seed = rng.number() >> 16;
    let recorder = bench.disk.recorder().clone();
    recorder.insert(bench.empty.clone(), Pages::default());
    bench.disk.mount()?;
    recorder.slow(SLOW.0, SLOW.1, Rng::new(rng.number()));
    let from = recorder.say(Word::Note(format!("{cell}, seed {seed}")));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    let mut sums = Sums::default();
    let dir = bench.disk.point().join("log");
    let done = (|| {
        for retention in [false, true] {
            let started = cell.setup(&dir, retention).try_start();
            let mut daemon = started.map_err(|ended| format!("clad does not start:\n{}", ended.said))?;
            say_ready(&daemon, &recorder, retention)?;
            life(&daemon, cell, &mut clients, &recorder, rng).map_err(|e| format!("{e}\n{}", daemon.said()))?;
            let segments = daemon.admin().segments()?;
            sums.segments = segments.iter().map(|segment| segment.number).max().unwrap_or(0);
            sums.removed = segments.iter().map(|segment| segment.number).min().unwrap_or(0).saturating_sub(1);
            end(&mut daemon, rng.coin(), &recorder)?;
        }
        Ok(())
    })();
    recorder.slow(0, 0, Rng::new(0));
    let unmounted = bench.disk.unmount();
    let trace = recorder.take(&bench.empty);
    done.and(unmounted).map_err(|e: String| format!("while it was recorded: {e}"))?;
    sums.resent = clients.iter().map(|client| client.resent).sum();
    if sums.segments < LEAST_SEGMENTS || sums.removed == 0 {
        return Err(format!("{} segments and {} removed: nothing is shown of rotations", sums.segments, sums.removed));
    }
    Ok(Record { seed, trace, from, sums })
}

fn life(
    daemon: &Daemon,
    cell: &Cell,
    clients: &mut [Client],
    recorder: &clad_e2e::cuts::Recorder,
    rng: &mut Rng,
) -> Told {
    let levels: Vec<_> = crate::client::LEVELS.into_iter().filter(|level| *level <= cell.highest()).collect();
    let (socket, admin) = (daemon.socket(), daemon.admin());
    let pauses: Vec<u64> = (0..3).map(|_| rng.below(120)).collect();
    thread::scope(|scope| {
        let (levels, socket) = (&levels, &socket);
        let mut running = Vec::new();
        for client in clients {
            running.push(scope.spawn(move || client.run(socket, recorder, levels, APPENDS)));
        }
        for pause in pauses {
            thread::sleep(std::time::Duration::from_millis(pause));
            let below = admin.sync()?;
            recorder.say(Word::Durable { below });
            admin.rotate()?;
        }
        running.into_iter().try_for_each(|one| caught(|| one.join().map_err(|panic| words_of(&*panic))?))
    })
}

/// `CLAD_CUTS_TRACE=FOLDER`: a failure that was kept is checked again, cut for cut.
#[test]
#[ignore = "needs a trace: CLAD_CUTS_TRACE"]
#[expect(clippy::print_stdout, reason = "the outcome is the result")]
fn a_kept_trace_again() {
    let Some(folder) = inside("matrix::a_kept_trace_again") else { return };
    let kept = PathBuf::from(std::env::var_os("CLAD_CUTS_TRACE").expect("CLAD_CUTS_TRACE names the folder of a trace"));
    let text = std::fs::read_to_string(kept.join("case")).expect("the file `case`");
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| value(key).map(|text| text.parse::<u64>().expect("a number"));
    let cell = Cell::parse(value("cell").expect("a cell")).expect("a cell of this matrix");
    let seed = number("seed").expect("a seed");
    let lab = Lab::new(&folder, &[cell.filesystem]).expect("a recording device");
    let mut bench = lab.benches.into_iter().next().expect("one");
    bench.disk.set_cache(cell.cache).expect("the cache is set");
    let trace = Trace::load(&kept).expect("a trace");
    let cut = Cut::parse(value("cut").expect("a cut")).expect("a cut");
    let first = Case { seed, trace: &trace, cut, promise: Promise::new(seed) };
    let mut again = |case: &Case<'_>, chance: u64| {
        let promise = case.promise_then()?;
        let done = caught(|| check(&mut bench, &cell, case.image(&cell), &promise, &mut Rng::new(chance)));
        bench.disk.unmount()?;
        done
    };
    let outcome = again(&first, number("chance").expect("a number")).unwrap_or_else(|e| panic!("cut {cut}: {e}"));
    println!("cut {cut} ({:?}): found {}", cut.survival(), outcome.found.extent());
    if let Some(cut) = value("second_cut") {
        let cut = Cut::parse(cut).expect("a cut");
        let trace = Trace::load(&kept.join("second")).expect("a trace");
        let promise = first.promise_then().expect("a promise").having_found(&outcome.found);
        let second = Case { seed, trace: &trace, cut, promise };
        let outcome = again(&second, number("second_chance").expect("a number"));
        let outcome = outcome.unwrap_or_else(|e| panic!("second cut {cut}: {e}"));
        println!("second cut {cut} ({:?}): found {}", cut.survival(), outcome.found.extent());
    }
    println!("cuts: the kept trace of {cell} holds");
}
