//! Simulated disk and crash checker for clad's journal (not shipped).
//!
//! Everything here is a function of one seed: no clock, no random numbers of the operating system, no order of a
//! hash. Whatever a run finds, the same seed finds again, as long as one thread drives it.

mod clock;
pub mod disk;
mod rng;
pub mod world;

pub use clock::{START_REAL_NS, SimClock};
pub use disk::SimDisk;
pub use rng::Rng;
pub use world::World;
