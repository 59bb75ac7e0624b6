//! The configuration: layers, keys, checks, and where each value came from.
//!
//! Layers, weakest first: embedded defaults, `clad.toml`, `clad.d/*.toml` by name, environment (`CLAD_SECTION__KEY`),
//! flags (`--set section.key=value`). `--config FILE` replaces file and folder.
//!
//! Invariants: no file at all is fine; an unknown key or an impossible value is an error that names where it stands,
//! the key, and the nearest valid one; nothing is silently corrected; all errors are reported at once. The list of keys
//! is `schema.rs` and nothing else.
//!
//! The files: `types` has what the daemon uses; `defaults` the defaults with their reasons; `schema` the keys; `units`
//! and `value` read and show single values; `layers` reads and checks files, environment and flags; `load` reads the
//! merged values; `access` and `access_rules` have the rules of access; `rules` has the rules for the outcome; `validate` judges it, and `syslog` the
//! listeners that the operator names; `show` and `reload` use it.
//!
//! The crate `config` merges the layers, and keeps the origin of each value. It reports only the first error, keeps no
//! line of a file, and lets a table replace a value; so each layer is checked before the merge, in `layers`.

mod access;
mod access_rules;
mod defaults;
mod error;
mod layers;
mod load;
mod nearest;
mod origin;
mod reload;
mod rules;
mod schema;
mod show;
mod syslog;
mod types;
mod units;
mod validate;
mod value;

#[cfg(test)]
mod tests;

pub use access::{Id, Network, Pattern, Right, Who};
pub use defaults::{ADMIN_SOCKET, INGEST_SOCKET, LOCAL_DIR};
pub use error::{ConfigError, ConfigErrors};
pub use load::{CONFIG_FOLDER, LoadArgs, Loaded};
pub use origin::{Origin, Provenance};
pub use reload::{Change, ReloadRefused, reload_diff};
pub use rules::{
    MAX_GROUP_DELAY, MAX_IN_FLIGHT, MAX_RINGS, MAX_SEGMENT_BYTES, MIN_RETAINED_SEGMENTS, RING_BYTES,
    SEGMENT_BYTES_STEP, SEGMENT_OVERHEAD_BYTES, SIZE_LIMIT_BYTES_MIN,
};
pub(crate) use syslog::zone;
pub use types::{
    Access, AccessRule, Admin, Config, Daemon, DefaultAck, Durability, FireAndForget, GroupCommit, Ingest, IoEngine,
    Journal, Limits, Listener, Log, LogFormat, LogLevel, Metrics, Retention, Rotation, SharedMemory, UnixSocket,
};
pub use types::{SyslogAddress, SyslogFormat, SyslogListener, Tls, TlsVersion};
pub(crate) use units::{show_duration, show_size};
