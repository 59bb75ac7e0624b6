//! What serves: the pages first, then the socket for records is taken, then the rings that were kept, then each listener.
//!
//! What must hold: whoever waits for a start can ask the pages why; a socket that cannot be had ends the start, with what to do
//! about it; one that the service manager holds is used, and is not ours to remove.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use clad_journal::Journal;
use clad_journal::io::device::Substrate;
use clad_proto::AckLevel;
use clad_proto::grpc::v1::admin_server::AdminServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

use super::{MORE_TIME, failed};
use crate::access::Access;
use crate::admin::{Desk, Service as AdminService};
use crate::config::Config;
use crate::exit::Exit;
use crate::health::{Health, router};
use crate::held::Held;
use crate::ingest::quota::Quota;
use crate::ingest::{Crew, Current, Door, FramedService, Listeners, Patience, bind_unix};
use crate::keep::{self, Keeper, Kept, Sought, Stored};
use crate::origin::Origin;
use crate::pages::Pages;
use crate::read::Reads;
use crate::rings::{self, Rings};
use crate::shares::Shares;
use crate::status::Statement;
use crate::systemd::Notifier;
use crate::{advice, gauges, grpc, ingest, metrics, setup};

/// What serving needs.
pub(super) struct World {
    pub(super) config: Config,
    pub(super) origin: Origin,
    pub(super) health: Health,
    pub(super) journal: Arc<Journal>,
    pub(super) substrate: Substrate,
    /// What the policy's promise rests on.
    pub(super) grounds: String,
    pub(super) stopped: watch::Receiver<bool>,
    pub(super) recent: Arc<metrics::Recent>,
    pub(super) started: Instant,
    /// What buffers of connections take beyond their own.
    pub(super) buffers: Arc<Quota>,
}

/// What serving made.
pub(super) struct Served {
    pub(super) listeners: Arc<Listeners>,
    pub(super) current: Current,
    pub(super) statement: Statement,
    pub(super) sockets: Sockets,
    pub(super) rings: Rings,
}

/// Files of the sockets that are ours to remove, at the end or where a start fails.
#[derive(Debug, Default)]
pub(super) struct Sockets(Vec<PathBuf>);

impl Sockets {
    pub(super) fn remove(&mut self) {
        for path in self.0.drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The socket for records, before anybody is served there.
#[derive(Debug)]
pub(super) struct Records {
    listener: Option<UnixListener>,
    sockets: Sockets,
}

impl World {
    /// The pages are there first: who waits for this start can ask why. `rings` is filled in later.
    pub(super) async fn serve_pages(
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

    pub(super) async fn serve(
        &self,
        mut held: Held,
        mut told: HashMap<String, String>,
        records: Records,
        kept: Option<(Keeper, Vec<Kept>)>,
        crew: Crew,
    ) -> Result<Served, Exit> {
        let config = &self.config;
        let Records { listener, mut sockets } = records;
        let (policy, mut highest) = setup::policy(config);
        let reach = self.substrate.reach(config.journal.power_loss_protected);
        if !reach.is_durable() && highest > AckLevel::Written {
            tracing::warn!("the highest ack level here is {reach}{}", advice::on_reach(&reach));
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
            budget: Quota::new(budget_bytes),
        });
        let rings = self.rings(&door, kept)?;
        tokio::spawn(rings.clone().adopt_the_rest());
        let reads = Reads::new(self.journal.clone(), door.flush_reach);
        let service = FramedService {
            door: door.clone(),
            reads: reads.clone(),
            rings: rings.clone(),
            assembly: Quota::new(budget_bytes),
            buffers: self.buffers.clone(),
            handshake_timeout: config.limits.handshake_timeout,
            idle_timeout: config.limits.idle_timeout,
            patience: Patience::default(),
            stop: self.stopped.clone(),
        };
        let listeners = Listeners::new(setup::places(config));
        let shares = Shares {
            connections: listeners.clone(),
            inflight: door.budget.clone(),
            assembly: service.assembly.clone(),
            buffers: self.buffers.clone(),
            reads: reads.clone(),
            rings: rings.clone(),
        };
        let current = Current::new(service);
        let access = Arc::new(Access::new(&config.access.read_group));
        if let (Some(path), Some(listener)) = (&config.ingest.unix.path, listener) {
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
                listeners.clone(),
                config.ingest.grpc.allow_read,
                self.health.clone(),
            );
        }
        if let Some(path) = &config.admin.path {
            let listener = bind_unix_of("admin.path", path, 0o660, &mut held, &mut sockets)?;
            if sockets.0.contains(path) {
                set_group(path, &config.access.admin_group);
            }
            told.insert("admin".to_owned(), path.display().to_string());
            self.serve_admin(listener, (policy, highest, door.flush_reach), shares, told.clone());
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
        Ok(Served { listeners, current, statement, sockets, rings })
    }

    /// Takes the socket for records, or has it from the service manager: before anything else that goes by its name, which
    /// are the rings, for only one daemon can have it. Who connects waits until he is served.
    pub(super) fn take_records(&self, held: &mut Held) -> Result<Records, Exit> {
        let mut sockets = Sockets::default();
        let path = self.config.ingest.unix.path.as_deref();
        let listener =
            path.map(|path| bind_unix_of("ingest.unix.path", path, 0o666, held, &mut sockets)).transpose()?;
        Ok(Records { listener, sockets })
    }

    /// Who keeps the rings, and those that are kept; nothing where there can be none. Waits for whoever has them.
    pub(super) async fn kept(&self, stored: Stored, notifier: &Notifier) -> Result<Option<(Keeper, Vec<Kept>)>, Exit> {
        let sought = Sought {
            socket: self.config.ingest.unix.path.as_deref(),
            data: &self.config.journal.dir,
            is_new: self.journal.report().fresh,
        };
        let found = keep::find(sought, stored, &self.health, |silence| {
            self.health.not_ready("start", format!("starting: {silence}"));
            notifier.status(&format!("waiting: {silence}"));
            notifier.extend_timeout(MORE_TIME);
        });
        found.await.map_err(|e| failed("find the rings of the daemon before this one", &e))
    }

    /// Goes on with the rings that were kept, and is ready to give out others.
    fn rings(&self, door: &Arc<Door>, kept: Option<(Keeper, Vec<Kept>)>) -> Result<Rings, Exit> {
        let Some((keeper, kept)) = kept else { return Ok(Rings::default()) };
        let settings = rings::Settings::of(&self.config.ingest.shm);
        let gives_out = self.config.ingest.shm.enabled && self.config.ingest.unix.path.is_some();
        if !gives_out && kept.is_empty() {
            return Ok(Rings::default());
        }
        Rings::start(settings, door.clone(), keeper, kept).map_err(|e| failed("start the drain of rings", &e))
    }

    fn serve_admin(
        &self,
        listener: UnixListener,
        (policy, highest, reach): (clad_proto::DurabilityPolicy, AckLevel, AckLevel),
        shares: Shares,
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
            not_durable: advice::not_durable(&self.substrate.reach(self.config.journal.power_loss_protected)),
            power_loss_protected: self.config.journal.power_loss_protected,
            started: self.started,
            recent: self.recent.clone(),
            segment_bytes: self.config.journal.segment_bytes,
            reserve_free: self.config.journal.reserve_free,
            shares,
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

/// The socket that is held for us, or one of our own.
fn bind_unix_of(
    key: &str,
    path: &Path,
    mode: u32,
    held: &mut Held,
    sockets: &mut Sockets,
) -> Result<UnixListener, Exit> {
    let (bound, is_ours) = match held.unix(path) {
        Some(listener) => (UnixListener::from_std(listener), false),
        None => (bind_unix(path, mode), true),
    };
    let listener = bound.map_err(|e| {
        let advice = advice::on_socket(key, path, &e);
        failed(&format!("listen on {} ({key})", path.display()), &format!("{e}{advice}"))
    })?;
    if is_ours {
        sockets.0.push(path.to_path_buf());
    }
    Ok(listener)
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
