//! A LogRecord of `logging`, and the arguments of an append, as a record of the log.
//!
//! Names are made when the module is loaded. A lazy one waits for ever in a child of a fork that came while another
//! thread was making it.

use crate::value::{Encoder, Extent, with_text};
use clad_client::Batch;
use clad_proto::{Body, EncodeError, KvWriter, RecordHead};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names that `logging` itself puts into a record, in its order, and that formatters add: all else is `extra`.
const STANDARD: [&str; 25] = [
    "name",
    "msg",
    "args",
    "levelname",
    "levelno",
    "pathname",
    "filename",
    "module",
    "exc_info",
    "exc_text",
    "stack_info",
    "lineno",
    "funcName",
    "created",
    "msecs",
    "relativeCreated",
    "thread",
    "threadName",
    "processName",
    "process",
    "taskName",
    "message",
    "asctime",
    "otelServiceName",
    "otelTraceSampled",
];
/// Attributes that OpenTelemetry's instrumentation of `logging` adds.
const TRACE_ID: &str = "otelTraceID";
const SPAN_ID: &str = "otelSpanID";
const LEVEL_NAMES_STEP: i64 = 10;

static STANDARD_NAMES: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();

const NAME: usize = place("name");
const LEVEL_NAME: usize = place("levelname");
const LEVEL_NUMBER: usize = place("levelno");
const PATH_NAME: usize = place("pathname");
const LINE_NUMBER: usize = place("lineno");
const FUNCTION_NAME: usize = place("funcName");
const CREATED: usize = place("created");
const THREAD: usize = place("thread");
const THREAD_NAME: usize = place("threadName");

/// The place of a name among the standard ones.
const fn place(name: &str) -> usize {
    let mut at = 0;
    while !STANDARD[at].as_bytes().eq_ignore_ascii_case(name.as_bytes()) {
        at += 1;
    }
    at
}

fn standard_names(py: Python<'_>) -> &[Py<PyString>] {
    STANDARD_NAMES.get_or_init(py, || STANDARD.map(|name| PyString::intern(py, name).unbind()).into_iter().collect())
}

/// Makes what is otherwise made at its first use: see the module.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    standard_names(py);
    let fields =
        c"dict(body=0, time=0, severity=0, severity_text='', attributes={}, trace_id=b'', span_id=b'', event_name='')";
    py.eval(fields, None, None)?.extract::<Fields<'_>>().map(drop)
}

/// A level of `logging` as a severity number: DEBUG 5, INFO 9, WARNING 13, ERROR 17, CRITICAL 21. Levels between them
/// are up to 3 higher.
fn severity(level: i64) -> i32 {
    let (step, rest) = (level.div_euclid(LEVEL_NAMES_STEP), level.rem_euclid(LEVEL_NAMES_STEP));
    match step {
        ..0 => 0,
        0 => i32::from(level > 0),
        1..=5 => (step * 4 + 1 + rest.min(3)) as i32,
        _ => 24,
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds a LogRecord to a batch: its dict, its text, and pairs that go in front. In full if the log takes it so, else cut;
/// answers whether it was cut.
pub(crate) fn push_log_record(
    batch: &mut Batch,
    fields: &Bound<'_, PyDict>,
    body: &Bound<'_, PyString>,
    more: Option<&Bound<'_, PyDict>>,
) -> PyResult<Result<bool, EncodeError>> {
    let names = standard_names(fields.py());
    let field = |place: usize| fields.get_item(&names[place]);
    let created = field(CREATED)?.and_then(|at| at.extract::<f64>().ok()).unwrap_or_default();
    let level = field(LEVEL_NUMBER)?.and_then(|at| at.extract::<i64>().ok()).unwrap_or_default();
    let now = unix_nanos();
    let head = RecordHead {
        time_unix_nano: (created * 1e9) as u64,
        observed_time_unix_nano: now,
        severity_number: severity(level),
        ..RecordHead::default()
    };
    let extra = extra(fields);
    let find = |name| extra.iter().find(|(key, _)| key.to_str().is_ok_and(|key| key == name)).map(|(_, value)| value);
    let (trace, span) = (find(TRACE_ID).and_then(hex::<16>), find(SPAN_ID).and_then(hex::<8>));
    let level_name = field(LEVEL_NAME)?;
    let texts = [
        ("log.target", NAME),
        ("code.file.path", PATH_NAME),
        ("code.function.name", FUNCTION_NAME),
        ("thread.name", THREAD_NAME),
    ];
    let numbers = [("code.line.number", LINE_NUMBER), ("thread.id", THREAD)];
    push(batch, |batch, encoder, extent| {
        let mut writer = encoder.text(body, |text| batch.builder().record(head, Body::Text(text)));
        with_name(level_name.as_ref(), |name| {
            writer.severity_text(name);
        });
        writer.attributes(|pairs| {
            for (key, place) in texts {
                if let Ok(Some(value)) = field(place)
                    && !value.is_none()
                {
                    encoder.write(&value, pairs.entry(key), 0);
                }
            }
            for (key, place) in numbers {
                if let Ok(Some(value)) = field(place)
                    && let Ok(value) = value.extract::<i64>()
                {
                    pairs.entry(key).int(value);
                }
            }
            if let Some(more) = more {
                encoder.pairs(more, pairs, 0);
            }
            if extent != Extent::Bare {
                for (key, value) in &extra {
                    encoder.pair(key.as_any(), value, pairs, 0);
                }
            }
            note_cut(pairs, extent);
        });
        if let (Some(trace), Some(span)) = (&trace, &span) {
            writer.trace_id(trace).span_id(span);
        }
        writer.commit()
    })
}

/// Pairs that the program added to a record. No foreign code runs here, so the dict stays as it is.
fn extra<'py>(fields: &Bound<'py, PyDict>) -> Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)> {
    let names = standard_names(fields.py());
    let mut extra = Vec::new();
    for (index, (key, value)) in fields.iter().enumerate() {
        // Almost always it is the same string at the same place.
        let is_here = names.get(index).is_some_and(|name| name.as_ptr() == key.as_ptr());
        if is_here || names.iter().any(|name| name.as_ptr() == key.as_ptr()) {
            continue;
        }
        let Ok(key) = key.cast_into::<PyString>() else { continue };
        if !key.to_str().is_ok_and(|key| STANDARD.contains(&key)) {
            extra.push((key, value));
        }
    }
    extra
}

fn with_name(name: Option<&Bound<'_, PyAny>>, f: impl FnOnce(&str)) {
    if let Some(name) = name.and_then(|name| name.cast::<PyString>().ok()) {
        with_text(name, f);
    }
}

fn note_cut(pairs: &mut KvWriter<'_>, extent: Extent) {
    if extent != Extent::Whole {
        pairs.entry("log.truncated").boolean(true);
    }
}

/// Digits of an id; all zeros are none.
fn hex<const BYTES: usize>(text: &Bound<'_, PyAny>) -> Option<[u8; BYTES]> {
    let text = text.cast::<PyString>().ok()?.to_str().ok()?;
    let mut id = [0; BYTES];
    let digits = text.as_bytes();
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    (id != [0; BYTES]).then_some(id)
}

/// The arguments of an append.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Fields<'py> {
    body: Bound<'py, PyAny>,
    time: Option<u64>,
    severity: i32,
    severity_text: String,
    attributes: Option<Bound<'py, PyDict>>,
    trace_id: Vec<u8>,
    span_id: Vec<u8>,
    event_name: String,
}

/// Adds the record of an append to a batch, whole or not at all.
pub(crate) fn push_fields(batch: &mut Batch, fields: &Fields<'_>) -> PyResult<Result<(), EncodeError>> {
    let now = unix_nanos();
    let head = RecordHead {
        time_unix_nano: fields.time.unwrap_or(now),
        observed_time_unix_nano: now,
        severity_number: fields.severity,
        ..RecordHead::default()
    };
    let mut encoder = Encoder::new(Extent::Whole);
    let mut writer = match fields.body.is_none() {
        true => batch.builder().record(head, Body::Absent),
        false => batch.builder().record_with(head, |to| encoder.write(&fields.body, to, 0)),
    };
    writer.severity_text(&fields.severity_text);
    if let Some(attributes) = &fields.attributes {
        writer.attributes(|pairs| encoder.pairs(attributes, pairs, 0));
    }
    writer.trace_id(&fields.trace_id).span_id(&fields.span_id).event_name(&fields.event_name);
    match encoder.interrupt {
        Some(interrupt) => Err(interrupt),
        None => Ok(writer.commit()),
    }
}

/// Tries to write a record in full, then less of it: true.
fn push(
    batch: &mut Batch,
    mut write: impl FnMut(&mut Batch, &mut Encoder, Extent) -> Result<(), EncodeError>,
) -> PyResult<Result<bool, EncodeError>> {
    let mut result = Ok(false);
    for extent in Extent::ALL {
        let mut encoder = Encoder::new(extent);
        result = write(batch, &mut encoder, extent).map(|()| extent != Extent::Whole);
        if let Some(interrupt) = encoder.interrupt {
            batch.clear();
            return Err(interrupt);
        }
        if !matches!(result, Err(EncodeError::RecordTooLarge { .. })) {
            break;
        }
    }
    Ok(result)
}
