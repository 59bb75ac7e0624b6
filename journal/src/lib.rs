//! The storage engine of clad: opaque payloads to batches to segments to watermarks.
//!
//! An append is taken, gets its offset and is answered `received` without waiting for the disk; batches of appends
//! are written to prepared segments by the policy that the operator picked; the watermarks `written` and `durable`
//! follow on observed success only. `docs/FORMAT.md` says what lies on the disk, `docs/DURABILITY.md` what each
//! level survives.
//!
//! ```text
//! append ─▶ Committer (sequencer, gather) ─▶ Job ─▶ Executor ─▶ Storage
//!              ▲                                        │
//!              └────────────── Done / Failure ◀─────────┘        watermarks ─▶ whoever waits
//! ```
//! The committer and the recovery plan are plain state machines; threads stand around them in `journal/`.

#[cfg(not(target_os = "linux"))]
compile_error!("clad runs on Linux (5.10 or newer): it needs RWF_DSYNC, O_DIRECT and flock as Linux has them");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("clad runs on x86-64 and aarch64");

mod active;
mod background;
mod batch_builder;
mod body;
mod buffer_pool;
mod catalog;
pub mod clock;
mod clock_trust;
mod committer;
mod config;
mod env;
mod error;
mod executor;
mod faults;
pub mod format;
pub mod io;
mod journal;
mod metafile;
mod offline;
pub mod owner_bytes;
mod pending_reclaim;
mod permit;
mod prepare;
mod producer;
mod reader;
pub mod recovery;
pub mod repair;
mod seal;
mod segment_file;
mod segment_reader;
pub mod stepper;
mod sync;
mod verify;
mod watcher;
mod watermark;
mod window;
mod workers;

pub use batch_builder::Batch;
pub use body::Body;
pub use catalog::{Proof, Sealed, Summary};
pub use clock_trust::Doubt;
pub use committer::{Accepted, Append, Item, RotateAnswer, Sender};
pub use config::{JournalConfig, Policy, Retention, SEGMENT_BYTES_MIN, SEGMENT_OVERHEAD_BYTES};
pub use env::{Event, Observer, Rule, Trigger};
pub use error::{AppendError, OpenError, ReadError};
#[doc(hidden)] // for tests; without the feature `faults` there is no way to turn one on
pub use faults::{Fault, Faults};
pub use io::bulk;
pub use journal::{DeferredWrite, Journal, Losses, SegmentSummary, Stalled, Status, WriteBuffer};
pub use offline::{BrokenSegment, OfflineLog, OfflineReader, look};
pub use permit::{Permit, PermitPool};
pub use producer::{ProducerId, ProducerState};
pub use reader::{Found, Reader};
pub use verify::{Problem, VerifyReport, verify};
pub use watcher::Watcher;
pub use watermark::{Accepting, Closed, Level, Wants, Watermarks};
