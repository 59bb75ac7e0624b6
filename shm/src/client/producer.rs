//! The client's end of one ring.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::checksum;
use crate::client::writer::{self, Content, NoSpace};
use crate::daemon::drain::map_ring;
use crate::error::{OpenError, PushError, WaitError};
use crate::layout::completion_page::{self, Answer, Level, Watermarks};
use crate::layout::entry::TRAILER;
use crate::layout::{Cursor, Shape, at};
use crate::mapped::{MapMode, Mapped};
use crate::memory::{Memory, Ordering};
use crate::os;
use crate::wake::{self, Event};

/// Number of times that a push begins again when the drain abandoned its space.
const TRIES: u32 = 4;

/// The client's end of one ring. Any number of threads push at once.
///
/// # Fork
/// A child of `fork` gets [`PushError::Forked`] from every call; the ring is not mapped there. (A child that returns
/// from a signal handler into a push that its parent had begun ends by SIGSEGV.)
#[derive(Debug)]
pub struct Producer {
    ring: Mapped,
    shape: Shape,
    waker: RwLock<OwnedFd>,
    completion_page: RwLock<Mapped>,
}

impl Producer {
    /// Takes the daemon's descriptors: ring, completion page, waker. Those of the ring and the page may be closed
    /// afterwards.
    ///
    /// # Errors
    /// When these are no ring and completion page of this version, or the kernel refuses to map them.
    pub fn attach(ring: &OwnedFd, completion_page: &OwnedFd, waker: OwnedFd) -> Result<Self, OpenError> {
        let (ring, shape) = map_ring(ring)?;
        let completion_page = map_completion_page(completion_page, shape)?;
        Ok(Self { ring, shape, waker: RwLock::new(waker), completion_page: RwLock::new(completion_page) })
    }

    /// Takes the completion page of a new life of the daemon. Its watermarks begin at what was given back before; read
    /// the old page's answers first. `before` gets its log and epoch before any thread can look at it. Wakes all
    /// waiting threads, so that they look.
    ///
    /// # Errors
    /// As [`Producer::attach`].
    pub fn attach_completion_page(
        &self,
        completion_page: &OwnedFd,
        before: impl FnOnce(([u8; 16], u32)),
    ) -> Result<(), OpenError> {
        let new = map_completion_page(completion_page, self.shape)?;
        if !self.ring.is_ours() {
            return Ok(());
        }
        let mut completion_page = self.completion_page.write().unwrap_or_else(PoisonError::into_inner);
        before(completion_page::log(&new));
        *completion_page = new;
        drop(completion_page);
        self.ring.add(at::ACK_BELL, 1);
        os::futex_wake(self.ring.futex(at::ACK_BELL));
        Ok(())
    }

    /// Takes the doorbell of a daemon that was handed the ring by this client. Rings it: a push that rang the old one
    /// meanwhile has woken nobody.
    pub fn attach_waker(&self, waker: OwnedFd) {
        if !self.ring.is_ours() {
            return;
        }
        *self.waker.write().unwrap_or_else(PoisonError::into_inner) = waker;
        os::wake(&*self.waker.read().unwrap_or_else(PoisonError::into_inner));
    }

    /// The size of the ring.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The longest payload that the ring takes, bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.shape.max_payload()
    }

    /// Puts one append into the ring: its bytes are the parts one after the other, it holds `records` records. Gives
    /// its number. When this returns `Ok` the append is `posted`: it outlives this process.
    ///
    /// Never waits. No system call, but one when the daemon sleeps.
    ///
    /// # Errors
    /// After each of them the append is certainly not in the ring.
    #[inline]
    pub fn push(&self, parts: &[&[u8]], records: u32) -> Result<u64, PushError> {
        let content = Content::Parts(parts);
        self.admit(content.len())?;
        self.push_content(content, records)
    }

    /// As [`Producer::push`], of bytes whose CRC-32C is known and of a trailer behind them: nothing is gone through for
    /// a checksum again. Where `sum` is not that of `bytes`, the entry is nonsense, and the daemon cuts the ring off.
    ///
    /// # Errors
    /// As [`Producer::push`].
    #[inline]
    pub fn push_summed(&self, bytes: &[u8], sum: u32, trailer: [u8; TRAILER], records: u32) -> Result<u64, PushError> {
        self.push_trailed(bytes, (bytes.len(), sum), |_| trailer, records)
    }

    /// As [`Producer::push_summed`], where the CRC-32C of the first bytes is known: so many, and their sum. That of all
    /// is taken here, and the trailer made of it.
    ///
    /// # Errors
    /// As [`Producer::push`].
    #[inline(always)]
    pub fn push_trailed(
        &self,
        bytes: &[u8],
        known: (usize, u32),
        trailer: impl FnOnce(u32) -> [u8; TRAILER],
        records: u32,
    ) -> Result<u64, PushError> {
        self.admit(bytes.len() + TRAILER)?;
        let sum = checksum::of_rest(bytes, known);
        let trailer = u64::from_le_bytes(trailer(sum));
        let sum = checksum::extend_word(sum, trailer);
        self.push_content(Content::Summed { bytes, sum, trailer }, records)
    }

    /// True if an append of so many bytes may go in at all.
    #[inline]
    fn admit(&self, len: usize) -> Result<(), PushError> {
        if len == 0 || len > self.shape.max_payload() {
            return Err(PushError::Size { len, max: self.shape.max_payload() });
        }
        if self.ring.is_ours() { Ok(()) } else { Err(PushError::Forked) }
    }

    #[inline(always)]
    fn push_content(&self, content: Content<'_>, records: u32) -> Result<u64, PushError> {
        let append = match push_once(&self.ring, self.shape, content, records)? {
            Some(append) => append,
            None => self.push_again(content, records)?,
        };
        if let Some(word) = wake::sleeper(&self.ring) {
            self.wake_sleeper(word);
        }
        Ok(append)
    }

    #[cold]
    fn push_again(&self, content: Content<'_>, records: u32) -> Result<u64, PushError> {
        for _ in 1..TRIES {
            if let Some(append) = push_once(&self.ring, self.shape, content, records)? {
                return Ok(append);
            }
        }
        Err(PushError::Abandoned)
    }

    /// One wake-up for each time that the daemon falls asleep.
    #[cold]
    fn wake_sleeper(&self, word: u64) {
        // The wake-up first: dying in between costs a second one, the other way round it would cost the only one.
        os::wake(&*self.waker.read().unwrap_or_else(PoisonError::into_inner));
        self.ring.point("push: drain woken");
        wake::woken(&self.ring, word);
    }

    /// Waits until `payload` bytes fit, or the deadline (CLOCK_MONOTONIC nanoseconds) has passed. Another thread may
    /// take the space before the caller does.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_space(&self, payload: usize, deadline: u64) -> Result<(), WaitError> {
        self.wait(Event::Space, deadline, || writer::has_space(&self.ring, self.shape, payload).then_some(()))
    }

    /// Waits until all appends up to and with this one have a level, or the deadline (CLOCK_MONOTONIC nanoseconds) has
    /// passed. Then read [`Producer::answer`].
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_level(&self, append: u64, level: Level, deadline: u64) -> Result<(), WaitError> {
        self.wait(Event::Ack, deadline, || (self.watermarks().of(level) > append).then_some(()))
    }

    /// Waits until the watermarks are others than `seen`, or the deadline (CLOCK_MONOTONIC nanoseconds) has passed.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_change(&self, seen: Watermarks, deadline: u64) -> Result<Watermarks, WaitError> {
        self.wait(Event::Ack, deadline, || Some(self.watermarks()).filter(|now| *now != seen))
    }

    fn wait<T>(&self, event: Event, deadline: u64, mut look: impl FnMut() -> Option<T>) -> Result<T, WaitError> {
        if !self.ring.is_ours() {
            return Err(WaitError::Forked);
        }
        if let Some(found) = look() {
            return Ok(found);
        }
        wake::begin_wait(&self.ring, event);
        let ended = loop {
            let seen = wake::bell(&self.ring, event);
            if let Some(found) = look() {
                break Ok(found);
            }
            if Cursor(self.ring.load(at::HEAD, Ordering::Acquire)).is_closed() && event == Event::Space {
                break Err(WaitError::Closed);
            }
            if let Err(error) = os::futex_wait(self.ring.futex(event.bell()), seen, deadline) {
                break look().ok_or(error);
            }
        };
        wake::end_wait(&self.ring, event);
        ended
    }

    /// The watermarks now. After [`Producer::attach_completion_page`] they may be lower than before.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        completion_page::watermarks(&*self.completion_page())
    }

    /// The outcome of an append: `None` while it is unknown, and when as many appends as the ring has slots have been
    /// answered after it. Read it when the watermark of the level that is waited for is above `append`.
    #[must_use]
    pub fn answer(&self, append: u64) -> Option<Answer> {
        completion_page::answer(&*self.completion_page(), self.shape, append)
    }

    /// One past the last append that was refused for good, by this daemon or one before it. The refusal of an append
    /// below it can be read as soon as the append is `received`. An append without an [`answer`](Self::answer) that has
    /// its level was taken if it is not below; if it is, it may have been refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        completion_page::refused(&*self.completion_page())
    }

    /// The reason why the daemon takes nothing of the ring for now, as a code of the protocol; what is there waits.
    /// Nothing while it takes, and for a daemon that does not report it. The last report of a daemon that is gone
    /// stands there until a new completion page comes.
    #[must_use]
    pub fn waits(&self) -> Option<u32> {
        u32::try_from(completion_page::waits(&*self.completion_page())).ok().filter(|why| *why != 0)
    }

    /// Number of appends that were reserved and are not given back: without its daemon, their outcome is unknown.
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        // The tail first: the head is never behind it.
        let released = self.ring.load(at::RELEASED, Ordering::Acquire);
        Cursor(self.ring.load(at::HEAD, Ordering::Acquire)).ahead_of(released)
    }

    /// The epoch of the log, as [`Producer::log`] gives it; this makes no more than a load.
    #[must_use]
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.ring.load(at::EPOCH, Ordering::Relaxed) as u32
    }

    /// Log id and epoch of the log.
    #[must_use]
    pub fn log(&self) -> ([u8; 16], u32) {
        completion_page::log(&*self.completion_page())
    }

    /// Why the daemon cut the ring off, when it did.
    #[must_use]
    pub fn cut_off(&self) -> Option<u32> {
        match completion_page::cut_off(&*self.completion_page()) {
            0 => None,
            why => Some(why as u32),
        }
    }

    /// Closes the ring from this end: from now on every push says [`PushError::Closed`]. What is committed can still be
    /// taken.
    pub fn close(&self) {
        if self.ring.is_ours() {
            self.ring.set_bits(at::HEAD, Cursor::CLOSED);
            self.ring.add(at::SPACE_BELL, 1);
            os::futex_wake(self.ring.futex(at::SPACE_BELL));
        }
    }

    /// True if this process is a fork of the one that attached the ring.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !self.ring.is_ours()
    }

    /// True if nothing can be pushed any more: the ring was closed, or this process is a fork.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.ring.is_ours() || Cursor(self.ring.load(at::HEAD, Ordering::Acquire)).is_closed()
    }

    /// The completion page for several looks: a new one is not attached meanwhile.
    #[must_use]
    pub fn look(&self) -> Look<'_> {
        Look { completion_page: self.completion_page(), shape: self.shape }
    }

    fn completion_page(&self) -> RwLockReadGuard<'_, Mapped> {
        self.completion_page.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One completion page, as long as this lives: [`Producer::attach_completion_page`] waits for it.
#[derive(Debug)]
pub struct Look<'a> {
    completion_page: RwLockReadGuard<'a, Mapped>,
    shape: Shape,
}

impl Look<'_> {
    /// As [`Producer::watermarks`].
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        completion_page::watermarks(&*self.completion_page)
    }

    /// As [`Producer::answer`].
    #[must_use]
    pub fn answer(&self, append: u64) -> Option<Answer> {
        completion_page::answer(&*self.completion_page, self.shape, append)
    }

    /// As [`Producer::refused`].
    #[must_use]
    pub fn refused(&self) -> u64 {
        completion_page::refused(&*self.completion_page)
    }

    /// As [`Producer::log`].
    #[must_use]
    pub fn log(&self) -> ([u8; 16], u32) {
        completion_page::log(&*self.completion_page)
    }

    /// Appends given back before this completion page existed: all below. (0 on the pages of daemons that did not
    /// report it.)
    #[must_use]
    pub fn first(&self) -> u64 {
        completion_page::first(&*self.completion_page)
    }
}

/// `None`: the drain gave the space up.
#[inline(always)]
pub(crate) fn push_once<M: Memory>(
    ring: &M,
    shape: Shape,
    content: Content<'_>,
    records: u32,
) -> Result<Option<u64>, PushError> {
    let reserved = writer::reserve(ring, shape, content.len()).map_err(|why| match why {
        NoSpace::Full => PushError::Full,
        NoSpace::Closed => PushError::Closed,
        NoSpace::Damaged => PushError::Damaged,
    })?;
    ring.point("push: reserved");
    writer::fill(ring, shape, reserved, content, records);
    ring.point("push: filled");
    Ok(writer::commit(ring, shape, reserved).then(|| {
        ring.point("push: committed");
        reserved.append
    }))
}

fn map_completion_page(file: impl AsFd, shape: Shape) -> Result<Mapped, OpenError> {
    if os::sealed_size(&file)? != shape.completion_page_bytes() as u64 {
        return Err(OpenError::Foreign);
    }
    let completion_page = Mapped::new(file, shape.completion_page_bytes(), MapMode::ReadOnly)?;
    if !completion_page::is_for(&completion_page, shape) {
        return Err(OpenError::Foreign);
    }
    Ok(completion_page)
}
