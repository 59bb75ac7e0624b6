//! Which file system keeps what was acknowledged, under which way of writing and which cache: the table in
//! docs/DURABILITY.md. The ways that do not hold must be seen to lose something, else the device sees no losses.

use std::fmt::Write as _;
use std::thread;
use std::time::Instant;

use clad_e2e::cuts::inside::inside;
use clad_e2e::cuts::trace::Word;
use clad_e2e::cuts::{Cache, CutResult, Event, Filesystem};
use clad_e2e::{Rng, seed};

use crate::lab::{Bench, DEVICE_DELAY_MAX_US, Lab, places};
use crate::methods::{Expected, METHODS, Method};

/// States of each method × file system × cache, where `CLAD_CUTS_STATES` says nothing else.
const STATES: usize = 20;

/// A cell of the table.
struct Cell {
    method: usize,
    filesystem: Filesystem,
    cache: Cache,
    states: usize,
    /// States in which something acknowledged was missing.
    lost: usize,
}

#[test]
#[ignore = "needs root, FUSE and loop devices: cargo xtask ci cuts"]
#[expect(clippy::print_stdout, reason = "the table is the result")]
fn which_way_of_writing_keeps_what() {
    let Some(folder) = inside("table::which_way_of_writing_keeps_what") else { return };
    let states = std::env::var("CLAD_CUTS_STATES").map_or(STATES, |text| text.parse().expect("CLAD_CUTS_STATES"));
    let (seed, began) = (seed(), Instant::now());
    let lab = Lab::new(&folder, &Filesystem::ALL).expect("a recording device");
    let cells: Vec<Cell> = thread::scope(|scope| {
        let run = |mut bench| scope.spawn(move || all_of(&mut bench, states, seed).expect("the table"));
        let running: Vec<_> = lab.benches.into_iter().map(run).collect();
        running.into_iter().flat_map(|one| one.join().expect("a file system's part")).collect()
    });
    println!("{}", markdown(&cells));
    let wrong: Vec<String> = cells.iter().filter_map(unexpected).collect();
    let (all, lost) = cells.iter().fold((0, 0), |sum, cell| (sum.0 + cell.states, sum.1 + cell.lost));
    println!("tally: states={all}");
    println!(
        "cuts: table: {} cells, {all} states, {lost} of them lost something, {} cells not as expected; seed {seed}, {} s",
        cells.len(),
        wrong.len(),
        began.elapsed().as_secs()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn all_of(bench: &mut Bench, states: usize, seed: u64) -> CutResult<Vec<Cell>> {
    let mut cells = Vec::new();
    for cache in Cache::ALL {
        bench.disk.set_cache(cache)?;
        for (at, method) in METHODS.iter().enumerate() {
            let filesystem = bench.disk.filesystem();
            if !method.exists_on(filesystem) {
                continue;
            }
            let mut rng = Rng::new(seed ^ (at as u64) << 8 ^ (cache == Cache::None) as u64 ^ (filesystem as u64) << 4);
            let lost = one(bench, method, cache, states, &mut rng)?;
            cells.push(Cell { method: at, filesystem, cache, states, lost });
        }
    }
    Ok(cells)
}

/// Runs a method once and cuts it so many times; how often something was lost.
fn one(bench: &mut Bench, method: &Method, cache: Cache, states: usize, rng: &mut Rng) -> CutResult<usize> {
    let Bench { disk, empty, .. } = bench;
    let recorder = disk.recorder().clone();
    recorder.insert(empty.clone(), clad_e2e::cuts::Pages::default());
    disk.mount()?;
    method.prepare(disk.point())?;
    recorder.slow(DEVICE_DELAY_MAX_US.0, DEVICE_DELAY_MAX_US.1, Rng::new(rng.number()));
    let from = recorder.say(Word::Note("begins".to_owned()));
    let ran = method.run(disk.point(), &recorder);
    let trace = recorder.take(empty);
    recorder.slow(0, 0, Rng::new(0));
    disk.unmount()?;
    ran?;
    let mut lost = 0;
    for cut in places(&trace, from, states, rng, |event| matches!(event, Event::Word(_))) {
        let acked: Vec<u64> =
            trace.words(cut.at).filter_map(|word| if let Word::Block(n) = word { Some(*n) } else { None }).collect();
        recorder.insert(empty.clone(), cut.leaves(&trace, cache));
        if disk.mount().is_err() {
            // Torn so that the file system did not survive: see `clad_e2e::cuts`.
            recorder.insert(empty.clone(), cut.in_blocks().leaves(&trace, cache));
            disk.mount()?;
        }
        lost += usize::from(!method.lost(disk.point(), &acked).is_empty());
        disk.unmount()?;
    }
    Ok(lost)
}

fn filesystem_index(filesystem: Filesystem) -> usize {
    Filesystem::ALL.iter().position(|one| *one == filesystem).expect("one of all")
}

/// What must hold of a cell, and does not.
fn unexpected(cell: &Cell) -> Option<String> {
    let method = &METHODS[cell.method];
    let kept = match method.expected {
        Expected::Kept => true,
        Expected::Lost { but } => cell.cache == Cache::None && but[filesystem_index(cell.filesystem)],
        Expected::Unknown => return None,
    };
    let Cell { filesystem, cache, states, lost, .. } = cell;
    let name = format!("{} on {} with cache {cache}", method.name, filesystem.name());
    match (kept, *lost) {
        (true, 1..) => Some(format!("{name}: lost something in {lost} of {states} states, and must not")),
        (false, 0) => Some(format!("{name}: lost nothing in {states} states: the device sees no losses")),
        _ => None,
    }
}

fn markdown(cells: &[Cell]) -> String {
    let mut text = String::from("| written, then acknowledged |");
    for cache in Cache::ALL {
        for filesystem in Filesystem::ALL {
            let _ = write!(
                text,
                " {}, {} |",
                filesystem.name(),
                if cache == Cache::Volatile { "volatile" } else { "no cache" }
            );
        }
    }
    text.push_str("\n|---|---|---|---|---|---|---|\n");
    for (at, method) in METHODS.iter().enumerate() {
        let _ = write!(text, "| {} |", method.name);
        for cache in Cache::ALL {
            for filesystem in Filesystem::ALL {
                let cell = cells.iter().find(|c| (c.method, c.filesystem, c.cache) == (at, filesystem, cache));
                let _ = match cell {
                    None => write!(text, " |"),
                    Some(Cell { lost: 0, .. }) => write!(text, " kept |"),
                    Some(cell) => write!(text, " **lost** in {} of {} |", cell.lost, cell.states),
                };
            }
        }
        text.push('\n');
    }
    text
}
