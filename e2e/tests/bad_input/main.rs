//! Bad input and bad days: each gets a clear error, costs only its sender, and loses nothing acknowledged.

mod access;
mod bursts;
mod flood;
mod folder;
mod frames;
mod hanging;
mod heavy;
mod levels;
mod lines;
mod many_connections;
mod producers;
mod reads;
mod resend;
mod shares;

use clad_e2e::{Daemon, Raw};
use clad_proto::AckLevel;

/// A well-behaved client beside a bad one: what it sends is acknowledged `durable` before and after.
struct Bystander {
    raw: Raw,
    next: u64,
}

impl Bystander {
    fn of(daemon: &Daemon) -> Self {
        let (raw, _) = Raw::producer(&daemon.socket());
        let mut bystander = Self { raw, next: 0 };
        bystander.is_served();
        bystander
    }

    fn is_served(&mut self) {
        let body = format!("bystander {}", self.next);
        self.raw.append_acked(self.next, AckLevel::Durable, &[body.as_bytes()]);
        self.next += 1;
    }
}
