//! TLS with real processes: what is said in it, who is known by it, how its files change, and what bad peers get.

mod bad_peers;
mod certs;
mod names;
mod real;
mod renewal;
mod rules;
mod starts;
mod ways;

use std::future::Future;
use std::path::{Path, PathBuf};

use certs::{Authority, Files, Issued};
use clad_client::{AckLevel, Producer, ProducerBuilder, Record};
use clad_e2e::readback::{self, Stored};
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT};

/// A daemon whose network listeners speak TLS, and what its peers need.
struct Host {
    daemon: Daemon,
    folder: tempfile::TempDir,
    authority: Authority,
    /// Certificate and key of the daemon.
    files: Files,
    /// The authority as a file.
    ca: PathBuf,
}

impl Host {
    /// Clients may show certificates of the same authority.
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(sets: &[(&str, &str)]) -> Self {
        Self::start_by("", sets)
    }

    /// With this configuration file.
    fn start_by(config: &str, sets: &[(&str, &str)]) -> Self {
        let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("the tests' authority"));
        let files = authority.server().put(folder.path(), "server");
        let ca = folder.path().join("ca.crt");
        std::fs::write(&ca, authority.pem()).expect("written");
        let setup =
            sets.iter().fold(setup_with(&files, &ca).fixed_ports(), |setup, (key, value)| setup.set(key, value));
        std::fs::write(setup.config(), config).expect("written");
        Self { daemon: setup.start(), folder, authority, files, ca }
    }

    /// Address of a listener, with what a client without a certificate needs.
    fn address(&self, scheme: &str) -> String {
        let listener = if scheme == "grpcs" { "grpc" } else { "tcp" };
        format!("{scheme}://{}?ca={}", self.daemon.port(listener), self.ca.display())
    }

    /// The same for a client with a certificate.
    fn address_as(&self, scheme: &str, client: &Files) -> String {
        format!("{}&cert={}&key={}", self.address(scheme), client.cert.display(), client.key.display())
    }

    /// Files of a client.
    fn client(&self, name: &str, issued: &Issued) -> Files {
        issued.put(self.folder.path(), name)
    }

    /// Waits for the count of an end: the peer may see that end before it is counted.
    fn wait_handshakes(&self, result: &str, count: f64) {
        self.daemon.wait_until(&format!("{count} {result}"), |_| self.handshakes(result) >= count);
        assert_eq!(self.handshakes(result), count, "{result}");
    }

    fn handshakes(&self, result: &str) -> f64 {
        self.daemon.metric(&format!("clad_tls_handshakes_total{{result=\"{result}\"}}"))
    }
}

fn setup_with(files: &Files, ca: &Path) -> Setup {
    let path = |path: &Path| path.display().to_string();
    Setup::new()
        .set("tls.cert", &path(&files.cert))
        .set("tls.key", &path(&files.key))
        .set("tls.client_ca", &path(ca))
        .set("ingest.tcp.tls", "true")
        .set("ingest.tcp.allow_read", "true")
        .set("ingest.grpc.tls", "true")
        .set("ingest.grpc.allow_read", "true")
}

fn builder(address: &str) -> ProducerBuilder {
    Producer::builder(address.parse().expect("an address")).component("tls").level(AckLevel::Durable)
}

/// Runs a client to its end.
fn on<T>(client: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(client)
}

/// Everything that a daemon gives out.
fn served(address: &str) -> Vec<Stored> {
    on(readback::served(address))
}

/// Appends one record and waits until it is durable.
fn append(address: &str, body: &str) -> Result<(), String> {
    on(append_one(address, body))
}

async fn append_one(address: &str, body: &str) -> Result<(), String> {
    let producer = builder(address).connect().await.map_err(|error| error.to_string())?;
    let records = [Record::text(0, 9, body)];
    let appended = tokio::time::timeout(TEST_TIMEOUT, producer.append(&records)).await.expect("an answer");
    appended.map_err(|error| error.to_string())?;
    producer.close().await.map_err(|error| error.to_string()).map(drop)
}

/// What a client is refused with.
fn refused(address: &str) -> String {
    let connect = async { tokio::time::timeout(TEST_TIMEOUT, builder(address).connect()).await };
    on(connect).expect("an answer in time").expect_err("it is let in").to_string()
}
