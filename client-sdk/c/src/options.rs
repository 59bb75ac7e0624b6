//! Settings of a producer and of a call.

use std::ffi::c_char;
use std::time::Duration;

use clad_client::{AckLevel, Address, Call, Overload, Producer, ProducerBuilder, ProducerId, Severity};

use crate::error::Failure;
use crate::pointers::{self, Grows};
use crate::status::{clad_overload, clad_status};

/// Names the daemon where the program does not.
const SERVER_VARIABLE: &str = "CLAD_SERVER";
/// Socket of the host's daemon.
const SOCKET: &str = "/run/clad/clad.sock";
/// Bytes of a producer's id.
pub(crate) const ID_BYTES: usize = 16;

/// Settings of a producer. Begin with CLAD_OPTIONS_INIT; what is 0 or NULL has its default. Nothing is kept of what the
/// pointers point to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_options {
    /// sizeof(clad_options).
    pub size: usize,
    /// unix://PATH, tcp://HOST:PORT, shm://PATH (a ring of shared memory), or within TLS
    /// tcp+tls://HOST:PORT?ca=FILE&cert=FILE&key=FILE&server_name=NAME. Default: the environment's CLAD_SERVER, else
    /// unix:///run/clad/clad.sock.
    pub address: *const c_char,
    /// The component (service.name) of the records. Default: the name of the program's file.
    pub component: *const c_char,
    /// 16 bytes that name a producer which the program resumes after its own end; needs a higher producer_epoch each
    /// time. Default: a random id.
    pub producer_id: *const u8,
    /// The secret that the id is bound to over TCP, 32 bytes at most. Default: random.
    pub secret: *const u8,
    /// Bytes of the secret.
    pub secret_len: usize,
    /// Fences off the producer's lower epochs. Only with producer_id.
    pub producer_epoch: u32,
    /// A clad_level: that of a call which names none.
    pub level: u32,
    /// A clad_level: clad_connect() waits, for 30 seconds at most, until the last record that the log has of producer_id
    /// has reached it. Default: it does not.
    pub resume_level: u32,
    /// A clad_overload: the rule of a call which names none.
    pub overload: u32,
    /// Of CLAD_OVERLOAD_DROP_BELOW.
    pub keep_severity: i32,
    /// The longest wait for room, milliseconds; 0 never waits.
    pub wait_ms: u64,
    /// Bytes that may wait for their receipts, 256 for each record included; 1 KiB to 4 GiB. Default: 16 MiB.
    pub max_buffered_bytes: u64,
    /// Records that are grouped into one append while the producer is busy, up to 2^20. Default: 1.
    pub max_append_records: u32,
    /// The first wait between tries to connect, milliseconds; doubled each time. Default: 10.
    pub backoff_first_ms: u32,
    /// The longest of these waits. Default: 2000.
    pub backoff_max_ms: u32,
    /// The longest time of one try to connect, milliseconds. Default: 5000.
    pub connect_timeout_ms: u64,
    /// The longest time that a record is tried again while no daemon takes it, milliseconds. Default: 300000.
    pub delivery_timeout_ms: u64,
}

/// Settings of one call. Begin with CLAD_CALL_INIT; what is 0 is that of the producer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_call {
    /// sizeof(clad_call).
    pub size: usize,
    /// A clad_level.
    pub level: u32,
    /// A clad_overload.
    pub overload: u32,
    /// Of CLAD_OVERLOAD_DROP_BELOW.
    pub keep_severity: i32,
    /// Of CLAD_OVERLOAD_WAIT and CLAD_OVERLOAD_DROP_BELOW, milliseconds.
    pub wait_ms: u64,
}

// SAFETY: `size` is first; zeroes are NULL and 0.
unsafe impl Grows for clad_options {}
// SAFETY: likewise.
unsafe impl Grows for clad_call {}

impl clad_options {
    /// The builder of a producer with these settings.
    pub(crate) fn builder(options: *const Self) -> Result<ProducerBuilder, Failure> {
        let Some(options) = pointers::sized("options", options)? else {
            return Ok(Producer::builder(address(None)?).component(program()));
        };
        let address = address(pointers::text("options.address", options.address)?)?;
        let component = pointers::text("options.component", options.component)?.map_or_else(program, str::to_owned);
        let mut builder = Producer::builder(address).component(component);
        if !options.producer_id.is_null() {
            let id = pointers::array("options.producer_id", options.producer_id, ID_BYTES)?;
            let id = ProducerId::from_bytes(id.try_into().unwrap_or_default());
            builder = builder.producer(id, options.producer_epoch);
        } else if options.producer_epoch != 0 {
            return Err(Failure::argument("options.producer_epoch needs a producer_id"));
        }
        if let Some(secret) = pointers::bytes("options.secret", options.secret.cast(), options.secret_len)? {
            builder = builder.secret(secret);
        }
        if let Some(level) = level(options.level)? {
            builder = builder.level(level);
        }
        if let Some(overload) = overload(options.overload, options.keep_severity, options.wait_ms)? {
            builder = builder.overload(overload);
        }
        if options.max_buffered_bytes != 0 {
            builder = builder.max_buffered_bytes(usize::try_from(options.max_buffered_bytes).unwrap_or(usize::MAX));
        }
        if options.max_append_records != 0 {
            builder = builder.max_append_records(options.max_append_records);
        }
        if (options.backoff_first_ms, options.backoff_max_ms) != (0, 0) {
            let first = if options.backoff_first_ms == 0 { 10 } else { options.backoff_first_ms };
            let max = if options.backoff_max_ms == 0 { 2000 } else { options.backoff_max_ms }.max(first);
            builder = builder.backoff(Duration::from_millis(first.into()), Duration::from_millis(max.into()));
        }
        if options.connect_timeout_ms != 0 {
            builder = builder.connect_timeout(Duration::from_millis(options.connect_timeout_ms));
        }
        if options.delivery_timeout_ms != 0 {
            builder = builder.delivery_timeout(Duration::from_millis(options.delivery_timeout_ms));
        }
        Ok(builder)
    }
}

impl clad_call {
    pub(crate) fn read(call: *const Self) -> Result<Call, Failure> {
        let mut made = Call::new();
        if let Some(call) = pointers::sized("call", call)? {
            if let Some(level) = level(call.level)? {
                made = made.at(level);
            }
            if let Some(overload) = overload(call.overload, call.keep_severity, call.wait_ms)? {
                made = made.on_overload(overload);
            }
        }
        Ok(made)
    }
}

/// The daemon at an address, or the one that the environment or the host names.
pub(crate) fn address(named: Option<&str>) -> Result<Address, Failure> {
    let text = match named {
        Some(text) => text.to_owned(),
        None => match std::env::var(SERVER_VARIABLE).ok().filter(|text| !text.is_empty()) {
            Some(text) => text,
            None => return Ok(Address::unix(SOCKET)),
        },
    };
    text.parse().map_err(|error| Failure::new(clad_status::CLAD_ERR_ADDRESS, format!("{error}")))
}

/// Level of a number from C; nothing for CLAD_LEVEL_DEFAULT.
pub(crate) fn level(number: u32) -> Result<Option<AckLevel>, Failure> {
    let code = match number {
        0 => return Ok(None),
        1..=5 => u8::try_from(number - 1).ok().and_then(AckLevel::from_code),
        _ => None,
    };
    code.map(Some).ok_or_else(|| Failure::argument(format!("{number} is no level")))
}

fn overload(number: u32, keep_severity: i32, wait_ms: u64) -> Result<Option<Overload>, Failure> {
    let wait = Duration::from_millis(wait_ms);
    Ok(Some(match number {
        x if x == clad_overload::CLAD_OVERLOAD_DEFAULT as u32 => return Ok(None),
        x if x == clad_overload::CLAD_OVERLOAD_DROP_NEWEST as u32 => Overload::DropNewest,
        x if x == clad_overload::CLAD_OVERLOAD_WAIT as u32 => Overload::Wait(wait),
        x if x == clad_overload::CLAD_OVERLOAD_DROP_OLDEST as u32 => Overload::DropOldest,
        x if x == clad_overload::CLAD_OVERLOAD_DROP_BELOW as u32 => {
            Overload::DropBelow { severity: Severity(keep_severity), wait }
        }
        _ => return Err(Failure::argument(format!("{number} is no rule for overload"))),
    }))
}

fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}
