//! Running a model in many orders.

use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Changes of priority in an order of PCT.
const DEPTH: usize = 4;
/// More steps than this are taken for a thread that never ends.
const SCHEDULER_STEPS_MAX: usize = 200_000;

/// Orders begun since [`tried`] was called last.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Orders begun of the model that runs: the last is the one that fails.
pub fn begun() -> usize {
    BEGUN.load(Ordering::Relaxed)
}

/// Runs a model in so many orders; how many were tried. Panics in the one that fails; what the model had is not to be
/// trusted then, nor to be dropped: the process should end.
pub fn tried(seed: u64, orders: usize, model: impl Fn() + Copy + Send + Sync + 'static) -> usize {
    BEGUN.store(0, Ordering::Relaxed);
    let by_chance = orders.div_ceil(2);
    let first = run(RandomScheduler::new_from_seed(seed, by_chance), model);
    first + run(PctScheduler::new_from_seed(seed, DEPTH, orders - by_chance), model)
}

/// Runs each of so many orders twice; panics where the second time is not the first again.
pub fn repeats(seed: u64, orders: usize, model: impl Fn() + Copy + Send + Sync + 'static) {
    let scheduler = RandomScheduler::new_from_seed(seed, orders);
    run(UncontrolledNondeterminismCheckScheduler::new(scheduler), model);
}

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(SCHEDULER_STEPS_MAX);
    config.silence_warnings = true; // of weak orderings: no promise rests on a value outside a lock
    Runner::new(scheduler, config).run(move || {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        model();
    })
}
