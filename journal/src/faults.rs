//! Deliberate faults: wrong versions of this crate's own code, each of which a test must catch.
//!
//! Invariants:
//! - Without the feature `faults` a [`Faults`] has no size and is always empty, so that every place that asks it is
//!   gone from the compiled code; with the feature, a build without debug assertions (any release) does not compile.
//! - A fault is a value in one journal's settings, never a state of the process: tests run side by side.
//! - A place that tests a fault reads as one short condition; without the condition the right code remains.
//!
//! `sim/tests/faults.rs` turns each on and shows the check that catches it, `models/tests/orders.rs` those that only
//! threads can have; the table in docs/TESTING.md is compared with this list.

#[cfg(all(feature = "faults", not(debug_assertions)))]
compile_error!("the feature `faults` makes clad wrong on purpose: it is for tests and must not be in a release build");

use crate::format::checksum::Seed;
use crate::format::segment::Former;

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One wrong version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        #[cfg(feature = "faults")]
        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Those that only show where threads run beside each other.
            pub const OF_THREADS: &[Self] = &[
                Self::TurnNotPassedOn,
                Self::SleepsOnAnOldLook,
                Self::TokenNotHeld,
                Self::OlderWatermarksWin,
                Self::WaitsWithoutALook,
                Self::RotationForgotten,
                Self::LeavesWork,
                Self::LeavesTheTime,
                Self::CommitDelayForgotten,
                Self::WatermarksPublishedApart,
                Self::WokenTooEarly,
                Self::FailureForTheMet,
                Self::LooksAgain,
                Self::EndForgotten,
            ];
        }
    };
}

faults! {
    /// `durable` is released when a write has completed, before the sync that follows it.
    AckBeforeSync,
    /// The end covered by a sync is read when it has ended, not before it begins.
    WatermarkReadAfterSync,
    /// The folder is never synced when a segment is made.
    FolderNeverSynced,
    /// A sync that failed is made again, through a newly opened file, and trusted.
    RetryAfterFailedSync,
    /// A start syncs what it found above the proven end, and does not write it again.
    CleanPageTakenForDurable,
    /// A scan believes a batch whose body fails its checksum.
    ChecksumNotChecked,
    /// Every segment has the same salt.
    SaltNotUsed,
    /// A start cuts the segment in use in place and appends behind the cut.
    CutInPlace,
    /// A start after an unclean end resumes the former epoch.
    EpochNotRaised,
    /// A write that follows one in flight continues in the block of that one.
    TwoWritesInOneBlock,
    /// A recovery in the process gives the offsets of what was not written again, in the same epoch.
    OffsetReused,
    /// The watermarks move to the last batch that is written, whatever is still in flight before it.
    AckOutOfOrder,
    /// No start waits for the lock on a segment that a dead process may still write to.
    LockNotTaken,
    /// An append whose sequence is stored is stored again.
    ResendStoredTwice,
    /// Under `per_message` the write goes without its sync.
    PerMessageNeverFlushes,
    /// A footer is written before the data below it is synced.
    FooterBeforeData,
    /// The batch that follows a commit marker names the marker as the one before it.
    CommitMarkerChained,
    /// Retention removes a segment before `clad.meta` has passed it.
    RetentionBeforeMeta,
    /// The permit of an append is released when its write begins.
    PermitReleasedEarly,
    /// A recovery in the process leaves out acknowledged batches that share a block with the write that failed.
    RescueStartsTooHigh,
    /// A commit marker that was written and not synced is forgotten: when its block is lost, nothing of it is written
    /// again.
    CommitMarkerForgotten,
    /// After a failed write or sync other writes still release what they complete.
    ReleasedAfterFailure,
    /// `written` is believed of a segment that was used under another boot.
    OtherBootBelieved,
    /// A start takes the producers from the newest footer and does not add what follows it.
    ProducersNotRebuilt,
    /// A segment is used before `clad.meta` names it.
    SegmentNotNamed,
    /// A failure below the proven end is taken for the cut.
    DamageCutOff,
    /// Data behind the cut is not quarantined.
    TailNotQuarantined,
    /// A segment that is used again gets a salt under which the checksums of what its file held before still hold.
    RecycledNotDistinguished,
    /// The file of a segment that is known to be damaged becomes the next one.
    DamagedUsedAgain,
    /// An append of a producer's older session is taken.
    FenceIgnored,
    /// An append gets an offset until a lack of room is reported, whatever waits already.
    RoomNotCounted,
    /// The thread of the ring does not wake the other one when the turn has passed to it.
    TurnNotPassedOn,
    /// A writing thread goes to sleep on a look that it took before it gave the lock back and took it again.
    SleepsOnAnOldLook,
    /// While a rotation is under way, another thread is given the next job.
    TokenNotHeld,
    /// The last publication of watermarks wins, however old its values are.
    OlderWatermarksWin,
    /// A waiter looks at the watermarks before it joins the waiters, and not after.
    WaitsWithoutALook,
    /// A rotation that is asked for when the journal is closed is not answered.
    RotationForgotten,
    /// A thread that made the write of its own append goes without looking at what came meanwhile.
    LeavesWork,
    /// A thread that made the write of its own append leaves though no thread watches the time.
    LeavesTheTime,
    /// A thread with any wake-up time counts as early enough for the batch that waits beside a write.
    CommitDelayForgotten,
    /// `durable` is published first, and the other watermarks after it.
    WatermarksPublishedApart,
    /// Waiters for a watermark are woken before it is published.
    WokenTooEarly,
    /// A failure wakes only waiters whose watermark has come.
    FailureForTheMet,
    /// A waiter compares with the state at the begin of its wait, not at its last look.
    LooksAgain,
    /// A waiter that starts when the journal has ended is not notified of the end.
    EndForgotten,
}

/// For [`Fault::RecycledNotDistinguished`]: the salt that gives segment `number` the very seed that `former` had.
///
/// A sum changes by the same bits whatever else it covers, so that the bits of the salt are combined until they make up
/// the difference; 32 of them are always enough.
pub(crate) fn salt_of_former(log_id: &[u8; 16], number: u64, former: Former) -> u64 {
    let sum = |salt| Seed::new(salt, log_id, number).sum(0, &[]);
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
    let wanted = Seed::new(former.salt, log_id, former.number).sum(0, &[]) ^ sum(0);
    let (difference, salt) = reduce(&steps, (wanted, 0));
    debug_assert_eq!(difference, 0);
    salt
}

/// The faults that are turned on: none, outside of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    #[cfg(feature = "faults")]
    on: Option<Fault>,
}

#[cfg(not(feature = "faults"))]
const _: () = assert!(size_of::<Faults>() == 0);

impl Faults {
    /// This one alone.
    #[cfg(feature = "faults")]
    pub const fn only(fault: Fault) -> Self {
        Self { on: Some(fault) }
    }

    /// True if this one is on.
    #[cfg(feature = "faults")]
    pub fn has(self, fault: Fault) -> bool {
        self.on == Some(fault)
    }

    /// True if this one is on: never.
    #[cfg(not(feature = "faults"))]
    #[inline(always)]
    pub(crate) const fn has(self, _: Fault) -> bool {
        false
    }
}
