//! A run: senders of every kind send while the receiver, the clients and their connections die; then all is looked for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::proxy::{Place, Proxy};
use clad_e2e::{Rng, TEST_TIMEOUT};

use crate::check::{Found, Said, Verdict};
use crate::otlp::{OverGrpc, OverHttp};
use crate::receiver::{End, Receiver};
use crate::relays::Relay;
use crate::sender::{Sender, requests};
use crate::{check, syslog};

/// The longest delay of everything that a proxy forwards.
const DELAY_MILLIS_MAX: u64 = 50;

/// Behind the last death.
const UNDISTURBED: Duration = Duration::from_millis(100);

/// The way of one death. Each is one of every kind of sender at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Death {
    Receiver,
    Client,
    /// Clients die while there is no receiver.
    Both,
    Cut,
    Halved,
    Delayed,
}

impl Death {
    const ALL: [Self; 6] = [Self::Receiver, Self::Client, Self::Both, Self::Cut, Self::Halved, Self::Delayed];

    fn at_random(rng: &mut Rng) -> Self {
        match rng.below(20) {
            0..9 => Self::Receiver,
            9..13 => Self::Client,
            13 => Self::Both,
            14..16 => Self::Cut,
            16..19 => Self::Halved,
            _ => Self::Delayed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Receiver => "receiver",
            Self::Client => "client",
            Self::Both => "both",
            Self::Cut => "cut",
            Self::Halved => "halved",
            Self::Delayed => "delayed",
        }
    }
}

/// Deaths that a seed chooses.
pub(crate) fn deaths(seed: u64, count: u64) -> Vec<Death> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| Death::at_random(&mut rng)).collect()
}

/// Kinds of senders whose protocol is spoken here.
pub(crate) const KINDS: [&str; 6] = ["grpc", "http", "tcp", "unix", "relp", "upload"];

/// Programs that bring what others write.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) relay: PathBuf,
    pub(crate) systemd: PathBuf,
}

/// What is done to a receiver.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) kinds: Vec<&'static str>,
    /// A lower level that OTLP is asked for.
    pub(crate) level: Option<&'static str>,
    pub(crate) relays: Option<Programs>,
    pub(crate) seed: u64,
    pub(crate) deaths: Vec<Death>,
    /// Everything sends again; then up to the next death, at most.
    pub(crate) pause: Duration,
    /// Senders rest between two requests; else they send as fast as they are answered, and have no proxy before them.
    pub(crate) rests: bool,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) deaths: BTreeMap<Death, u64>,
    pub(crate) verdicts: BTreeMap<&'static str, Verdict>,
    /// Records that a reader was given while they were written.
    pub(crate) followed: usize,
    pub(crate) faults: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |death| self.deaths.get(&death).copied().unwrap_or(0);
        let kinds = Death::ALL.map(|death| format!("{} {}", death.name(), count(death)));
        let sum: u64 = self.deaths.values().sum();
        write!(f, "kills: {sum} of each kind ({}), seed {}", kinds.join(", "), self.seed)?;
        for (kind, verdict) in &self.verdicts {
            write!(f, "\nkills: {kind}: {verdict}")?;
        }
        Ok(())
    }
}

impl Report {
    /// Every fault, in words.
    pub(crate) fn faults(&self) -> Vec<String> {
        let of_kinds = self.verdicts.iter().flat_map(|(kind, verdict)| {
            let head = (!verdict.is_good()).then(|| format!("{kind}: {verdict}"));
            head.into_iter().chain(verdict.faults.iter().cloned())
        });
        of_kinds.chain(self.faults.iter().cloned()).collect()
    }

    pub(crate) fn answered(&self) -> u64 {
        self.verdicts.values().map(|verdict| verdict.answered).sum()
    }
}

/// Everything that sends.
struct Senders {
    senders: Vec<Sender>,
    relays: Vec<Relay>,
    /// Before the senders; a relay has its own.
    proxies: Vec<Proxy>,
}

impl Plan {
    /// Of senders that rest, and soon die.
    pub(crate) fn of(kinds: &[&'static str], seed: u64, deaths: Vec<Death>) -> Self {
        let pause = Duration::from_millis(20);
        Self { kinds: kinds.to_vec(), level: None, relays: None, seed, deaths, pause, rests: true }
    }

    pub(crate) fn run(&self, receiver: &mut dyn Receiver) -> Report {
        let mut rng = Rng::new(self.seed ^ 1);
        let mut senders = self.senders(receiver, &mut rng);
        let mut deaths = BTreeMap::new();
        for &death in &self.deaths {
            senders.wait_until_all_send(receiver);
            thread::sleep(self.pause.mul_f64(rng.below(1000) as f64 / 1000.0));
            *deaths.entry(death).or_default() += 1;
            match death {
                Death::Receiver => {
                    receiver.kill();
                    receiver.start();
                }
                Death::Client => senders.die(),
                Death::Both => {
                    receiver.kill();
                    senders.die();
                    receiver.start();
                }
                Death::Cut => senders.cut(),
                Death::Halved => senders.proxies().for_each(Proxy::halve),
                Death::Delayed => {
                    let delay = Duration::from_millis(rng.below(DELAY_MILLIS_MAX));
                    senders.proxies().for_each(|proxy| proxy.delay(delay));
                }
            }
        }
        let mut ended = senders.end_of_their_own(receiver);
        let said = senders.end(receiver);
        let End { stored, followed, mut faults } = receiver.end();
        // The proxies may have had some of it until now.
        drop(senders);
        faults.append(&mut ended);
        let verdicts = check::all(&said, stored.iter().map(|(text, is_cut)| Found { text, is_cut: *is_cut }));
        Report { seed: self.seed, deaths, verdicts, followed, faults }
    }

    fn senders(&self, receiver: &dyn Receiver, rng: &mut Rng) -> Senders {
        let mut all = Senders { senders: Vec::new(), relays: Vec::new(), proxies: Vec::new() };
        for &kind in &self.kinds {
            let proxy = Proxy::to(receiver.place(kind), Rng::new(rng.number()));
            let place = if self.rests { proxy.place().clone() } else { receiver.place(kind) };
            let (level, rng) = (self.level, Rng::new(rng.number()));
            all.proxies.push(proxy);
            all.senders.push(Sender::start(kind, self.rests, move |shared| match kind {
                "grpc" => requests(kind, OverGrpc::to(&place, level), shared, rng),
                "http" => requests(kind, OverHttp::to(&place, level), shared, rng),
                "upload" => requests(kind, OverHttp::uploads(&place), shared, rng),
                "tcp" => syslog::stream(kind, &place, true, shared, rng),
                "unix" => syslog::stream(kind, &place, false, shared, rng),
                "relp" => syslog::relp(kind, &place, shared, rng),
                other => panic!("{other} is no kind"),
            }));
        }
        if let Some(Programs { relay, systemd }) = &self.relays {
            let place = receiver.place("relay");
            all.relays.push(Relay::of_files(relay, &place, Rng::new(rng.number())));
            all.relays.push(Relay::of_the_journal(relay, systemd, &place, Rng::new(rng.number())));
        }
        all
    }
}

impl Senders {
    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.proxies.iter().chain(self.relays.iter().map(Relay::proxy))
    }

    fn die(&mut self) {
        self.senders.iter().for_each(Sender::die);
        self.relays.iter_mut().for_each(Relay::die);
    }

    fn cut(&self) {
        self.proxies.iter().for_each(Proxy::cut);
        self.relays.iter().for_each(Relay::cut);
    }

    /// Each kind, with a number that grows while it sends: what of it is stored, where the receiver shows that.
    fn progress(&self, receiver: &dyn Receiver) -> Vec<(&'static str, u64)> {
        let own = |sender: &Sender| (sender.kind, receiver.stored(sender.kind).unwrap_or(sender.progress()));
        let relays = self.relays.iter().map(|relay| (relay.kind, receiver.stored(relay.kind).unwrap_or(0)));
        self.senders.iter().map(own).chain(relays).collect()
    }

    /// Nobody is killed who does nothing.
    fn wait_until_all_send(&mut self, receiver: &dyn Receiver) {
        let (before, until) = (self.progress(receiver), Instant::now() + TEST_TIMEOUT);
        loop {
            let now = self.progress(receiver);
            let idle = before.iter().zip(&now).find(|(before, now)| before.1 >= now.1);
            let Some((idle, _)) = idle else { return };
            let failed = self.senders.iter().find(|sender| sender.is_over());
            assert!(failed.is_none(), "a sender has failed: {failed:?}");
            assert!(Instant::now() < until, "{idle:?} does not go on\n{}", receiver.said());
            self.relays.iter_mut().for_each(Relay::keep);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connections that end though nobody cuts them, behind the last death.
    fn end_of_their_own(&mut self, receiver: &dyn Receiver) -> Vec<String> {
        // Nobody has a connection of before.
        for _ in 0..2 {
            self.wait_until_all_send(receiver);
            thread::sleep(UNDISTURBED);
        }
        let before: Vec<u64> = self.senders.iter().map(Sender::connections).collect();
        self.wait_until_all_send(receiver);
        thread::sleep(UNDISTURBED);
        let ended = self.senders.iter().zip(before).filter(|(sender, before)| sender.connections() != *before);
        ended.map(|(sender, _)| format!("a connection of {} has ended by itself", sender.kind)).collect()
    }

    fn end(&mut self, receiver: &dyn Receiver) -> Vec<Said> {
        self.senders.iter().for_each(Sender::stop);
        let until = Instant::now() + TEST_TIMEOUT;
        for relay in &mut self.relays {
            let written = relay.stop();
            while receiver.stored(relay.kind).is_some_and(|stored| stored < written) {
                assert!(Instant::now() < until, "the relay of {} does not bring {written}", relay.kind);
                relay.keep();
                thread::sleep(Duration::from_millis(5));
            }
        }
        let relayed: Vec<Said> = self.relays.iter().map(Relay::said).collect();
        self.senders.drain(..).flat_map(Sender::end).chain(relayed).collect()
    }
}

/// A place of the loopback.
pub(crate) fn loopback(port: u16) -> Place {
    Place::Tcp(([127, 0, 0, 1], port).into())
}
