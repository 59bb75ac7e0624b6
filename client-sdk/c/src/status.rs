//! The enumerations of clad.h. C hands them over as integers.

use clad_client::AckLevel;

/// Outcome of a call. Every error is CLAD_ERR_ARGUMENT or higher; clad_error_text() and its neighbours say more.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_status {
    /// Done.
    CLAD_OK = 0,
    /// The time is over and nothing is decided: wait again.
    CLAD_PENDING = 1,
    /// A reader has given everything.
    CLAD_END = 2,
    /// An argument is NULL, not in its enumeration, freed, or not what it should be. Nothing was done.
    CLAD_ERR_ARGUMENT = 10,
    /// The address is none, or of a transport that this library does not speak (unix, shm, tcp and tcp+tls).
    CLAD_ERR_ADDRESS = 11,
    /// No connection: nobody listens, no answer in time, not allowed.
    CLAD_ERR_CONNECT = 12,
    /// The daemon refuses; clad_error_code() says why.
    CLAD_ERR_REFUSED = 13,
    /// The log does not offer this level. It is never lowered.
    CLAD_ERR_LEVEL = 14,
    /// Longer than the log, or the memory of the producer, takes.
    CLAD_ERR_TOO_LARGE = 15,
    /// There was no room, and by the rule for that the record was dropped. It is counted.
    CLAD_ERR_DROPPED = 16,
    /// Given up: no daemon, or one that takes nothing, for too long.
    CLAD_ERR_TIMEOUT = 17,
    /// This process is a child of the one that made the handle: free it, and make one here.
    CLAD_ERR_FORKED = 18,
    /// The producer was closed, or has failed: clad_flush() says which.
    CLAD_ERR_CLOSED = 19,
    /// The daemon has refused this producer for good, for example since a newer epoch of it exists.
    CLAD_ERR_FAILED = 20,
    /// Acknowledged records did not survive a crash that their level does not cover. Only clad_flush() says so.
    CLAD_ERR_LOST = 21,
    /// The daemon has forgotten the producer, or another log answers: nobody knows if the record is stored.
    CLAD_ERR_UNKNOWN = 22,
    /// The cursor belongs to an abandoned history, or to another log.
    CLAD_ERR_CURSOR = 23,
    /// Records came damaged.
    CLAD_ERR_DAMAGED = 24,
    /// A defect of this library, or no memory or thread.
    CLAD_ERR_INTERNAL = 25,
}

/// Safety of an acknowledged record, lowest first.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_level {
    /// Of a call: that of the producer. Of a producer: the highest that the log offers.
    CLAD_LEVEL_DEFAULT = 0,
    /// No answer is sent, nothing is promised.
    CLAD_LEVEL_NONE = 1,
    /// In a stored ring of shared memory, without an offset (shm:// under systemd only).
    CLAD_LEVEL_POSTED = 2,
    /// The daemon holds the record: it survives this process.
    CLAD_LEVEL_RECEIVED = 3,
    /// The kernel has completed the write: it survives the daemon.
    CLAD_LEVEL_WRITTEN = 4,
    /// On stable storage: it survives power loss.
    CLAD_LEVEL_DURABLE = 5,
}

/// Severity numbers of OpenTelemetry; any other number is kept as well.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_severity {
    /// Fine-grained debugging.
    CLAD_TRACE = 1,
    /// Debugging.
    CLAD_DEBUG = 5,
    /// Informational.
    CLAD_INFO = 9,
    /// A warning.
    CLAD_WARN = 13,
    /// An error.
    CLAD_ERROR = 17,
    /// The program cannot continue.
    CLAD_FATAL = 21,
}

/// Rule for a record that finds no room (max_buffered_bytes). Every drop is counted, and becomes a record of the log.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_overload {
    /// Of a call: that of the producer. Of a producer: CLAD_OVERLOAD_DROP_NEWEST.
    CLAD_OVERLOAD_DEFAULT = 0,
    /// It is dropped. The call never waits.
    CLAD_OVERLOAD_DROP_NEWEST = 1,
    /// The call waits for room for at most wait_ms; then the record is dropped.
    CLAD_OVERLOAD_WAIT = 2,
    /// Records that were never sent make room, oldest first. The call never waits.
    CLAD_OVERLOAD_DROP_OLDEST = 3,
    /// Below keep_severity it is dropped; else others below make room, and the call waits for at most wait_ms.
    CLAD_OVERLOAD_DROP_BELOW = 4,
}

/// Type of a value.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_type {
    /// UTF-8 in data. What is not UTF-8 is stored as bytes.
    CLAD_TYPE_STRING = 1,
    /// Bytes in data.
    CLAD_TYPE_BYTES = 2,
    /// A number in integer.
    CLAD_TYPE_INT = 3,
    /// A number in real.
    CLAD_TYPE_DOUBLE = 4,
    /// In integer: 0 is false, anything else is true.
    CLAD_TYPE_BOOL = 5,
    /// Nothing. Only a reader gives it.
    CLAD_TYPE_EMPTY = 6,
    /// A list, or what else this header has no type for. Only a reader gives it, without its content.
    CLAD_TYPE_OTHER = 7,
}

/// The number of a level.
pub(crate) fn number(level: AckLevel) -> u32 {
    u32::from(level.code()) + 1
}

/// The name of a status, for example "CLAD_OK". Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn clad_status_name(status: i32) -> *const std::ffi::c_char {
    use clad_status::*;
    let name = match status {
        x if x == CLAD_OK as i32 => c"CLAD_OK",
        x if x == CLAD_PENDING as i32 => c"CLAD_PENDING",
        x if x == CLAD_END as i32 => c"CLAD_END",
        x if x == CLAD_ERR_ARGUMENT as i32 => c"CLAD_ERR_ARGUMENT",
        x if x == CLAD_ERR_ADDRESS as i32 => c"CLAD_ERR_ADDRESS",
        x if x == CLAD_ERR_CONNECT as i32 => c"CLAD_ERR_CONNECT",
        x if x == CLAD_ERR_REFUSED as i32 => c"CLAD_ERR_REFUSED",
        x if x == CLAD_ERR_LEVEL as i32 => c"CLAD_ERR_LEVEL",
        x if x == CLAD_ERR_TOO_LARGE as i32 => c"CLAD_ERR_TOO_LARGE",
        x if x == CLAD_ERR_DROPPED as i32 => c"CLAD_ERR_DROPPED",
        x if x == CLAD_ERR_TIMEOUT as i32 => c"CLAD_ERR_TIMEOUT",
        x if x == CLAD_ERR_FORKED as i32 => c"CLAD_ERR_FORKED",
        x if x == CLAD_ERR_CLOSED as i32 => c"CLAD_ERR_CLOSED",
        x if x == CLAD_ERR_FAILED as i32 => c"CLAD_ERR_FAILED",
        x if x == CLAD_ERR_LOST as i32 => c"CLAD_ERR_LOST",
        x if x == CLAD_ERR_UNKNOWN as i32 => c"CLAD_ERR_UNKNOWN",
        x if x == CLAD_ERR_CURSOR as i32 => c"CLAD_ERR_CURSOR",
        x if x == CLAD_ERR_DAMAGED as i32 => c"CLAD_ERR_DAMAGED",
        x if x == CLAD_ERR_INTERNAL as i32 => c"CLAD_ERR_INTERNAL",
        _ => c"CLAD_ERR_?",
    };
    name.as_ptr()
}

/// The version of the library, for example "0.0.1".
#[unsafe(no_mangle)]
pub extern "C" fn clad_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
