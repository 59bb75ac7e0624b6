//! Costs of each way to make a write durable on a disk, and permission of this process to use io_uring there.
//!
//! Invariants:
//! - **Nothing is left behind**, however it ends: the trial file has no name where the file system can make such files.
//!   Else it has one until it is open, and loses it before the first measurement.
//! - **Every operation is timed by itself**, on the caller's clock, and given to the caller: no figure is made here.
//! - **Each write finds the space that its method is about**: fallocated space is made again before it is used up,
//!   outside of the timed part.
//! - It ends between two operations when the caller asks for it, and after the given time.
//!
//! `clactl probe` presents it.

mod method;
mod trial;
mod uring;

pub use method::{METHODS, Method, Space, Way};
pub use trial::{BLOCK, ProbeError, Trial};
pub use uring::{Uring, uring};
