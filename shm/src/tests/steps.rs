//! Plain memory that does something between two stores: dies, or stops until it is released.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};
use std::sync::{Arc, Condvar, Mutex};

use crate::layout::Shape;
use crate::memory::{Memory, Ordering};

/// One thing that a user of the memory did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It changed the memory (or tried to).
    Store(usize),
    /// It came past a named point.
    Point(&'static str),
}

/// Event when the steps have been used up.
#[derive(Clone, Debug)]
pub(super) enum Then {
    /// The user is gone: it unwinds with [`Died`].
    Die,
    /// The user stops, until the gate opens.
    Stop(Arc<Gate>),
}

/// Unwind payload of a user that died.
pub(super) struct Died;

/// Where a stopped user waits.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn wait(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).expect("no panic"));
    }

    /// Waits until the user has stopped.
    pub(super) fn stopped(&self) {
        drop(self.changed.wait_while(self.state.lock().expect("no panic"), |state| !state.0).expect("no panic"));
    }

    /// Says that the user will not stop any more: it has come to its end.
    pub(super) fn ended(&self) {
        self.state.lock().expect("no panic").0 = true;
        self.changed.notify_all();
    }

    /// Lets the user continue.
    pub(super) fn open(&self) {
        self.state.lock().expect("no panic").1 = true;
        self.changed.notify_all();
    }
}

/// One user's view of a ring in plain memory.
pub(super) struct Steps {
    words: Arc<Vec<AtomicU64>>,
    left: AtomicU64,
    then: Then,
    trace: Mutex<Vec<Step>>,
}

impl Steps {
    /// A ring of zeroes, and a user without a limit.
    pub(super) fn ring(shape: Shape) -> Self {
        let words = (0..shape.ring_bytes() / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words: Arc::new(words), left: AtomicU64::new(u64::MAX), then: Then::Die, trace: Mutex::default() }
    }

    /// Another user of the same memory, which does `steps` things before something happens to it.
    pub(super) fn user(&self, steps: u64, then: Then) -> Self {
        Self { words: Arc::clone(&self.words), left: AtomicU64::new(steps), then, trace: Mutex::default() }
    }

    /// Steps of this user.
    pub(super) fn trace(&self) -> Vec<Step> {
        self.trace.lock().expect("no panic").clone()
    }

    /// Before each thing that others can see.
    fn step(&self, step: Step) {
        if self.left.fetch_sub(1, SeqCst) == 0 {
            match &self.then {
                Then::Die => std::panic::resume_unwind(Box::new(Died)),
                Then::Stop(gate) => gate.wait(),
            }
        }
        self.trace.lock().expect("no panic").push(step);
    }
}

impl Memory for Steps {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.words[at / 8].load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.step(Step::Store(at));
        self.words[at / 8].store(value, order);
    }

    fn exchange(&self, at: usize, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.step(Step::Store(at));
        self.words[at / 8].compare_exchange(old, new, success, failure)
    }

    fn add(&self, at: usize, value: u64) -> u64 {
        self.step(Step::Store(at));
        self.words[at / 8].fetch_add(value, SeqCst)
    }

    fn set_bits(&self, at: usize, bits: u64) -> u64 {
        self.step(Step::Store(at));
        self.words[at / 8].fetch_or(bits, SeqCst)
    }

    fn fence(&self) {
        fence(SeqCst);
    }

    fn fence_of(&self, order: Ordering) {
        fence(order);
    }

    /// One store for those that count; a user that dies or stops may do so in the middle of it.
    fn write(&self, at: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            match index {
                0 => self.step(Step::Store(at)),
                32 => self.step(Step::Point("write: in the middle")),
                _ => {}
            }
            let (word, shift) = (&self.words[(at + index) / 8], (at + index) % 8 * 8);
            let rest = word.load(Ordering::Relaxed) & !(0xFF << shift);
            word.store(rest | u64::from(*byte) << shift, Ordering::Relaxed);
        }
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        for (index, piece) in bytes.chunks_mut(8).enumerate() {
            let word = self.words[at / 8 + index].load(Ordering::Relaxed).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }

    fn point(&self, name: &'static str) {
        self.step(Step::Point(name));
    }
}
