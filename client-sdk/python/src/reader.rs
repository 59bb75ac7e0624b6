//! A reader. Its runtime turns only in a call, in the thread of the caller, with Python's lock released.

use crate::errors;
use crate::filter::Wanted;
use crate::pending::{lock, seconds};
use crate::value::{level, to_python};
use clad_client::{Address, Chunk, Event, ReadError, Start};
use clad_proto::{Cursor, LogId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The longest wait before a look for signals of Python.
const SIGNAL_INTERVAL_MAX: Duration = Duration::from_millis(50);

/// Where to start, and what to read.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Plan<'py> {
    /// `oldest`, `offset`, `last` or `cursor`.
    start: String,
    number: u64,
    cursor: String,
    follow: bool,
    level: String,
    limit: u64,
    since: Option<i64>,
    until: Option<i64>,
    filter: Option<Wanted<'py>>,
    connect_timeout: Option<f64>,
    reconnect_timeout: Option<f64>,
}

/// Makes what is otherwise made at its first use: see `record`.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    let plan = c"dict(start='', number=0, cursor='', follow=False, level='', limit=0, since=None, until=None, \
        filter=__import__('types').SimpleNamespace(min_severity=0, components=[], attributes={}, body_contains='', \
        trace_id=b'', producer_id=''), connect_timeout=None, reconnect_timeout=None)";
    py.eval(plan, None, None)?.extract::<Plan<'_>>().map(drop)
}

struct Open {
    runtime: Runtime,
    reader: clad_client::Reader,
}

/// See the module.
#[pyclass(frozen, module = "clad._clad")]
pub(crate) struct Reader {
    open: Mutex<Option<Open>>,
    pid: u32,
}

impl Reader {
    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The next event within a time. `None`: none came. `Some(Ok(None))`: the end.
    fn next_within(&self, time: Duration) -> Option<Result<Option<(Event, LogId)>, ReadError>> {
        let mut open = lock(&self.open);
        let Some(Open { runtime, reader }) = open.as_mut() else { return Some(Ok(None)) };
        let next = runtime.block_on(async { tokio::time::timeout(time, reader.next()).await }).ok()?;
        let log_id = reader.log_id().unwrap_or_default();
        Some(next.map(|event| event.map(|event| (event, log_id))))
    }
}

#[pymethods]
impl Reader {
    /// Connects and starts to read.
    #[new]
    fn new(py: Python<'_>, address: &str, plan: Plan<'_>) -> PyResult<Self> {
        let address = address.parse::<Address>().map_err(|error| errors::address(py, error.to_string()))?;
        let start = match plan.start.as_str() {
            "oldest" => Start::Oldest,
            "offset" => Start::Offset(plan.number),
            "last" => Start::Tail(plan.number),
            "cursor" => {
                let cursor = plan.cursor.parse::<Cursor>();
                Start::Cursor(cursor.map_err(|error| PyValueError::new_err(error.to_string()))?)
            }
            other => return Err(PyValueError::new_err(format!("`{other}` is no place to start"))),
        };
        let mut builder = clad_client::Reader::builder(address).from(start).follow(plan.follow).limit(plan.limit);
        if let Some(level) = level(Some(&plan.level))? {
            builder = builder.level(level);
        }
        builder = plan.since.map_or(builder.clone(), |time| builder.since(time));
        builder = plan.until.map_or(builder.clone(), |time| builder.until(time));
        builder = plan.connect_timeout.map_or(builder.clone(), |time| builder.connect_timeout(seconds(time)));
        builder = plan.reconnect_timeout.map_or(builder.clone(), |time| builder.reconnect_timeout(seconds(time)));
        if let Some(wanted) = plan.filter {
            builder = builder.filter(wanted.filter()?);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (reader, runtime) = py.detach(|| (runtime.block_on(builder.open()), runtime));
        let reader = reader.map_err(|error| errors::read(py, &error))?;
        Ok(Self { open: Mutex::new(Some(Open { runtime, reader })), pid: std::process::id() })
    }

    /// The next event: a list of records, a gap or a place as a tuple. None at the end.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let (start, time) = (Instant::now(), timeout.map(seconds));
        loop {
            if self.is_forked() {
                return Err(errors::forked(py, false));
            }
            let left = time.map(|time| time.saturating_sub(start.elapsed()));
            let slice = left.unwrap_or(SIGNAL_INTERVAL_MAX).min(SIGNAL_INTERVAL_MAX);
            match py.detach(|| self.next_within(slice)) {
                Some(Ok(None)) => return Ok(None),
                Some(Ok(Some((event, log_id)))) => return of_event(py, &event, log_id).map(Some),
                Some(Err(error)) => return Err(errors::read(py, &error)),
                None => {}
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(errors::wait_timeout(py, "nothing to read in time"));
            }
        }
    }

    /// Ends it, once nothing waits in it.
    fn close(&self, py: Python<'_>) {
        if !self.is_forked() {
            py.detach(|| drop(lock(&self.open).take()));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.is_forked() {
            // The descriptors are the parent's too: to take them out of the runtime would take them out there.
            std::mem::forget(self.open.try_lock().ok().and_then(|mut open| open.take()));
        }
    }
}

fn of_event(py: Python<'_>, event: &Event, log_id: LogId) -> PyResult<Py<PyAny>> {
    match event {
        Event::Records(chunk) => Ok(records(py, chunk, log_id)?.into_any().unbind()),
        Event::Gap(gap) => {
            let reason = format!("{:?}", gap.reason).to_lowercase();
            Ok(("gap", gap.from, gap.to, reason).into_pyobject(py)?.into_any().unbind())
        }
        Event::CaughtUp { cursor } => Ok(("caught_up", cursor.to_string()).into_pyobject(py)?.into_any().unbind()),
        Event::Progress { cursor } => Ok(("progress", cursor.to_string()).into_pyobject(py)?.into_any().unbind()),
        _ => Ok(("other",).into_pyobject(py)?.into_any().unbind()),
    }
}

/// A stored record.
#[pyclass(frozen, get_all, name = "Record", module = "clad")]
pub(crate) struct PyRecord {
    offset: u64,
    epoch: u32,
    cursor: String,
    time: u64,
    observed_time: u64,
    append_time: u64,
    severity: i32,
    severity_text: String,
    body: Py<PyAny>,
    attributes: Py<PyAny>,
    event_name: String,
    trace_id: Py<PyBytes>,
    span_id: Py<PyBytes>,
    flags: u32,
    component: Option<String>,
    resource: Py<PyAny>,
    producer_id: String,
    sequence: u64,
    pid: Option<u32>,
    uid: Option<u32>,
    identity: Option<String>,
}

#[pymethods]
impl PyRecord {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Record(offset={}, severity={}, body={})", self.offset, self.severity, self.body.bind(py).repr()?))
    }
}

fn records<'py>(py: Python<'py>, chunk: &Chunk, log_id: LogId) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    let pairs = |pairs: clad_proto::KvsRef<'_>| -> PyResult<Py<PyAny>> {
        let dict = PyDict::new(py);
        for pair in pairs.iter() {
            dict.set_item(pair.key, to_python(py, pair.value)?)?;
        }
        Ok(dict.into_any().unbind())
    };
    let resource = chunk.group().and_then(|group| group.resource());
    let resource =
        resource.map_or_else(|| Ok(PyDict::new(py).into_any().unbind()), |found| pairs(found.attributes()))?;
    for (offset, record) in chunk.records() {
        let cursor = Cursor { log_id, epoch: chunk.epoch(), offset: offset + 1 };
        list.append(Py::new(
            py,
            PyRecord {
                offset,
                epoch: chunk.epoch(),
                cursor: cursor.to_string(),
                time: chunk.time(&record),
                observed_time: record.observed_time_unix_nano(),
                append_time: chunk.append_time(),
                severity: record.severity_number(),
                severity_text: record.severity_text().to_owned(),
                body: to_python(py, record.body())?.unbind(),
                attributes: pairs(record.attributes())?,
                event_name: record.event_name().to_owned(),
                trace_id: PyBytes::new(py, record.trace_id()).unbind(),
                span_id: PyBytes::new(py, record.span_id()).unbind(),
                flags: record.flags(),
                component: chunk.component().map(str::to_owned),
                resource: resource.clone_ref(py),
                producer_id: chunk.producer_id().to_string(),
                sequence: chunk.first_sequence() + (offset - chunk.first_offset()),
                pid: chunk.peer_meta().pid,
                uid: chunk.peer_meta().uid,
                identity: chunk.peer_meta().identity.clone(),
            },
        )?)?;
    }
    Ok(list)
}
