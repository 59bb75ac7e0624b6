//! The completion page: the daemon's reports about a ring, where the client can only read.
//!
//! A file of its own, mapped writable by the daemon that made it and then sealed (`F_SEAL_FUTURE_WRITE`). No process
//! maps it writable again, not even a later daemon, which makes a new completion page. Appends are counted by their
//! number in the ring.
//!
//! | at | what |
//! |---|---|
//! | 0 | magic `CLADBORD` |
//! | 8 | version of this layout, 2 |
//! | 16 | slots of the ring; as many answers |
//! | 64, 72 | log id, 16 bytes |
//! | 80 | epoch of the log |
//! | 88 | why the ring was cut off; 0: it was not |
//! | 96 | one past the last append that was refused, by this daemon or one before it; 0: none was |
//! | 104 | why nothing is taken of the ring now, and what is there waits (an error code); 0: it is taken |
//! | 112 | appends below this were given back before this page existed |
//! | 128, 136, 144 | watermarks `received`, `written`, `durable`: all appends below have the level, or were refused |
//! | 4096 | answers, 32 bytes each; that of append *n* at *n* modulo the slots |
//!
//! An answer: tag (0 while it changes), first offset, epoch (low 4 bytes) and code (high 4 bytes: 0 taken, else the
//! error of PROTOCOL.md), a detail of the error. The tag is the append number + 1 in the low 56 bits; the high 8 bits
//! count how often this append was answered. An answer is gone when that of a later append takes its place, and with
//! the daemon that gave it. An append that has its level and no answer was taken if the word at 96 is not above it;
//! else its outcome is unknown. Read the tag, the others, the tag again: if it is the same, the values read are one
//! answer.

use crate::layout::{ANSWER, COMPLETION_PAGE_MAGIC, PAGE, Shape, VERSION};
use crate::memory::{Memory, Ordering};

const ANSWERS: usize = PAGE;
const LOW56: u64 = (1 << 56) - 1;

mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const SLOTS: usize = 16;
    pub(super) const LOG_ID: usize = 64;
    pub(super) const EPOCH: usize = 80;
    pub(super) const CUT_OFF: usize = 88;
    pub(super) const REFUSED: usize = 96;
    pub(super) const WAITS: usize = 104;
    pub(super) const FIRST: usize = 112;
    pub(super) const WATERMARKS: [usize; 3] = [128, 136, 144];
}

/// The levels of a completion page's watermarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The daemon holds it and has given it an offset.
    Received,
    /// The kernel has completed the write.
    Written,
    /// It is on stable storage.
    Durable,
}

/// Watermarks, as counts of a ring's appends: all below have the level, or were refused (see the [`Answer`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below: received.
    pub received: u64,
    /// Below: written.
    pub written: u64,
    /// Below: durable.
    pub durable: u64,
}

impl Watermarks {
    /// The watermark of one level.
    #[must_use]
    pub fn of(&self, level: Level) -> u64 {
        match level {
            Level::Received => self.received,
            Level::Written => self.written,
            Level::Durable => self.durable,
        }
    }
}

/// Outcome of an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The offset of its first record; means nothing where `code` is not 0.
    pub first_offset: u64,
    /// The epoch of the log when it was answered.
    pub epoch: u32,
    /// 0: taken. Else an error code of the protocol.
    pub code: u32,
    /// A number that belongs to the error (which record is at fault, say).
    pub detail: u64,
}

pub(crate) fn create<M: Memory>(completion_page: &M, shape: Shape, log_id: [u8; 16], epoch: u32) {
    completion_page.store(at::VERSION, VERSION, Ordering::Relaxed);
    completion_page.store(at::SLOTS, u64::from(shape.slots()), Ordering::Relaxed);
    completion_page.write(at::LOG_ID, &log_id);
    completion_page.store(at::EPOCH, u64::from(epoch), Ordering::Relaxed);
    completion_page.store(at::MAGIC, COMPLETION_PAGE_MAGIC, Ordering::Release);
}

pub(crate) fn is_for<M: Memory>(completion_page: &M, shape: Shape) -> bool {
    completion_page.load(at::MAGIC, Ordering::Acquire) == COMPLETION_PAGE_MAGIC
        && completion_page.load(at::VERSION, Ordering::Relaxed) == VERSION
        && completion_page.load(at::SLOTS, Ordering::Relaxed) == u64::from(shape.slots())
}

pub(crate) fn log<M: Memory>(completion_page: &M) -> ([u8; 16], u32) {
    let mut id = [0; 16];
    completion_page.read(at::LOG_ID, &mut id);
    (id, completion_page.load(at::EPOCH, Ordering::Acquire) as u32)
}

pub(crate) fn set_epoch<M: Memory>(completion_page: &M, epoch: u32) {
    completion_page.store(at::EPOCH, u64::from(epoch), Ordering::Release);
}

pub(crate) fn cut_off<M: Memory>(completion_page: &M) -> u64 {
    completion_page.load(at::CUT_OFF, Ordering::Acquire)
}

pub(crate) fn set_cut_off<M: Memory>(completion_page: &M, why: u64) {
    completion_page.store(at::CUT_OFF, why, Ordering::Release);
}

pub(crate) fn waits<M: Memory>(completion_page: &M) -> u64 {
    completion_page.load(at::WAITS, Ordering::Acquire)
}

pub(crate) fn set_waits<M: Memory>(completion_page: &M, why: u64) {
    completion_page.store(at::WAITS, why, Ordering::Release);
}

pub(crate) fn first<M: Memory>(completion_page: &M) -> u64 {
    completion_page.load(at::FIRST, Ordering::Acquire)
}

pub(crate) fn set_first<M: Memory>(completion_page: &M, append: u64) {
    completion_page.store(at::FIRST, append, Ordering::Release);
}

pub(crate) fn refused<M: Memory>(completion_page: &M) -> u64 {
    completion_page.load(at::REFUSED, Ordering::Acquire)
}

/// Raises it; a lower one changes nothing.
pub(crate) fn raise_refused<M: Memory>(completion_page: &M, upto: u64) {
    if completion_page.load(at::REFUSED, Ordering::Relaxed) < upto {
        completion_page.store(at::REFUSED, upto, Ordering::Release);
    }
}

pub(crate) fn watermarks<M: Memory>(completion_page: &M) -> Watermarks {
    let [received, written, durable] = at::WATERMARKS.map(|at| completion_page.load(at, Ordering::Acquire));
    Watermarks { received, written, durable }
}

/// Raises a watermark; a lower one changes nothing.
pub(crate) fn raise<M: Memory>(completion_page: &M, level: Level, upto: u64) {
    let at = at::WATERMARKS[level as usize];
    if completion_page.load(at, Ordering::Relaxed) < upto {
        // Release: the answers below come before.
        completion_page.store(at, upto, Ordering::Release);
    }
}

pub(crate) fn set_answer<M: Memory>(completion_page: &M, shape: Shape, append: u64, answer: Answer) {
    let at = place(shape, append);
    let before = completion_page.load(at, Ordering::Relaxed);
    let again = if before & LOW56 == (append + 1) & LOW56 { (before >> 56).wrapping_add(1) } else { 0 };
    let tag = (append + 1) & LOW56 | again << 56;
    completion_page.store(at, 0, Ordering::Relaxed);
    completion_page.point("answer: open");
    // What follows must not be seen before the 0.
    completion_page.fence_of(Ordering::Release);
    completion_page.store(at + 8, answer.first_offset, Ordering::Relaxed);
    completion_page.point("answer: offset");
    completion_page.store(at + 16, u64::from(answer.epoch) | u64::from(answer.code) << 32, Ordering::Relaxed);
    completion_page.point("answer: code");
    completion_page.store(at + 24, answer.detail, Ordering::Relaxed);
    completion_page.point("answer: detail");
    completion_page.store(at, tag, Ordering::Release);
}

/// The answer to an append; `None` where there is none yet, or none any more.
pub(crate) fn answer<M: Memory>(completion_page: &M, shape: Shape, append: u64) -> Option<Answer> {
    let at = place(shape, append);
    let tag = completion_page.load(at, Ordering::Acquire);
    if tag & LOW56 != (append + 1) & LOW56 {
        return None;
    }
    let first_offset = completion_page.load(at + 8, Ordering::Relaxed);
    let word = completion_page.load(at + 16, Ordering::Relaxed);
    let detail = completion_page.load(at + 24, Ordering::Relaxed);
    completion_page.fence_of(Ordering::Acquire);
    (completion_page.load(at, Ordering::Relaxed) == tag).then_some(Answer {
        first_offset,
        epoch: word as u32,
        code: (word >> 32) as u32,
        detail,
    })
}

const fn place(shape: Shape, append: u64) -> usize {
    ANSWERS + (append as usize & (shape.slots() as usize - 1)) * ANSWER
}
