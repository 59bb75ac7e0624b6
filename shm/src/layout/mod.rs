//! Where everything lies, byte by byte. All numbers are little-endian; every field is an aligned `u64`.
//!
//! **The ring** is one file, mapped read-write by both ends:
//!
//! | at | what | who writes it |
//! |---|---|---|
//! | 0 | magic `CLADRING` | daemon, once |
//! | 8 | version of this layout, 2 | daemon, once |
//! | 16 | bytes of the data area, a power of two | daemon, once |
//! | 24 | slots, a power of two | daemon, once |
//! | 64 | **head**: what is reserved ([`Cursor`]; the top bit says closed) | client; either end sets the top bit |
//! | 128 | threads that wait for acks | client |
//! | 136 | threads that wait for space | client |
//! | 192 | **tail**: below it, all was given back ([`Cursor`]) | daemon |
//! | 200 | the full append number of the tail (a hint for its high bits) | daemon |
//! | 208 | most abandoned regions: 0, none | daemon |
//! | 216 | sleep: odd while the daemon sleeps, raised by 1 at each change | daemon; a client that woke it raises it |
//! | 224 | bell for space (futex: the low 4 bytes) | daemon; a client that closes the ring |
//! | 232 | bell for acks (futex: the low 4 bytes) | daemon; a client that attaches a completion page |
//! | 240 | one past the last append that was refused | daemon |
//! | 248 | epoch of the log, as on the completion page: here it lies in the line that each push reads | daemon |
//! | 256, 288 | two checkpoints: tail word, append number, sequence, one past its last offset in the log | daemon |
//! | 320 | 16 abandoned regions: range, append number + 1 | daemon |
//! | 576 | 16 words: the append number + 1 whose writer has left the region | client |
//! | 704, 712, 720 | id and epoch of the log that has what was given back; epoch 0: that is not known | daemon |
//! | 728 | the log has lost of that, and no flush has reported it: 1 | daemon |
//! | 4096 | slots, 8 bytes each | client commits, daemon abandons |
//! | … | data area | client |
//!
//! **The completion page** is a second file that only the daemon can write (`F_SEAL_FUTURE_WRITE`); see
//! `completion_page.rs`.

pub(crate) mod completion_page;
pub(crate) mod entry;
mod offsets;
mod shape;
pub(crate) mod space;
mod words;

pub use offsets::{ABANDONED_REGIONS_MAX, VERSION};
pub(crate) use offsets::{ANSWER, COMPLETION_PAGE_MAGIC, PAGE, RING_MAGIC, UNIT, at};
pub use shape::Shape;
pub(crate) use shape::units_of;
pub(crate) use words::{Cursor, Slot, State};
