//! What every way of making a write durable costs on a disk, and whether this process may use io_uring there.
//!
//! What must hold:
//! - **Nothing is left behind**, however it ends: the trial file has no name where the file system can make such files,
//!   else it has one for as long as it takes to open it, and loses it before the first measurement.
//! - **Every operation is timed by itself**, on the caller's clock, and given to the caller: no figure is made here.
//! - **Each write finds the space that its method is about**: what is to be fallocated space is made anew before it is
//!   used up, outside of what is timed.
//! - It ends between two operations when it is asked to, and after the time that it was given.
//!
//! `clactl probe` presents it.

mod method;
mod trial;
mod uring;

pub use method::{METHODS, Method, Space, Way};
pub use trial::{BLOCK, FILE_BYTES, ProbeError, Trial};
pub use uring::{Uring, uring};
