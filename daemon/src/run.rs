//! The life of the daemon, from its configuration to its exit code.
//!
//! What must hold: recovery is over and every socket listens before anybody is told READY; on the way down nothing new
//! is taken, what was taken is answered and synced for at most `drain_timeout`, and only then is the end marked clean;
//! 0 means exactly that.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clad_journal::io::device::{Substrate, discover};
use clad_journal::{Accepting, Journal, Marks, OpenError};
use clad_proto::AckLevel;
use clad_proto::grpc::v1::admin_server::AdminServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

use crate::access::Access;
use crate::admin::{Desk, Service as AdminService};
use crate::config::{Config, LoadArgs, Loaded};
use crate::exit::Exit;
use crate::health::{Health, router};
use crate::held::Held;
use crate::ingest::parts::Parts;
use crate::ingest::{Budget, Crew, Current, Door, FramedService, Listeners, Patience, bind_unix};
use crate::keep::{self, Keeper, Kept, Stored};
use crate::lifecycle::{Running, Signals};
use crate::logging::{Logging, Style, Surroundings};
use crate::origin::Origin;
use crate::pages::Pages;
use crate::read::Reads;
use crate::reload::Outcomes;
use crate::rings::{self, Rings};
use crate::status::Statement;
use crate::systemd::Notifier;
use crate::{advice, events, gauges, grpc, hint, ingest, metrics, setup};

/// What a start that gets on asks for at a time; it asks again long before it is over.
const MORE_TIME: Duration = Duration::from_secs(30);

/// Runs the daemon until it is told to stop. `args` are kept for the reload on HUP.
#[must_use]
pub fn run(loaded: Loaded, args: LoadArgs) -> Exit {
    // First of all, while there are no threads.
    let stored = Stored::of_process();
    let held = Held::of_process(Stored::is_name);
    let style = Style::choose(loaded.config.log.format, Surroundings::of_process());
    let logging = match Logging::start(loaded.config.log.level, style) {
        Ok(logging) => logging,
        Err(_) => return Exit::Failed,
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let held = match held {
        Ok(held) => held,
        Err(e) => return failed("take the sockets of the service manager", &e),
    };
    let stored = match stored {
        Ok(stored) => stored,
        Err(e) => return failed("take what the service manager stored", &e),
    };
    let strangers = held.strangers(&loaded.config);
    if !strangers.is_empty() {
        for stranger in strangers {
            tracing::error!("{stranger}");
        }
        return Exit::Config;
    }
    let files = setup::raise_files();
    let (wanted, places) = (loaded.config.limits.max_connections, setup::places(&loaded.config));
    if places < wanted as usize {
        tracing::warn!(
            files,
            "limits.max_connections = {wanted}, but the limit of open files (RLIMIT_NOFILE; LimitNOFILE= in the unit) leaves \
             room for {places} connections beside the log's own files: no more are taken"
        );
    }
    // Health, admin and gRPC run here. The framed protocol has threads of its own, which may block; so has the journal.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers()).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return failed("start the runtime", &e),
    };
    let exit = runtime.block_on(live(loaded, args, logging, held, stored));
    // A disk call that hangs must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_millis(100));
    exit
}

/// Threads that are worth having for sockets.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4))
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> Exit {
    tracing::error!("{what}: {why}");
    Exit::Failed
}

async fn live(loaded: Loaded, args: LoadArgs, logging: Logging, held: Held, stored: Stored) -> Exit {
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
    let (journal, substrate, grounds) = match open_journal(&config, &health, &notifier).await {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let (stop, stopped) = watch::channel(false);
    let (started, recent) = (Instant::now(), Arc::<metrics::Recent>::default());
    metrics::inflight_limit(config.limits.max_inflight_bytes);
    let buffers = Parts::new(ingest::buffers(&config.limits));
    let world = World {
        buffers,
        config,
        origin,
        health,
        journal,
        substrate,
        grounds,
        stopped,
        recent: recent.clone(),
        started,
    };
    let (mut held, mut told, seen) = (held, HashMap::new(), Arc::<OnceLock<Rings>>::default());
    if let Err(exit) = world.serve_pages(scrape, &seen, &mut held, &mut told).await {
        return exit;
    }
    let kept = tokio::select! {
        kept = world.kept(stored, &notifier) => kept,
        () = signals.end() => return world.end_early(&notifier).await,
    };
    let kept = match kept {
        Ok(kept) => kept,
        Err(exit) => return exit,
    };
    let served = match world.serve(held, told, kept).await {
        Ok(served) => served,
        Err(exit) => return exit,
    };
    let _ = seen.set(served.rings.clone());
    world.health.ready();
    let status = world.journal.status();
    // Before anybody is told READY: who is may ask for a reload.
    let outcomes = Outcomes::of(std::env::var_os("RUNTIME_DIRECTORY").as_deref());
    notifier.ready(&served.statement.line(&status, 0, &world.health.state()));
    if let Some(socket) = &world.config.ingest.unix.path
        && std::env::var_os("NOTIFY_SOCKET").is_none()
    {
        let _ = std::io::stdout().write_all(hint::hint(socket).as_bytes());
    }
    let mut running = Running {
        journal: world.journal.clone(),
        health: world.health.clone(),
        rings: served.rings.clone(),
        logging,
        notifier,
        listeners: served.listeners,
        crew: served.crew,
        current: served.current,
        config: world.config.clone(),
        origin: world.origin.clone(),
        args,
        recent,
        started,
        outcomes,
        statement: served.statement,
        status,
    };
    running.until_told(&mut signals).await;
    drain(&running, &stop, &served.sockets, &served.rings).await
}

/// When each part of a drain is over at the latest: none may take what the next needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadlines {
    /// What lies in rings was taken: by half of the time.
    rings: Instant,
    /// Connections were answered: by three quarters of it.
    answers: Instant,
    /// The log has its end.
    all: Instant,
}

impl Deadlines {
    fn of(began: Instant, patience: Duration) -> Self {
        Self { rings: began + patience / 2, answers: began + patience / 4 * 3, all: began + patience }
    }
}

/// Stops taking, answers what was taken, seals, and marks a clean end.
async fn drain(running: &Running, stop: &watch::Sender<bool>, sockets: &[PathBuf], rings: &Rings) -> Exit {
    let patience = running.config.daemon.drain_timeout;
    let began = Instant::now();
    let Deadlines { rings: rings_until, answers: answers_until, all: until } = Deadlines::of(began, patience);
    running.notifier.stopping("draining");
    running.notifier.extend_timeout(patience + Duration::from_secs(5));
    running.health.not_ready("stop", "clad is going down");
    tracing::info!(?patience, "going down: no new connections, draining");
    let before = running.journal.marks();
    let _ = stop.send(true);
    for path in sockets {
        let _ = std::fs::remove_file(path);
    }
    // What lies in the rings is taken before the journal closes.
    let rings = rings.clone();
    let left_over = tokio::task::spawn_blocking(move || rings.stop(rings_until)).await.unwrap_or_default();
    running.journal.begin_close();
    while running.listeners.open() > 0 && Instant::now() < answers_until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let journal = running.journal.clone();
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
    match tokio::task::spawn_blocking(move || journal.close(left)).await {
        Ok(true) if left_over == 0 => {
            tracing::info!("clean end");
            Exit::Done
        }
        Ok(true) => {
            tracing::error!(
                ?patience,
                rings = left_over,
                "the log has its clean end, but not all that lies in rings could be taken in time: the service manager, or a process \
                 `clad hold`, keeps it for the next start, and its end would lose it"
            );
            Exit::Failed
        }
        _ => {
            let lost = not_kept(&before, &running.journal.marks());
            tracing::error!(?patience, "the log could not be ended cleanly in time: {lost}");
            Exit::Failed
        }
    }
}

/// What of the acknowledged an end leaves behind that was not a clean one, by the marks when it began and now.
fn not_kept(before: &Marks, now: &Marks) -> String {
    let failed = [before, now].iter().any(|marks| marks.accepting == Accepting::Failed);
    let range = |from: u64, to: u64| format!("{} records, offsets {from} to {}", to - from, to - 1);
    let mut words = Vec::new();
    if now.received > now.written {
        let records = range(now.written, now.received);
        words.push(format!("what was acknowledged as `received` and not written yet is lost ({records})"));
    }
    if (failed || now.failures != before.failures) && now.written > now.durable {
        let records = range(now.durable, now.written);
        words.push(format!(
            "what was `written` and not durable yet is there as far as the kernel still has it ({records})"
        ));
        words.push("nothing that was acknowledged as `durable` is lost".to_owned());
    } else {
        words.push("nothing that was acknowledged as `written` or `durable` is lost".to_owned());
    }
    words.join("; ")
}

async fn open_journal(
    config: &Config,
    health: &Health,
    notifier: &Notifier,
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
    let mut opening = tokio::task::spawn_blocking(move || Journal::open_dir(&dir, settings, observer));
    let opened = loop {
        tokio::select! {
            opened = &mut opening => break opened,
            Ok(()) = phases.changed() => {
                notifier.status(&phases.borrow_and_update());
                notifier.extend_timeout(MORE_TIME);
            }
            // A dead process's writes to a slow disk are waited for as long as it takes.
            () = tokio::time::sleep(MORE_TIME / 6) => notifier.extend_timeout(MORE_TIME),
        }
    };
    let journal = match opened {
        Ok(Ok(journal)) => journal,
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
    metrics::recovered(Duration::from_nanos(report.took_ns), report.set_aside_bytes);
    match report.is_damaged() {
        true => {
            let dir = config.journal.dir.display();
            let what = match report.has_lost() {
                true => "acknowledged records were lost",
                false => "acknowledged records may have been lost at the end of a segment",
            };
            let known = "names what is known of it, a backup may have them";
            health.degraded("damage", format!("{what}: `clactl verify {dir}` {known}"));
            tracing::error!("recovered, with damage: {report}");
        }
        false if report.is_remarkable() => tracing::warn!("recovered: {report}"),
        false => tracing::info!("{report}"),
    }
    Ok((Arc::new(journal), substrate, grounds))
}

/// What serving needs.
struct World {
    config: Config,
    origin: Origin,
    health: Health,
    journal: Arc<Journal>,
    substrate: Substrate,
    /// What the policy's promise rests on.
    grounds: String,
    stopped: watch::Receiver<bool>,
    recent: Arc<metrics::Recent>,
    started: Instant,
    /// What buffers of connections take beyond their own.
    buffers: Arc<Parts>,
}

/// What serving made.
struct Served {
    listeners: Arc<Listeners>,
    current: Current,
    statement: Statement,
    /// Files of the sockets that are ours to remove.
    sockets: Vec<PathBuf>,
    rings: Rings,
    crew: Crew,
}

impl World {
    /// The pages are there first: who waits for this start can ask why. `rings` is filled in later.
    async fn serve_pages(
        &self,
        scrape: metrics::Scrape,
        rings: &Arc<OnceLock<Rings>>,
        held: &mut Held,
        told: &mut HashMap<String, String>,
    ) -> Result<(), Exit> {
        let config = &self.config;
        let report = self.journal.status().engine;
        scrape.io_info(setup::engine(report.engine), config.journal.durability);
        tracing::info!(engine = report.engine.name(), "io engine: {}", report.why);
        metrics::power_loss_protected(config.journal.power_loss_protected);
        let (journal, health, reserve) = (self.journal.clone(), self.health.clone(), config.journal.reserve_free);
        let (rings, none) = (rings.clone(), Rings::default());
        let buffered = self.buffers.clone();
        scrape.look_with(move || {
            gauges::look(&journal, rings.get().unwrap_or(&none), &health, reserve);
            metrics::connection_buffers(buffered.in_use() as u64);
        });
        if let Some((listener, address)) = bind_tcp("metrics.listen", config.metrics.listen, held).await? {
            told.insert("metrics".to_owned(), address);
            let pages = router(self.health.clone(), scrape);
            tokio::spawn(async move { axum::serve(Pages::new(listener), pages).await });
        }
        Ok(())
    }

    async fn serve(
        &self,
        mut held: Held,
        mut told: HashMap<String, String>,
        kept: Option<(Keeper, Vec<Kept>)>,
    ) -> Result<Served, Exit> {
        let config = &self.config;
        let (policy, mut highest) = setup::policy(config);
        let reach = self.substrate.reach(config.journal.power_loss_protected);
        if !reach.is_durable() && highest > AckLevel::Written {
            tracing::warn!("the highest ack level here is {reach}");
            highest = AckLevel::Written;
        }
        let budget_bytes = config.limits.max_inflight_bytes as usize;
        let door = Arc::new(Door {
            journal: self.journal.clone(),
            policy,
            highest,
            flush_reach: if reach.is_durable() { AckLevel::Durable } else { AckLevel::Written },
            max_append: setup::clamp(config.limits.max_append_bytes),
            max_record: setup::clamp(config.journal.max_record_bytes),
            max_connection_bytes: config.limits.max_connection_inflight_bytes as usize,
            window: setup::WINDOW,
            budget: Budget::new(budget_bytes),
        });
        let rings = self.rings(&door, kept)?;
        let reads = Reads::new(self.journal.clone(), door.flush_reach);
        let service = FramedService {
            door: door.clone(),
            reads: reads.clone(),
            rings: rings.clone(),
            assembly: Parts::new(budget_bytes),
            buffers: self.buffers.clone(),
            handshake_timeout: config.limits.handshake_timeout,
            idle_timeout: config.limits.idle_timeout,
            patience: Patience::default(),
            stop: self.stopped.clone(),
        };
        let current = Current::new(service);
        let crew = Crew::start(workers(), &Handle::current()).map_err(|e| failed("start the ingest threads", &e))?;
        let listeners = Listeners::new(setup::places(config));
        let mut sockets = Vec::new();
        let access = Arc::new(Access::new(&config.access.read_group));
        if let Some(path) = &config.ingest.unix.path {
            let listener = self.bind_unix(path, 0o666, &mut held, &mut sockets)?;
            told.insert("unix".to_owned(), path.display().to_string());
            let stop = self.stopped.clone();
            let served = ingest::unix(listener, crew.clone(), current.clone(), listeners.clone(), access.clone(), stop);
            tokio::spawn(served);
        }
        if let Some((listener, address)) = bind_tcp("ingest.tcp.listen", config.ingest.tcp.listen, &mut held).await? {
            told.insert("tcp".to_owned(), address);
            let (may_read, stop) = (config.ingest.tcp.allow_read, self.stopped.clone());
            tokio::spawn(ingest::tcp(listener, crew.clone(), current.clone(), listeners.clone(), may_read, stop));
        }
        if let Some((listener, address)) = bind_tcp("ingest.grpc.listen", config.ingest.grpc.listen, &mut held).await? {
            told.insert("grpc".to_owned(), address);
            grpc::serve(
                listener,
                current.clone(),
                setup::largest_append(config) as usize,
                listeners.clone(),
                config.ingest.grpc.allow_read,
                self.health.clone(),
            );
        }
        if let Some(path) = &config.admin.path {
            let listener = self.bind_unix(path, 0o660, &mut held, &mut sockets)?;
            if sockets.contains(path) {
                set_group(path, &config.access.admin_group);
            }
            told.insert("admin".to_owned(), path.display().to_string());
            self.serve_admin(
                listener,
                (policy, highest, door.flush_reach),
                (listeners.clone(), door.budget.clone(), rings.clone()),
                told.clone(),
            );
        }
        if !self.grounds.is_empty() {
            tracing::info!(
                policy = policy.name(),
                "durable without a flush of any disk cache, because {}",
                self.grounds
            );
        }
        tracing::info!(listeners = ?told, policy = policy.name(), highest_ack = highest.name(), "listening");
        let promise = format!("{} to {}", policy.name(), highest.name());
        let recovered = self.journal.report().to_string();
        let statement = Statement::new(promise, recovered, self.journal.marks().received, Instant::now());
        Ok(Served { listeners, current, statement, sockets, rings, crew })
    }

    /// Who keeps the rings, and those that are kept; nothing where there can be none. Waits for whoever has them.
    async fn kept(&self, stored: Stored, notifier: &Notifier) -> Result<Option<(Keeper, Vec<Kept>)>, Exit> {
        let Some(socket) = &self.config.ingest.unix.path else { return Ok(None) };
        let folder = socket.parent().unwrap_or(Path::new("."));
        let found = keep::find(folder, stored, &self.health, |silence| {
            self.health.not_ready("start", format!("starting: {silence}"));
            notifier.status(&format!("waiting: {silence}"));
            notifier.extend_timeout(MORE_TIME);
        });
        found.await.map(Some).map_err(|e| failed("start the keeper of rings", &e))
    }

    /// Told to end while it waited for the rings that were kept: nothing was taken, and they stay kept.
    async fn end_early(&self, notifier: &Notifier) -> Exit {
        let patience = self.config.daemon.drain_timeout;
        notifier.stopping("closing the log");
        notifier.extend_timeout(patience + Duration::from_secs(5));
        tracing::error!(
            "told to end before the rings of the daemon before this one were known: they stay where they are"
        );
        let (journal, before) = (self.journal.clone(), self.journal.marks());
        let closed = tokio::task::spawn_blocking(move || journal.close(patience)).await;
        if !matches!(closed, Ok(true)) {
            let lost = not_kept(&before, &self.journal.marks());
            tracing::error!(?patience, "the log could not be ended cleanly in time: {lost}");
        }
        Exit::Failed
    }

    /// Goes on with the rings that were kept, and is ready to give out others.
    fn rings(&self, door: &Arc<Door>, kept: Option<(Keeper, Vec<Kept>)>) -> Result<Rings, Exit> {
        let Some((keeper, kept)) = kept else { return Ok(Rings::default()) };
        let settings = rings::Settings::of(&self.config.ingest.shm);
        if !self.config.ingest.shm.enabled && kept.is_empty() {
            return Ok(Rings::default());
        }
        Rings::start(settings, door.clone(), keeper, kept).map_err(|e| failed("start the drain of rings", &e))
    }

    /// The socket that is held for us, or one of our own.
    fn bind_unix(
        &self,
        path: &Path,
        mode: u32,
        held: &mut Held,
        sockets: &mut Vec<PathBuf>,
    ) -> Result<UnixListener, Exit> {
        if let Some(listener) = held.unix(path) {
            return UnixListener::from_std(listener).map_err(|e| failed(&format!("listen on {}", path.display()), &e));
        }
        let listener = bind_unix(path, mode).map_err(|e| failed(&format!("listen on {}", path.display()), &e))?;
        sockets.push(path.to_path_buf());
        Ok(listener)
    }

    fn serve_admin(
        &self,
        listener: UnixListener,
        (policy, highest, reach): (clad_proto::DurabilityPolicy, AckLevel, AckLevel),
        (connections, budget, rings): (Arc<Listeners>, Arc<Budget>, Rings),
        listeners: HashMap<String, String>,
    ) {
        let desk = Desk {
            journal: self.journal.clone(),
            health: self.health.clone(),
            substrate: self.substrate.clone(),
            policy,
            highest,
            reach,
            grounds: self.grounds.clone(),
            power_loss_protected: self.config.journal.power_loss_protected,
            started: self.started,
            recent: self.recent.clone(),
            segment_bytes: self.config.journal.segment_bytes,
            reserve_free: self.config.journal.reserve_free,
            budget,
            connections,
            rings,
            origin: self.origin.clone(),
            dir: self.config.journal.dir.display().to_string(),
            listeners,
        };
        let server = tonic::transport::Server::builder()
            .add_service(AdminServer::new(AdminService(Arc::new(desk))))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(async move {
            if let Err(e) = server.await {
                tracing::error!(error = %e, "the admin service ended");
            }
        });
    }
}

async fn bind_tcp(
    key: &str,
    address: Option<std::net::SocketAddr>,
    held: &mut Held,
) -> Result<Option<(TcpListener, String)>, Exit> {
    let Some(address) = address else { return Ok(None) };
    let bound = match held.tcp(address) {
        Some(listener) => TcpListener::from_std(listener),
        None => TcpListener::bind(address).await,
    };
    let listener = bound.map_err(|e| {
        let advice = advice::on_address(key, &e);
        failed(&format!("listen on {address} ({key})"), &format!("{e}{advice}"))
    })?;
    let address = listener.local_addr().map_or_else(|_| address.to_string(), |a| a.to_string());
    Ok(Some((listener, address)))
}

/// Gives the admin socket to a group; an empty name leaves it with the daemon's own.
fn set_group(path: &Path, group: &str) {
    if group.is_empty() {
        return;
    }
    let found = nix::unistd::Group::from_name(group).ok().flatten();
    let given = found.map(|g| nix::unistd::chown(path, None, Some(g.gid)));
    if !matches!(given, Some(Ok(()))) {
        tracing::warn!(group, "the admin socket could not be given to access.admin_group: it stays with the own group");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_drain_takes_what_the_next_needs() {
        let (began, patience) = (Instant::now(), Duration::from_secs(20));
        let Deadlines { rings, answers, all } = Deadlines::of(began, patience);
        assert_eq!(all - began, patience);
        assert!(
            rings > began && rings - began <= patience / 2,
            "the log and its connections have as long as the rings"
        );
        assert!(answers - rings >= patience / 4 && all - answers >= patience / 4);
        let none = Deadlines::of(began, Duration::ZERO);
        assert_eq!(none, Deadlines { rings: began, answers: began, all: began });
    }

    #[test]
    fn an_end_that_is_not_clean_says_what_it_leaves_behind() {
        let marks = |received, written, durable| Marks { received, written, durable, ..Marks::default() };
        let all = "nothing that was acknowledged as `written` or `durable` is lost";
        assert_eq!(not_kept(&marks(5, 5, 5), &marks(5, 5, 5)), all);
        // A disk that is slow has what was written.
        let before = marks(5, 5, 5);
        assert_eq!(
            not_kept(&before, &marks(9, 7, 5)),
            format!(
                "what was acknowledged as `received` and not written yet is lost (2 records, offsets 7 to 8); {all}"
            )
        );
        // One that has failed may have it.
        let failed = Marks { accepting: Accepting::Failed, failures: 1, ..marks(9, 7, 5) };
        let text = not_kept(&failed, &Marks { accepting: Accepting::Closing, ..failed });
        assert!(
            text.contains("(2 records, offsets 7 to 8); what was `written` and not durable yet is there as"),
            "{text}"
        );
        assert!(
            text.ends_with("(2 records, offsets 5 to 6); nothing that was acknowledged as `durable` is lost"),
            "{text}"
        );
        assert_eq!(not_kept(&before, &failed), text, "it failed on the way down");
    }
}
