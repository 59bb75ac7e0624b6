//! Start of serving: the pages first, then the socket for records is taken, then the stored rings, then each listener.
//!
//! Invariants: a client that waits for a start can ask the pages why. A socket that cannot be had ends the start, with
//! advice. A socket that the service manager holds is used, and is not ours to remove.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clad_proto::AckLevel;
use clad_proto::grpc::v1::admin_server::AdminServer;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;

use crate::access::{Access, RuleSet};
use crate::config::Config;
use crate::exit::Exit;
use crate::fdstore::{FdStore, StoredRing};
use crate::ingest::http::Listener as HttpListener;
use crate::ingest::otlp::{self, Otlp};
use crate::ingest::quota::Quota;
use crate::ingest::rings::{self, Rings};
use crate::ingest::syslog::Syslog;
use crate::ingest::{self, grpc};
use crate::ingest::{Admission, ConnectionSlots, FramedService, LiveSettings, OwnProducers, PeerTimeouts, Reactor};
use crate::life::bind::{Sockets, bind_tcp, bind_unix_of, failed};
use crate::life::inherited_sockets::InheritedSockets;
use crate::life::services::Services;
use crate::life::{advice, setup, syslog};
use crate::ops::admin::{AdminHandler, AdminService};
use crate::ops::health::router;
use crate::ops::pages::Pages;
use crate::ops::shares::Shares;
use crate::ops::status::Statement;
use crate::ops::{gauges, metrics};
use crate::read::Reads;
use crate::tls::{Material, Tls};

/// Time that a start in progress requests at once; it requests more long before that is over.
pub(super) const START_TIMEOUT_EXTENSION: Duration = Duration::from_secs(30);

/// Parts that serving made.
pub(super) struct Served {
    pub(super) connection_slots: Arc<ConnectionSlots>,
    pub(super) live_settings: LiveSettings,
    pub(super) statement: Statement,
    pub(super) sockets: Sockets,
    pub(super) rings: Rings,
    pub(super) reads: Arc<Reads>,
    pub(super) syslog: Syslog,
    /// Where a listener speaks TLS, or is given a certificate.
    pub(super) tls: Option<Tls>,
}

/// The socket for records, before any client is served there.
#[derive(Debug)]
pub(super) struct Records {
    listener: Option<UnixListener>,
    sockets: Sockets,
}

impl Services {
    /// The pages are there first: a client that waits for this start can ask why. `rings` is filled in later.
    pub(super) async fn serve_pages(
        &self,
        scrape: metrics::Scrape,
        rings: &Arc<OnceLock<Rings>>,
        inherited: &mut InheritedSockets,
        listen_addresses: &mut HashMap<String, String>,
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
        if let Some((listener, address)) = bind_tcp("metrics.listen", config.metrics.listen, inherited).await? {
            listen_addresses.insert("metrics".to_owned(), address);
            let pages = router(self.health.clone(), scrape);
            tokio::spawn(async move { axum::serve(Pages::new(listener), pages).await });
        }
        Ok(())
    }

    pub(super) async fn serve(
        &self,
        mut inherited: InheritedSockets,
        mut listen_addresses: HashMap<String, String>,
        records: Records,
        (fd_store, stored): (FdStore, Vec<StoredRing>),
        reactor: Reactor,
    ) -> Result<Served, Exit> {
        let config = &self.config;
        let Records { listener, mut sockets } = records;
        let (policy, mut highest) = setup::policy(config);
        let reach = self.substrate.durability_class(config.journal.power_loss_protected);
        if !reach.is_durable() && highest > AckLevel::Written {
            tracing::warn!("the highest ack level here is {reach}{}", advice::on_class(&reach));
            highest = AckLevel::Written;
        }
        let budget_bytes = config.limits.max_inflight_bytes as usize;
        let rules = RuleSet::read(&config.access).map_err(|error| {
            tracing::error!("{error}");
            Exit::Config
        })?;
        let access = Access::new(&config.access, rules);
        let admission = Arc::new(Admission {
            journal: self.journal.clone(),
            policy,
            highest,
            flush_reach: if reach.is_durable() { AckLevel::Durable } else { AckLevel::Written },
            max_append: ingest::clamp(config.limits.max_append_bytes),
            max_record: ingest::clamp(config.journal.max_record_bytes),
            max_connection_bytes: config.limits.max_connection_inflight_bytes as usize,
            window: setup::WINDOW,
            budget: Quota::new(budget_bytes),
            access,
        });
        let rings = self.rings(&reactor, &admission, (fd_store, stored))?;
        rings.first_drain().await;
        tokio::spawn(rings.clone().adopt_the_rest());
        let reads = Reads::new(self.journal.clone(), admission.flush_reach);
        reads.cursors.set_max(config.limits.max_cursors as usize);
        let service = FramedService {
            admission: admission.clone(),
            reads: reads.clone(),
            rings: rings.clone(),
            assembly: Quota::new(budget_bytes),
            buffers: self.buffers.clone(),
            handshake_timeout: config.limits.handshake_timeout,
            idle_timeout: config.limits.idle_timeout,
            peer_timeouts: PeerTimeouts::default(),
            stop: self.stopped.clone(),
        };
        let connection_slots = ConnectionSlots::new(setup::connections_max(config));
        let shares = Shares {
            connections: connection_slots.clone(),
            inflight: admission.budget.clone(),
            assembly: service.assembly.clone(),
            buffers: self.buffers.clone(),
            reads: reads.clone(),
            rings: rings.clone(),
        };
        let live_settings = LiveSettings::new(service, config.limits.max_message_bytes);
        let listeners = Arc::new(OnceLock::new());
        let orders = self.orders((policy, highest, admission.flush_reach), shares, listeners.clone());
        let ack = config.ingest.otlp.ack.level();
        if let Some(ack) = ack.filter(|ack| *ack > highest) {
            tracing::warn!(
                "ingest.otlp.ack = {ack}, and this log reaches {highest} at most: requests that ask for no other level are refused"
            );
        }
        let has_resend_window = !config.ingest.otlp.resend_window.is_zero();
        let producers = Arc::new(OwnProducers::new(self.journal.clone()));
        let otlp = Otlp::new(producers.clone(), live_settings.clone(), ack, has_resend_window);
        let syslog = Syslog::new(live_settings.clone(), connection_slots.clone(), producers, self.stopped.clone());
        let tls = tls_of(config)?;
        if let (Some(path), Some(listener)) = (&config.ingest.unix.path, listener) {
            listen_addresses.insert("unix".to_owned(), path.display().to_string());
            let stop = self.stopped.clone();
            let served = ingest::unix(listener, reactor.clone(), live_settings.clone(), connection_slots.clone(), stop);
            tokio::spawn(served);
        }
        if let Some((listener, address)) =
            bind_tcp("ingest.tcp.listen", config.ingest.tcp.listen, &mut inherited).await?
        {
            listen_addresses.insert("tcp".to_owned(), address);
            let settings = (config.ingest.tcp.allow_read, tls.clone().filter(|_| config.ingest.tcp.tls));
            let stop = self.stopped.clone();
            tokio::spawn(ingest::tcp(
                listener,
                reactor.clone(),
                live_settings.clone(),
                connection_slots.clone(),
                settings,
                stop,
            ));
        }
        if let Some((listener, address)) =
            bind_tcp("ingest.grpc.listen", config.ingest.grpc.listen, &mut inherited).await?
        {
            listen_addresses.insert("grpc".to_owned(), address);
            grpc::serve(
                http_listener(listener, &tls, ("ingest.grpc.tls", config.ingest.grpc.tls)),
                live_settings.clone(),
                connection_slots.clone(),
                &otlp,
                (config.ingest.grpc.allow_read, config.ingest.grpc.tls.then(|| orders.clone())),
                self.health.clone(),
            );
        }
        let mut otlp_addresses = Vec::new();
        for address in &config.ingest.otlp.listen {
            let bound = bind_tcp("ingest.otlp.listen", Some(*address), &mut inherited).await?;
            let Some((listener, address)) = bound else { continue };
            otlp_addresses.push(address);
            let listener = http_listener(listener, &tls, ("ingest.otlp.tls", config.ingest.otlp.tls));
            otlp::serve(listener, &otlp, live_settings.clone(), connection_slots.clone());
        }
        if let Some(path) = &config.ingest.otlp.path {
            let listener = bind_unix_of("ingest.otlp.path", path, 0o666, &mut inherited, &mut sockets)?;
            otlp_addresses.push(path.display().to_string());
            otlp::serve(HttpListener::Unix(listener), &otlp, live_settings.clone(), connection_slots.clone());
        }
        if !otlp_addresses.is_empty() {
            listen_addresses.insert("otlp".to_owned(), otlp_addresses.join(", "));
        }
        syslog::serve(config, &syslog, (highest, tls.as_ref()), &mut inherited, &mut sockets, &mut listen_addresses)
            .await?;
        if let Some(path) = &config.admin.path {
            let listener = bind_unix_of("admin.path", path, 0o660, &mut inherited, &mut sockets)?;
            if sockets.has(path) {
                set_group(path, &config.access.admin_group);
            }
            listen_addresses.insert("admin".to_owned(), path.display().to_string());
            serve_admin(listener, orders);
        }
        let _ = listeners.set(listen_addresses.clone());
        if !self.grounds.is_empty() {
            tracing::info!(
                policy = policy.name(),
                "durable without a flush of any disk cache, because {}",
                self.grounds
            );
        }
        tracing::info!(listeners = ?listen_addresses, policy = policy.name(), highest_ack = highest.name(), "listening");
        let promise = format!("{} to {}", policy.name(), highest.name());
        let recovered = self.journal.report().to_string();
        let statement = Statement::new(promise, recovered, self.journal.watermarks().received, Instant::now());
        Ok(Served { connection_slots, live_settings, statement, sockets, rings, reads, syslog, tls })
    }

    /// Takes the socket for records, or gets it from the service manager: before anything else that goes by its name
    /// (the rings), for only one daemon can have it. A client that connects waits until it is served.
    pub(super) fn take_records(&self, inherited: &mut InheritedSockets) -> Result<Records, Exit> {
        let mut sockets = Sockets::default();
        let path = self.config.ingest.unix.path.as_deref();
        let listener =
            path.map(|path| bind_unix_of("ingest.unix.path", path, 0o666, inherited, &mut sockets)).transpose()?;
        Ok(Records { listener, sockets })
    }

    /// Resumes the stored rings, and is ready to give out others. Nobody is served before their first drain.
    fn rings(
        &self,
        reactor: &Reactor,
        admission: &Arc<Admission>,
        (fd_store, stored): (FdStore, Vec<StoredRing>),
    ) -> Result<Rings, Exit> {
        let settings = rings::Settings::of(&self.config.ingest.shm);
        let gives_out = self.config.ingest.shm.enabled && self.config.ingest.unix.path.is_some();
        if !gives_out && stored.is_empty() {
            return Ok(Rings::default());
        }
        Rings::start(reactor, settings, admission.clone(), fd_store, stored)
            .map_err(|e| failed("start the drain of rings", &e))
    }

    fn orders(
        &self,
        (policy, highest, reach): (clad_proto::DurabilityPolicy, AckLevel, AckLevel),
        shares: Shares,
        listeners: Arc<OnceLock<HashMap<String, String>>>,
    ) -> AdminHandler {
        let is_protected = self.config.journal.power_loss_protected;
        let not_durable = advice::not_durable(&self.substrate.durability_class(is_protected));
        let services = self.clone();
        AdminHandler(Arc::new(AdminService { services, policy, highest, reach, not_durable, shares, listeners }))
    }
}

fn serve_admin(listener: UnixListener, orders: AdminHandler) {
    let server = tonic::transport::Server::builder()
        .add_service(AdminServer::new(orders))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(async move {
        if let Err(e) = server.await {
            tracing::error!(error = %e, "the admin service ended");
        }
    });
}

/// Certificate and key, where the configuration names them.
fn tls_of(config: &Config) -> Result<Option<Tls>, Exit> {
    if config.tls.cert.is_none() {
        return Ok(None);
    }
    match Material::read(&config.tls) {
        Ok(material) => Ok(Some(Tls::new(material))),
        Err(error) => {
            tracing::error!("TLS: {error}");
            Err(Exit::Config)
        }
    }
}

fn http_listener(listener: TcpListener, tls: &Option<Tls>, (key, speaks): (&'static str, bool)) -> HttpListener {
    match tls {
        Some(tls) if speaks => HttpListener::Tls(listener, tls.clone(), key),
        _ => HttpListener::Tcp(listener),
    }
}

/// Gives the admin socket to a group; an empty name leaves it with the daemon's own.
fn set_group(path: &Path, group: &str) {
    if group.is_empty() {
        return;
    }
    let found = nix::unistd::Group::from_name(group).ok().flatten();
    let given = found.map(|g| nix::unistd::chown(path, None, Some(g.gid)));
    if !matches!(given, Some(Ok(()))) {
        tracing::warn!(group, "the admin socket could not be given to access.admin_group: it keeps its own group");
    }
}
