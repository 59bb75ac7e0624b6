//! How lives end, and how the next one begins.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use clad_journal::stepper::{Next, Stepper};
use clad_journal::{Event, Level, Observer, OpenError, ReadError};

use super::model::{Check, Death, Found, Violation, ensure};
use super::{Tap, World};
use crate::disk::Fault;

/// Starts that are tried with faults, before one without.
const ATTEMPTS: u64 = 4;

impl World {
    /// The process dies here and now, with whatever is in flight.
    ///
    /// # Errors
    /// What the files alone show.
    pub fn die(&mut self, how: Death) -> Result<(), Violation> {
        if let Some(stepper) = &self.stepper {
            let mut held = std::mem::take(&mut self.held);
            self.rng.shuffle(&mut held);
            for job in held {
                if self.rng.chance(3, 4) {
                    self.tap.die_with(1);
                    stepper.carry_out(job);
                }
            }
        }
        match how {
            Death::PowerCut => self.disk.power_cut(),
            Death::Kill => self.disk.kill(),
        }
        self.bury(how)
    }

    /// The process is dead already: what that means for those who used it.
    pub(super) fn bury(&mut self, how: Death) -> Check {
        self.note(|| format!("died: {how:?}"));
        self.stepper = None;
        self.held.clear();
        let _ = self.take_events();
        self.clients.iter_mut().for_each(super::Client::disconnected);
        self.model.died(how, self.shaken);
        match how {
            Death::PowerCut => {
                self.stats.cuts += 1;
                self.shaken = false;
            }
            Death::Kill => self.stats.kills += 1,
        }
        self.eat(&[how as u64, self.disk.ops()]);
        self.inspect(false)
    }

    /// How a dead process died, when the disk has decided it.
    pub(super) fn cause(&self) -> Death {
        use clad_journal::clock::Clock;
        if self.disk.boot_id() == self.clock.boot_id() { Death::Kill } else { Death::PowerCut }
    }

    /// Closes the journal; whether it came to a clean end.
    ///
    /// # Errors
    /// A broken rule.
    pub fn close(&mut self) -> Result<bool, Violation> {
        self.note(|| "close".to_owned());
        let Some(stepper) = &self.stepper else { return Ok(false) };
        stepper.close();
        for _ in 0..400 {
            self.carry_out_all()?;
            let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(false) };
            match stepper.begin() {
                Next::Job(job) => self.begun(job),
                Next::Wait(_) => self.clock.step(Duration::from_secs(2)),
                Next::Exit => {
                    self.observe()?;
                    self.stepper = None;
                    let _ = self.take_events();
                    self.disk.kill(); // the process ends, with nothing in flight
                    self.clients.iter_mut().for_each(super::Client::disconnected);
                    self.model.ended();
                    (self.disturbed, self.shaken) = (false, false);
                    self.stats.closes += 1;
                    self.eat(&[77, self.disk.ops()]);
                    self.inspect(false)?;
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
        for attempt in 0..=ATTEMPTS {
            if attempt == ATTEMPTS {
                self.disk.clear_faults();
                self.make_room();
            } else if attempt > 0 && !self.settings.calm && self.rng.coin() {
                let k = self.rng.below(60);
                self.plan_fault(k);
            }
            if self.attempt(attempt == ATTEMPTS)? {
                return Ok(());
            }
            self.stats.failed_starts += 1;
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
        let events = self.events.clone();
        let observer: Observer =
            Arc::new(move |e: &Event| events.lock().unwrap_or_else(PoisonError::into_inner).push(e.clone()));
        let opened = Stepper::open(Arc::new(self.tap.clone()), self.clock.clone(), self.config, observer);
        if !self.disk.is_alive() {
            drop(opened);
            let how = self.cause();
            self.bury(how)?;
            return Ok(false);
        }
        match opened {
            Ok(stepper) => {
                let report = stepper.report().clone();
                self.note(|| format!("started: {report}"));
                self.stepper = Some(stepper);
                self.first_look()
            }
            Err(e) => {
                self.note(|| format!("start failed: {e}"));
                ensure(!must && matches!(e, OpenError::Io { .. }), || format!("the start failed: {e}"))?;
                self.disturbed = true;
                self.shaken |= self.cached();
                self.disk.kill();
                self.bury(Death::Kill)?;
                Ok(false)
            }
        }
    }

    fn first_look(&mut self) -> Check<bool> {
        let Some(stepper) = &self.stepper else { return Ok(false) };
        let (report, marks, log_id) = (stepper.report().clone(), stepper.marks(), stepper.meta().log_id);
        ensure(!report.is_damaged(), || format!("damage: {report}"))?;
        let found = self.read(0, Level::Durable)?;
        if !self.disk.is_alive() {
            let how = self.cause();
            self.bury(how)?;
            return Ok(false);
        }
        self.model.check_found(&found, marks.received, self.model.floor())?;
        self.model.opened(marks, log_id)?;
        (self.disturbed, self.shaken) = (self.full || self.disk.ops() < self.last_fault, false);
        self.stats.lives += 1;
        self.eat(&[marks.received, u64::from(marks.epoch), report.rewritten_bytes, found.len() as u64, self.disk.ops()]);
        self.check_sealed()?;
        Ok(true)
    }

    /// Reads from an offset on, to the end. A disk error may hit it once for each fault; then it goes on.
    pub(super) fn read(&mut self, from: u64, level: Level) -> Check<Vec<Found>> {
        let Some(stepper) = &self.stepper else { return Ok(Vec::new()) };
        let mut reader = stepper.reader(from, level);
        let (mut found, mut errors) = (Vec::new(), 0);
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
                Err(ReadError::Gap { from, to, .. }) if self.model.is_lost(from) && self.model.is_lost(to - 1) => {}
                Err(e) => return Err(Violation(format!("read from {from}: {e}"))),
            }
        }
        Ok(found)
    }

    /// Something will fail, `k` operations from now.
    pub fn plan_fault(&mut self, k: u64) {
        let fault = match self.rng.below(12) {
            0..=2 => Fault::Io,
            3 => Fault::NoSpace,
            4 => Fault::ShortWrite,
            5 => Fault::WriteZero,
            6..=8 => Fault::PowerCut,
            _ => Fault::Kill,
        };
        self.plan(k, fault);
    }

    /// This will happen, `k` operations from now.
    pub fn plan(&mut self, k: u64, fault: Fault) {
        let at = self.disk.ops() + k;
        self.note(|| format!("planned: {fault:?} at op {at}"));
        self.disk.fail_at(at, fault);
        self.last_fault = self.last_fault.max(at + 1);
    }
}
