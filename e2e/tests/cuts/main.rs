//! Power cuts under a real kernel: `cargo xtask ci cuts`, as root. See `clad_e2e::cuts` for what is cut and how.

mod cells;
mod client;
mod lab;
mod matrix;
mod methods;
mod promise;
mod record;
mod saved_trace;
mod state;
mod table;
