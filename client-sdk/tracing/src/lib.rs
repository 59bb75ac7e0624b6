//! Logs of [`tracing`] and `log` to clad.
//!
//! ```no_run
//! let _guard = clad_tracing::init();
//! tracing::info!(order = 7, total = 12.5, "paid");
//! // Dropped at the end of main, the guard waits until the log has everything.
//! ```
//!
//! [`init`] finds the daemon by `CLAD_SERVER`, else at `/run/clad/clad.sock`. Where neither is there it warns once and logs
//! to stderr, so that a program starts on a laptop without clad. [`Setup`] has the settings; [`Layer`] goes with other
//! layers.
//!
//! # A record
//! | part | where it goes |
//! |---|---|
//! | `message` | the body |
//! | other fields | attributes with their types; a number beyond 64 bits, and whatever has only `Debug`, as text |
//! | level | severity: TRACE 1, DEBUG 5, INFO 9, WARN 13, ERROR 17 |
//! | callsite | attributes `log.target`, `code.namespace`, `code.file.path`, `code.line.number`; a name of its own is the event name |
//! | spans | attribute `spans`: a list, the outermost first, each with `name` and its fields; the inner 100 |
//! | OpenTelemetry | trace and span id (feature `opentelemetry`) |
//!
//! A record that is longer than the log takes is cut: its texts first (attribute `log.truncated`), then its fields and
//! spans.
//!
//! # What a call costs
//! It never waits, unless [`Overload`](clad_client::Overload) says so, and then as long as that says. It never panics,
//! also where a `Debug` does: its text says so instead. Over a socket it allocates at most once in 16 events. Of what it drops it counts
//! each record ([`Stats`](clad_client::Stats)); when there is room, a record of the log says how many and when. The first
//! record that ends with an error is a line on stderr, where [`Setup`] made the producer. An event
//! logged by a `Debug` while another is being written is dropped, and counted. Events of clad's own client are ignored.
//! Nothing here may be called in a signal handler.
//!
//! # The end
//! [`Guard`] flushes when it is dropped, and a panic hook sends what was logged before a panic, with the panic itself.
//! `std::process::exit` drops no guard: call [`Guard::flush`] before. A child of `fork` calls [`Guard::begin_again`]: until
//! then its records are refused.

mod callsite;
mod current;
mod error;
mod guard;
mod layer;
mod local;
#[cfg(feature = "log")]
mod log_bridge;
#[cfg(feature = "opentelemetry")]
mod otel;
mod panic_hook;
mod setup;
mod text;
mod visit;

pub use error::SetupError;
pub use guard::Guard;
pub use layer::Layer;
#[cfg(feature = "log")]
pub use log_bridge::Logger;
pub use setup::{Setup, init};
