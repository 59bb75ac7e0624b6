//! Numbers of the layout: marks, sizes, and the offsets in the ring's header.

/// One unit of the data area, bytes: entries start and end at multiples of it.
pub(crate) const UNIT: u32 = 8;
pub(crate) const PAGE: usize = 4096;
pub(crate) const RING_MAGIC: u64 = u64::from_le_bytes(*b"CLADRING");
pub(crate) const COMPLETION_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"CLADBORD");
/// Version of a ring's layout.
pub const VERSION: u64 = 2;

/// Offsets in the ring's header.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const DATA_BYTES: usize = 16;
    pub(crate) const SLOTS: usize = 24;
    pub(crate) const HEAD: usize = 64;
    pub(crate) const ACK_WAITERS: usize = 128;
    pub(crate) const SPACE_WAITERS: usize = 136;
    pub(crate) const TAIL: usize = 192;
    pub(crate) const RELEASED: usize = 200;
    pub(crate) const ABANDONED_REGION_COUNT: usize = 208;
    pub(crate) const SLEEP: usize = 216;
    pub(crate) const SPACE_BELL: usize = 224;
    pub(crate) const ACK_BELL: usize = 232;
    pub(crate) const REFUSED: usize = 240;
    pub(crate) const EPOCH: usize = 248;
    pub(crate) const CHECKPOINTS: [usize; 2] = [256, 288];
    pub(crate) const ABANDONED_REGIONS: usize = 320;
    pub(crate) const LEFT: usize = 576;
    pub(crate) const STORED_LOG: [usize; 2] = [704, 712];
    pub(crate) const STORED_EPOCH: usize = 720;
    pub(crate) const LOST: usize = 728;
    pub(crate) const SLOT_TABLE: usize = super::PAGE;
}

/// Places for abandoned regions: threads that may be stopped in the middle of a copy before space behind them is held
/// up.
pub const ABANDONED_REGIONS_MAX: usize = 16;

/// Bytes of an answer on the completion page.
pub(crate) const ANSWER: usize = 32;
