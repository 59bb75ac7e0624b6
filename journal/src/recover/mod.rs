//! Recovery: one scanner (`scan.rs`), one plan (`plan.rs`), three executors. They are a start, before anything is
//! appended; the ending of segments by footers (`PlanExecutor::end`), for a repair and a recovery in the process; and
//! the dry run of a repair.
//!
//! Invariants:
//! - Nothing is concluded from an unsealed segment before its exclusive lock is held: a dead process's write may still
//!   be on its way to the disk (`segment_file.rs`).
//! - A sync proves nothing about pages that are clean. Data preserved above the proven durable end is **written
//!   again**, the same bytes at the same place, and synced, before it is called durable. Below a later segment that
//!   repeats the log, or the begin of a later epoch, all was durable, and nothing is written again.
//! - Nothing is destroyed: dropped data is first copied to `quarantine/` and synced. The copy's name is made of place
//!   and checksum, so that a start which is cut and repeated makes the same file.
//! - Then, and in this order: footers of the segments (ascending), the new epoch in `clad.meta`; the caller then opens
//!   a segment that never held a batch. Power may be cut between any two steps: the next start reaches the same log.
//! - A start on a full disk first removes files that hold nothing (`survey.rs`), before it needs room itself.
//! - The work is bounded by the first segment without a footer: everything below is proven by its footer, and only
//!   the newest of these is read.

mod dry_run;
mod execute;
pub(crate) mod header;
mod in_process;
pub mod plan;
mod quarantine;
mod recovered;
mod report;
pub mod scan;
mod start;
mod survey;

pub(crate) use dry_run::dry_run;
pub(crate) use execute::PlanExecutor;
pub(crate) use in_process::recover;
pub(crate) use quarantine::{clear_above, quarantine_name};
pub(crate) use recovered::table;
pub use report::Report;
pub(crate) use start::{lock, start, take_lock};
pub(crate) use survey::{
    Segment, State, check_foreign, check_no_remains, holds_a_batch, in_use_above, is_ours, is_used, list, probe,
    probe_alone, probe_as, segments as list_segments,
};
