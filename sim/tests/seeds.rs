//! Whole histories: the same seeds every time, those that found something, fresh ones, and fresh ones with bit rot, and on a
//! failing device.
//!
//! `CLAD_SEED` is the first seed, `CLAD_SIM_RUNS` how many (default a few hundred; `CLAD_SIM_FAILING` of those on a failing device),
//! `CLAD_SIM_FIXED` how many are the same every time (default 300; a quarter as many with bit rot),
//! `CLAD_SIM_LOOK` after one life in how many the files are looked at without the journal (default 16), `CLAD_SIM_TRACE` prints
//! what happened before a rule was broken.

#![allow(clippy::print_stdout)] // it says its seeds and what was done

use std::path::Path;

use clad_journal::{OfflineLog, ReadError, verify};
use clad_sim::world::{Found, Rest, Settings, Stats};
use clad_sim::{SimDisk, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What becomes of what was acknowledged, besides crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    Sound,
    /// A commit marker cannot be written back, and its block is lost.
    WriteBack,
    /// The same, and producers come and go, more of them than there are places.
    Turnover,
    /// Bits turn over.
    BitRot,
    /// That, and sectors go bad for good, and `clad.meta` as a whole.
    FailingDevice,
}

/// `resends`: with senders without a sequence, and forwarders.
fn run(seed: u64, media: Media, resends: bool) -> Result<Stats, String> {
    let trace = std::env::var_os("CLAD_SIM_TRACE").is_some();
    let found = FOUND.contains(&seed) || FOUND_WRITE_BACK.contains(&seed);
    let look_every = number("CLAD_SIM_LOOK").or(found.then_some(1));
    let (bit_rot, failing_device) =
        (matches!(media, Media::BitRot | Media::FailingDevice), media == Media::FailingDevice);
    let (write_back_fails, turnover) = (matches!(media, Media::WriteBack | Media::Turnover), media == Media::Turnover);
    let settings = Settings {
        trace,
        bit_rot,
        failing_device,
        write_back_fails,
        turnover,
        resends,
        forwards: resends,
        look_every,
        ..Settings::default()
    };
    let mut world = World::new(seed, settings);
    world.inspect_with(Box::new(inspect));
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    let broken = match ran {
        Ok(Ok(())) => return Ok(world.stats()),
        Ok(Err(broken)) => broken.0,
        Err(_) => "it panics".to_owned(),
    };
    world.trace().iter().for_each(|line| println!("{line}"));
    Err(format!("CLAD_SEED={seed} CLAD_SIM_RUNS=1: {broken}"))
}

/// Puts the files of a simulated disk on a real one and looks at them as `clactl verify` and `clactl query --dir` do.
fn inspect(disk: &SimDisk) -> Rest {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in disk.names() {
        match name.strip_suffix('/') {
            Some(folder) => std::fs::create_dir(dir.path().join(folder)).unwrap(),
            None => std::fs::write(dir.path().join(&name), disk.peek(&name).unwrap()).unwrap(),
        }
    }
    let mut rest = Rest::default();
    if let Err(e) = read(dir.path(), &mut rest) {
        rest.problems.push(e);
    }
    rest
}

fn read(dir: &Path, rest: &mut Rest) -> Result<(), String> {
    let log = OfflineLog::open(dir).map_err(|e| e.to_string())?;
    rest.end = log.end_offset();
    rest.first = log.first_offset();
    let mut reader = log.read(rest.first);
    loop {
        let batch = match reader.next_batch() {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(ReadError::Gap { from, to, .. }) => {
                rest.lost.push((from, to));
                continue;
            }
            Err(e @ ReadError::Io { .. }) => return Err(e.to_string()),
        };
        for chunk in batch.chunks() {
            let (offset, c) = chunk.map_err(|e| e.to_string())?;
            rest.found.push(Found {
                offset,
                count: c.header.count,
                producer: c.header.producer,
                producer_epoch: c.header.producer_epoch,
                first_sequence: c.header.first_sequence,
                payload: c.payload.to_vec(),
            });
        }
    }
    let report = verify(dir, &mut |_, _| {}).map_err(|e| e.to_string())?;
    rest.problems.extend(report.problems.iter().map(|p| format!("{p:?}")));
    Ok(())
}

/// All of them, and then the broken ones.
fn run_all(name: &str, first: u64, runs: u64) {
    let all = run_each(name, runs, Media::WriteBack, (0..runs).map(|i| first.wrapping_add(i)));
    println!("{name}: {} blocks were lost with a commit marker, and written again", all.commit_markers_lost);
    assert!(
        runs < 100 || all.commit_markers_lost > runs / 20,
        "only {} such blocks: nothing is shown",
        all.commit_markers_lost
    );
}

fn run_each(name: &str, runs: u64, media: Media, seeds: impl Iterator<Item = u64>) -> Stats {
    let all = run_with(name, runs, media, true, seeds);
    assert!(runs < 100 || all.resent > runs, "only {} were sent again by a key: nothing is shown", all.resent);
    let forwards = !matches!(media, Media::BitRot | Media::FailingDevice);
    let few = forwards && all.forwarded < 10 * runs;
    assert!(runs < 100 || !few, "only {} records were forwarded: nothing is shown", all.forwarded);
    println!(
        "{name}: {} records forwarded, {} appends of another history, {} origins dropped, {} lost",
        all.forwarded, all.parted, all.origins_dropped, all.origins_lost
    );
    all
}

/// Histories from before there were senders without a sequence, as they were.
fn run_found(name: &str, media: Media, seeds: &[u64]) {
    run_with(name, seeds.len() as u64, media, false, seeds.iter().copied());
}

fn run_with(name: &str, runs: u64, media: Media, resends: bool, seeds: impl Iterator<Item = u64>) -> Stats {
    let (mut all, mut broken) = (Stats::default(), Vec::new());
    let began = std::time::Instant::now();
    for seed in seeds {
        match run(seed, media, resends) {
            Ok(stats) => all.add(&stats),
            Err(text) => {
                // At once: of a long run only what was printed may be left.
                println!("{name}: {text}");
                broken.push(text);
            }
        }
    }
    print_stats(name, runs, &all);
    let states = all.crash_states() as f64 / began.elapsed().as_secs_f64() * 60.0;
    println!("{name}: {states:.0} crash states a minute");
    assert!(broken.is_empty(), "{} of {runs} seeds broke a rule:\n{}", broken.len(), broken.join("\n"));
    all
}

fn print_stats(name: &str, seeds: u64, s: &Stats) {
    println!(
        "{name}: {seeds} seeds, {} lives, {} cuts, {} kills, {} failed starts, {} recoveries in the process, {} clean ends, \
         {} acks checked, {} bursts, {} duplicates, {} by their key, {} records read, {} seals compared, {} looks at the files, {} segments removed and \
         {} used again, 0 lost",
        s.lives,
        s.cuts,
        s.kills,
        s.failed_starts,
        s.rescues,
        s.closes,
        s.acked,
        s.bursts,
        s.duplicates,
        s.resent,
        s.read,
        s.sealed,
        s.inspected,
        s.removed,
        s.recycled
    );
    println!("tally: {}", s.tally());
}

/// Histories that broke a rule once: `git log -p -S SEED` shows what was wrong.
const FOUND: [u64; 11] = [
    1795260398087165005,
    1795260398087169855,
    1795260697589370190,
    1795260266788946973,
    1795266532671961595,
    1795308870001016405,
    1795308870100042658,
    1795308870400071407,
    1795308870300101722,
    1795308870500040585,
    1795308870600042049,
];

#[test]
fn found_seeds() {
    run_found("found", Media::Sound, &FOUND);
}

/// The same where a commit marker cannot be written back.
const FOUND_WRITE_BACK: [u64; 1] = [1795321546700607871];

#[test]
fn found_write_back_seeds() {
    run_found("found write-back", Media::WriteBack, &FOUND_WRITE_BACK);
}

/// The same where producers come and go.
const FOUND_TURNOVER: [u64; 3] = [1795771453140929669, 1795789195225261786, 1795789195225262933];

#[test]
fn found_turnover_seeds() {
    run_found("found turnover", Media::Turnover, &FOUND_TURNOVER);
}

/// The same with bit rot.
const FOUND_BIT_ROT: [u64; 16] = [
    881017369,
    1795271512125788803,
    1795271512125789562,
    1795272098036797173,
    1795272098036809270,
    1795272098036810242,
    1795272098036810825,
    1795272098036811593,
    1795272098036848198,
    1795273247555879707,
    1795273247555880879,
    1795274278569470734,
    1795279507571172722,
    1795279688874851055,
    1795291996282775321,
    8800000039872,
];

#[test]
fn found_bit_rot_seeds() {
    run_found("found rot", Media::BitRot, &FOUND_BIT_ROT);
}

#[test]
fn fixed_seeds() {
    run_all("fixed", 0, fixed());
}

/// So many are the same every time.
fn fixed() -> u64 {
    number("CLAD_SIM_FIXED").unwrap_or(300)
}

#[test]
fn fresh_seeds() {
    let (first, runs) = fresh(200);
    println!("simulation: CLAD_SEED={first} CLAD_SIM_RUNS={runs}");
    run_all("fresh", first, runs);
}

fn run_turnover(name: &str, first: u64, runs: u64) {
    let all = run_each(name, runs, Media::Turnover, (0..runs).map(|i| first.wrapping_add(i)));
    println!(
        "{name}: {} said BYE, {} came back and were unknown, {} were evicted, {} HELLOs waited, {} appends had no place",
        all.byes, all.returns, all.evicted, all.waits, all.placeless
    );
    let least = all.byes.min(all.returns).min(all.waits).min(all.placeless);
    assert!(runs < 100 || least > runs / 10 && all.evicted > 0, "too little of something: nothing is shown");
}

/// Producers come and go: BYE, ids that come back, evictions, and crashes in between.
#[test]
fn fixed_turnover_seeds() {
    run_turnover("turnover", 0, fixed());
}

#[test]
fn turnover_seeds() {
    let (first, runs) = fresh(200);
    println!("simulation: turnover: CLAD_SEED={first} CLAD_SIM_RUNS={runs}");
    run_turnover("turnover", first, runs);
}

/// The first seed and how many.
fn fresh(otherwise: u64) -> (u64, u64) {
    let clock =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
    (number("CLAD_SEED").unwrap_or_else(clock), number("CLAD_SIM_RUNS").unwrap_or(otherwise))
}

/// Bits turn over in what was acknowledged. A quarter as many: each looks at more, and larger runs are by hand.
#[test]
fn bit_rot_seeds() {
    let (first, runs) = fresh(200);
    let runs = runs.div_ceil(4);
    println!("simulation: bit rot: CLAD_SEED={first} CLAD_SIM_RUNS={runs}");
    run_bit_rot(first, runs);
}

#[test]
fn fixed_bit_rot_seeds() {
    run_bit_rot(0, fixed().div_ceil(4));
}

fn run_bit_rot(first: u64, runs: u64) {
    let all = run_each("rot", runs, Media::BitRot, (0..runs).map(|i| first.wrapping_add(i)));
    println!("rot: {} bits turned over, {} ranges were reported lost, nothing else", all.bit_rot, all.gaps);
    assert!(runs < 100 || all.gaps > runs / 10, "only {} ranges: nothing is shown", all.gaps);
}

/// The same on a failing device.
const FOUND_FAILING_DEVICE: [u64; 19] = [
    10002232,
    20002217,
    20002770,
    991010111,
    1795294472308374638,
    1795294472308378721,
    1795294472308380216,
    1795294472308384972,
    1795294472308387088,
    1795294472308390028,
    1795294472308392797,
    1795294472308392953,
    1795294472308395856,
    1795295000000008946,
    1795295000000022053,
    6600000103684,
    6600000315704,
    9210000006355,
    9210000008108,
];

#[test]
fn found_failing_device_seeds() {
    run_found("found failing device", Media::FailingDevice, &FOUND_FAILING_DEVICE);
}

/// So many fixed histories on a failing device.
const FAILING_DEVICE_RUNS: u64 = 200;

/// On a failing device: sectors that cannot be read for good, half of them nor written, and `clad.meta` without both its slots.
#[test]
fn fixed_failing_device_seeds() {
    let all = run_each("failing device", FAILING_DEVICE_RUNS, Media::FailingDevice, 0..FAILING_DEVICE_RUNS);
    print_failing_device(&all);
    let shown = all.bad_sectors.min(all.refused).min(all.gaps) > FAILING_DEVICE_RUNS / 10
        && all.repaired > FAILING_DEVICE_RUNS / 100;
    assert!(shown, "too little of something: nothing is shown");
}

/// Fresh ones: as many as `CLAD_SIM_FAILING` says, else a twentieth. Each takes five times as long as one on a sound device.
#[test]
fn failing_device_seeds() {
    let (first, runs) = fresh(200);
    let runs = number("CLAD_SIM_FAILING").unwrap_or(runs.div_ceil(20));
    println!("simulation: a failing device: CLAD_SEED={first} CLAD_SIM_RUNS={runs}");
    print_failing_device(&run_each(
        "failing device",
        runs,
        Media::FailingDevice,
        (0..runs).map(|i| first.wrapping_add(i)),
    ));
}

fn print_failing_device(all: &Stats) {
    println!(
        "failing device: {} sectors went bad, {} bits turned over, {} starts were refused for it by name, {} segments taken away by repair, \
         {} ranges were reported lost, nothing else",
        all.bad_sectors, all.bit_rot, all.refused, all.repaired, all.gaps
    );
}

#[test]
fn the_same_seed_makes_the_same_history() {
    for seed in 1000..1010 {
        for media in [Media::Sound, Media::WriteBack, Media::Turnover, Media::BitRot, Media::FailingDevice] {
            assert_eq!(run(seed, media, true), run(seed, media, true), "seed {seed}, {media:?}");
        }
    }
    let digest = |seed| run(seed, Media::Sound, true).unwrap().digest;
    assert_ne!(digest(1000), digest(1001));
}
