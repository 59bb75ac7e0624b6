//! The journal's state: running, failed until a recovery, closing, closed.
//!
//! Invariants: a failure latches, and only a recovery ends it. A job that runs alone (opening, rotation, recovery, close)
//! is the only one. Nothing begins after the end.

use crate::clock::Moment;
use crate::error::AppendError;
use crate::write::watermarks::Accepting;

use super::job::{Progress, RotateAnswer, RotateReply};

/// First pause before a recovery, doubled to the last.
const RECOVERY_RETRY_NS_MIN: u64 = 1_000_000_000;
const RECOVERY_RETRY_NS_MAX: u64 = 60_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Nothing is released; recovery is due at this boot time.
    Failed {
        reason: String,
        due_boot_ns: u64,
        pause_ns: u64,
        rescue_from: u64,
    },
    Closed {
        clean: bool,
    },
}

/// State, and the jobs that run alone.
pub(crate) struct Lifecycle {
    state: State,
    /// A job runs alone.
    pub(crate) busy: bool,
    pub(super) closing: bool,
    pub(super) rotate_replies: Vec<RotateReply>,
    /// Progress of the recovery that runs or is due.
    pub(super) progress: Progress,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            state: State::Running,
            busy: false,
            closing: false,
            rotate_replies: Vec::new(),
            progress: Progress::default(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// True while only batches are under way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_running() && !self.busy
    }

    /// True while only batches are under way, and more may come.
    pub(super) fn is_open(&self) -> bool {
        self.is_at_rest() && !self.closing
    }

    /// True while the active segment is changing.
    pub(crate) fn is_rotating(&self) -> bool {
        self.busy && self.is_running()
    }

    /// True if it is closed, cleanly or not: no job begins any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Refuses every append unless the journal runs.
    #[inline]
    pub(super) fn check(&self) -> Result<(), AppendError> {
        match &self.state {
            State::Failed { reason, .. } => Err(AppendError::Failed { reason: reason.clone() }),
            State::Running if !self.closing => Ok(()),
            State::Running | State::Closed { .. } => Err(AppendError::Closing),
        }
    }

    /// Acceptance of appends, as far as room does not matter.
    pub(super) fn accepting(&self) -> Accepting {
        match &self.state {
            State::Failed { .. } => Accepting::Failed,
            State::Running if !self.closing => Accepting::Yes,
            State::Running | State::Closed { .. } => Accepting::Closing,
        }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        match &self.state {
            State::Failed { reason, .. } => Some(reason.clone()),
            _ => None,
        }
    }

    pub(crate) fn closed(&self) -> Option<bool> {
        match self.state {
            State::Closed { clean } => Some(clean),
            _ => None,
        }
    }

    /// Time until the next recovery attempt.
    pub(crate) fn retry_in_ns(&self) -> u64 {
        match &self.state {
            State::Failed { pause_ns, .. } => *pause_ns,
            _ => 0,
        }
    }

    /// Boot time at which a recovery is due, and the offset at which it begins, if the journal has failed.
    pub(super) fn recovery(&self) -> Option<(u64, u64)> {
        match &self.state {
            State::Failed { due_boot_ns, rescue_from, .. } => Some((*due_boot_ns, *rescue_from)),
            _ => None,
        }
    }

    /// Latches a failure: from here on nothing is released until recovery is done. `true` if the journal ran until now.
    pub(super) fn fail(&mut self, reason: String, from: u64, was_rescue: bool, now: Moment) -> bool {
        let State::Failed { rescue_from, pause_ns, due_boot_ns, .. } = &mut self.state else {
            self.state = State::Failed {
                reason,
                due_boot_ns: now.boot_ns + RECOVERY_RETRY_NS_MIN,
                pause_ns: RECOVERY_RETRY_NS_MIN,
                rescue_from: from,
            };
            return true;
        };
        *rescue_from = (*rescue_from).min(from);
        if was_rescue {
            *pause_ns = (*pause_ns * 2).min(RECOVERY_RETRY_NS_MAX);
            *due_boot_ns = now.boot_ns + *pause_ns;
        }
        false
    }

    /// Notes that a recovery is done.
    pub(super) fn recovered(&mut self) {
        self.state = State::Running;
    }

    /// Notes the end. Rotations that were requested while it sealed and marked the end are refused.
    pub(super) fn end(&mut self, clean: bool) {
        self.refuse_rotations();
        self.state = State::Closed { clean };
    }

    pub(super) fn is_rotation_requested(&self) -> bool {
        !self.rotate_replies.is_empty()
    }

    /// Answers all rotations that were requested.
    pub(super) fn answer_rotations(&mut self, answer: &RotateAnswer) {
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(answer.clone());
        }
    }

    pub(super) fn refuse_rotations(&mut self) {
        self.answer_rotations(&Err("clad is stopping".to_owned()));
    }

    pub(crate) fn take_rotate_replies(&mut self) -> Vec<RotateReply> {
        std::mem::take(&mut self.rotate_replies)
    }
}
