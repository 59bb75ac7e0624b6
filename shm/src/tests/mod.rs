//! Tests that reach into the protocol: every interleaving (`model/`), every place to die (`crash.rs`), every nonsense
//! (`hostile.rs`), and real processes (`kill.rs`).

mod model;
