//! Every policy × engine × file system × cache: a workload against a real daemon is recorded, the power is cut at many
//! places of the record, and once more during each recovery.

use std::thread;
use std::time::Instant;

use clad_e2e::cuts::inside::inside;
use clad_e2e::cuts::{Cut, CutResult, Event, Filesystem, Pages, Trace};
use clad_e2e::{Rng, seed};

use crate::cells::Cell;
use crate::lab::{Bench, Lab, places};
use crate::promise::{Counts, Promise};
use crate::record::record;
use crate::saved_trace::{Case, caught, checked};

/// States of each cell, where `CLAD_CUTS_STATES` says nothing else.
const STATES: usize = 20;
/// States that are cut from one record; then the workload runs again.
const STATES_PER_RECORD: usize = 20;
/// One state in so many may be one that the file system itself does not survive torn.
const TORN_FILESYSTEM_EVERY: u64 = 20;

/// In so many cells that recycle some segment is used again: retention that comes too late for a rotation gives it none.
const RECYCLING_CELLS_EVERY: u64 = 4;

/// What came of a cell.
#[derive(Debug)]
enum Verdict {
    Kept(Sums),
    /// The daemon does not do that here, and says so.
    Refused(String),
    /// Not in this version of clad, as the daemon says.
    Absent(String),
    Failed(String),
}

/// What was done and seen.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    states: u64,
    /// Of the recoveries of these, cut in their turn.
    seconds: u64,
    /// States, of these and the second cuts, that the file system itself did not survive torn.
    unmounted: u64,
    counts: Counts,
    /// Receipts from a lost part that the log reported as lost.
    typed: u64,
    /// Segments that the records used, and that retention removed.
    segments: u64,
    removed: u64,
    /// Of these, that were used again.
    recycled: u64,
    /// Appends that clients sent again while it was recorded.
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
        self.recycled += other.recycled;
        self.resent += other.resent;
    }
}

fn states() -> usize {
    std::env::var("CLAD_CUTS_STATES").map_or(STATES, |text| text.parse().expect("CLAD_CUTS_STATES"))
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
    let results: Vec<(Cell, Verdict)> = thread::scope(|scope| {
        let run = |mut bench: Bench| {
            let only = &only;
            scope.spawn(move || {
                let cells = Cell::all(bench.disk.filesystem());
                let wanted = |cell: &Cell| only.split_whitespace().all(|word| cell.to_string().contains(word));
                let run = |cell: Cell| {
                    let result = cell_of(&mut bench, &cell, states, seed);
                    println!("  {cell}: {}", describe(&result));
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
    let mut recycling = 0;
    for (cell, result) in &results {
        match result {
            Verdict::Kept(more) => {
                sums.add(more);
                recycling += u64::from(cell.recycles());
                kept += 1;
            }
            Verdict::Refused(_) => refused += 1,
            Verdict::Absent(_) => absent += 1,
            Verdict::Failed(_) => failed += 1,
        }
    }
    println!("tally: states={} lost={failed}", sums.states + sums.seconds);
    println!(
        "cuts: {kept} cells kept everything, {refused} refused as they must, {absent} not in this version, {failed} \
         failed; {}; lost = {failed}; seed {seed}, {} s",
        sums.words(),
        began.elapsed().as_secs()
    );
    assert_eq!(failed, 0, "see above");
    let most = (sums.states + sums.seconds) / TORN_FILESYSTEM_EVERY + 2;
    assert!(sums.unmounted <= most, "the file systems themselves did not survive: is the device right?");
    assert!(kept > 0, "no cell ran");
    assert!(
        sums.recycled > 0 || recycling < RECYCLING_CELLS_EVERY,
        "no segment was used again: nothing is shown of recycling"
    );
}

impl Sums {
    fn words(&self) -> String {
        let Self { states, seconds, unmounted, counts, typed, segments, removed, recycled, resent } = self;
        let Counts { acks, durable, gone } = counts;
        format!(
            "{states} states and {seconds} second cuts ({unmounted} had to be made again untorn), {acks} appends looked \
             for, {durable} of them durable, {gone} lost that were not, {typed} lost receipts typed; {segments} \
             segments, {removed} removed and {recycled} of them used again, {resent} appends resent"
        )
    }
}

fn describe(result: &Verdict) -> String {
    match result {
        Verdict::Kept(sums) => sums.words(),
        Verdict::Refused(why) => format!("refused as it must: {why}"),
        Verdict::Absent(why) => format!("NOT IN THIS VERSION: {why}"),
        Verdict::Failed(why) => format!("FAILED: {why}"),
    }
}

fn cell_of(bench: &mut Bench, cell: &Cell, states: usize, seed: u64) -> Verdict {
    caught(|| try_cell(bench, cell, states, seed)).unwrap_or_else(|error| {
        let _ = bench.disk.unmount();
        Verdict::Failed(error)
    })
}

fn try_cell(bench: &mut Bench, cell: &Cell, states: usize, seed: u64) -> CutResult<Verdict> {
    bench.disk.set_cache(cell.cache)?;
    if let Some(refused) = refusal(bench, cell)? {
        return Ok(refused);
    }
    let mut sums = Sums::default();
    let name: u64 = cell.to_string().bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut rng = Rng::new(seed ^ name << 20);
    let mut left = states;
    while left > 0 {
        let now = left.min(STATES_PER_RECORD);
        left -= now;
        let record = record(bench, cell, &mut rng)?;
        sums.segments += record.segments;
        sums.removed += record.removed;
        sums.recycled += record.recycled;
        sums.resent += record.resent;
        for cut in places(&record.trace, record.from, now, &mut rng, is_report) {
            let mut image = Case { seed: record.seed, trace: &record.trace, cut, promise: Promise::new(record.seed) };
            let chance = rng.number();
            let outcome = checked(bench, cell, &mut image, chance, None, &mut sums.unmounted)?;
            let after = image.promise_then()?.having_found(&outcome.found);
            let cut = somewhere(&outcome.trace, &mut rng);
            let mut second = Case { seed: record.seed, trace: &outcome.trace, cut, promise: after };
            let before = Some((&image, chance));
            let again = checked(bench, cell, &mut second, rng.number(), before, &mut sums.unmounted)?;
            sums.states += 1;
            sums.seconds += 1;
            for outcome in [outcome, again] {
                sums.counts.add(outcome.counts);
                sums.typed += outcome.typed;
            }
        }
    }
    Ok(Verdict::Kept(sums))
}

/// What the daemon says where it does not start, if it does not.
fn refusal(bench: &mut Bench, cell: &Cell) -> CutResult<Option<Verdict>> {
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
        return Ok(Some(Verdict::Absent(said)));
    }
    match must {
        Some(word) if said.contains(word) => Ok(Some(Verdict::Refused(said))),
        must => Err(format!("it refuses, and must say {must:?}: {said}")),
    }
}

fn is_report(event: &Event) -> bool {
    matches!(event, Event::Word(_))
}

fn somewhere(trace: &Trace, rng: &mut Rng) -> Cut {
    places(trace, 0, 1, rng, is_report)[0]
}
