//! Dry run of ending segments by footers: the offsets that would be lost, with nothing changed.
//!
//! Invariant: the same offsets as [`PlanExecutor::end`](super::PlanExecutor::end) then names.

use std::io;

use super::plan::{Said, Unsealed, plan};
use super::scan::scan;
use crate::format::footer::Damage;
use crate::format::meta::Meta;
use crate::format::segment::SegmentHeader;
use crate::format::segment_name;
use crate::io::{Access, Storage};

/// For adjacent segments without footers: the number under whose name each lies, and its header. A later segment holds
/// the log from `limit` on; the first of them begins at `first_offset`.
///
/// # Errors
/// Error of the kernel on opening them.
pub(crate) fn dry_run(
    storage: &dyn Storage,
    boot_id: [u8; 16],
    said: &Meta,
    segments: &[(u64, SegmentHeader)],
    limit: u64,
    first_offset: u64,
) -> io::Result<Vec<Damage>> {
    let mut seen = Vec::new();
    for (lies_at, header) in segments {
        let scan = scan(storage.open(&segment_name(*lies_at), Access::ReadDirect)?, header)?;
        seen.push(Unsealed::new(scan, header, said, boot_id, Some(limit)));
    }
    let plan = plan(first_offset, Said::default(), &seen.iter().collect::<Vec<_>>(), true);
    Ok(plan.kept.into_iter().flat_map(|kept| kept.damage).collect())
}
