//! Tests that reach into the protocol: every interleaving (`model/`), every place to die or stop (`crash.rs`), every
//! nonsense (`hostile.rs`), real processes (`kill.rs`), and times (`order.rs`).

mod crash;
mod hostile;
mod kill;
mod model;
mod order;
mod steps;
