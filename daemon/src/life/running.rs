//! Life of the running daemon: gauges, its status line, the watchdog.
//!
//! Invariants: a reload is all or nothing, and a refused one is reported until another was taken; a slow disk is
//! degraded, not dead. The daemon is ready only while the journal takes appends.

use std::path::Path;
use std::time::{Duration, Instant};

use clad_journal::{Accepting, Journal, Losses, Status};
use tokio::task::JoinHandle;

use crate::access::RuleSet;
use crate::config::{Config, LoadArgs, reload_diff};
use crate::ingest::Reactor;
use crate::life::reload::{Outcome, Outcomes};
use crate::life::services::Services;
use crate::life::signals::Signals;
use crate::life::start::Served;
use crate::life::systemd::{Notifier, watchdog_interval};
use crate::life::watchdog::Watchdog;
use crate::life::{advice, setup};
use crate::ops::events;
use crate::ops::health::journal_failed;
use crate::ops::log::{Logging, Style, Surroundings};
use crate::ops::metrics;
use crate::ops::shares::Refusals;
use crate::tls::{self, Look, Material};

/// A disk that has not finished for so long is reported as degraded.
const DEGRADED_AFTER: Duration = Duration::from_secs(5);
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest that a reload waits for the names in rules: less than the watchdog waits for the daemon.
const RULES_TIMEOUT: Duration = Duration::from_secs(5);

/// State that may change while the daemon runs.
pub(crate) struct Running {
    pub(crate) services: Services,
    pub(crate) served: Served,
    pub(crate) logging: Logging,
    pub(crate) notifier: Notifier,
    /// Serves connections until the end of the drain.
    pub(crate) reactor: Reactor,
    pub(crate) args: LoadArgs,
    pub(crate) outcomes: Outcomes,
    pub(crate) refusals: Refusals,
    /// As the journal last reported it.
    pub(crate) status: Status,
}

impl Running {
    /// Runs until TERM or INT.
    pub(crate) async fn until_stopped(&mut self, signals: &mut Signals) {
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watchdog = watchdog_interval().map(|period| Watchdog::new(period, self.reactor.clone()));
        let (mut asked, mut looking) = (None, None);
        let mut certificates = tokio::time::interval(tls::LOOK_INTERVAL);
        loop {
            tokio::select! {
                _ = signals.term.recv() => return,
                _ = signals.int.recv() => return,
                _ = signals.hup.recv() => self.reload(),
                _ = signals.usr1.recv() => {
                    let target = self.services.journal.request_sync();
                    tracing::info!(target, "USR1: sync");
                }
                _ = signals.usr2.recv() => {
                    drop(self.services.journal.rotate());
                    tracing::info!("USR2: rotate");
                }
                _ = certificates.tick() => {
                    // Without a certificate, which a reload may have taken away, there are no files.
                    if let (Some(tls), None, Some(_)) = (&self.served.tls, &looking, &self.services.config.tls.cert) {
                        let (tls, settings) = (tls.clone(), self.services.config.tls.clone());
                        looking = Some(tokio::task::spawn_blocking(move || tls.look(&settings)));
                    }
                }
                // It asks the file system for its space: a hanging one must not hold up this task, on which the
                // watchdog depends.
                _ = tick.tick() => {
                    if asked.is_none() {
                        let (journal, dir) = (self.services.journal.clone(), self.services.config.journal.dir.clone());
                        asked = Some(tokio::task::spawn_blocking(move || looked(&journal, &dir)));
                    }
                }
                look = answer(&mut looking) => {
                    looking = None;
                    if let Some(look) = look {
                        self.looked_at_certificates(look);
                    }
                }
                status = answer(&mut asked) => {
                    asked = None;
                    if let Some(looked) = status {
                        self.look(looked);
                    }
                }
                () = due(&mut watchdog) => {
                    if let Some(watchdog) = &mut watchdog && watchdog.gets_on(&self.services.journal, &self.served.rings) {
                        self.notifier.watchdog();
                    }
                }
            }
        }
    }

    fn look(&mut self, looked: Looked) {
        let Looked { status, losses, advice } = looked;
        self.services.recent.look(self.services.started);
        self.status = status;
        self.refusals.look(metrics::refusals_for_share(), Instant::now(), &self.services.health);
        events::losses(&self.services.health, &losses, &self.services.config.journal.dir);
        let s = &self.status;
        match s.disk_busy {
            Some(age) if age > DEGRADED_AFTER => {
                self.services
                    .health
                    .degraded("disk", format!("the oldest record has been waiting for the disk for {age:.0?}"));
            }
            _ => self.services.health.restored("disk"),
        }
        match self.served.rings.silent_for() {
            silent if silent > DEGRADED_AFTER => self.services.health.degraded(
                "rings",
                format!("the drain of the rings has made no progress for {silent:.0?}: posted records wait for it; restart clad"),
            ),
            _ => self.services.health.restored("rings"),
        }
        match self.served.rings.not_drained() {
            Some(why) => self.services.health.degraded("kept", why),
            None => self.services.health.restored("kept"),
        }
        match s.watermarks.accepting {
            Accepting::Yes => self.services.health.ready(),
            Accepting::NoSpace => match &s.unopened {
                Some(reason) => {
                    self.services
                        .health
                        .not_ready("space", format!("no further segment can be opened: {reason}{advice}"));
                }
                None => self.services.health.not_ready("space", "the disk has no space for another segment"),
            },
            Accepting::Closing => self.services.health.not_ready("stop", "clad is stopping"),
            // Reported when it happened; a look that was under way then may have reported otherwise since.
            Accepting::Failed => {
                let reason = s.failure.as_deref().unwrap_or("a write or sync failed");
                self.services.health.not_ready("journal", journal_failed(reason));
            }
        }
        self.update_status_line();
    }

    fn looked_at_certificates(&self, look: Look) {
        match look {
            Look::Same => self.services.health.restored("tls"),
            Look::Taken => {
                self.services.health.restored("tls");
                tracing::info!("TLS: the files have changed: handshakes from now on use the new ones");
            }
            Look::StillRefused => {}
            Look::Refused(error) => {
                let text = format!("TLS: {error}; what was read before stays in force");
                tracing::error!("{text}");
                self.services.health.degraded("tls", text);
            }
        }
    }

    fn update_status_line(&mut self) {
        if let Some(line) = self.served.statement.next(
            &self.status,
            self.served.connection_slots.open(),
            &self.services.health.state(),
            Instant::now(),
        ) {
            self.notifier.status(&line);
        }
    }

    fn reload(&mut self) {
        self.notifier.reloading();
        let outcome = match self.try_reload() {
            Ok(text) => {
                // Before it is reported: a reader of the report looks at the metric next.
                metrics::config_loaded(Some(setup::unix_time()));
                self.services.health.restored("reload");
                tracing::info!("HUP: reloaded: {text}");
                Outcome::Taken(text)
            }
            Err(text) => {
                metrics::config_loaded(None);
                self.services.health.degraded(
                    "reload",
                    format!(
                        "the last reload was refused, and the next start will meet the same files: see `{}`",
                        self.args.as_call("check")
                    ),
                );
                tracing::error!("HUP: refused: {text}");
                Outcome::Refused(text)
            }
        };
        self.outcomes.leave(outcome);
        let line = self.served.statement.line(
            &self.status,
            self.served.connection_slots.open(),
            &self.services.health.state(),
        );
        self.notifier.ready(&line);
    }

    /// Takes all of the new configuration, or nothing.
    fn try_reload(&mut self) -> Result<String, String> {
        let loaded =
            Config::load(&self.args).map_err(|e| format!("the configuration is bad, nothing was changed: {e}"))?;
        let changes = reload_diff(&self.services.config, &loaded.config).map_err(|refused| refused.to_string())?;
        // The steps that can fail come first.
        let material = self.material(&loaded.config)?;
        let rules = read_rules(&loaded.config)?;
        let group = &loaded.config.journal.group_commit;
        let batch = setup::batch_bytes(&loaded.config);
        self.services
            .journal
            .set_group_commit(group.max_delay, batch, group.in_flight as usize)
            .map_err(|e| format!("nothing was changed: no thread for journal.group_commit.in_flight: {e}"))?;
        for c in &changes {
            tracing::info!(key = c.key, from = c.from, to = c.to, "HUP: changed");
        }
        if let (Some(tls), Some(material)) = (&self.served.tls, material) {
            tls.set(material);
            self.services.health.restored("tls");
        }
        self.services.origin.set(&loaded);
        let access = self.served.live_settings.service().admission.access.clone();
        access.set(rules);
        let left = self.served.connection_slots.recheck(&access.rules());
        if left > 0 {
            tracing::info!("HUP: {left} connections have other rights now, and are closed");
        }
        self.apply(loaded.config);
        let keys: Vec<_> = changes.iter().map(|change| change.key.as_str()).collect();
        Ok(match keys.as_slice() {
            [] => "no key has changed".to_owned(),
            [key] => format!("1 key changed: {key}"),
            keys => format!("{} keys changed: {}", keys.len(), keys.join(", ")),
        })
    }

    /// The files of a new configuration, checked, where any listener speaks TLS.
    fn material(&self, config: &Config) -> Result<Option<Material>, String> {
        if self.served.tls.is_none() && config.tls.cert.is_some() {
            return Err("nothing was changed: a restart is needed for tls.cert, for no listener speaks TLS".to_owned());
        }
        if config.tls.cert.is_none() {
            return Ok(None);
        }
        Material::read(&config.tls).map(Some).map_err(|error| format!("nothing was changed: {error}"))
    }

    fn apply(&mut self, config: Config) {
        self.logging.set_level(config.log.level);
        self.logging.set_style(Style::choose(config.log.format, Surroundings::of_process()));
        self.services.journal.set_retention(setup::retention(&config));
        self.services.journal.set_rotate_after(config.rotation.max_age);
        self.services.journal.set_max_producers(config.limits.max_producers as usize);
        self.served.reads.cursors.set_max(config.limits.max_cursors as usize);
        self.services.journal.set_max_origins(config.limits.max_origins as usize);
        self.served.connection_slots.set_max(setup::connections_max(&config));
        self.served.live_settings.set_limits(&config.limits);
        self.served.rings.set_admission(self.served.live_settings.service().admission);
        metrics::inflight_limit(config.limits.max_inflight_bytes);
        self.services.config = config;
    }
}

/// Rules and tokens of a new configuration. A name service that does not answer must not hold up the daemon.
fn read_rules(config: &Config) -> Result<RuleSet, String> {
    let access = config.access.clone();
    let (done, read) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || drop(done.send(RuleSet::read(&access))));
    match read.recv_timeout(RULES_TIMEOUT) {
        Ok(Ok(rules)) => Ok(rules),
        Ok(Err(error)) => Err(format!("nothing was changed: {error}")),
        Err(_) => Err(format!(
            "nothing was changed: names in access.rule are not known within {RULES_TIMEOUT:?} (does a name service hang?)"
        )),
    }
}

/// State of the journal.
struct Looked {
    status: Status,
    losses: Losses,
    /// Advice from what can be seen of its folder, where it cannot open a segment.
    advice: String,
}

/// Blocks.
fn looked(journal: &Journal, dir: &Path) -> Looked {
    let status = journal.status();
    let advice = status.unopened.as_ref().map_or_else(String::new, |_| advice::of_folder(dir));
    Looked { status, losses: journal.losses(), advice }
}

/// Answer to the request, or never where there is none. `None`: the runtime is going down.
async fn answer<T>(asked: &mut Option<JoinHandle<T>>) -> Option<T> {
    match asked {
        Some(status) => status.await.ok(),
        None => std::future::pending().await,
    }
}

async fn due(watchdog: &mut Option<Watchdog>) {
    match watchdog {
        Some(watchdog) => {
            watchdog.due().await;
        }
        None => std::future::pending().await,
    }
}
