//! The daemon's end of one ring.
//!
//! # A drain cycle
//!
//! [`Drain::peek`] on each ring, and [`Drain::take`] of those that are [`Peek::Ready`], as many appends of each as the
//! cycle has room for. A ring that is [`Peek::Blocked`] or [`Peek::Empty`] holds up no other. Each ring gives its own
//! appends in the order of reservation; between rings nothing is promised (RINGS.md, section 4).
//!
//! A look takes the lines of a ring away from the processor that writes there. Cycles without a pause between them make
//! a push of 128 bytes several times slower; with a pause of 20 µs nothing of that is left (BENCHMARKS.md).
//!
//! # Sleeping
//!
//! After a drain cycle in which every ring was [`Peek::Empty`]: [`Drain::sleep`] on every ring. If one says that
//! something has come, [`Drain::awake`] on all and start a new cycle. Else wait for the wakers, then `awake` on all,
//! and start a new cycle. A ring that [`Drain::is_asleep`] may stay so while the drain is awake: its client rings.
//!
//! # After a restart
//!
//! Only the ring and its waker must have been stored. [`Drain::adopt`] makes a new completion page. The client
//! continues to push meanwhile, and is served; it attaches the new page when it comes back to ask for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::daemon::reader::{Entry, Peek, Reader};
use crate::daemon::tail::Stored;
use crate::error::{Corrupt, NotAdopted, OpenError};
use crate::layout::completion_page::{self, Answer, Level, Watermarks};
use crate::layout::{Cursor, RING_MAGIC, Shape, VERSION, at};
use crate::mapped::{MapMode, Mapped};
use crate::memory::{Memory, Ordering};
use crate::os;
use crate::wake::{self, Event};

/// Descriptors for a client: duplicates go over the socket.
#[derive(Debug, Clone, Copy)]
pub struct ClientFds<'a> {
    /// The ring; also what a service manager or holder must keep.
    pub ring: BorrowedFd<'a>,
    /// The completion page of this life of the daemon.
    pub completion_page: BorrowedFd<'a>,
    /// An eventfd; also stored.
    pub waker: BorrowedFd<'a>,
}

/// The daemon's end of one ring. One thread at a time.
#[derive(Debug)]
pub struct Drain {
    ring: Mapped,
    completion_page: Mapped,
    shape: Shape,
    reader: Reader,
    ring_fd: OwnedFd,
    completion_page_fd: OwnedFd,
    waker: OwnedFd,
    /// The log of this life of the daemon, as on the completion page.
    log: ([u8; 16], u32),
}

impl Drain {
    /// Makes a ring: files in memory, every page present, sealed. The first record in it has `first_sequence`.
    ///
    /// # Errors
    /// When the kernel has no memory or descriptors for it.
    pub fn create(shape: Shape, first_sequence: u64, log_id: [u8; 16], epoch: u32) -> Result<Self, OpenError> {
        let ring_fd = os::file("clad-ring", shape.ring_bytes())?;
        os::seal_ring(&ring_fd)?;
        let ring = Mapped::new(&ring_fd, shape.ring_bytes(), MapMode::ReadWrite)?;
        ring.populate();
        let reader = Reader::create(&ring, shape, first_sequence);
        ring.store(at::EPOCH, u64::from(epoch), Ordering::Relaxed);
        let waker = os::waker()?;
        let (completion_page_fd, completion_page) = new_completion_page(shape, log_id, epoch)?;
        Ok(Self { ring, completion_page, shape, reader, ring_fd, completion_page_fd, waker, log: (log_id, epoch) })
    }

    /// Resumes a ring that an earlier daemon made, from where that one gave space back.
    ///
    /// # Errors
    /// If the file is no ring, or its client has damaged its header ([`OpenError::is_for_good`]: release it). Also for
    /// reasons of this moment alone: what was handed over comes back, with all that is in the ring. Do not hand over a
    /// ring that another version of the layout made ([`crate::VERSION`]): its client may have written what the ring
    /// says of its version.
    pub fn adopt(ring_fd: OwnedFd, waker: OwnedFd, log_id: [u8; 16], epoch: u32) -> Result<Self, NotAdopted> {
        let opened = map_ring(&ring_fd).and_then(|(ring, shape)| {
            let reader = Reader::adopt(&ring, shape)?;
            // Before anything is changed that a later try would miss.
            Ok((ring, shape, reader, new_completion_page(shape, log_id, epoch)?))
        });
        let (ring, shape, reader, (completion_page_fd, completion_page)) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(NotAdopted { error, ring: ring_fd, waker }),
        };
        ring.store(at::EPOCH, u64::from(epoch), Ordering::Relaxed);
        // The client could write there, and would mislead itself alone; the completion page reports it all the same for
        // each life.
        completion_page::raise_refused(&completion_page, ring.load(at::REFUSED, Ordering::Acquire));
        completion_page::set_first(&completion_page, reader.released());
        for level in [Level::Received, Level::Written] {
            completion_page::raise(&completion_page, level, reader.released());
        }
        let mut drain =
            Self { ring, completion_page, shape, reader, ring_fd, completion_page_fd, waker, log: (log_id, epoch) };
        drain.awake();
        Ok(drain)
    }

    /// Gives it up as it is: the ring and its doorbell, for another drain.
    #[must_use]
    pub fn into_fds(self) -> [OwnedFd; 2] {
        [self.ring_fd, self.waker]
    }

    /// Begins again at the tail: what was taken and not given back comes again, with the same numbers and sequences.
    pub fn rewind(&mut self) {
        self.rewind_to(self.released());
    }

    /// Begins again at this append, which was taken and not given back; those before it stay taken.
    pub fn rewind_to(&mut self, append: u64) {
        self.reader.rewind_to(append);
    }

    /// The size of the ring.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The descriptors for the client.
    #[must_use]
    pub fn client_fds(&self) -> ClientFds<'_> {
        ClientFds {
            ring: self.ring_fd.as_fd(),
            completion_page: self.completion_page_fd.as_fd(),
            waker: self.waker.as_fd(),
        }
    }

    /// Poll this for reading while asleep.
    #[must_use]
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Sets how long an append that is not committed may hold up what lies behind it; [`crate::COMMIT_TIMEOUT_NS`]
    /// otherwise.
    pub fn set_commit_timeout_ns(&mut self, commit_timeout_ns: u64) {
        self.reader.set_commit_timeout_ns(commit_timeout_ns);
    }

    /// Notes that the client's process has ended: what it had not committed is abandoned without waiting. When
    /// [`Drain::peek`] then says [`Peek::Empty`], the ring is drained for good.
    pub fn client_gone(&mut self) {
        self.reader.set_gone();
    }

    /// The number of the next append that will be taken: all below were taken or abandoned.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.reader.next()
    }

    /// All appends below have been given back.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.reader.released()
    }

    /// The sequence behind all that was given back.
    #[must_use]
    pub fn released_sequence(&self) -> u64 {
        self.reader.released_sequence()
    }

    /// Where what was given back is stored, as the drain that gave it back has said; nothing where that is not known.
    /// (The client can write there, and would mislead itself alone.)
    #[must_use]
    pub fn stored(&self) -> Option<Stored> {
        self.reader.stored()
    }

    /// All that was and will be given back is stored in the log below this offset. Call it before [`Drain::release`],
    /// which leaves it to the next drain.
    pub fn stored_below(&mut self, end: u64) {
        let (log_id, epoch) = self.log;
        self.reader.note_stored(Stored { log_id, epoch, end });
    }

    /// Notes for the next drain whether the log has lost some of what was given back, unreported so far.
    pub fn set_lost(&mut self, lost: bool) {
        self.ring.store(at::LOST, u64::from(lost), Ordering::Release);
        self.ring.point("lost: noted");
    }

    /// True if it has, as this drain or one before it has noted.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.ring.load(at::LOST, Ordering::Acquire) != 0
    }

    /// True if an append of this ring was ever refused for good, by this daemon or one before it.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        self.ring.load(at::REFUSED, Ordering::Acquire) != 0
    }

    /// Looks at the front of the ring at a time (CLOCK_MONOTONIC nanoseconds, [`crate::clock::now`]). Copies a header,
    /// abandons at most what is due.
    ///
    /// # Errors
    /// The ring is nonsense: [`Drain::cut_off`] it. Says so again when asked again, or not.
    pub fn peek(&mut self, now: u64) -> Result<Peek, Corrupt> {
        self.reader.peek(&self.ring, now)
    }

    /// Takes the entry that the last [`Drain::peek`] found ([`Peek::Ready`]) and appends its payload to `out`. `None`: it had found none.
    ///
    /// # Errors
    /// As [`Drain::peek`]; `out` is as before.
    pub fn take(&mut self, out: &mut Vec<u8>) -> Result<Option<Entry>, Corrupt> {
        self.reader.take(&self.ring, out)
    }

    /// Gives back the space of all appends below `upto` (at most what was taken): they are `written`, or were refused.
    /// Wakes clients that wait for space.
    pub fn release(&mut self, upto: u64) {
        if self.reader.release(&self.ring, upto) {
            self.ring_bell(Event::Space);
        }
    }

    /// Says why nothing is taken of the ring for now, though something may be there (a code of the protocol); 0: it is
    /// taken.
    pub fn set_waits(&mut self, why: u32) {
        completion_page::set_waits(&self.completion_page, why.into());
        self.ring.point("waits: said");
    }

    /// Writes the answer to an append on the completion page, before the watermark that covers it is raised. May be
    /// called again for the same append (a later level failed).
    pub fn answer(&mut self, append: u64, answer: Answer) {
        completion_page::set_answer(&self.completion_page, self.shape, append, answer);
    }

    /// As [`Drain::answer`], where the append was refused for good. That it may have been is known for as long as there
    /// is the ring, also when the answer is not there any more.
    pub fn refuse(&mut self, append: u64, answer: Answer) {
        self.answer(append, answer);
        // Before the space is given back, so that no later drain can miss it.
        if self.ring.load(at::REFUSED, Ordering::Relaxed) < append + 1 {
            self.ring.store(at::REFUSED, append + 1, Ordering::Release);
        }
        completion_page::raise_refused(&self.completion_page, append + 1);
    }

    /// Raises a watermark; all appends below have the level or were refused. Call [`Drain::announce`] after a few.
    pub fn raise(&mut self, level: Level, upto: u64) {
        completion_page::raise(&self.completion_page, level, upto);
    }

    /// The watermarks on the completion page.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        completion_page::watermarks(&self.completion_page)
    }

    /// Wakes clients that wait for acks, if there are any. Without waiters it makes no system call.
    pub fn announce(&self) {
        self.ring_bell(Event::Ack);
    }

    /// The epoch of the log has risen.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.log.1 = epoch;
        completion_page::set_epoch(&self.completion_page, epoch);
        self.ring.point("epoch: on the completion page, not in the ring");
        self.ring.store(at::EPOCH, u64::from(epoch), Ordering::Relaxed);
    }

    /// Announces that this daemon is about to sleep, so that a client that commits wakes it. `false`: something is
    /// there already, do not sleep.
    #[must_use]
    pub fn sleep(&mut self) -> bool {
        wake::fall_asleep(&self.ring);
        self.reader.is_idle(&self.ring)
    }

    /// True if clients that commit wake it: it has said that it sleeps, and no client has woken it since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        wake::is_asleep(&self.ring)
    }

    /// Ends what [`Drain::sleep`] began, and takes the wake-ups.
    pub fn awake(&mut self) {
        self.wake_up();
        os::take_wakes(&self.waker);
    }

    /// As [`Drain::awake`], and leaves the wake-ups in the waker: for a drain that waits for the next one there, and not
    /// for any (`EPOLLET`).
    pub fn wake_up(&mut self) {
        wake::wake_up(&self.ring);
    }

    /// Closes the ring: from now on nothing is reserved in it, and what a client reserves all the same is never taken.
    /// Appends reserved before and committed can still be taken.
    pub fn close(&mut self) {
        let head = self.ring.set_bits(at::HEAD, Cursor::CLOSED);
        self.reader.set_end(Cursor(head));
        self.wake_all();
    }

    /// True if it was closed, by either end, or by a daemon before this one.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        Cursor(self.ring.load(at::HEAD, Ordering::Acquire)).is_closed()
    }

    /// Closes the ring and says why (a code of the protocol, not 0).
    pub fn cut_off(&mut self, why: u32) {
        completion_page::set_cut_off(&self.completion_page, u64::from(why.max(1)));
        self.close();
    }

    fn wake_all(&self) {
        for event in [Event::Space, Event::Ack] {
            self.ring.add(event.bell(), 1);
            os::futex_wake(self.ring.futex(event.bell()));
        }
    }

    fn ring_bell(&self, event: Event) {
        if wake::ring_bell(&self.ring, event) {
            os::futex_wake(self.ring.futex(event.bell()));
        }
    }
}

/// No layout comes to have a higher version: that is nonsense.
const LAYOUT_VERSION_MAX: u64 = 0xffff;

fn new_completion_page(shape: Shape, log_id: [u8; 16], epoch: u32) -> Result<(OwnedFd, Mapped), OpenError> {
    let file = os::file("clad-completion-page", shape.completion_page_bytes())?;
    let completion_page = Mapped::new(&file, shape.completion_page_bytes(), MapMode::ReadWrite)?;
    os::seal_completion_page(&file)?;
    completion_page.populate();
    completion_page::create(&completion_page, shape, log_id, epoch);
    Ok((file, completion_page))
}

/// Maps a ring that another process made; all that its header says is checked against the file's size.
pub(crate) fn map_ring(file: &OwnedFd) -> Result<(Mapped, Shape), OpenError> {
    let size = os::sealed_size(file)?;
    if size < at::SLOT_TABLE as u64 || size > Shape::LARGEST as u64 {
        return Err(OpenError::Foreign);
    }
    let ring = Mapped::new(file, size as usize, MapMode::ReadWrite)?;
    if ring.load(at::MAGIC, Ordering::Acquire) != RING_MAGIC {
        return Err(OpenError::Foreign);
    }
    match ring.load(at::VERSION, Ordering::Relaxed) {
        VERSION => {}
        other @ 1..=LAYOUT_VERSION_MAX => return Err(OpenError::Version(other)),
        _ => return Err(OpenError::Foreign),
    }
    let word = |at| u32::try_from(ring.load(at, Ordering::Relaxed)).map_err(|_| OpenError::Foreign);
    let shape = Shape::new(word(at::DATA_BYTES)?, word(at::SLOTS)?).map_err(|_| OpenError::Foreign)?;
    if shape.ring_bytes() as u64 != size {
        return Err(OpenError::Foreign);
    }
    Ok((ring, shape))
}
