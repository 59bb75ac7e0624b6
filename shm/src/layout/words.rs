//! Words that both ends exchange: head and tail, and the slot of an append.

const LOW31: u64 = (1 << 31) - 1;
const LOW30: u64 = (1 << 30) - 1;

/// Head or tail: how many appends, and where the next one starts. One word, so that one exchange takes both.
///
/// Bit 63: closed; bits 62 to 32: the low 31 bits of the append number; bits 31 to 0: the place in units, which grows
/// for ever and wraps at 2³² (the data area is a power of two).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) u64);

impl Cursor {
    pub(crate) const CLOSED: u64 = 1 << 63;

    pub(crate) const fn new(append: u64, place: u32) -> Self {
        Self((append & LOW31) << 32 | place as u64)
    }

    pub(crate) const fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    pub(crate) const fn place(self) -> u32 {
        self.0 as u32
    }

    /// Number of appends that this one is ahead of another; a huge number if it is behind.
    pub(crate) const fn ahead_of(self, append: u64) -> u64 {
        ((self.0 >> 32).wrapping_sub(append)) & LOW31
    }

    /// The full append number: the one nearest to `near` that has these low bits.
    pub(crate) const fn append(self, near: u64) -> u64 {
        let ahead = self.ahead_of(near);
        if ahead <= LOW31 / 2 { near.wrapping_add(ahead) } else { near.wrapping_sub(LOW31 + 1 - ahead) }
    }
}

/// State of a slot's append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing yet: free, or reserved.
    Pending,
    /// Committed; the entry starts at this place.
    Committed(u32),
    /// Abandoned by the drain. Its writer may still write into its space.
    Abandoned,
    /// Abandoned, and its writer knows and will not write any more.
    Left,
}

/// Bits 63, 62: state (0 free, 1 committed, 2 abandoned, 3 left); 61 to 32: the low 30 bits of the append number;
/// 31 to 0: the place at which the entry starts (committed only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    pub(crate) const fn committed(append: u64, place: u32) -> Self {
        Self(1 << 62 | (append & LOW30) << 32 | place as u64)
    }

    pub(crate) const fn abandoned(append: u64) -> Self {
        Self(2 << 62 | (append & LOW30) << 32)
    }

    pub(crate) const fn left(append: u64) -> Self {
        Self(3 << 62 | (append & LOW30) << 32)
    }

    /// The slot's state of `append`; for other appends the state is [`State::Pending`].
    pub(crate) const fn state_of(self, append: u64) -> State {
        if (self.0 >> 32) & LOW30 != append & LOW30 {
            return State::Pending;
        }
        match self.0 >> 62 {
            1 => State::Committed(self.0 as u32),
            2 => State::Abandoned,
            3 => State::Left,
            _ => State::Pending,
        }
    }

    /// True if the slot is still as an earlier append left it, so that `append` may commit in it.
    pub(crate) const fn is_before(self, append: u64) -> bool {
        if self.0 >> 62 == 0 {
            return true;
        }
        let behind = (append.wrapping_sub(self.0 >> 32)) & LOW30;
        behind != 0 && behind <= LOW30 / 2
    }
}
