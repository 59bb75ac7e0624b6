//! A run: agents log while the daemon, the agents and their connections die; then everything is looked for.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::Duration;

use clad_e2e::proxy::{Place, Proxy};
use clad_e2e::{Daemon, Rng, Setup};

use crate::agent::{Agent, Mode};
use crate::check::{self, Log, Verdict};

/// Time between two deaths, milliseconds: at least, and up to.
const PAUSE_MS: (u64, u64) = (5, 65);
/// The longest delay of everything that the proxy forwards, milliseconds.
const DELAY_MS_MAX: u64 = 100;
/// Each agent has so many receipts before the first death.
const RECEIPTS_BEFORE: usize = 150;

/// The way of one death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Death {
    Daemon,
    Client,
    /// A client dies, and comes back, while there is no daemon.
    Both,
    Cut,
    Halved,
    Delayed,
}

impl Death {
    const ALL: [Self; 6] = [Self::Daemon, Self::Client, Self::Both, Self::Cut, Self::Halved, Self::Delayed];

    fn at_random(rng: &mut Rng) -> Self {
        match rng.below(12) {
            0..3 => Self::Daemon,
            3..6 => Self::Client,
            6 => Self::Both,
            7 => Self::Cut,
            8..11 => Self::Halved,
            _ => Self::Delayed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Client => "client",
            Self::Both => "daemon and client",
            Self::Cut => "cut",
            Self::Halved => "halved",
            Self::Delayed => "delayed",
        }
    }
}

/// A run: which agents, and which deaths.
#[derive(Debug)]
pub(crate) struct Chaos {
    /// The command of the agent.
    pub(crate) agent: String,
    /// A wrong agent of the harness's own.
    pub(crate) fault: Option<&'static str>,
    /// The agent has `shm://`.
    pub(crate) has_rings: bool,
    pub(crate) seed: u64,
    pub(crate) deaths: Vec<Death>,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) deaths: BTreeMap<Death, u64>,
    pub(crate) verdict: Verdict,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |death| self.deaths.get(&death).copied().unwrap_or(0);
        let kinds = Death::ALL.map(|death| format!("{} {}", death.name(), count(death)));
        let kills: u64 = self.deaths.values().sum();
        write!(f, "seed {}, {kills} kills ({}): {}", self.seed, kinds.join(", "), self.verdict)
    }
}

impl Chaos {
    /// Deaths that a seed chooses.
    pub(crate) fn deaths(seed: u64, kills: u64) -> Vec<Death> {
        let mut rng = Rng::new(seed);
        (0..kills).map(|_| Death::at_random(&mut rng)).collect()
    }

    pub(crate) fn run(&self) -> Report {
        let mut rng = Rng::new(self.seed ^ 1);
        let mut daemon = Setup::new().fixed_ports().start();
        let proxy = Proxy::to(Place::Tcp(daemon.port("tcp")), Rng::new(self.seed ^ 2));
        let mut agents = self.agents(&daemon, &proxy);
        for agent in &mut agents {
            match agent.mode {
                Mode::Follows => agent.wait_until("its first records", |said| said.followed > 0),
                _ => agent.wait_until("its first receipts", |said| said.receipts.len() > RECEIPTS_BEFORE),
            }
        }
        let mut deaths = BTreeMap::new();
        for &death in &self.deaths {
            thread::sleep(Duration::from_millis(PAUSE_MS.0 + rng.below(PAUSE_MS.1 - PAUSE_MS.0)));
            *deaths.entry(death).or_default() += 1;
            // Only those that go on from what the log has can die.
            let mut keeping: Vec<_> = agents.iter_mut().filter(|agent| agent.mode == Mode::Keeps).collect();
            let client = rng.index(keeping.len());
            match death {
                Death::Daemon => {
                    daemon.kill9();
                    daemon.restart();
                }
                Death::Client => keeping[client].die(),
                Death::Both => {
                    daemon.kill9();
                    keeping[client].die();
                    daemon.restart();
                }
                Death::Cut => proxy.cut(),
                Death::Halved => proxy.halve(),
                Death::Delayed => proxy.delay(Duration::from_millis(rng.below(DELAY_MS_MAX))),
            }
        }
        let (mut following, mut logging): (Vec<_>, Vec<_>) =
            agents.into_iter().partition(|agent| agent.mode == Mode::Follows);
        logging.iter_mut().for_each(Agent::finish);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let log = runtime.block_on(Log::read(&daemon.address("unix")));
        for agent in &mut following {
            // The last records may not be durable yet.
            agent.wait_until("the end of the log", |said| said.followed >= log.end || !said.faults.is_empty());
            agent.finish();
        }
        logging.extend(following);
        let mut verdict = check::all(&logging, &log);
        if daemon.term() != Some(0) {
            verdict.faults.push(format!("the daemon does not end well: {}", daemon.said()));
        }
        Report { seed: self.seed, deaths, verdict }
    }

    fn agents(&self, daemon: &Daemon, proxy: &Proxy) -> Vec<Agent> {
        let (tcp, unix, shm) = (proxy.place().to_string(), daemon.address("unix"), daemon.address("shm"));
        let mut all = vec![
            (Mode::Follows, &unix),
            (Mode::Keeps, &tcp),
            (Mode::Keeps, &unix),
            (Mode::Drops("drops-oldest"), &tcp),
            (Mode::Drops("drops-newest"), &unix),
            (Mode::Drops("drops-below"), &tcp),
            (Mode::Mixed, &unix),
        ];
        if self.has_rings {
            all.extend([(Mode::Keeps, &shm), (Mode::Drops("drops-newest"), &shm)]);
        }
        let start = |(number, (mode, address)): (u8, (Mode, &String))| {
            Agent::start(&self.agent, self.fault, mode, address, number)
        };
        (1..).zip(all).map(start).collect()
    }
}
