//! The background thread: it prepares the next segment, checks the space, and applies retention.
//!
//! Invariant: zeroes are written at the pace of the log (twice as fast as the active segment fills, and never slower
//! than [`ZEROING_PAUSE`]). So preparing neither starves appends nor comes too late. Retention removes whole sealed
//! segments, oldest first, never the newest, only after `clad.meta` has durably passed them. Each removal follows the
//! current rules: after their withdrawal no further segment is removed. For room, no more are removed than needed
//! ([`PendingReclaim`]). By age, none is removed while the wall clock is not trusted ([`ClockTrust`]). What a cursor holds
//! stays up to a bound, and only while there is room: a hold never fills the disk, and it follows what is synced.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Retention;
use crate::env::{Event, Rule};
use crate::format::segment::SegmentHeader;
use crate::format::segment_name;
use crate::io::if_there;
use crate::read::catalog::Sealed;
use crate::run::shared::Shared;
use crate::sync::atomic::Ordering;
use crate::sync::thread;
use crate::write::clock_trust::{ClockTrust, Doubt};
use crate::write::cursor_table::unread_from;
use crate::write::pending_reclaim::PendingReclaim;
use crate::write::prepare::{self, NotReused, Space};

const BACKGROUND_INTERVAL: Duration = Duration::from_millis(200);
/// Footers that are read for the quota of owners at one look.
const OWNER_SCAN_FOOTERS_MAX: usize = 64;
/// Pause after each MiB of zeroes while the active segment is far from full: about 200 MB/s.
const ZEROING_PAUSE: Duration = Duration::from_millis(4);

pub(crate) fn run(shared: &Arc<Shared>) {
    let mut retention = RetentionState::default();
    while !shared.wait_background(BACKGROUND_INTERVAL) {
        // First, because a segment that it removes may become the wanted one.
        retention.apply(shared);
        look_for_space(shared);
        // Known from now on, so that a query for the oldest record need not wait for the disk.
        if let Some(oldest) = shared.catalog().first() {
            let _ = oldest.summary(shared.storage().as_ref());
        }
    }
}

/// Looks for room, and prepares the next segment where one is wanted.
pub(crate) fn look_for_space(shared: &Arc<Shared>) {
    if look(shared) > 0 {
        make_ready(shared);
    }
}

/// Reports to the committer the number of segments that have room.
fn look(shared: &Arc<Shared>) -> u64 {
    // No thread creates a segment between the check and its report.
    let _making = shared.env().making();
    let (free_segments, inodes) = prepare::room(shared.env()).unwrap_or_default();
    // Nothing is tried then, and no other report names the missing resource.
    if let Some((number, _)) = shared.with(|c| c.wants_prepared()).filter(|_| inodes) {
        not_made(shared, prepare::no_inode(number));
    }
    report_free_segments(shared, free_segments);
    free_segments
}

fn report_free_segments(shared: &Arc<Shared>, free_segments: u64) {
    let now = shared.env().now();
    let (news, short) = shared.with(|c| {
        c.let_resends_age(now);
        (c.set_free_segments(free_segments), free_segments == 0 && !c.segments.supply.is_prepared())
    });
    if news.report {
        shared.env().emit(Event::NoSpace(short));
    }
    if news.changed {
        shared.publish();
        shared.wake_all();
    }
}

fn make_ready(shared: &Arc<Shared>) {
    let Some((number, epoch)) = shared.with(|c| c.wants_prepared()) else { return };
    let mut throttle = |done| pace_zeroing(shared, number, done);
    let _making = shared.env().making();
    // While this waited for its turn, a rotation may have made and used that very number.
    if shared.with(|c| c.wants_prepared()) != Some((number, epoch)) {
        return;
    }
    let mut made = prepare::make(shared.env(), number, epoch, Space::Zeroed, &mut throttle);
    if made.as_ref().is_err_and(|e| e.kind() != std::io::ErrorKind::StorageFull) {
        // A bad place, say, in what the file system gives each time: a segment without zeroes is one all the same.
        made = prepare::make(shared.env(), number, epoch, Space::Reserved, &mut throttle);
    }
    match made {
        Ok(Some(prepared)) => hand_over(shared, prepared),
        Ok(None) => {}
        Err(e) if e.kind() == std::io::ErrorKind::StorageFull => match prepare::lacks(shared.env(), number, true) {
            Some(reason) => not_made(shared, reason),
            None => report_free_segments(shared, 0),
        },
        Err(e) => not_made(shared, format!("prepare segment {number}: {e}")),
    }
}

fn not_made(shared: &Arc<Shared>, reason: String) {
    shared.with(|c| c.cannot_make(reason.clone()));
    shared.emit_rate_limited(reason);
}

/// Called after each MiB of zeroes for segment `number`; `false`: stop.
fn pace_zeroing(shared: &Arc<Shared>, number: u64, done: u64) -> bool {
    let capacity = shared.env().config.segment_bytes;
    let (fill, wanted) = shared.with(|c| (c.segments.fill(), c.wants_prepared().is_some_and(|w| w.0 == number)));
    if done < capacity && (done as f64 / capacity as f64) > 2.0 * fill {
        thread::sleep(ZEROING_PAUSE);
    }
    wanted && !shared.is_closing()
}

fn hand_over(shared: &Arc<Shared>, prepared: SegmentHeader) {
    // Where it is not wanted any more (the rotation came first and made its own), the file is that one.
    if shared.with(|c| c.set_prepared(prepared)) {
        shared.publish();
        shared.wake_all();
    }
}

/// State of retention between two checks.
#[derive(Default)]
pub(crate) struct RetentionState {
    clock: ClockTrust,
    /// Last reported reason why retention by age rests.
    rests: Option<Doubt>,
    pending_reclaim: PendingReclaim,
    /// Segments below it were found sealed by the start, and counted for the quota of owners.
    counted: u64,
}

impl RetentionState {
    pub(crate) fn apply(&mut self, shared: &Arc<Shared>) {
        self.look_at_the_clock(shared);
        self.count_owners(shared);
        // While a rotation is under way no next segment is wanted yet: what goes now could not become it.
        let soon = shared.env().config.recycle && shared.with(|c| c.lifecycle.is_rotating());
        if !shared.retention().removes() || soon {
            return;
        }
        let (mut held, mut made_room) = (None, false);
        shared.held_bytes.store(0, Ordering::Relaxed);
        let all = shared.catalog().all();
        let mut total = all.iter().map(|s| s.bytes).sum::<u64>();
        for (at, (sealed, following)) in all.iter().zip(all.iter().skip(1)).enumerate() {
            let r = shared.retention();
            // The next start continues it: a close does not wait for all removals.
            if total.saturating_sub(sealed.bytes) < r.keep_bytes || shared.is_closing() {
                return;
            }
            let short = r.min_free > 0 && self.is_short(shared, r.min_free);
            let age_rests = !self.clock.allows(shared.env().clock.boot_ns());
            let Some(rule) = rule(shared, &r, (sealed, following), (total, short), age_rests) else { return };
            if is_held(shared, sealed, following) {
                let bytes = *held.get_or_insert_with(|| removable(shared, &r, &all[at..], total, age_rests));
                shared.held_bytes.store(bytes, Ordering::Relaxed);
                // A full disk wins over a cursor. For lack of room one goes at a look: the next look sees what that gave.
                let makes_room = !made_room && lacks_room(shared);
                if bytes <= r.held_at_most(shared.half_free_at_start) && !short && !makes_room {
                    return;
                }
                made_room |= makes_room;
            }
            // Bytes per owner, while the footer can still be read.
            let owners = self.has_counted(shared, sealed.number).then(|| owners_of(shared, sealed));
            let gone = remove(shared, sealed, following, rule);
            held = held.map(|bytes| bytes.saturating_sub(sealed.bytes));
            if gone.is_some() {
                let lowest_offset = shared.lowest_offset();
                shared.with(|c| {
                    c.writer.forget_recent_below(lowest_offset);
                    c.quota.held.take_all(owners.unwrap_or_default());
                });
            }
            if gone.is_some() && rule == Rule::MaxAge {
                self.clock.removed();
            }
            match gone {
                None => return,
                // Also for a file left behind: if its space does not return, the next one must still be removed.
                Some(Gone::Unlinked | Gone::Left) => {
                    self.pending_reclaim.removed(sealed.bytes, shared.env().clock.boot_ns())
                }
                Some(Gone::UsedAgain) => {}
            }
            total -= sealed.bytes;
        }
    }

    /// Counts the segments that the start found sealed, a few footers per check, once there is a quota.
    fn count_owners(&mut self, shared: &Arc<Shared>) {
        if shared.retention().per_owner_bytes == 0 || self.counted >= shared.first_own {
            return;
        }
        let all = shared.catalog().all();
        let from = self.counted;
        let uncounted = all.iter().filter(|s| (from..shared.first_own).contains(&s.number));
        for sealed in uncounted.take(OWNER_SCAN_FOOTERS_MAX) {
            let owners = owners_of(shared, sealed);
            shared.with(|c| c.quota.held.add_all(owners));
            self.counted = sealed.number + 1;
        }
        if all.iter().all(|s| !(self.counted..shared.first_own).contains(&s.number)) {
            self.counted = shared.first_own;
        }
    }

    fn has_counted(&self, shared: &Arc<Shared>, number: u64) -> bool {
        number < self.counted || number >= shared.first_own
    }

    /// True if less than the minimum is free, counting the space on its way.
    fn is_short(&mut self, shared: &Arc<Shared>, min_free: u64) -> bool {
        let Ok(space) = shared.storage().space() else { return false };
        let (env, taken) = (shared.env(), shared.env().taken.load(Ordering::Relaxed));
        space.free.saturating_add(self.pending_reclaim.look(space.free, taken, env.clock.boot_ns())) < min_free
    }

    /// Looks also while no rule is set: one that is set later finds what was seen before. Whether retention by age
    /// rests is reported where it has a rule.
    fn look_at_the_clock(&mut self, shared: &Arc<Shared>) {
        let env = shared.env();
        let doubt = self.clock.look(env.clock.as_ref()).filter(|_| !shared.retention().max_age.is_zero());
        match (std::mem::replace(&mut self.rests, doubt), doubt) {
            // A jump is reported also where it rested since the start.
            (before, Some(doubt)) if before != Some(doubt) => env.emit(Event::RetentionPaused(doubt)),
            (Some(_), None) => env.emit(Event::RetentionResumed),
            _ => {}
        }
    }
}

fn rule(
    shared: &Arc<Shared>,
    r: &Retention,
    (sealed, following): (&Sealed, &Sealed),
    (total, short): (u64, bool),
    age_rests: bool,
) -> Option<Rule> {
    if r.max_bytes > 0 && total > r.max_bytes {
        return Some(Rule::MaxBytes);
    }
    if short {
        return Some(Rule::MinFree);
    }
    let age = i64::try_from(r.max_age.as_nanos()).unwrap_or(i64::MAX);
    if age == 0 {
        return None;
    }
    let storage = shared.storage();
    let summary = sealed.summary(storage.as_ref()).ok()?;
    // An empty segment has no append time of its own; it goes with what lies before it.
    let empty = summary.is_some_and(|s| s.first_offset == s.end_offset);
    // A segment damaged beyond reading is older than the next one.
    let newest = summary.or_else(|| following.summary(storage.as_ref()).ok()?).map(|s| s.max_append_ns);
    let old = newest.is_some_and(|newest| shared.env().clock.real_ns().saturating_sub(newest) > age);
    ((old && !age_rests) || empty).then_some(Rule::MaxAge)
}

/// True if a cursor that holds has not read all of a segment.
fn is_held(shared: &Arc<Shared>, sealed: &Sealed, following: &Sealed) -> bool {
    let cursors = shared.cursors.all();
    if !cursors.iter().any(|cursor| cursor.hold) {
        return false;
    }
    let meta = shared.env().meta.get();
    let unread = cursors.iter().filter(|cursor| cursor.hold).map(|cursor| unread_from(&meta, cursor)).min();
    // Whose end cannot be found is held by nobody: it must not keep the others from going.
    let end = end_of(shared, sealed, following).ok().flatten();
    unread.zip(end).is_some_and(|(unread, end)| unread < end)
}

/// Bytes of the segments that the rules would remove, one after the other from the first on.
fn removable(shared: &Arc<Shared>, r: &Retention, all: &[Arc<Sealed>], total: u64, age_rests: bool) -> u64 {
    let mut bytes = 0;
    for (sealed, following) in all.iter().zip(all.iter().skip(1)) {
        let left = total.saturating_sub(bytes);
        let keeps = left.saturating_sub(sealed.bytes) < r.keep_bytes;
        if keeps || rule(shared, r, (sealed, following), (left, false), age_rests).is_none() {
            break;
        }
        bytes += sealed.bytes;
    }
    bytes
}

/// True if a next segment is wanted, and there is no room for it.
fn lacks_room(shared: &Arc<Shared>) -> bool {
    shared.with(|c| c.wants_prepared().is_some() && c.segments.supply.free_segments() == 0)
}

/// One past the last offset that goes with a segment; nothing where that cannot be found. One that is damaged beyond
/// reading ends where the next one begins. Of what the next one repeats, the next one holds the copy that counts.
fn end_of(shared: &Arc<Shared>, sealed: &Sealed, following: &Sealed) -> std::io::Result<Option<u64>> {
    let storage = shared.storage();
    let summary = sealed.summary(storage.as_ref())?;
    let next = following.summary(storage.as_ref())?.map(|s| s.first_offset);
    Ok([summary.map(|s| s.end_offset), next].into_iter().flatten().min())
}

/// Reports the cursors that have not read what is removed.
fn report_lost_cursors(shared: &Arc<Shared>, lowest_offset: u64, end_offset: u64) {
    let meta = shared.env().meta.get();
    for cursor in shared.cursors.all().iter().filter(|cursor| cursor.hold) {
        let from = unread_from(&meta, cursor);
        if (lowest_offset..end_offset).contains(&from) {
            shared.env().emit(Event::CursorLost { name: cursor.name.clone(), from, to: end_offset });
        }
    }
}

/// Bytes of a segment by owner; nothing if its footer does not contain them.
fn owners_of(shared: &Arc<Shared>, sealed: &Sealed) -> Vec<(u64, u64)> {
    let proof = sealed.proof(shared.storage().as_ref());
    proof.ok().flatten().map_or_else(Vec::new, |proof| proof.footer.owners)
}

/// Result for a removed segment's file.
enum Gone {
    Unlinked,
    UsedAgain,
    /// It is in the folder still; the next start removes it.
    Left,
}

fn remove(shared: &Arc<Shared>, sealed: &Sealed, following: &Sealed, rule: Rule) -> Option<Gone> {
    let lowest_offset = shared.lowest_offset();
    let summary = sealed.summary(shared.storage().as_ref()).ok()?;
    let end_offset = end_of(shared, sealed, following).ok()??.max(lowest_offset);
    let first_offset = summary.map_or(lowest_offset, |s| s.first_offset);
    let passed = shared.env().meta.update_both(|m| {
        m.pass(sealed.number + 1, end_offset);
    });
    if let Err(e) = passed {
        shared.env().emit(Event::SegmentFailed { reason: format!("pass segment {}: {e}", sealed.number) });
        return None;
    }
    // Removed from the list before the folder: a later lookup then returns the gap.
    shared.catalog().remove(sealed.number);
    shared.env().emit(Event::Removed { segment: sealed.number, first_offset, end_offset, rule });
    report_lost_cursors(shared, lowest_offset, end_offset);
    let suspect = summary.is_none_or(|s| s.damaged);
    let used_again = !suspect && use_again(shared, sealed);
    Some(if used_again { Gone::UsedAgain } else { discard(shared, sealed.number) })
}

fn discard(shared: &Arc<Shared>, number: u64) -> Gone {
    let Err(e) = if_there(shared.storage().remove(&segment_name(number))) else { return Gone::Unlinked };
    // The next start removes the segments that `clad.meta` has passed.
    shared.env().emit(Event::SegmentFailed { reason: format!("remove segment {number}: {e}") });
    Gone::Left
}

/// Makes the next segment of one that `clad.meta` has passed, if one is wanted; returns true on success.
fn use_again(shared: &Arc<Shared>, sealed: &Sealed) -> bool {
    let env = shared.env();
    if !prepare::reuse_pays(env, sealed.bytes) {
        return false;
    }
    let Some(wanted) = shared.with(|c| c.wants_prepared()) else { return false };
    let mut throttle = |done| pace_zeroing(shared, wanted.0, done);
    let _making = env.making();
    // While this waited for its turn, a rotation may have made and used that very number.
    if shared.with(|c| c.wants_prepared()) != Some(wanted) {
        return false;
    }
    match prepare::reuse(env, sealed.number, sealed.bytes, wanted, &mut throttle) {
        Ok(prepared) => {
            let as_segment = prepared.number;
            shared.recycled.fetch_add(1, Ordering::Relaxed);
            env.emit(Event::Recycled { segment: sealed.number, as_segment });
            hand_over(shared, prepared);
            true
        }
        Err(NotReused::Pointless) => false,
        Err(why) => {
            env.emit(Event::NotRecycled { segment: sealed.number, reason: why.to_string() });
            false
        }
    }
}
