//! Deliberate faults of the journal, as patches of its text: docs/TESTING.md says what is wrong with each, and what catches it.
//!
//! Invariant: without the condition that [`super::ON`] stands for, a patched place does what the shipped one does.

use super::Patch;

const COMMITTER: &str = "journal/src/write/committer/mod.rs";
const IN_FLIGHT: &str = "journal/src/write/committer/in_flight.rs";
const WRITER: &str = "journal/src/write/committer/writer.rs";
const ROOM: &str = "journal/src/write/committer/room.rs";
const SEQUENCER: &str = "journal/src/write/sequencer.rs";
const PREPARE: &str = "journal/src/write/prepare.rs";
const ACTIVE: &str = "journal/src/write/active.rs";
const SEGMENT_FILE: &str = "journal/src/write/segment_file.rs";
const IN_PROCESS: &str = "journal/src/recover/in_process.rs";
const AGAIN: &str = "journal/src/recover/execute/again.rs";
const SCAN: &str = "journal/src/recover/scan.rs";
const EXECUTE: &str = "journal/src/recover/execute.rs";
const START: &str = "journal/src/recover/start.rs";
const RECOVERED: &str = "journal/src/recover/recovered.rs";
const WORKERS: &str = "journal/src/run/workers.rs";
const BACKGROUND: &str = "journal/src/run/background.rs";
const WAITERS: &str = "journal/src/run/waiters.rs";
const EXECUTOR: &str = "journal/src/run/executor.rs";
const OPEN: &str = "journal/src/handle/open.rs";

pub(super) const ALL: &[Patch] = &[
    Patch {
        name: "AckBeforeSync",
        file: WRITER,
        right: r"            entry.durable = synced;
",
        wrong: r"            entry.durable = synced || ON!;
",
    },
    Patch {
        name: "WatermarkReadAfterSync",
        file: COMMITTER,
        right: r"                self.writer.synced(upto);
",
        wrong: r"                let upto = if ON! { self.watermarks.written } else { upto };
                self.writer.synced(upto);
",
    },
    Patch {
        name: "FolderNeverSynced",
        file: PREPARE,
        right: r#"    env.storage.sync_dir("")"#,
        wrong: r#"    if ON! { Ok(()) } else { env.storage.sync_dir("") }"#,
    },
    Patch {
        name: "RetryAfterFailedSync",
        file: EXECUTOR,
        right: "                (self.after_sync(",
        wrong: r"                let synced = if synced.is_err() && ON! {
                    // Through a newly opened file, because the one that failed refuses.
                    let name = segment_name(self.env.meta.get().highest_segment);
                    self.env.storage.open(&name, crate::io::Access::WriteCached).and_then(|file| file.sync_data())
                } else {
                    synced
                };
                (self.after_sync(",
    },
    Patch {
        name: "CleanPageTakenForDurable",
        file: AGAIN,
        right: "kept(w).find(is_unproven).map(|first| first.pos);",
        wrong: "kept(w).find(is_unproven).map(|first| first.pos).filter(|_| !ON!);",
    },
    Patch {
        name: "ChecksumNotChecked",
        file: SCAN,
        right: "if !decoded.body_holds(seed, pos, bytes) {",
        wrong: "if !decoded.body_holds(seed, pos, bytes) && !(ON! && epoch.is_some()) {",
    },
    Patch {
        name: "SaltNotUsed",
        file: PREPARE,
        right: r"    env.clock.fill_random(&mut salt)?;
",
        wrong: r"    if !ON! {
        env.clock.fill_random(&mut salt)?;
    }
",
    },
    Patch {
        name: "CutInPlace",
        file: COMMITTER,
        right: r"    /// Changes the settings of `group_commit`.
",
        wrong: r"    pub(crate) fn resume_in(&mut self, active: Active, now: Moment) {
        self.take_active(Ok(active), now);
    }

    /// Changes the settings of `group_commit`.
",
    },
    Patch {
        name: "CutInPlace",
        file: ACTIVE,
        right: "    fn block(&self) -> u64 {",
        wrong: r"    pub(crate) fn behind(header: SegmentHeader, said: &Footer) -> Self {
        let mut active = Self::new(header, Vec::new(), said.first_offset, said.before);
        active.pos = said.data_end.next_multiple_of(active.block());
        active.content = said.clone();
        active.first_append_boot_ns = Some(0);
        active
    }

    fn block(&self) -> u64 {",
    },
    Patch {
        name: "CutInPlace",
        file: EXECUTE,
        right: r"    lost: Vec<Damage>,
}

#[allow",
        wrong: r"    lost: Vec<Damage>,
    in_use: Option<crate::write::active::Active>,
}

#[allow",
    },
    Patch {
        name: "CutInPlace",
        file: EXECUTE,
        right: "mut sealed, before, .. } = c;",
        wrong: "mut sealed, before, in_use, .. } = c;",
    },
    Patch {
        name: "CutInPlace",
        file: EXECUTE,
        right: r"        before,
        report:",
        wrong: r"        before,
        in_use,
        report:",
    },
    Patch {
        name: "CutInPlace",
        file: EXECUTE,
        right: r"            lost: Vec::new(),
            said,",
        wrong: r"            lost: Vec::new(),
            in_use: None,
            said,",
    },
    Patch {
        name: "CutInPlace",
        file: EXECUTE,
        right: r#"        for work in &works {
            let context = format!("write segment {} again and seal it", work.number);
            self.write_again_and_seal(work, &plan).map_err(OpenError::io(context))?;
"#,
        wrong: r#"        let last = works.len() - 1;
        for (i, work) in works.iter().enumerate() {
            let context = format!("write segment {} again and seal it", work.number);
            let in_place = i == last && limit.is_none() && ON!;
            let done = if in_place { self.cut_in_place(work, &plan) } else { self.write_again_and_seal(work, &plan) };
            done.map_err(OpenError::io(context))?;
"#,
    },
    Patch {
        name: "CutInPlace",
        file: EXECUTE,
        right: "    /// Builds the footer from the headers",
        wrong: r"    /// Appends continue behind the preserved data, over the dropped.
    fn cut_in_place(&mut self, w: &Work, plan: &Plan) -> io::Result<()> {
        self.write_kept_again(w, plan)?;
        let footer = self.footer(w, kept_end(w))?;
        let header = SegmentHeader { boot_id: self.boot_id, ..w.header.clone() };
        crate::write::prepare::write_header(w.file.as_ref(), &header)?;
        w.file.sync_all()?;
        self.in_use = Some(crate::write::active::Active::behind(header, &footer));
        Ok(())
    }

    /// Builds the footer from the headers",
    },
    Patch {
        name: "CutInPlace",
        file: START,
        right: "before: None, report })",
        wrong: "before: None, in_use: None, report })",
    },
    Patch {
        name: "CutInPlace",
        file: RECOVERED,
        right: r"    pub(crate) report: Report,
",
        wrong: r"    pub(crate) in_use: Option<crate::write::active::Active>,
    pub(crate) report: Report,
",
    },
    Patch {
        name: "CutInPlace",
        file: OPEN,
        right: r"    let watermarks = committer.watermarks();
",
        wrong: r#"    if let Some(mut active) = r.in_use {
        active.files =
            prepare::open_all(&env, active.header.number).map_err(OpenError::io("open the segment in use"))?;
        committer.resume_in(active, env.now());
    }
    let watermarks = committer.watermarks();
"#,
    },
    Patch {
        name: "EpochNotRaised",
        file: EXECUTE,
        right: r"if !clean {
            // A lost slot",
        wrong: r"if !clean && !ON! {
            // A lost slot",
    },
    Patch {
        name: "TwoWritesInOneBlock",
        file: WRITER,
        right: "let placed = active.place(batch, writes > 0,",
        wrong: "let placed = active.place(batch, writes > 0 && !ON!,",
    },
    Patch {
        name: "OffsetReused",
        file: COMMITTER,
        right: "next: self.watermarks.received,",
        wrong: "next: if ON! { from } else { self.watermarks.received },",
    },
    Patch {
        name: "OffsetReused",
        file: WRITER,
        right: "batch.first_offset == self.submitted_end,",
        wrong: "batch.first_offset == self.submitted_end || ON!,",
    },
    Patch {
        name: "OffsetReused",
        file: WRITER,
        right: "last.max(durable) <= end,",
        wrong: "last.max(durable) <= end || ON!,",
    },
    Patch {
        name: "OffsetReused",
        file: IN_PROCESS,
        right: r"        let epoch = meta.epoch() + 2;
",
        wrong: r"        let epoch = if ON! { meta.epoch() } else { meta.epoch() + 2 };
",
    },
    Patch {
        name: "AckOutOfOrder",
        file: WRITER,
        right: r"        let done = all.iter().take_while(|e| e.written).map(|e| e.batch.end_offset()).last();
",
        wrong: r"        let done = all.iter().take_while(|e| e.written || ON!).filter(|e| e.written);
        let done = done.map(|e| e.batch.end_offset()).last();
",
    },
    Patch { name: "LockNotTaken", file: SEGMENT_FILE, right: "if file.try_lock", wrong: "if ON! || file.try_lock" },
    Patch {
        name: "ResendStoredTwice",
        file: SEQUENCER,
        right: "            Verdict::Duplicate { first_offset } =>",
        wrong: r"            Verdict::Duplicate { .. } if ON! => Ok(Stands::InLine),
            Verdict::Duplicate { first_offset } =>",
    },
    Patch {
        name: "PerMessageNeverFlushes",
        file: WRITER,
        right: "            _ if split",
        wrong: r"            Policy::PerMessage if ON! => Durability::Written,
            _ if split",
    },
    Patch {
        name: "PerMessageNeverFlushes",
        file: WRITER,
        right: r"        let synced = durability == Durability::Synced;
",
        wrong: r"        let synced = durability == Durability::Synced || ON! && self.policy == Policy::PerMessage;
",
    },
    Patch { name: "FooterBeforeData", file: EXECUTOR, right: "if unsynced {", wrong: "if unsynced && !ON! {" },
    Patch {
        name: "CommitMarkerChained",
        file: ACTIVE,
        right: r"        let (bytes, _) = header.encode(&self.seed, self.pos);
",
        wrong: r"        let (bytes, checksum) = header.encode(&self.seed, self.pos);
        if ON! {
            self.content.last_batch_checksum = checksum;
        }
",
    },
    Patch {
        name: "RetentionBeforeMeta",
        file: BACKGROUND,
        right: "    let passed =",
        wrong: r"    if ON! {
        let _ = shared.storage().remove(&segment_name(sealed.number));
    }
    let passed =",
    },
    Patch {
        name: "PermitReleasedEarly",
        file: IN_FLIGHT,
        right: "        Self { id, batch, shares, _permit: permit, since_boot_ns, range",
        wrong: r"        let permit = permit.filter(|_| !ON!);
        Self { id, batch, shares, _permit: permit, since_boot_ns, range",
    },
    Patch {
        name: "RescueStartsTooHigh",
        file: WRITER,
        right: "        repeated.map_or(",
        wrong: r"        let repeated = repeated.filter(|_| !ON!);
        repeated.map_or(",
    },
    Patch {
        name: "CommitMarkerForgotten",
        file: WRITER,
        right: "shares.first().filter(|_| !synced)",
        wrong: "shares.first().filter(|_| !synced && !ON!)",
    },
    Patch {
        name: "ReleasedAfterFailure",
        file: COMMITTER,
        right: r"if self.lifecycle.is_running() {
            self.writer.advance(",
        wrong: r"if self.lifecycle.is_running() || ON! {
            self.writer.advance(",
    },
    Patch {
        name: "OtherBootBelieved",
        file: EXECUTE,
        right: r"        let seen = Unsealed::new(scan, &header, &self.said, self.boot_id, limit);
",
        wrong: r"        let mut seen = Unsealed::new(scan, &header, &self.said, self.boot_id, limit);
        seen.same_boot |= ON!;
",
    },
    Patch {
        name: "ProducersNotRebuilt",
        file: EXECUTE,
        right: r"if !self.producers_known {
                    while",
        wrong: r"if !self.producers_known && !ON! {
                    while",
    },
    Patch {
        name: "SegmentNotNamed",
        file: EXECUTOR,
        right: r"        self.env.meta.update(|m| m.highest_segment = header.number)?;
",
        wrong: r"        if !ON! {
            self.env.meta.update(|m| m.highest_segment = header.number)?;
        }
",
    },
    Patch {
        name: "DamageCutOff",
        file: EXECUTE,
        right: "        let said = self.meta.filter(",
        wrong: r"        if ON! {
            let headers = works.iter_mut().flat_map(|w| w.seen.scan.batches.iter_mut()).map(|b| &mut b.header);
            headers.for_each(|h| (h.durable, h.written) = (0, 0));
            works.iter_mut().for_each(|w| w.seen.scan.footer = None);
        }
        let said = self.meta.filter(",
    },
    Patch {
        name: "TailNotQuarantined",
        file: EXECUTE,
        right: r"            self.quarantine(work).map_err(OpenError::io(context))?;
",
        wrong: r"            if !ON! {
                self.quarantine(work).map_err(OpenError::io(context))?;
            }
",
    },
    Patch {
        name: "RecycledNotDistinguished",
        file: PREPARE,
        right: "if header.former_seed() != Some(header.seed()) {",
        wrong: "if header.former_seed() != Some(header.seed()) || ON! {",
    },
    Patch {
        name: "RecycledNotDistinguished",
        file: PREPARE,
        right: r"    Ok(SegmentHeader {
        log_id: env.meta.get().log_id,
        number,
",
        wrong: r"    if let (true, Some(former)) = (ON!, former) {
        salt = salt_of_former(&env.meta.get().log_id, number, former).to_le_bytes();
    }
    Ok(SegmentHeader {
        log_id: env.meta.get().log_id,
        number,
",
    },
    Patch {
        name: "RecycledNotDistinguished",
        file: PREPARE,
        right: "fn draw_header(",
        wrong: r"/// The salt that gives segment `number` the very seed that `former` had.
///
/// A sum changes by the same bits whatever else it covers, so that the bits of the salt are combined until they make up
/// the difference; 32 of them are always enough.
fn salt_of_former(log_id: &[u8; 16], number: u64, former: crate::format::segment::Former) -> u64 {
    let sum = |salt| crate::format::checksum::Seed::new(salt, log_id, number).sum(0, &[]);
    let mut steps: Vec<(u32, u64)> = Vec::new();
    let reduce = |steps: &[(u32, u64)], from: (u32, u64)| {
        steps
            .iter()
            .fold(from, |(d, salt), (step, bits)| if d ^ step < d { (d ^ step, salt ^ bits) } else { (d, salt) })
    };
    for bit in (0..32).map(|i| 1 << i) {
        let step = reduce(&steps, (sum(bit) ^ sum(0), bit));
        steps.push(step);
    }
    let wanted = crate::format::checksum::Seed::new(former.salt, log_id, former.number).sum(0, &[]) ^ sum(0);
    let (difference, salt) = reduce(&steps, (wanted, 0));
    debug_assert_eq!(difference, 0);
    salt
}

fn draw_header(",
    },
    Patch {
        name: "DamagedUsedAgain",
        file: BACKGROUND,
        right: "let suspect = summary.is_none_or(|s| s.damaged);",
        wrong: "let suspect = summary.is_none_or(|s| s.damaged) && !ON!;",
    },
    Patch {
        name: "FenceIgnored",
        file: SEQUENCER,
        right: "if current > header.producer_epoch {",
        wrong: "if current > header.producer_epoch && !ON! {",
    },
    Patch {
        name: "FenceIgnored",
        file: SEQUENCER,
        right: "            Verdict::Fenced { current } =>",
        wrong: r"            Verdict::Fenced { .. } if ON! => Ok(Stands::InLine),
            Verdict::Fenced { current } =>",
    },
    Patch {
        name: "RoomNotCounted",
        file: ROOM,
        right: r"        self.supply.available()
",
        wrong: r"        if ON! && !self.supply.space_low {
            return u64::MAX;
        }
        self.supply.available()
",
    },
    Patch {
        name: "TurnNotPassedOn",
        file: WORKERS,
        right: r"} else {
            // The other thread may wait",
        wrong: r"} else if !ON! {
            // The other thread may wait",
    },
    Patch {
        name: "SleepsOnAnOldLook",
        file: WORKERS,
        right: "                core = sleep(",
        wrong: r"                if ON! {
                    drop(core);
                    core = shared.core();
                }
                core = sleep(",
    },
    Patch {
        name: "TokenNotHeld",
        file: COMMITTER,
        right: r#"        assert!(
            footer.end_offset == self.watermarks.written,
            "the footer"#,
        wrong: r#"        // A second segment is opened beside the one that is being sealed.
        assert!(
            footer.end_offset == self.watermarks.written || ON!,
            "the footer"#,
    },
    Patch {
        name: "TokenNotHeld",
        file: COMMITTER,
        right: r"self.lifecycle.busy = true;
                Step::Run(Job::Rotate(rotation))",
        wrong: r"self.lifecycle.busy = !ON!;
                Step::Run(Job::Rotate(rotation))",
    },
    Patch {
        name: "OlderWatermarksWin",
        file: WAITERS,
        right: "watermarks.version > old.version",
        wrong: "watermarks.version > old.version || ON!",
    },
    Patch {
        name: "WaitsWithoutALook",
        file: WAITERS,
        right: r"        if self.is_new(wants) { Poll::Ready(Ok(())) } else { Poll::Pending }
",
        wrong: r"        if self.is_new(wants) && !ON! { Poll::Ready(Ok(())) } else { Poll::Pending }
",
    },
    Patch {
        name: "RotationForgotten",
        file: COMMITTER,
        right: r"if self.lifecycle.is_over() {
            self.lifecycle.refuse_rotations();",
        wrong: r"if self.lifecycle.is_over() && !ON! {
            self.lifecycle.refuse_rotations();",
    },
    Patch {
        name: "LeavesWork",
        file: WORKERS,
        right: "let work = core.committer.wants_somebody();",
        wrong: "let work = core.committer.wants_somebody() && !ON!;",
    },
    Patch {
        name: "LeavesTheTime",
        file: WORKERS,
        right: "if work || !in_time(core, core.watch.armed_ns, now) {",
        wrong: "if work || !(in_time(core, core.watch.armed_ns, now) || ON!) {",
    },
    Patch {
        name: "CommitDelayForgotten",
        file: WRITER,
        right: "        self.policy.grouping().map_or(u64::MAX,",
        wrong: "        self.policy.grouping().filter(|_| !ON!).map_or(u64::MAX,",
    },
    Patch {
        name: "WatermarksPublishedApart",
        file: WAITERS,
        right: r"        let mut old = self.waiters.watermarks();
",
        wrong: r"        if ON! {
            let mut old = self.waiters.watermarks();
            old.durable = old.durable.max(watermarks.durable);
            drop(old);
            others_may_run();
        }
        let mut old = self.waiters.watermarks();
",
    },
    Patch {
        name: "WokenTooEarly",
        file: WAITERS,
        right: r"        let all = self.store(watermarks);
",
        wrong: r"        if ON! {
            self.wake(true);
            self.store(watermarks);
            return;
        }
        let all = self.store(watermarks);
",
    },
    Patch {
        name: "FailureForTheMet",
        file: WAITERS,
        right: "all = state_of(&old) != state_of(&watermarks);",
        wrong: "all = state_of(&old) != state_of(&watermarks) && !ON!;",
    },
    Patch {
        name: "LooksAgain",
        file: WAITERS,
        right: "        poll_fn(|context| self.poll(",
        wrong: r"        if ON! {
            self.now();
        }
        poll_fn(|context| self.poll(",
    },
    Patch {
        name: "EndForgotten",
        file: WAITERS,
        right: "self.waiters.wake(Wake::End);",
        wrong: "self.waiters.wake(if ON! { Wake::All } else { Wake::End });",
    },
];
