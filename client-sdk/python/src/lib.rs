//! The Rust client of clad as an extension module of Python: what `lib/clad/` stands on.
//!
//! The rules of sequences, resends and receipts are those of `clad-client`; nothing of them is here. This crate gives its
//! calls to Python: values and records (`value`, `record`), waits for threads and event loops (`pending`), a producer, a
//! reader, and errors. Names, defaults, life and exit are in Python, in `lib/clad/`.

mod errors;
mod filter;
mod pending;
mod producer;
mod reader;
mod record;
mod value;

#[pyo3::pymodule]
mod _clad {
    #[pymodule_export]
    use super::{
        pending::{Pending, PyReceipt, WakeQueue},
        producer::Producer,
        reader::{PyRecord, Reader},
    };
    use pyo3::prelude::*;

    /// Nothing of pyo3's is made at its first use, where a fork could come in between: what it makes, it makes here.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::record::prepare(module.py())?;
        super::producer::prepare(module.py())?;
        super::reader::prepare(module.py())
    }
}
