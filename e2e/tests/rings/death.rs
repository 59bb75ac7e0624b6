//! What was posted outlives its client and the daemon, in any order.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use clad_client::AckLevel;
use clad_e2e::readback::Stored;
use clad_e2e::{Daemon, Rng, Setup, readback, seed};

use crate::{producer, runtime, submit};

/// Where the client that dies finds the daemon.
const SERVER: &str = "CLAD_RINGS_SERVER";
/// How often somebody dies.
const DEATHS: u64 = 8;

/// Not a test of its own: the client, in a process that is killed. It says each number once it is posted.
#[test]
#[expect(clippy::print_stdout, reason = "what it says is what is looked for")]
fn the_client() {
    let Ok(server) = std::env::var(SERVER) else { return };
    let (server, name) = server.split_once(' ').expect("an address and a name");
    let runtime = runtime();
    let builder = clad_client::Producer::builder(server.parse().expect("an address"));
    let producer = runtime.block_on(builder.connect()).expect("connected");
    assert!(producer.has_ring());
    for number in 0_u64.. {
        // In the ring, or it would have no receipt yet.
        submit(&producer, AckLevel::Posted, format!("{name}:{number}")).wait(Duration::ZERO).expect("posted");
        println!("posted {number}");
        if number % 16 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

pub(crate) struct Client {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    name: String,
}

impl Client {
    pub(crate) fn start(daemon: &Daemon, name: String) -> Self {
        Self::at(&daemon.address("shm"), name)
    }

    pub(crate) fn at(address: &str, name: String) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["death::the_client", "--exact", "--nocapture"])
            .env(SERVER, format!("{address} {name}"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a client");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        // It has a ring, and is on its way.
        lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("posted"))).expect("it logs").expect("text");
        Self { process, lines, name }
    }

    /// Reads until so many are posted, kills it, and says how many were posted by then.
    pub(crate) fn posts_and_dies(mut self, many: u64) -> (String, u64) {
        let mut posted = 1;
        let mut killed = false;
        while let Some(Ok(line)) = self.lines.next() {
            if let Some(number) = line.strip_prefix("posted ") {
                posted = number.parse::<u64>().expect("a number") + 1;
            }
            if posted >= many && !killed {
                self.process.kill().expect("killed");
                killed = true;
            }
        }
        self.process.wait().expect("ended");
        assert!(posted >= many, "it ended by itself");
        (self.name, posted)
    }
}

#[test]
fn what_was_posted_outlives_its_client_and_the_daemon() {
    let mut rng = Rng::new(seed());
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let mut posted = Vec::new();
    for round in 0..DEATHS {
        let client = Client::start(&daemon, format!("c{round}"));
        let many = 50 + rng.below(2000);
        match round % 4 {
            0 => posted.push(client.posts_and_dies(many)),
            // The daemon first: the client goes on until its ring is full, or it is killed.
            1 => {
                daemon.kill9();
                posted.push(client.posts_and_dies(many.min(200)));
                daemon.restart();
            }
            // The client first, and the daemon before it can have drained it all.
            2 => {
                posted.push(client.posts_and_dies(many));
                daemon.kill9();
                daemon.restart();
            }
            // A clean end while it logs.
            _ => {
                assert_eq!(daemon.term(), Some(0));
                daemon.restart();
                posted.push(client.posts_and_dies(many));
            }
        }
    }
    daemon.wait_for_rings(0);
    // Whatever is in the journal now is written when this is.
    let last = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&last, AckLevel::Written, "last".to_owned())).expect("written");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    for (name, many) in posted {
        once_and_in_order(&all, &name, many);
    }
}

/// All that a client said was posted is there.
pub(crate) fn once_and_in_order(all: &[Stored], name: &str, many: u64) {
    let prefix = format!("{name}:");
    let found: Vec<u64> =
        all.iter().filter_map(|s| std::str::from_utf8(&s.body).ok()?.strip_prefix(&prefix)?.parse().ok()).collect();
    assert!(found.iter().zip(0..).all(|(number, place)| *number == place), "{name}: once and in order");
    assert!(found.len() as u64 >= many, "{name}: {many} were posted, {} are there", found.len());
}
