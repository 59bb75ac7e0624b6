//! Real OTLP exporters, none of them changed, send to a `clad`; what they sent is read back. `cargo xtask ci otlp` builds the
//! agents in `e2e/otlp`, and calls these tests one by one. `e2e/otlp/README.md` says what an agent does. A plain run has the
//! tests of [`bench`], and that each block of the page is run.
//!
//! Invariants: an agent says by itself what its SDK called a success, and only that counts; what a record must be is made
//! from its number alone ([`expected`]), never from what was sent.
//!
//! `CLAD_OTLP_AGENT="PROGRAM ARGS"` is the agent, `CLAD_OTLP_LANGUAGE` its language, `CLAD_OTLP_TRANSPORT` what it speaks.
//! `CLAD_OTLP_KILLS` sets the kills. `CLAD_OTLP_GRPCURL`, `CLAD_OTLP_TELEMETRYGEN` and
//! `CLAD_OTLP_COLLECTOR` are programs.

mod agent;
mod bench;
mod expected;
mod export;
mod kills;
mod page;
mod read;
mod tools;

/// A variable that the suite sets.
fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: call `cargo xtask ci otlp`"))
}
