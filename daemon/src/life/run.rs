//! The life of the daemon, from its configuration to its exit code.
//!
//! Invariants: recovery is over and every socket listens before READY is reported. On the way down nothing new is
//! taken, and what was taken is answered and synced for at most `drain_timeout`. Only then is the end marked clean; 0
//! means exactly that. A start that fails once the log is open ends it, too, so that the next one finds a clean end.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clad_journal::io::device::{Substrate, discover};
use clad_journal::{Journal, OpenError};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::bind::failed;
use super::drain::drain;
use super::services::Services;
use super::start::START_TIMEOUT_EXTENSION;
use crate::config::{Config, LoadArgs, Loaded};
use crate::exit::Exit;
use crate::fdstore::{FdStore, InheritedFds};
use crate::ingest;
use crate::ingest::Reactor;
use crate::ingest::quota::Quota;
use crate::ingest::rings::Rings;
use crate::life::inherited_sockets::InheritedSockets;
use crate::life::reload::Outcomes;
use crate::life::running::Running;
use crate::life::signals::Signals;
use crate::life::systemd::Notifier;
use crate::life::{advice, hint, setup};
use crate::ops::health::Health;
use crate::ops::log::{Logging, Style, Surroundings};
use crate::ops::origin::Origin;
use crate::ops::shares::Refusals;
use crate::ops::{events, metrics};

/// Time that the ingest threads may take to end: as the runtime's, one may be at a disk that hangs.
const THREADS_JOIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the daemon until a stop signal. `args` are stored for the reload on HUP.
#[must_use]
pub fn run(loaded: Loaded, args: LoadArgs) -> Exit {
    clad_journal::io::return_large_memory();
    // First of all, while there are no threads.
    let inherited_fds = InheritedFds::of_process();
    let inherited = InheritedSockets::of_process(InheritedFds::is_name);
    let style = Style::choose(loaded.config.log.format, Surroundings::of_process());
    let logging = match Logging::start(loaded.config.log.level, style) {
        Ok(logging) => logging,
        Err(_) => return Exit::Failed,
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let inherited = match inherited {
        Ok(inherited) => inherited,
        Err(e) => return failed("take the sockets of the service manager", &e),
    };
    let inherited_fds = match inherited_fds {
        Ok(inherited_fds) => inherited_fds,
        Err(e) => return failed("take what the service manager stored", &e),
    };
    let strangers = inherited.strangers(&loaded.config);
    if !strangers.is_empty() {
        for stranger in strangers {
            tracing::error!("{stranger}");
        }
        return Exit::Config;
    }
    let files = setup::raise_files();
    let (wanted, connections_max) = (loaded.config.limits.max_connections, setup::connections_max(&loaded.config));
    if connections_max < wanted as usize {
        tracing::warn!(
            files,
            "limits.max_connections = {wanted}, but the limit of open files (RLIMIT_NOFILE; LimitNOFILE= in the unit) leaves \
             room for {connections_max} connections beside the log's own files: no more are taken"
        );
    }
    // Health, admin and gRPC run here. The framed protocol has threads of its own, which may block; so has the journal.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers()).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return failed("start the runtime", &e),
    };
    let exit = runtime.block_on(live(loaded, args, logging, inherited, inherited_fds));
    // A disk call that hangs must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_millis(100));
    exit
}

/// Threads that are worth having for sockets.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4))
}

async fn live(
    loaded: Loaded,
    args: LoadArgs,
    logging: Logging,
    inherited: InheritedSockets,
    inherited_fds: InheritedFds,
) -> Exit {
    let origin = Origin::of(&loaded);
    let config = loaded.config;
    let notifier = match Notifier::of_process() {
        Ok(notifier) => notifier,
        Err(e) => return failed("reach the service manager", &e),
    };
    let mut signals = match Signals::catch() {
        Ok(signals) => signals,
        Err(e) => return failed("catch signals", &e),
    };
    let health = Health::default();
    let scrape = metrics::install();
    metrics::config_loaded(Some(setup::unix_time()));
    let (journal, substrate, grounds) = match open_journal(&config, &health, &notifier, &mut signals).await {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let (stop, stopped) = watch::channel(false);
    let (started, recent) = (Instant::now(), Arc::<metrics::Recent>::default());
    metrics::inflight_limit(config.limits.max_inflight_bytes);
    let buffers = Quota::new(ingest::buffers(&config.limits));
    let services = Services { buffers, config, origin, health, journal, substrate, grounds, stopped, recent, started };
    let (mut inherited, mut listen_addresses, seen) = (inherited, HashMap::new(), Arc::<OnceLock<Rings>>::default());
    if let Err(exit) = services.serve_pages(scrape, &seen, &mut inherited, &mut listen_addresses).await {
        return services.end_failed(exit, &stop, &notifier).await;
    }
    let records = match services.take_records(&mut inherited) {
        Ok(records) => records,
        Err(exit) => return services.end_failed(exit, &stop, &notifier).await,
    };
    let stored = match FdStore::of_process(inherited_fds) {
        Ok(stored) => stored,
        Err(e) => {
            let e = format!(
                "{e}; raise the limit of open files (LimitNOFILE= in the unit) or make memory free: the rings stay stored"
            );
            return services.end_failed(failed("take the stored rings", &e), &stop, &notifier).await;
        }
    };
    let reactor = match Reactor::start(workers(), &Handle::current()) {
        Ok(reactor) => reactor,
        Err(e) => return services.end_failed(failed("start the ingest threads", &e), &stop, &notifier).await,
    };
    let served = match services.serve(inherited, listen_addresses, records, stored, reactor.clone()).await {
        Ok(served) => served,
        Err(exit) => {
            let exit = services.end_failed(exit, &stop, &notifier).await;
            reactor.end(THREADS_JOIN_TIMEOUT);
            return exit;
        }
    };
    let _ = seen.set(served.rings.clone());
    services.health.ready();
    let status = services.journal.status();
    // Before READY is reported: its receiver may ask for a reload.
    let outcomes = Outcomes::of(std::env::var_os("RUNTIME_DIRECTORY").as_deref());
    notifier.ready(&served.statement.line(&status, 0, &services.health.state()));
    if let Some(socket) = &services.config.ingest.unix.path
        && std::env::var_os("NOTIFY_SOCKET").is_none()
    {
        let _ = std::io::stdout().write_all(hint::hint(socket).as_bytes());
    }
    let (refusals, reactor_of) = (Refusals::default(), reactor.clone());
    let mut running =
        Running { services, served, logging, notifier, reactor: reactor_of, args, outcomes, refusals, status };
    running.until_stopped(&mut signals).await;
    let exit = drain(&mut running, &stop).await;
    // A connection that was not done in time has timers of the runtime, which goes next.
    reactor.end(THREADS_JOIN_TIMEOUT);
    exit
}

async fn open_journal(
    config: &Config,
    health: &Health,
    notifier: &Notifier,
    signals: &mut Signals,
) -> Result<(Arc<Journal>, Substrate, String), Exit> {
    let dir = config.journal.dir.clone();
    setup::make_dir(&dir).map_err(|e| {
        let advice = advice::on(&dir, &e);
        failed(&format!("make the data folder {}", dir.display()), &format!("{e}{advice}"))
    })?;
    let substrate = discover(&dir);
    tracing::info!(dir = %dir.display(), "{}", substrate.summary());
    let grounds = setup::grounds(config, &substrate).map_err(|refusal| {
        tracing::error!(dir = %dir.display(), "{refusal}");
        Exit::Config
    })?;
    let (phase, mut phases) = watch::channel("recovering".to_owned());
    let (settings, observer) = (setup::journal(config), events::observer(health.clone(), phase));
    notifier.status("recovering");
    let mut opening = tokio::task::spawn_blocking(move || {
        Journal::open_dir(&dir, settings, observer).map(|journal| (journal.losses(), journal))
    });
    let opened = loop {
        tokio::select! {
            opened = &mut opening => break opened,
            // A recovery may be cut anywhere, and a disk may delay it for any time.
            () = signals.end() => {
                notifier.stopping("stopping during the start");
                tracing::error!("stopped before the log was open: nothing was taken, and the next start repeats this one");
                return Err(Exit::Failed);
            }
            Ok(()) = phases.changed() => {
                notifier.status(&phases.borrow_and_update());
                notifier.extend_timeout(START_TIMEOUT_EXTENSION);
            }
            // A dead process's writes to a slow disk are waited for as long as it takes.
            () = tokio::time::sleep(START_TIMEOUT_EXTENSION / 6) => notifier.extend_timeout(START_TIMEOUT_EXTENSION),
        }
    };
    let (losses, journal) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => {
            let exit = if matches!(e, OpenError::Config(_)) { Exit::Config } else { Exit::Failed };
            let advice = match &e {
                OpenError::Io { source, .. } => advice::on(&config.journal.dir, source),
                OpenError::Locked { .. } => advice::in_use(&config.journal.dir),
                _ => String::new(),
            };
            tracing::error!("the log cannot be opened: {e}{advice}");
            return Err(exit);
        }
        Err(e) => return Err(failed("open the log", &e)),
    };
    let report = journal.report();
    metrics::recovered(Duration::from_nanos(report.took_ns), report.quarantined_bytes);
    report.damage.iter().for_each(|lost| metrics::damaged(lost.from, lost.to));
    events::losses(health, &losses, &config.journal.dir);
    match report.is_damaged() {
        true => tracing::error!("recovered, with damage: {report}"),
        false if report.is_remarkable() => tracing::warn!("recovered: {report}"),
        false => tracing::info!("{report}"),
    }
    Ok((Arc::new(journal), substrate, grounds))
}
