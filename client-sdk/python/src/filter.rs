//! The filter of a reader, as `lib/clad/_types.py` has it.

use clad_client::{AnyValue, Filter, Severity};
use clad_proto::ProducerId;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyMapping, PyString};

/// Conditions that all hold.
#[derive(FromPyObject)]
pub(crate) struct Wanted<'py> {
    min_severity: i32,
    components: Vec<String>,
    attributes: Bound<'py, PyMapping>,
    body_contains: String,
    trace_id: Vec<u8>,
    producer_id: String,
}

impl Wanted<'_> {
    pub(crate) fn filter(self) -> PyResult<Filter> {
        let mut filter = Filter::new();
        if self.min_severity != 0 {
            filter = filter.severity_at_least(Severity(self.min_severity));
        }
        if !self.components.is_empty() {
            filter = filter.any(self.components.iter().map(|name| Filter::new().component(name)));
        }
        for pair in self.attributes.items()?.iter() {
            let (key, value) = pair.extract::<(String, Bound<'_, PyAny>)>()?;
            filter = filter.attribute(key, simple(&value)?);
        }
        if !self.body_contains.is_empty() {
            filter = filter.body_contains(self.body_contains);
        }
        if !self.trace_id.is_empty() {
            filter = filter.trace_id(self.trace_id);
        }
        if !self.producer_id.is_empty() {
            let id = self.producer_id.parse::<ProducerId>();
            filter = filter.producer(id.map_err(|error| PyValueError::new_err(error.to_string()))?);
        }
        Ok(filter)
    }
}

fn simple(value: &Bound<'_, PyAny>) -> PyResult<AnyValue> {
    Ok(if value.is_none() {
        AnyValue::Empty
    } else if let Ok(truth) = value.cast::<PyBool>() {
        AnyValue::Bool(truth.is_true())
    } else if value.cast::<PyInt>().is_ok() {
        AnyValue::Int(value.extract()?)
    } else if let Ok(number) = value.cast::<PyFloat>() {
        AnyValue::Double(number.value())
    } else if let Ok(text) = value.cast::<PyString>() {
        AnyValue::String(text.to_str()?.to_owned())
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        AnyValue::Bytes(bytes.as_bytes().to_vec())
    } else {
        return Err(PyTypeError::new_err("attributes are compared with None, bool, int, float, str or bytes"));
    })
}
