//! Opening a journal: recovery, and the first segment.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::JournalConfig;
use crate::env::{Env, Observer};
use crate::error::OpenError;
use crate::format::CURSORS_NAME;
use crate::format::segment::SegmentHeader;
use crate::io::Storage;
use crate::read::catalog::Catalog;
use crate::recover::{self, Report};
use crate::run::executor::Executor;
use crate::run::live_threads::LiveThreads;
use crate::run::shared::{Core, Shared};
use crate::run::waiters::WatermarkPublisher;
use crate::run::watch::Watch;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Condvar, Mutex};
use crate::write::committer::Committer;
use crate::write::cursor_table::{CursorTable, Loaded};
use crate::write::prepare;

/// Recovers the log and opens its first segment; starts no thread.
pub(crate) fn open_shared(
    storage: Arc<dyn Storage>,
    dir: &str,
    clock: Arc<dyn Clock>,
    config: JournalConfig,
    observer: Observer,
) -> Result<(Arc<Shared>, Report), OpenError> {
    config.check().map_err(OpenError::Config)?;
    let r = recover::start(storage.as_ref(), dir, clock.as_ref(), &config, &observer)?;
    let in_flight = Arc::new(AtomicUsize::new(config.policy.in_flight()));
    let env = Env {
        storage,
        clock,
        config,
        observer,
        in_flight,
        meta: Arc::new(r.meta),
        making: Arc::default(),
        taken: Arc::default(),
    };
    let first_own = env.meta.get().highest_segment.wrapping_add(1); // none yet: 0
    let mut report = r.report;
    let left_over = recovery_left_over(&env, &mut report)?;
    let half_free_at_start = env.storage.space().map_or(0, |space| space.free / 2);
    let cursors = open_cursors(&env, &mut report)?;
    let catalog = Arc::new(Catalog::new(r.sealed));
    let executor = Executor::new(env.clone(), catalog.clone(), r.before, recover::recover);
    let now = env.clock.boot_ns();
    let mut committer = Committer::new(config, r.producers, r.next_offset, env.meta.get().epoch_start(), now);
    let free_segments = prepare::free_segment_count(&env).map_err(OpenError::io("look at the free space"))?;
    committer.begin_with(free_segments, env.storage.block_size());
    committer.segments.supply.put_back(left_over);
    let watermarks = committer.watermarks();
    let active_header = committer.segments.active_header(None);
    let core = Core { committer, watch: Watch::default(), failed: None, active_header, asked: 0, given: 0 };
    let shared = Arc::new(Shared {
        core: Mutex::new(core),
        work: Condvar::new(),
        ended: Condvar::new(),
        watermarks: WatermarkPublisher::new(watermarks),
        executor,
        catalog,
        retention: Mutex::new(config.retention),
        cursors,
        half_free_at_start,
        held_bytes: AtomicU64::new(0),
        first_own,
        background: (Mutex::new(false), Condvar::new()),
        closing: AtomicBool::new(false),
        live_threads: Mutex::new(LiveThreads::default()),
        gone: Condvar::new(),
        at_disk: AtomicUsize::new(0),
        last_segment_failure: Mutex::new((String::new(), 0)),
        recycled: AtomicU64::new(0),
        lock: Mutex::new(Some(r.lock)),
    });
    shared.open_first();
    Ok((shared, report))
}

/// The named cursors. A file of which nothing can be read is quarantined: the log does not depend on it.
fn open_cursors(env: &Env, report: &mut Report) -> Result<CursorTable, OpenError> {
    let log_id = env.meta.get().log_id;
    match CursorTable::load(env.storage.as_ref(), log_id)? {
        Loaded::Table(table) => Ok(table),
        Loaded::Damaged(bytes) => {
            let moved = recover::quarantine_name(env.storage.as_ref(), CURSORS_NAME);
            report.unknown(vec![(moved.map_err(OpenError::io("quarantine cursors/table"))?, bytes)]);
            Ok(CursorTable::new(log_id))
        }
    }
}

fn recovery_left_over(env: &Env, report: &mut Report) -> Result<Option<SegmentHeader>, OpenError> {
    let meta = env.meta.get();
    let next = meta.next_segment();
    let found = prepare::find_left_over(env, next).map_err(OpenError::io("look at the prepared segment"))?;
    let keep = found.as_ref().map(|p| p.number);
    let quarantined = recover::clear_above(env.storage.as_ref(), &meta, next, keep, &env.observer);
    report.unknown(quarantined.map_err(OpenError::io("remove unused segments"))?);
    Ok(found)
}
