//! End-to-end tests of clad with real processes (not shipped).
