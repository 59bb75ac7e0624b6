//! The storage engine of clad: opaque payloads to batches to segments to watermarks.
//!
//! An append is taken, gets its offset and is answered `received` without waiting for the disk; batches of appends
//! are written to prepared segments by the policy that the operator picked; the watermarks `written` and `durable`
//! follow on observed success only. `docs/FORMAT.md` says what lies on the disk, `docs/DURABILITY.md` what each
//! level survives.
//!
//! ```text
//! append ─▶ Committer (sequencer, batch)  ─▶ Job ─▶ Executor ─▶ Storage
//!              ▲                                        │
//!              └────────────── Done / Failure ◀─────────┘        watermarks ─▶ whoever waits
//! ```
//! The committer and the recovery plan are plain state machines; threads stand around them in `run/`. Imports point one
//! way: `format` < `io` < `write` < `run` < `recover`; `handle` and `stepper` stand above them.

#[cfg(not(target_os = "linux"))]
compile_error!("clad runs on Linux (5.10 or newer): it needs RWF_DSYNC, O_DIRECT and flock as Linux has them");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("clad runs on x86-64 and aarch64");

pub mod clock;
mod config;
mod env;
mod error;
pub mod format;
mod handle;
pub mod io;
mod read;
pub mod recover;
pub mod repair;
mod run;
pub mod stepper;
mod sync;
mod verify;
mod write;

pub use config::{JournalConfig, Policy, Retention, SEGMENT_BYTES_MIN, SEGMENT_OVERHEAD_BYTES};
pub use env::{Event, Observer, Rule, Trigger};
pub use error::{AppendError, CursorError, OpenError, Parting, ReadError};
pub use format::cursors::NamedCursor;
pub use format::origin::{ForwardedAppend, Origin, OriginEntry, StreamName};
pub use format::resend::ResendKey;
pub use handle::Journal;
pub use handle::losses::Losses;
pub use handle::status::{Stalled, Status};
pub use io::body::Body;
pub use io::bulk;
pub use read::catalog::{Proof, Sealed, Summary};
pub use read::listing::SegmentSummary;
pub use read::offline::{BrokenSegment, OfflineLog, OfflineReader, look};
pub use read::reader::{Found, Reader};
#[doc(no_inline)]
pub use recover as recovery;
pub use run::deferred::{AppendOutcome, DeferredWrite, WriteBuffer};
pub use run::waiters::Watcher;
pub use verify::{Problem, VerifyReport, verify};
pub use write::batch::Batch;
pub use write::clock_trust::Doubt;
pub use write::committer::{Accepted, AfterRefusal, Append, Item, RotateAnswer, Sender};
pub use write::cursor_table::CursorChange;
pub use write::origin::Forward;
pub use write::owner_bytes;
pub use write::permits::{Permit, PermitPool};
pub use write::producer::{ProducerId, ProducerState};
pub use write::watermarks::{Accepting, Closed, Level, Wants, Watermarks};
