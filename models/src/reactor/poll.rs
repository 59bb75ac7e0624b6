//! What `daemon/src/ingest/reactor/poll.rs` is, with a scheduler's threads asleep in it instead of the kernel's.
//!
//! Events come on edges, and are taken by one who waits; a bell that is rung often rings once. Who watches another poll is
//! woken once by what is there, or comes, and takes none of it; where it was taken meanwhile, nobody is woken.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};

/// What the bell is called.
pub(super) const BELL: u64 = 0;
const SOCKETS: u64 = u64::MAX;

/// What has happened.
pub(super) type Events = Vec<u64>;

/// A poll with a bell.
#[derive(Clone, Default)]
pub(super) struct Poll(Arc<Place>);

#[derive(Default)]
struct Place {
    state: Mutex<State>,
    happens: Condvar,
}

#[derive(Default)]
struct State {
    there: VecDeque<u64>,
    /// Who waits elsewhere and is to be woken by what happens here.
    adopted_by: Option<Weak<Place>>,
    watched: Option<Poll>,
    armed: bool,
    /// Something has happened there since it was armed, or had then.
    may_have: bool,
}

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    pub(super) fn ring(&self) {
        self.happened(BELL);
    }

    /// Something happens: `what` is reported to one that waits.
    pub(super) fn happened(&self, what: u64) {
        let above = {
            let mut state = self.0.state.lock().expect("whole");
            if !state.there.contains(&what) {
                state.there.push_back(what);
            }
            self.0.happens.notify_one();
            state.adopted_by.as_ref().and_then(Weak::upgrade)
        };
        if let Some(above) = above {
            let mut state = above.state.lock().expect("whole");
            if state.armed {
                state.may_have = true;
                above.happens.notify_one();
            }
        }
    }

    pub(super) fn wait(&self, events: &mut Events) {
        events.clear();
        let mut state = self.0.state.lock().expect("whole");
        loop {
            events.extend(state.there.drain(..));
            if std::mem::take(&mut state.may_have) && state.watched.as_ref().is_some_and(Self::has_something) {
                state.armed = false;
                events.push(SOCKETS);
            }
            if !events.is_empty() {
                return;
            }
            state = self.0.happens.wait(state).expect("whole");
        }
    }

    pub(super) fn look(&self, events: &mut Events) {
        events.clear();
        events.extend(self.0.state.lock().expect("whole").there.drain(..));
    }

    fn has_something(&self) -> bool {
        !self.0.state.lock().expect("whole").there.is_empty()
    }

    pub(super) fn adopt(&self, other: &Self) -> io::Result<()> {
        other.0.state.lock().expect("whole").adopted_by = Some(Arc::downgrade(&self.0));
        self.0.state.lock().expect("whole").watched = Some(other.clone());
        self.watch(other, true);
        Ok(())
    }

    pub(super) fn watch(&self, other: &Self, on: bool) {
        {
            let mut state = self.0.state.lock().expect("whole");
            (state.armed, state.may_have) = (on, on && state.may_have);
        }
        if on && other.has_something() {
            self.0.state.lock().expect("whole").may_have = true;
            self.0.happens.notify_one();
        }
    }
}

/// Looks again or sleeps, as the scheduler has it.
pub(super) struct Backoff;

impl Backoff {
    pub(super) fn should_spin(&self, _: Duration) -> bool {
        thread_rng().gen_bool(0.25)
    }
    pub(super) fn waited(&mut self, _: Duration) {}
}
