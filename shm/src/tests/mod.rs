//! Tests that reach into the protocol: every interleaving (`model/`), every place to die or stop (`crash.rs`), every
//! nonsense (`hostile.rs`), and real processes (`kill.rs`).

mod crash;
mod hostile;
mod kill;
mod model;
mod steps;
