//! Results as tables and plots for docs/BENCHMARKS.md.
//!
//! Invariants: what is rendered depends on the results alone, so that a test can check that the page is what the kept
//! results give; every table says what it stood on, and every plot has its figures in a table.
//!
//! A plot is bars and words, for which a plotting library would bring fonts and colours of its own.

mod fleet;
mod page;
mod svg;
mod table;

pub use page::{RESULTS, render};
