//! A real Prometheus that scrapes one clad twice a second and evaluates the rules of the mixin.
//!
//! Invariants: it listens on a port that it finds itself, keeps its data in a folder that is gone afterwards, and is
//! never on the file system that a test breaks; every wait ends in [`TEST_TIMEOUT`] and says what Prometheus knew then.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::{OutputStream, Running};
use clad_e2e::{Daemon, Json, TEST_TIMEOUT, json, web};

/// Between two looks at what Prometheus knows.
const QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// What the suite hands over.
pub(crate) fn given(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: call `cargo xtask ci prometheus`")).into()
}

pub(crate) struct Prometheus {
    process: Running,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Prometheus {
    /// One that scrapes this daemon.
    pub(crate) fn over(daemon: &Daemon) -> Self {
        let folder = tempfile::Builder::new().prefix("clad-prometheus-").tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let rules = given("CLAD_PROMETHEUS_RULES");
        let text = format!(
            "global:\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  evaluation_interval: 500ms\n\
             rule_files: ['{}/rules/*.yaml']\n\
             scrape_configs:\n  - job_name: clad\n    file_sd_configs:\n      - files: ['{folder}/targets.json']\n\
             \x20 - job_name: clad-relay\n    file_sd_configs:\n      - files: ['{folder}/relays.json']\n",
            rules.display(),
            folder = folder.path().display()
        );
        fs::write(&config, text).expect("a configuration");
        fs::write(folder.path().join("targets.json"), targets(Some(daemon.port("metrics")))).expect("targets");
        fs::write(folder.path().join("relays.json"), targets(None)).expect("targets");
        let mut command = Command::new(given("CLAD_PROMETHEUS"));
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg("--web.listen-address=127.0.0.1:0");
        let process = Running::start(command.stdin(Stdio::null()));
        let ready = process.wait_for(OutputStream::Stderr, "Server is ready", TEST_TIMEOUT);
        assert!(ready, "Prometheus does not start:\n{}", process.said());
        let said = process.said();
        let address =
            said.split("msg=\"Listening on\" address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address = address.unwrap_or_else(|| panic!("no address in\n{said}")).parse().expect("an address");
        let prometheus = Self { process, address, folder };
        prometheus.wait("the first scrape", || prometheus.value("up") == Some(1.0));
        // Before the first scrape there was none, and its rules say so.
        prometheus.wait_over(&["CladAbsent"]);
        prometheus
    }

    /// Has it scrape that daemon, or nobody.
    pub(crate) fn scrape(&self, daemon: Option<&Daemon>) {
        self.set("targets.json", daemon.map(|daemon| daemon.port("metrics")));
    }

    /// Has it scrape a relay too.
    pub(crate) fn scrape_relay(&self, metrics: SocketAddr) {
        self.set("relays.json", Some(metrics));
    }

    fn set(&self, list: &str, target: Option<SocketAddr>) {
        // In one step: a list that is half there would be an error.
        let next = self.folder.path().join("next");
        fs::write(&next, targets(target)).expect("targets");
        fs::rename(next, self.folder.path().join(list)).expect("targets");
    }

    fn ask(&self, path: &str) -> Json {
        let (status, body) = web::page(self.address, path);
        assert_eq!(status, 200, "{path}: {body}");
        json(body.as_bytes())["data"].take()
    }

    /// The numbers that a query gives now.
    pub(crate) fn query(&self, expr: &str) -> Vec<f64> {
        let answer = self.ask(&format!("/api/v1/query?query={}", escaped(expr)));
        let sample = |value: &Json| value[1].as_str().and_then(|text| text.parse().ok()).expect("a number");
        match answer["resultType"].as_str() {
            Some("scalar") => vec![sample(&answer["result"])],
            _ => answer["result"].as_array().expect("samples").iter().map(|one| sample(&one["value"])).collect(),
        }
    }

    /// The one number that a query gives.
    pub(crate) fn value(&self, expr: &str) -> Option<f64> {
        self.query(expr).first().copied()
    }

    /// The groups of rules with their state.
    pub(crate) fn rules(&self) -> Vec<Json> {
        let groups = self.ask("/api/v1/rules")["groups"].take();
        groups
            .as_array()
            .expect("groups")
            .iter()
            .flat_map(|g| g["rules"].as_array().cloned().unwrap_or_default())
            .collect()
    }

    /// The alerts that fire.
    pub(crate) fn firing(&self) -> Vec<Json> {
        let alerts = self.ask("/api/v1/alerts")["alerts"].take();
        alerts.as_array().expect("alerts").iter().filter(|alert| alert["state"] == "firing").cloned().collect()
    }

    pub(crate) fn fires(&self, name: &str) -> bool {
        self.firing().iter().any(|alert| alert["labels"]["alertname"] == name)
    }

    /// Waits until all of these fire; each must be complete then.
    pub(crate) fn wait_firing(&self, names: &[&str]) {
        for name in names {
            self.wait(&format!("{name} firing"), || self.fires(name));
        }
        for alert in self.firing() {
            let text = |key: &str| alert["annotations"][key].as_str().unwrap_or_default().to_owned();
            let (summary, description) = (text("summary"), text("description"));
            assert!(!summary.is_empty() && !description.is_empty() && !text("runbook_url").is_empty(), "{alert}");
            for broken in ["{{", "<no value>", "<error"] {
                assert!(!format!("{summary}{description}").contains(broken), "{alert}");
            }
        }
    }

    /// Waits until none of these fires.
    pub(crate) fn wait_over(&self, names: &[&str]) {
        for name in names {
            self.wait(&format!("the end of {name}"), || !self.fires(name));
        }
    }

    /// None of these fires now: a fault that is not there yet must not be seen.
    pub(crate) fn is_silent(&self, names: &[&str]) {
        for name in names {
            assert!(!self.fires(name), "{name} fires before its fault:\n{}", self.knows());
        }
    }

    pub(crate) fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came:\n{}", self.knows());
            thread::sleep(QUERY_INTERVAL);
        }
    }

    /// What it knows, for a test that fails.
    fn knows(&self) -> String {
        let mut text = format!("firing: {:?}\n", self.firing());
        for rule in self.rules() {
            let error = rule["lastError"].as_str().unwrap_or_default();
            let _ = writeln!(text, "{} {} {} {error}", rule["name"], rule["health"], rule["state"]);
        }
        text + &self.process.said()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.process.kill();
        let _ = self.process.wait_end(TEST_TIMEOUT);
    }
}

fn targets(target: Option<SocketAddr>) -> String {
    let targets: Vec<String> = target.iter().map(SocketAddr::to_string).collect();
    serde_json::json!([{ "targets": targets }]).to_string()
}

/// As a value in an address.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let _ = match byte.is_ascii_alphanumeric() {
            true => write!(out, "{}", char::from(byte)),
            false => write!(out, "%{byte:02X}"),
        };
        out
    })
}
