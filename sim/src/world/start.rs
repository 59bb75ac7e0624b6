//! End of a life, and begin of the next one.

use std::io::ErrorKind;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use clad_journal::stepper::{Kind, Next, Stepper};
use clad_journal::{Event, Level, Observer, OpenError, ReadError};

use clad_journal::format::footer::Damage;

use super::failing_device::REFUSALS;
use super::model::{Check, Death, Found, Violation, ensure};
use super::{Tap, World};
use crate::disk::{Fault, OpKind};

/// Records that a reader got, and the ranges that were reported to it as unreadable.
type Read = (Vec<Found>, Vec<(u64, u64)>);

/// Starts that are tried with faults, before some without: the first of these may still get an old error.
const ATTEMPTS: u64 = 4;
/// So many operations after a failed read none of its blocks is read again.
const READ_TWICE: u64 = 200;
/// Operations that can fail and be none of a reader's.
const CHANGES: [OpKind; 12] = [
    OpKind::Write,
    OpKind::SyncedWrite,
    OpKind::SyncData,
    OpKind::SyncAll,
    OpKind::SyncAll,
    OpKind::SyncRange,
    OpKind::SyncDir,
    OpKind::SetLen,
    OpKind::Allocate,
    OpKind::Rename,
    OpKind::Create,
    OpKind::Mode,
];

impl World {
    /// The process dies here and now, with whatever is in flight.
    ///
    /// # Errors
    /// State that the files alone show.
    pub fn die(&mut self, how: Death) -> Result<(), Violation> {
        if let Some(stepper) = &self.stepper {
            let mut held = std::mem::take(&mut self.held);
            self.rng.shuffle(&mut held);
            for job in held {
                if self.rng.chance(3, 4) && matches!(job.kind, Kind::Write | Kind::Sync | Kind::SyncRange) {
                    self.tap.die_with(1);
                    stepper.execute(job);
                }
            }
        }
        if self.stepper.is_some() && !self.disk.is_alive() {
            // What was planned came first.
            let how = self.cause();
            return self.bury(how);
        }
        match how {
            Death::PowerCut => self.disk.power_cut(),
            Death::Kill => self.disk.kill(),
        }
        self.bury(how)
    }

    /// The process is dead already: updates the state of its users.
    pub(super) fn bury(&mut self, how: Death) -> Check {
        self.note(|| format!("died: {how:?}"));
        self.stepper = None;
        self.held.clear();
        let events = self.take_events();
        self.shaken |= self.cached() && events.iter().any(|e| matches!(e, Event::Failed { .. }));
        if self.shaken {
            // It was about to report a loss; whether that became true is seen when the log is read.
            let loss = |e: &Event| if let Event::Lost { from, to } = e { Some((*from, *to)) } else { None };
            self.model.maybe_lost.extend(events.iter().filter_map(loss));
            // A start that was cut had sealed what it was about to report.
            let missing_ranges = self.missing_ranges().into_iter().filter(|(from, _)| *from >= self.model.durable);
            self.model.maybe_lost.extend(missing_ranges);
        }
        self.everybody_is_disconnected();
        self.model.died(how, self.shaken);
        match how {
            Death::PowerCut => {
                self.stats.cuts += 1;
                (self.shaken, self.proven) = (false, 0);
            }
            Death::Kill => {
                self.stats.kills += 1;
                if !self.writing {
                    // Everything but batches is written by blocking calls: the lock file outlives them.
                    self.disk.land_late_writes();
                }
            }
        }
        self.whole_segments();
        self.note_cut();
        self.writing = true;
        self.eat(&[how as u64, self.disk.ops()]);
        self.inspect()
    }

    /// Cause of a dead process's death, when the disk has decided it.
    pub(super) fn cause(&self) -> Death {
        use clad_journal::clock::Clock;
        if self.disk.boot_id() == self.clock.boot_id() { Death::Kill } else { Death::PowerCut }
    }

    /// Closes the journal; returns true if it came to a clean end.
    ///
    /// # Errors
    /// A broken rule.
    pub fn close(&mut self) -> Result<bool, Violation> {
        self.note(|| "close".to_owned());
        let Some(stepper) = &self.stepper else { return Ok(false) };
        stepper.close();
        for _ in 0..400 {
            self.execute_all()?;
            let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(false) };
            match stepper.begin() {
                Next::Job(job) => self.begun(job),
                Next::Wait(_) => self.clock.step(Duration::from_secs(2)),
                Next::Exit => {
                    self.observe()?;
                    self.stepper = None;
                    let _ = self.take_events();
                    self.disk.kill(); // the process ends, with nothing in flight
                    self.everybody_is_disconnected();
                    self.model.ended(self.disturbed);
                    self.whole_segments();
                    self.note_cut();
                    (self.disturbed, self.shaken) = (false, false);
                    self.stats.closes += 1;
                    self.eat(&[77, self.disk.ops()]);
                    self.inspect()?;
                    return Ok(true);
                }
            }
        }
        ensure(self.disturbed, || "it does not close".to_owned())?;
        Ok(false)
    }

    /// Starts the next life, after as many failed attempts as the seed makes, and checks what it finds.
    ///
    /// # Errors
    /// A broken rule.
    pub fn start(&mut self) -> Result<(), Violation> {
        if self.settings.bit_rot && self.rng.coin() {
            (0..=self.rng.below(3)).for_each(|_| self.bit_rot());
            self.note_cut();
        }
        let (mut attempt, mut refusals) = (0, 0);
        while attempt <= ATTEMPTS + 2 {
            if attempt >= ATTEMPTS {
                self.disk.clear_faults();
                self.last_fault = 0;
                self.make_room();
            } else if attempt > 0 && !self.settings.calm && self.rng.coin() {
                self.plan_fault(60);
            }
            if self.attempt(attempt == ATTEMPTS + 2)? {
                return Ok(());
            }
            self.stats.failed_starts += 1;
            match std::mem::take(&mut self.failing_device.refused) && refusals < REFUSALS {
                true => refusals += 1,
                false => attempt += 1,
            }
        }
        Err(Violation("it does not start".to_owned()))
    }

    fn attempt(&mut self, must: bool) -> Check<bool> {
        use clad_journal::clock::Clock;
        self.disk = self.disk.reopen();
        self.tap = Tap::new(self.disk.clone(), self.settings.flaw);
        let down = Duration::from_millis(self.rng.below(500));
        if self.disk.boot_id() == self.clock.boot_id() {
            self.clock.step(down);
        } else {
            self.clock.reboot(self.disk.boot_id(), down);
        }
        let began = self.disk.ops();
        self.writing = false;
        let events = self.events.clone();
        let observer: Observer =
            Arc::new(move |e: &Event| events.lock().unwrap_or_else(PoisonError::into_inner).push(e.clone()));
        let untold = self.disk.has_untold_error();
        let before = (self.settings.failing_device || self.has_lost_meta()).then(|| self.files_of_the_log());
        let quiet = self.disk.late_writes() == 0;
        if self.has_lost_meta() && !self.disk.names().iter().any(|name| name.ends_with(".clog")) {
            self.model.is_forgotten();
        }
        let intact = self.behind_the_cut();
        let opened = Stepper::open(Arc::new(self.tap.clone()), self.clock.clone(), self.config, observer);
        if !self.disk.is_alive() {
            drop(opened);
            let how = self.cause();
            self.bury(how)?;
            self.written_over(intact);
            return Ok(false);
        }
        match opened {
            Ok(stepper) => {
                let report = stepper.report().clone();
                self.note(|| format!("started: {report}"));
                self.stepper = Some(stepper);
                self.writing = true;
                self.first_look(began, untold)
            }
            Err(e) => {
                self.note(|| format!("start failed: {e}"));
                let of_disk = matches!(e, OpenError::Io { .. } | OpenError::Unreadable { .. });
                let lost = matches!(e, OpenError::MetaLost { .. }) && self.has_lost_meta();
                let same = !quiet || before == Some(self.files_of_the_log());
                if !self.refused_for_bad_sectors(&e, same)? {
                    // Each file on a failing sector may have an old error to report, once. A full disk is another
                    // matter.
                    let full = matches!(&e, OpenError::Io { source, .. } if source.kind() == ErrorKind::StorageFull);
                    self.failing_device.refused |= self.settings.failing_device && untold && of_disk && !full;
                    ensure((!must || self.failing_device.refused) && of_disk || lost, || {
                        format!("the start failed: {e}")
                    })?;
                }
                if lost && !self.settings.failing_device {
                    ensure(same, || "the start was refused, and has changed something".to_owned())?;
                    self.give_meta_back();
                }
                self.disturbed = true;
                self.shaken |= self.cached();
                let how = if self.disk.is_alive() { Death::Kill } else { self.cause() };
                self.disk.kill();
                self.bury(how)?;
                self.written_over(intact);
                Ok(false)
            }
        }
    }

    /// `untold`: there was an unreported error when it began.
    fn first_look(&mut self, began: u64, untold: bool) -> Check<bool> {
        self.whole_segments();
        let Some(stepper) = &self.stepper else { return Ok(false) };
        let (report, watermarks, log_id) = (stepper.report().clone(), stepper.watermarks(), stepper.meta().log_id);
        // A failed sync and a kill in a row, without a word on the disk about the failure: then it is damage.
        let reported =
            |d: &Damage| self.model.maybe_lost.contains(&(d.from, d.to)) || self.may_be_gone(d.from, d.to, self.shaken);
        let hit = report.unreadable.iter().chain(&report.missing_footer).all(|number| self.was_hit(*number));
        let moved = report.missing.iter().all(|number| self.failing_device.moved.contains(number));
        let excused = moved && hit && report.damage.iter().all(reported);
        ensure(excused, || format!("damage: {report}"))?;
        let cut = self.cut.take();
        self.proven = 0;
        let dropped = watermarks.received < self.model.floor();
        let says =
            report.is_damaged() || report.cut_at.is_some() || self.disk.names().contains(&"quarantine/".to_owned());
        ensure(!dropped || says, || format!("records below {} are dropped in silence: {report}", self.model.floor()))?;
        self.model.lost.extend(report.damage.iter().map(|d| (d.from, d.to)));
        let failing_device = self.has_bad_sectors();
        self.disturbed = self.full || failing_device || untold || began < self.last_fault;
        // A start looks itself, before it gives an offset.
        (self.planned, self.unseen) = (failing_device || untold || began < self.last_fault, false);
        let lowest = stepper.meta().lowest_offset;
        self.model.retained_from(lowest)?;
        let (found, gaps) = self.read(0, Level::Durable)?;
        if !self.disk.is_alive() {
            let how = self.cause();
            self.bury(how)?;
            return Ok(false);
        }
        let floor = self.model.floor().min(cut.unwrap_or(u64::MAX));
        self.model.check_found(&found, &gaps, watermarks.received, floor)?;
        let missing_ranges = if self.settings.bit_rot { self.missing_ranges() } else { Vec::new() };
        let missing_ranges: Vec<_> = report.damage.iter().map(|d| (d.from, d.to)).chain(missing_ranges).collect();
        self.model.opened(watermarks, log_id, cut, &missing_ranges)?;
        self.producers_after_start()?;
        self.origins_after_start()?;
        self.shaken = false;
        self.stats.lives += 1;
        self.eat(&[
            watermarks.received,
            u64::from(watermarks.epoch),
            report.rewritten_bytes,
            found.len() as u64,
            self.disk.ops(),
        ]);
        self.check_sealed()?;
        Ok(true)
    }

    /// Reads from an offset on, to the end, with the ranges that were reported as unreadable. A disk error may hit it
    /// once for each fault; then it continues.
    pub(super) fn read(&mut self, from: u64, level: Level) -> Check<Read> {
        self.whole_segments();
        let (mut found, mut gaps, mut errors) = (Vec::new(), Vec::new(), 0);
        let Some(stepper) = &self.stepper else { return Ok((found, gaps)) };
        let mut reader = stepper.reader(from, level);
        loop {
            match reader.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => {
                    for chunk in batch.chunks() {
                        let (offset, c) = chunk.map_err(|e| Violation(e.to_string()))?;
                        self.stats.read += u64::from(c.header.count);
                        found.push(Found {
                            offset,
                            count: c.header.count,
                            producer: c.header.producer,
                            producer_epoch: c.header.producer_epoch,
                            first_sequence: c.header.first_sequence,
                            payload: c.payload.to_vec(),
                        });
                    }
                }
                Err(_) if !self.disk.is_alive() => break,
                Err(ReadError::Io { .. }) if self.disturbed && errors < 5 => errors += 1,
                Err(ReadError::Gap { to, damaged: false, .. }) if to <= self.model.removed => {}
                Err(ReadError::Gap { from, to, damaged: true })
                    if self.settings.bit_rot && self.model.is_excused(from, to) =>
                {
                    self.stats.gaps += 1;
                    gaps.push((from, to));
                }
                Err(ReadError::Gap { from, to, .. }) if self.model.may_be_lost(from, to) => {}
                Err(e) => return Err(Violation(format!("read from {from}: {e}"))),
            }
        }
        Ok((found, gaps))
    }

    /// Something will fail, within so many operations from now.
    ///
    /// A read that fails is tried again block by block; one block that fails twice is lost for good, and that is no
    /// fault of the journal's. So errors by number keep a distance; those by kind never meet a read.
    pub fn plan_fault(&mut self, within: u64) {
        self.planned = true;
        let k = self.rng.below(within);
        let fault = match self.rng.below(12) {
            0..=2 => Fault::Io,
            3 => Fault::NoSpace,
            4 => Fault::ShortWrite,
            5 => Fault::WriteZero,
            6..=8 => Fault::PowerCut,
            _ => Fault::Kill,
        };
        let error = matches!(fault, Fault::Io | Fault::NoSpace | Fault::WriteZero);
        if error && (self.rng.chance(3, 4) || self.disk.ops() + k < self.last_error + READ_TWICE) {
            let kind = CHANGES[self.rng.index(CHANGES.len())];
            self.note(|| format!("planned: {fault:?} at the next {kind:?}"));
            self.disk.fail_next(kind, "", fault);
            self.last_fault = u64::MAX;
        } else {
            if error {
                self.last_error = self.disk.ops() + k;
            }
            self.plan(k, fault);
        }
    }

    /// This will happen, `k` operations from now.
    pub fn plan(&mut self, k: u64, fault: Fault) {
        self.planned = true;
        let at = self.disk.ops() + k;
        self.note(|| format!("planned: {fault:?} at op {at}"));
        self.disk.fail_at(at, fault);
        self.last_fault = self.last_fault.max(at.saturating_add(1));
        self.disturbed = true;
    }
}
