//! The answer of `/metrics`.

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
    /// Registry of the process's own numbers: not by way of the global recorder, so that a test's scrape is its own.
    recorder: Arc<PrometheusRecorder>,
    /// Updates values that are looked up, not counted (offsets, space): a scrape shows the moment of the scrape.
    look: Arc<OnceLock<Look>>,
}

type Look = Box<dyn Fn() + Send + Sync>;

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
        Self { handle: recorder.handle(), meters, process, recorder, look: Arc::default() }
    }

    /// One of its own, that no other test counts in.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self::new()
    }

    #[cfg(test)]
    pub(super) fn set_cursors(&self, lags: Vec<super::CursorLag>) {
        self.meters.cursors.set(lags);
    }

    /// Has `look` called before each answer. The first one given stays.
    pub(crate) fn look_with(&self, look: impl Fn() + Send + Sync + 'static) {
        let _ = self.look.set(Box::new(look));
    }

    /// The text format of Prometheus. It reads `/proc`, and asks the file system for its space: not for a thread that
    /// serves clients.
    #[must_use]
    pub fn render(&self) -> String {
        if let Some(look) = self.look.get() {
            look();
        }
        self.with(|| self.process.collect());
        self.meters.publish();
        let mut text = self.handle.render();
        self.meters.render(&mut text);
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
