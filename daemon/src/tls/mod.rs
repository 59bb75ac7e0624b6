//! TLS of network listeners: certificate and key from files, handshakes, names of peers.
//!
//! Invariants:
//! - **Nothing is in force that was not checked whole** ([`Material::read`]): chain, key, dates, who may read the key. Files that
//!   change to something else leave the old in force, and that is reported until it is mended.
//! - **New material has new tickets**: no session goes on that an earlier authority stood for.
//! - **A handshake is bounded** in time by `[limits] handshake_timeout`, and in number by `HANDSHAKES_MAX`: beyond that the
//!   oldest ends. It runs on the runtime; ingest threads meet established sessions alone.
//! - **Each failure is one count and one line that says what to do**; a flood of them is one line of each
//!   kind in a while ([`LimitedLine`](crate::ops::limited_line::LimitedLine)).

mod failure;
mod handshake;
mod in_force;
mod material;
mod name;

use rustls::pki_types::CertificateDer;

pub(crate) use handshake::Established;
pub(crate) use in_force::{LOOK_INTERVAL, Look, Tls};
pub(crate) use material::Material;
pub(crate) use name::{NAME_BYTES_MAX, TOKEN_PREFIX, owner};

/// Name of the peer in a certificate (DER), for the fuzzer.
#[doc(hidden)]
#[must_use]
pub fn certificate_name(der: &[u8]) -> Option<std::sync::Arc<str>> {
    name::of(&CertificateDer::from(der)).ok()
}
