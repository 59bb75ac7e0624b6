//! The board: what the daemon says about a ring, where the client can only read.
//!
//! A file of its own, mapped writable by the daemon that made it and then sealed (`F_SEAL_FUTURE_WRITE`): nobody maps it
//! writable again, not even a later daemon, which makes a new board. Appends are counted by their number in the ring.
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
//! | 112 | appends below this were given back before there was this board |
//! | 128, 136, 144 | watermarks `received`, `written`, `durable`: all appends below have the level, or were refused |
//! | 4096 | answers, 32 bytes each; that of append *n* at *n* modulo the slots |
//!
//! An answer: tag (0 while it changes), first offset, epoch (low 4 bytes) and code (high 4 bytes: 0 taken, else the error
//! of PROTOCOL.md), a detail of the error. The tag is the append number + 1 in the low 56 bits; the high 8 bits count how
//! often this append was answered. An answer is gone when that of a later append takes its place, and with the daemon that
//! gave it: what has its level and no answer was taken if the word at 96 is not above it, and else nobody knows.
//! Read the tag, the others, the tag again: if it is the same, what was read is one answer.

use crate::layout::{BOARD_MAGIC, PAGE, Shape, VERSION};
use crate::memory::{Memory, Ordering};

/// Bytes of an answer.
pub(crate) const ANSWER: usize = 32;
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
    pub(super) const MARKS: [usize; 3] = [128, 136, 144];
}

/// The levels of a board's watermarks.
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
pub struct Marks {
    /// Below: received.
    pub received: u64,
    /// Below: written.
    pub written: u64,
    /// Below: durable.
    pub durable: u64,
}

impl Marks {
    /// The mark of one level.
    #[must_use]
    pub fn of(&self, level: Level) -> u64 {
        match level {
            Level::Received => self.received,
            Level::Written => self.written,
            Level::Durable => self.durable,
        }
    }
}

/// What became of an append.
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

pub(crate) fn create<M: Memory>(board: &M, shape: Shape, log_id: [u8; 16], epoch: u32) {
    board.store(at::VERSION, VERSION, Ordering::Relaxed);
    board.store(at::SLOTS, u64::from(shape.slots()), Ordering::Relaxed);
    board.write(at::LOG_ID, &log_id);
    board.store(at::EPOCH, u64::from(epoch), Ordering::Relaxed);
    board.store(at::MAGIC, BOARD_MAGIC, Ordering::Release);
}

pub(crate) fn is_for<M: Memory>(board: &M, shape: Shape) -> bool {
    board.load(at::MAGIC, Ordering::Acquire) == BOARD_MAGIC
        && board.load(at::VERSION, Ordering::Relaxed) == VERSION
        && board.load(at::SLOTS, Ordering::Relaxed) == u64::from(shape.slots())
}

pub(crate) fn log<M: Memory>(board: &M) -> ([u8; 16], u32) {
    let mut id = [0; 16];
    board.read(at::LOG_ID, &mut id);
    (id, board.load(at::EPOCH, Ordering::Acquire) as u32)
}

pub(crate) fn set_epoch<M: Memory>(board: &M, epoch: u32) {
    board.store(at::EPOCH, u64::from(epoch), Ordering::Release);
}

pub(crate) fn cut_off<M: Memory>(board: &M) -> u64 {
    board.load(at::CUT_OFF, Ordering::Acquire)
}

pub(crate) fn set_cut_off<M: Memory>(board: &M, why: u64) {
    board.store(at::CUT_OFF, why, Ordering::Release);
}

pub(crate) fn waits<M: Memory>(board: &M) -> u64 {
    board.load(at::WAITS, Ordering::Acquire)
}

pub(crate) fn set_waits<M: Memory>(board: &M, why: u64) {
    board.store(at::WAITS, why, Ordering::Release);
}

pub(crate) fn first<M: Memory>(board: &M) -> u64 {
    board.load(at::FIRST, Ordering::Acquire)
}

pub(crate) fn set_first<M: Memory>(board: &M, append: u64) {
    board.store(at::FIRST, append, Ordering::Release);
}

pub(crate) fn refused<M: Memory>(board: &M) -> u64 {
    board.load(at::REFUSED, Ordering::Acquire)
}

/// Raises it; a lower one changes nothing.
pub(crate) fn raise_refused<M: Memory>(board: &M, upto: u64) {
    if board.load(at::REFUSED, Ordering::Relaxed) < upto {
        board.store(at::REFUSED, upto, Ordering::Release);
    }
}

pub(crate) fn marks<M: Memory>(board: &M) -> Marks {
    let [received, written, durable] = at::MARKS.map(|at| board.load(at, Ordering::Acquire));
    Marks { received, written, durable }
}

/// Raises a mark; a lower one changes nothing.
pub(crate) fn raise<M: Memory>(board: &M, level: Level, upto: u64) {
    let at = at::MARKS[level as usize];
    if board.load(at, Ordering::Relaxed) < upto {
        // Release: the answers below come before.
        board.store(at, upto, Ordering::Release);
    }
}

pub(crate) fn set_answer<M: Memory>(board: &M, shape: Shape, append: u64, answer: Answer) {
    let at = place(shape, append);
    let before = board.load(at, Ordering::Relaxed);
    let again = if before & LOW56 == (append + 1) & LOW56 { (before >> 56).wrapping_add(1) } else { 0 };
    let tag = (append + 1) & LOW56 | again << 56;
    board.store(at, 0, Ordering::Relaxed);
    board.point("answer: open");
    // What follows must not be seen before the 0.
    board.fence_of(Ordering::Release);
    board.store(at + 8, answer.first_offset, Ordering::Relaxed);
    board.point("answer: offset");
    board.store(at + 16, u64::from(answer.epoch) | u64::from(answer.code) << 32, Ordering::Relaxed);
    board.point("answer: code");
    board.store(at + 24, answer.detail, Ordering::Relaxed);
    board.point("answer: detail");
    board.store(at, tag, Ordering::Release);
}

/// The answer to an append; `None` where there is none yet, or none any more.
pub(crate) fn answer<M: Memory>(board: &M, shape: Shape, append: u64) -> Option<Answer> {
    let at = place(shape, append);
    let tag = board.load(at, Ordering::Acquire);
    if tag & LOW56 != (append + 1) & LOW56 {
        return None;
    }
    let first_offset = board.load(at + 8, Ordering::Relaxed);
    let word = board.load(at + 16, Ordering::Relaxed);
    let detail = board.load(at + 24, Ordering::Relaxed);
    board.fence_of(Ordering::Acquire);
    (board.load(at, Ordering::Relaxed) == tag).then_some(Answer {
        first_offset,
        epoch: word as u32,
        code: (word >> 32) as u32,
        detail,
    })
}

const fn place(shape: Shape, append: u64) -> usize {
    ANSWERS + (append as usize & (shape.slots() as usize - 1)) * ANSWER
}
