//! What senders send to: clad, or another program that takes the same protocols.

use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::proxy::Place;
use clad_e2e::{Daemon, Setup, fixed_port};

use crate::follower::Follower;
use crate::relays::is_note;
use crate::run::loopback;

/// Everything has come where nothing was stored for so long.
const QUIET: Duration = Duration::from_millis(300);

/// What a receiver has at the end.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// Texts of records, and whether they say that they were cut.
    pub(crate) stored: Vec<(String, bool)>,
    /// Records that a reader was given before.
    pub(crate) followed: usize,
    /// What is wrong with those.
    pub(crate) faults: Vec<String>,
}

pub(crate) trait Receiver {
    /// Where it takes a kind of sender, the same after each start.
    fn place(&self, kind: &str) -> Place;

    /// `kill -9`.
    fn kill(&mut self);

    /// Starts it again, and waits until it takes connections.
    fn start(&mut self);

    /// Records of a kind that are stored, where it shows that while it runs.
    fn stored(&self, kind: &str) -> Option<u64>;

    /// Its own words.
    fn said(&self) -> String;

    /// Ends it, and reads what it has stored.
    fn end(&mut self) -> End;
}

/// A clad, with a reader that follows it.
pub(crate) struct Clad {
    daemon: Daemon,
    follower: Option<Follower>,
    relp: u16,
    tcp: u16,
}

impl Clad {
    /// With these settings over its own.
    pub(crate) fn start(sets: &[(&str, &str)]) -> Self {
        let (relp, tcp) = (fixed_port(), fixed_port());
        let setup = Setup::new().fixed_ports();
        let unix = setup.socket().with_file_name("syslog.sock");
        let mut setup = setup
            .set("ingest.syslog.relp.listen", &format!("relp://127.0.0.1:{relp}"))
            .set("ingest.syslog.tcp.listen", &format!("tcp://127.0.0.1:{tcp}"))
            .set("ingest.syslog.unix.listen", &format!("unix-stream://{}", unix.display()));
        for (key, value) in sets {
            setup = setup.set(key, value);
        }
        let daemon = setup.start();
        let follower = Some(Follower::start(&daemon.address("unix")));
        Self { daemon, follower, relp, tcp }
    }

    /// Records that are stored.
    pub(crate) fn records(&self) -> u64 {
        self.daemon.status().offsets.map_or(0, |offsets| offsets.written)
    }
}

impl Receiver for Clad {
    fn place(&self, kind: &str) -> Place {
        match kind {
            "relp" => loopback(self.relp),
            "tcp" => loopback(self.tcp),
            "unix" => Place::Unix(self.daemon.socket().with_file_name("syslog.sock")),
            "relay" => Place::Unix(self.daemon.socket()),
            _ => Place::Tcp(self.daemon.port("grpc")),
        }
    }

    fn kill(&mut self) {
        self.daemon.kill9();
    }

    fn start(&mut self) {
        self.daemon.restart();
    }

    fn stored(&self, kind: &str) -> Option<u64> {
        self.follower.as_ref().map(|follower| follower.stored(kind))
    }

    fn said(&self) -> String {
        self.daemon.said()
    }

    fn end(&mut self) -> End {
        // What has no answers may still be on its way.
        let mut quiet = (self.records(), Instant::now());
        while quiet.1.elapsed() < QUIET {
            thread::sleep(Duration::from_millis(10));
            let records = self.records();
            if records != quiet.0 {
                quiet = (records, Instant::now());
            }
        }
        self.daemon.kill9();
        let stored = clad_e2e::readback::files(self.daemon.dir());
        let (followed, faults) = self.follower.take().expect("it runs").end(&stored);
        let texts = stored.iter().map(|record| (String::from_utf8_lossy(&record.body).into_owned(), record.is_cut));
        End { stored: texts.filter(|(text, _)| !is_note(text)).collect(), followed, faults }
    }
}
