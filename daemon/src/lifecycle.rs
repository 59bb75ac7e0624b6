//! What the daemon does while it runs: signals, gauges, the watchdog.
//!
//! What must hold: a reload is all or nothing; the watchdog is told from the runtime that no disk can block, and yet
//! only while the journal is getting on: its threads are alive as long as nothing waits longer than [`STUCK`] without
//! the daemon saying so (a slow disk is degraded, not dead).

use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_journal::{Accepting, Journal};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Config, LoadArgs, reload_diff};
use crate::health::Health;
use crate::ingest::Listeners;
use crate::logging::Logging;
use crate::metrics::{self, Recent};
use crate::systemd::{Notifier, watchdog_interval};

/// A disk that has not finished for so long is told as degraded.
const SLOW: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);

/// The signals.
pub(crate) struct Signals {
    hup: Signal,
    usr1: Signal,
    usr2: Signal,
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Catches them from now on.
    pub(crate) fn catch() -> std::io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
            usr2: signal(SignalKind::user_defined2())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }
}

/// What may change while the daemon runs.
pub(crate) struct Running {
    pub(crate) journal: Arc<Journal>,
    pub(crate) health: Health,
    pub(crate) logging: Logging,
    pub(crate) notifier: Notifier,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) config: Config,
    pub(crate) args: LoadArgs,
    /// What was counted in the last seconds.
    pub(crate) recent: Arc<Recent>,
    /// When the process began to run.
    pub(crate) started: Instant,
}

impl Running {
    /// Runs until TERM or INT.
    pub(crate) async fn until_told(&mut self, signals: &mut Signals) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watchdog = watchdog_interval().map(tokio::time::interval);
        loop {
            tokio::select! {
                _ = signals.term.recv() => return,
                _ = signals.int.recv() => return,
                _ = signals.hup.recv() => self.reload(),
                _ = signals.usr1.recv() => {
                    let target = self.journal.request_sync();
                    tracing::info!(target, "USR1: sync");
                }
                _ = signals.usr2.recv() => {
                    drop(self.journal.rotate());
                    tracing::info!("USR2: rotate");
                }
                _ = tick.tick() => self.look(),
                () = beat(&mut watchdog) => self.notifier.watchdog(),
            }
        }
    }

    fn look(&self) {
        self.recent.look(self.started);
        let s = self.journal.status();
        match s.oldest_undurable {
            Some(age) if age > SLOW => {
                self.health.degraded("disk", format!("the oldest record has been waiting for the disk for {age:.0?}"));
            }
            _ => self.health.restored("disk"),
        }
        match s.marks.accepting {
            Accepting::Yes => self.health.ready(),
            Accepting::NoSpace => self.health.not_ready("the disk has no room for a further segment"),
            Accepting::Closing => self.health.not_ready("clad is going down"),
            Accepting::Failed => {} // said with its reason when it happened
        }
    }

    fn reload(&mut self) {
        self.notifier.reloading();
        let began = Instant::now();
        metrics::config_loaded(None);
        match Config::load(&self.args) {
            Err(errors) => tracing::error!(%errors, "HUP: the configuration is bad, nothing was changed"),
            Ok(loaded) => match reload_diff(&self.config, &loaded.config) {
                Err(refused) => tracing::error!(%refused, "HUP: refused"),
                Ok(changes) => {
                    for c in &changes {
                        tracing::info!(key = c.key, from = c.from, to = c.to, "HUP: changed");
                    }
                    self.apply(loaded.config);
                    metrics::config_loaded(Some(unix_time()));
                    tracing::info!(changes = changes.len(), took = ?began.elapsed(), "HUP: reloaded");
                }
            },
        }
        self.notifier.ready("running");
    }

    fn apply(&mut self, config: Config) {
        self.logging.set_level(config.log.level);
        self.journal.set_retention(crate::setup::retention(&config));
        self.journal.set_rotate_after(config.rotation.max_age);
        self.listeners.set_max(config.limits.max_connections as usize);
        self.config = config;
    }
}

/// Now, since 1970.
pub(crate) fn unix_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

async fn beat(watchdog: &mut Option<tokio::time::Interval>) {
    match watchdog {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
