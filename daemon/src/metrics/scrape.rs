//! What `/metrics` answers.

use std::sync::{Arc, OnceLock};

use metrics::{Recorder, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use metrics_process::Collector;

use super::table::{IO_INFO, Meters};
use crate::config::{Durability, IoEngine};

/// Renders everything; clones show the same numbers.
#[derive(Clone)]
pub struct Scrape {
    handle: PrometheusHandle,
    meters: Arc<Meters>,
    process: Collector,
    /// Where the process's own numbers go: not by way of the global recorder, so that a test's scrape is
    /// its own.
    recorder: Arc<PrometheusRecorder>,
}

static INSTALLED: OnceLock<Scrape> = OnceLock::new();

/// Installs the metrics of this process, all at 0; a second call returns the same.
pub fn install() -> Scrape {
    INSTALLED.get_or_init(Scrape::new).clone()
}

/// The handles, once installed.
pub(super) fn meters() -> Option<&'static Meters> {
    INSTALLED.get().map(|scrape| scrape.meters.as_ref())
}

impl Scrape {
    fn new() -> Self {
        let recorder = Arc::new(PrometheusBuilder::new().build_recorder());
        let process = Collector::default();
        let meters = metrics::with_local_recorder(&*recorder, || {
            process.describe();
            io_info_at_zero();
            Arc::new(Meters::new())
        });
        Self { handle: recorder.handle(), meters, process, recorder }
    }

    /// One of its own, that no other test counts in.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self::new()
    }

    /// The text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        self.with(|| self.process.collect());
        let mut text = self.handle.render();
        self.meters.render_histograms(&mut text);
        text
    }

    /// Runs with this recorder as the current one.
    pub(super) fn with<T>(&self, body: impl FnOnce() -> T) -> T {
        let recorder: &dyn Recorder = &*self.recorder;
        metrics::with_local_recorder(recorder, body)
    }

    /// Says which engine and policy are in use.
    pub fn io_info(&self, engine: IoEngine, durability: Durability) {
        self.with(|| io_info(engine, durability).set(1.0));
    }
}

fn io_info(engine: IoEngine, durability: Durability) -> metrics::Gauge {
    gauge!(IO_INFO, "engine" => engine.as_str(), "durability" => durability.as_str())
}

/// Every pair that this version can run with; `auto` is a wish and never in use.
fn io_info_at_zero() {
    for engine in IoEngine::ALL.iter().filter(|engine| **engine != IoEngine::Auto) {
        for durability in Durability::ALL {
            io_info(*engine, *durability).set(0.0);
        }
    }
}
