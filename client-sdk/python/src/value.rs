//! Values of Python as values of a record, and back.
//!
//! Invariants: nothing that a program logs is refused for its type. Text that is no Unicode (lone surrogates) is escaped
//! as Python's own stderr does. Foreign code (`str()` of an object) may fail, log, or change the very list it is in; a
//! failure becomes text. Depth, number of values and length are bounded.

use clad_proto::{AckLevel, ArrayWriter, KvWriter, ValueRef, ValueWriter, limits::MAX_NESTING_DEPTH};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};

/// Values of one record, nested ones included: a list may hold itself many times.
const VALUES_MAX: usize = 16_384;
/// Bytes of texts in one record: more than any log takes.
const TEXT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The longest text in a record that was too long as a whole.
const CUT_TEXT_BYTES: usize = 32 * 1024;
/// Text in place of a value beyond a bound.
const LEFT_OUT: &str = "<left out: nested too deep, or too much>";

/// Extent to which a record is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// Texts cut.
    Texts,
    /// The same, and no attributes of the program.
    Bare,
}

impl Extent {
    /// From the whole to the least.
    pub(crate) const ALL: [Self; 3] = [Self::Whole, Self::Texts, Self::Bare];

    fn cut(self, text: &str) -> &str {
        match self {
            Self::Whole => text,
            _ => text.get(..text.floor_char_boundary(CUT_TEXT_BYTES)).unwrap_or(text),
        }
    }

    fn cut_bytes(self, bytes: &[u8]) -> &[u8] {
        match self {
            Self::Whole => bytes,
            _ => bytes.get(..CUT_TEXT_BYTES).unwrap_or(bytes),
        }
    }
}

/// Writes the values of one record.
pub(crate) struct Encoder {
    extent: Extent,
    values_left: usize,
    text_bytes_left: usize,
    /// An error that must reach the program although it logs: `KeyboardInterrupt` and the like.
    pub(crate) interrupt: Option<PyErr>,
}

impl Encoder {
    pub(crate) const fn new(extent: Extent) -> Self {
        Self { extent, values_left: VALUES_MAX, text_bytes_left: TEXT_BYTES_MAX, interrupt: None }
    }

    /// Writes a value that lies in `depth` lists.
    pub(crate) fn write(&mut self, value: &Bound<'_, PyAny>, to: ValueWriter<'_, '_>, depth: usize) {
        if self.values_left == 0 || self.interrupt.is_some() {
            return to.text(LEFT_OUT);
        }
        self.values_left -= 1;
        if value.is_none() {
            to.empty();
        } else if let Ok(text) = value.cast::<PyString>() {
            self.text(text, |text| to.text(text));
        } else if let Ok(truth) = value.cast::<PyBool>() {
            to.boolean(truth.is_true());
        } else if value.cast::<PyInt>().is_ok() {
            match value.extract::<i64>() {
                Ok(number) => to.int(number),
                Err(_) => self.foreign(value, to),
            }
        } else if let Ok(number) = value.cast::<PyFloat>() {
            to.double(number.value());
        } else if let Ok(bytes) = value.cast::<PyBytes>() {
            self.bytes(bytes.as_bytes(), to);
        } else if let Ok(bytes) = value.cast::<PyByteArray>() {
            self.bytes(&bytes.to_vec(), to);
        } else if let Ok(pairs) = value.cast::<PyDict>() {
            match depth {
                ..MAX_NESTING_DEPTH => to.kv_list(|list| self.pairs(pairs, list, depth + 1)),
                _ => to.text(LEFT_OUT),
            }
        } else if is_list(value) {
            match depth {
                ..MAX_NESTING_DEPTH => to.array(|array| self.items(value, array, depth + 1)),
                _ => to.text(LEFT_OUT),
            }
        } else {
            self.foreign(value, to);
        }
    }

    /// Writes the pairs of a dict. They are copied first: foreign code may change it meanwhile.
    pub(crate) fn pairs(&mut self, pairs: &Bound<'_, PyDict>, to: &mut KvWriter<'_>, depth: usize) {
        for pair in pairs.items() {
            match pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() {
                Ok((key, value)) => self.pair(&key, &value, to, depth),
                Err(error) => self.note(error),
            }
        }
    }

    /// Writes one pair.
    pub(crate) fn pair(
        &mut self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        to: &mut KvWriter<'_>,
        depth: usize,
    ) {
        let text = key.cast::<PyString>().cloned().or_else(|_| key.str());
        match text {
            Ok(key) => with_text(&key, |key| self.write(value, to.entry(key), depth)),
            Err(error) => {
                let text = self.failed(error);
                self.write(value, to.entry(&text), depth);
            }
        }
    }

    fn items(&mut self, values: &Bound<'_, PyAny>, to: &mut ArrayWriter<'_>, depth: usize) {
        match values.try_iter() {
            Ok(values) => {
                for value in values {
                    match value {
                        Ok(value) if self.values_left > 0 => self.write(&value, to.item(), depth),
                        Ok(_) => return to.item().text(LEFT_OUT),
                        Err(error) => return to.item().text(&self.failed(error)),
                    }
                }
            }
            Err(error) => to.item().text(&self.failed(error)),
        }
    }

    /// Gives the text of a string, as much of it as is written.
    pub(crate) fn text<T>(&mut self, text: &Bound<'_, PyString>, f: impl FnOnce(&str) -> T) -> T {
        with_text(text, |text| {
            let text = self.extent.cut(text);
            f(if self.takes(text.len()) { text } else { LEFT_OUT })
        })
    }

    fn bytes(&mut self, bytes: &[u8], to: ValueWriter<'_, '_>) {
        let bytes = self.extent.cut_bytes(bytes);
        if self.takes(bytes.len()) { to.bytes(bytes) } else { to.text(LEFT_OUT) }
    }

    fn takes(&mut self, bytes: usize) -> bool {
        let left = self.text_bytes_left.checked_sub(bytes);
        self.text_bytes_left = left.unwrap_or(self.text_bytes_left);
        left.is_some()
    }

    fn foreign(&mut self, value: &Bound<'_, PyAny>, to: ValueWriter<'_, '_>) {
        match value.str() {
            Ok(text) => self.text(&text, |text| to.text(text)),
            Err(error) => to.text(&self.failed(error)),
        }
    }

    fn note(&mut self, error: PyErr) {
        let _ = self.failed(error);
    }

    /// Text in place of a value whose own code failed.
    fn failed(&mut self, error: PyErr) -> String {
        Python::attach(|py| {
            let text = error.get_type(py).name().map_or_else(|_| "error".to_owned(), |name| name.to_string());
            if !error.is_instance_of::<PyException>(py) {
                self.interrupt.get_or_insert(error);
            }
            format!("<formatting failed: {text}>")
        })
    }
}

fn is_list(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyList>().is_ok()
        || value.cast::<PyTuple>().is_ok()
        || value.cast::<PySet>().is_ok()
        || value.cast::<PyFrozenSet>().is_ok()
}

/// Gives the text of a string. Lone surrogates are escaped: no UTF-8 has them.
pub(crate) fn with_text<T>(text: &Bound<'_, PyString>, f: impl FnOnce(&str) -> T) -> T {
    if let Ok(text) = text.to_str() {
        return f(text);
    }
    let escaped = text.call_method1("encode", ("utf-8", "backslashreplace"));
    let escaped =
        escaped.and_then(|bytes| Ok(String::from_utf8_lossy(bytes.cast::<PyBytes>()?.as_bytes()).into_owned()));
    f(&escaped.unwrap_or_else(|_| text.to_string_lossy().into_owned()))
}

/// A value of a record as one of Python.
pub(crate) fn to_python<'py>(py: Python<'py>, value: Option<ValueRef<'_>>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        None | Some(ValueRef::Empty) => py.None().into_bound(py),
        Some(ValueRef::String(text)) => PyString::new(py, text).into_any(),
        Some(ValueRef::Bytes(bytes)) => PyBytes::new(py, bytes).into_any(),
        Some(ValueRef::Bool(truth)) => PyBool::new(py, truth).to_owned().into_any(),
        Some(ValueRef::Int(number)) => number.into_pyobject(py)?.into_any(),
        Some(ValueRef::Double(number)) => PyFloat::new(py, number).into_any(),
        Some(ValueRef::StringIndex(number)) => number.into_pyobject(py)?.into_any(),
        Some(ValueRef::Array(values)) => {
            let list = PyList::empty(py);
            for value in values.iter() {
                list.append(to_python(py, Some(value))?)?;
            }
            list.into_any()
        }
        Some(ValueRef::KvList(pairs)) => {
            let dict = PyDict::new(py);
            for pair in pairs.iter() {
                dict.set_item(pair.key, to_python(py, pair.value)?)?;
            }
            dict.into_any()
        }
    })
}

/// A level by its name.
pub(crate) fn level(name: Option<&str>) -> PyResult<Option<AckLevel>> {
    name.map(|name| name.parse::<AckLevel>().map_err(|error| PyValueError::new_err(error.to_string()))).transpose()
}
