//! Running a model in many orders.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Changes of priority in an order of PCT.
const DEPTH: usize = 4;
/// More steps than this are taken for a thread that never ends.
const STEPS: usize = 200_000;

/// Runs a model in so many orders; how many were tried, or what went wrong in the last.
///
/// # Errors
/// The text of the failure.
pub fn tried(seed: u64, orders: usize, model: impl Fn() + Copy + Send + Sync + 'static) -> Result<usize, String> {
    let by_chance = orders.div_ceil(2);
    let first = run(RandomScheduler::new_from_seed(seed, by_chance), model)?;
    Ok(first + run(PctScheduler::new_from_seed(seed, DEPTH, orders - by_chance), model)?)
}

/// Runs each of so many orders twice; whether the second time is the first again.
///
/// # Errors
/// Where the two part.
pub fn repeats(seed: u64, orders: usize, model: impl Fn() + Copy + Send + Sync + 'static) -> Result<usize, String> {
    let scheduler = RandomScheduler::new_from_seed(seed, orders);
    run(UncontrolledNondeterminismCheckScheduler::new(scheduler), model)
}

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) -> Result<usize, String> {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    let ran = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config).run(model)));
    ran.map_err(|why| {
        let text = why.downcast_ref::<String>().cloned();
        text.or_else(|| why.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "a panic".to_owned())
    })
}
