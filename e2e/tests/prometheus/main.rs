//! The dashboards and alerts of `deploy/mixin` on a real Prometheus (`CLAD_PROMETHEUS`), the rules with shorter
//! times (`CLAD_PROMETHEUS_RULES`); `CLAD_RELAY` is clad-relay. `cargo xtask ci prometheus` calls them, one by one, and nobody else.

#[path = "../tls/certs.rs"]
#[expect(dead_code, reason = "the tests of TLS use the rest")]
mod certs;
mod clock;
mod disks;
mod faults;
mod load;
mod queries;
mod relay;
mod rings;
mod server;
