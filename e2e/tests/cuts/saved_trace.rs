//! A state that is checked; what fails is kept with all that is needed to check exactly it again.

use std::any::Any;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use clad_e2e::Rng;
use clad_e2e::cuts::disk::is_of_filesystem;
use clad_e2e::cuts::inside::inside;
use clad_e2e::cuts::{Cut, CutResult, Pages, Trace};

use crate::cells::Cell;
use crate::lab::{Bench, Lab};
use crate::promise::Promise;
use crate::state::{Outcome, check};

/// A trace and where it is cut.
pub(crate) struct Case<'a> {
    pub(crate) seed: u64,
    pub(crate) trace: &'a Trace,
    pub(crate) cut: Cut,
    /// What was promised before the trace began.
    pub(crate) promise: Promise,
}

impl Case<'_> {
    /// What was promised before the cut.
    pub(crate) fn promise_then(&self) -> CutResult<Promise> {
        self.promise.clone().after(self.trace.words(self.cut.at))
    }

    fn image(&self, cell: &Cell) -> Pages {
        self.trace.base.under(&self.cut.leaves(self.trace, cell.cache))
    }
}

/// Calls what may panic.
pub(crate) fn caught<T>(body: impl FnOnce() -> CutResult<T>) -> CutResult<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(words_of(&*panic)))
}

pub(crate) fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

/// Where a failure is kept: it outlives the test.
fn saved_folder() -> PathBuf {
    std::env::var_os("CLAD_CUTS_KEEP")
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuts"), PathBuf::from)
}

/// Checks one image; what fails is kept, with the words that try it again. `untorn` counts the states that the file
/// system itself did not survive, and that were made again. `first` is the state in whose recovery this one was cut.
pub(crate) fn checked(
    bench: &mut Bench,
    cell: &Cell,
    case: &mut Case<'_>,
    chance: u64,
    first: Option<(&Case<'_>, u64)>,
    untorn: &mut u64,
) -> CutResult<Outcome> {
    let promise = case.promise_then()?;
    let mut once = |case: &Case<'_>| {
        let done = caught(|| check(bench, cell, case.image(cell), &promise, &mut Rng::new(chance)));
        let unmounted = bench.disk.unmount();
        done.and_then(|outcome| unmounted.map(|()| outcome))
    };
    let mut done = once(case);
    if done.as_ref().is_err_and(|error| is_of_filesystem(error)) {
        *untorn += 1;
        case.cut = case.cut.in_blocks();
        done = once(case);
    }
    done.map_err(|error| {
        let saved = save(cell, case, chance, first).unwrap_or_else(|e| format!("the trace is not kept: {e}"));
        format!("{error}\ncut at {} ({:?}); {saved}", case.cut, case.cut.survival())
    })
}

/// Keeps a trace; the words that check it again.
fn save(cell: &Cell, case: &Case<'_>, chance: u64, first: Option<(&Case<'_>, u64)>) -> CutResult<String> {
    let folder = saved_folder().join(format!("{}-{}", cell.to_string().replace(' ', "-"), case.cut.seed));
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

/// `CLAD_CUTS_TRACE=FOLDER`: a failure that was kept is checked again, cut for cut.
#[test]
#[ignore = "needs a trace: CLAD_CUTS_TRACE"]
#[expect(clippy::print_stdout, reason = "the outcome is the result")]
fn a_saved_trace_is_replayed() {
    let Some(folder) = inside("saved_trace::a_saved_trace_is_replayed") else { return };
    let saved =
        PathBuf::from(std::env::var_os("CLAD_CUTS_TRACE").expect("CLAD_CUTS_TRACE names the folder of a trace"));
    let text = std::fs::read_to_string(saved.join("case")).expect("the file `case`");
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| value(key).map(|text| text.parse::<u64>().expect("a number"));
    let cell = Cell::parse(value("cell").expect("a cell")).expect("a cell of this matrix");
    let seed = number("seed").expect("a seed");
    let lab = Lab::new(&folder, &[cell.filesystem]).expect("a recording device");
    let mut bench = lab.benches.into_iter().next().expect("one");
    bench.disk.set_cache(cell.cache).expect("the cache is set");
    let trace = Trace::load(&saved).expect("a trace");
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
        let trace = Trace::load(&saved.join("second")).expect("a trace");
        let promise = first.promise_then().expect("a promise").having_found(&outcome.found);
        let second = Case { seed, trace: &trace, cut, promise };
        let outcome = again(&second, number("second_chance").expect("a number"));
        let outcome = outcome.unwrap_or_else(|e| panic!("second cut {cut}: {e}"));
        println!("second cut {cut} ({:?}): found {}", cut.survival(), outcome.found.extent());
    }
    println!("cuts: the kept trace of {cell} holds");
}
