//! The client's end of the protocol: reserve, fill, commit.
//!
//! ```text
//! 1  read head and tail, find the place
//! 2  exchange head: append number and space      the reservation; retried when another thread was faster
//! 3  copy header and payload
//! 4  exchange the slot: (append, place)          the commit: now it is `posted`
//! ```
//! **Any step may be the last one.** Between 2 and 4 nothing in the ring says where the entry starts: its slot is as it
//! was. The drain finds the next entry by the next append's slot, so it needs nothing of this one.
//!
//! **The drain may abandon it** when it waited for long enough, by an exchange of the same slot. Then 4 fails, and the
//! writer *leaves*: it reports in the slot that it will not write to the space any more. If the space has become an
//! abandoned region meanwhile, it reports it there, too. Until then that space is not reused.

use crate::checksum;
use crate::layout::entry::{HEADER, Header, TRAILER};
use crate::layout::space::{AbandonedRegion, fits_at_head, place};
use crate::layout::{ABANDONED_REGIONS_MAX, Cursor, Shape, Slot, State, at, units_of};
use crate::memory::{Memory, Ordering};

/// Why there is no reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSpace {
    Full,
    Closed,
    Damaged,
}

/// The bytes of an append.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    /// One part after the other.
    Parts(&'a [&'a [u8]]),
    /// Bytes and the trailer behind them (little-endian), whose CRC-32C is known.
    Summed { bytes: &'a [u8], sum: u32, trailer: u64 },
}

impl Content<'_> {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            Self::Summed { bytes, .. } => bytes.len() + TRAILER,
        }
    }
}

/// Space that is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// The append's number.
    pub(crate) append: u64,
    /// Where the entry starts.
    pub(crate) start: u32,
}

// A push is inlined whole, but for what is rare: behind an instruction that locks the processor loads nothing before
// that is done, so whatever lies on the stack meanwhile is waited for.

/// Takes an append number and space for `payload` bytes.
#[inline(always)]
pub(crate) fn reserve<M: Memory>(ring: &M, shape: Shape, payload: usize) -> Result<Reserved, NoSpace> {
    let need = units_of(payload);
    let mut head = Cursor(ring.load(at::HEAD, Ordering::Relaxed));
    loop {
        if head.is_closed() {
            return Err(NoSpace::Closed);
        }
        // Acquire: what the drain did with the space before it gave it back comes before what we do with it.
        let tail = Cursor(ring.load(at::TAIL, Ordering::Acquire));
        let near = ring.load(at::RELEASED, Ordering::Relaxed);
        let append = head.append(near);
        let held = head.ahead_of(tail.append(near));
        if held >= u64::from(shape.slots()) || head.place().wrapping_sub(tail.place()) > shape.units() {
            head = moved_on(ring, shape, head, held)?;
            continue;
        }
        // Acquire, as for the tail: a space that is no abandoned region any more was left by its writer before.
        let no_abandoned_regions = ring.load(at::ABANDONED_REGION_COUNT, Ordering::Acquire) == 0;
        let start = if no_abandoned_regions && fits_at_head(head.place(), tail.place(), shape.units(), need) {
            head.place()
        } else {
            place_further(ring, shape, (head, tail), need)?
        };
        let next = Cursor::new(append.wrapping_add(1), start.wrapping_add(need));
        // Relaxed: the reservation hands over no data; the slot's exchange does.
        match ring.exchange(at::HEAD, head.0, next.0, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(Reserved { append, start }),
            Err(now) => head = Cursor(now),
        }
    }
}

/// Head and tail together cannot be: another thread may have moved on and the drain have given back between our two
/// loads. Gives the head now, or why there is no space.
#[cold]
fn moved_on<M: Memory>(ring: &M, shape: Shape, head: Cursor, held: u64) -> Result<Cursor, NoSpace> {
    let now = Cursor(ring.load(at::HEAD, Ordering::Relaxed));
    if now != head {
        return Ok(now);
    }
    let full = held == u64::from(shape.slots());
    Err(if full { NoSpace::Full } else { NoSpace::Damaged })
}

/// Where the entry starts that has no space just at the head, or not for certain.
#[cold]
fn place_further<M: Memory>(ring: &M, shape: Shape, (head, tail): (Cursor, Cursor), need: u32) -> Result<u32, NoSpace> {
    let (regions, count) = match ring.load(at::ABANDONED_REGION_COUNT, Ordering::Acquire) {
        0 => ([AbandonedRegion::NONE; ABANDONED_REGIONS_MAX], 0),
        _ => regions(ring),
    };
    place(head.place(), tail.place(), shape.units(), need, &regions[..count]).ok_or(NoSpace::Full)
}

/// True if an append of `payload` bytes could be reserved now, or never will be because the ring is closed or damaged.
pub(crate) fn has_space<M: Memory>(ring: &M, shape: Shape, payload: usize) -> bool {
    let tail = Cursor(ring.load(at::TAIL, Ordering::Acquire));
    let head = Cursor(ring.load(at::HEAD, Ordering::Relaxed));
    let near = ring.load(at::RELEASED, Ordering::Relaxed);
    let (regions, count) = regions(ring);
    head.ahead_of(tail.append(near)) < u64::from(shape.slots())
        && place(head.place(), tail.place(), shape.units(), units_of(payload), &regions[..count]).is_some()
}

#[cold]
fn regions<M: Memory>(ring: &M) -> ([AbandonedRegion; ABANDONED_REGIONS_MAX], usize) {
    let mut found = [AbandonedRegion::NONE; ABANDONED_REGIONS_MAX];
    let mut count = 0;
    for index in 0..M::ABANDONED_REGIONS_MAX {
        if let Some(region) = AbandonedRegion::decode(ring.load(at::ABANDONED_REGIONS + index * 16, Ordering::Acquire))
        {
            found[count] = region;
            count += 1;
        }
    }
    (found, count)
}

/// Copies the entry into its space.
#[inline(always)]
pub(crate) fn fill<M: Memory>(ring: &M, shape: Shape, reserved: Reserved, content: Content<'_>, records: u32) {
    let base = shape.place_at(reserved.start) + HEADER;
    let (len, sum) = match content {
        Content::Parts([one]) => {
            ring.write(base, one);
            (one.len(), checksum::of(one))
        }
        Content::Parts(many) => {
            let (mut len, mut sum) = (0, None);
            for part in many.iter().filter(|part| !part.is_empty()) {
                ring.write(base + len, part);
                ring.point("fill: between two parts");
                sum = Some(sum.map_or_else(|| checksum::of(part), |sum| checksum::extend(sum, part)));
                len += part.len();
            }
            (len, sum.unwrap_or(0))
        }
        Content::Summed { bytes, sum, trailer } => {
            ring.write(base, bytes);
            ring.point("fill: between two parts");
            ring.write(base + bytes.len(), &trailer.to_le_bytes());
            (bytes.len() + TRAILER, sum)
        }
    };
    ring.point("fill: payload, no header");
    let mut header = Header { len: len as u32, records, ignored: 0, append: reserved.append as u32, check: 0 };
    header.check = header.expected(sum);
    for (index, word) in header.words().into_iter().enumerate() {
        ring.point("fill: header");
        ring.store(base - HEADER + index * 8, word, Ordering::Relaxed);
    }
}

/// Commits the entry. `false`: the drain has given it up before; nothing of it will ever be read.
#[inline(always)]
pub(crate) fn commit<M: Memory>(ring: &M, shape: Shape, reserved: Reserved) -> bool {
    let slot = shape.slot_at(reserved.append);
    let new = Slot::committed(reserved.append, reserved.start);
    let mut old = Slot(ring.load(slot, Ordering::Relaxed));
    loop {
        if !old.is_before(reserved.append) {
            leave(ring, shape, reserved.append);
            return false;
        }
        // Release: a thread that sees the commit sees the entry. Sequentially consistent with the look at the sleep
        // word.
        match ring.exchange(slot, old.0, new.0, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => old = Slot(now),
        }
    }
}

/// Reports that this writer will not write to the space of an abandoned append.
#[cold]
fn leave<M: Memory>(ring: &M, shape: Shape, append: u64) {
    let slot = shape.slot_at(append);
    let now = ring.load(slot, Ordering::Relaxed);
    if Slot(now).state_of(append) == State::Abandoned {
        // Release: our last stores to the space come before. It may fail: the slot is another append's by now.
        let _ = ring.exchange(slot, now, Slot::left(append).0, Ordering::SeqCst, Ordering::Relaxed);
    }
    ring.point("leave: in the slot, not in the region");
    // The drain makes the region, then looks at the slot; we write the slot, then look for the region. One sees the
    // other.
    ring.fence();
    for index in 0..M::ABANDONED_REGIONS_MAX {
        if ring.load(at::ABANDONED_REGIONS + index * 16 + 8, Ordering::Acquire) == append.wrapping_add(1) {
            ring.store(at::LEFT + index * 8, append.wrapping_add(1), Ordering::Release);
        }
    }
}
