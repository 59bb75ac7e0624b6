//! `/metrics`, `/healthz` and `/readyz`.
//!
//! Invariants: `/readyz` is 200 only while appends are accepted, and says why when they are not; `/healthz` is 200 for
//! as long as the process serves at all. A restart of a daemon because its disk is full would only take the readers
//! away too.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;

use crate::ops::metrics::Scrape;

/// Reason why appends are not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// Cause, by the names of [`State::degraded`].
    pub cause: &'static str,
    /// In words.
    pub why: String,
}

/// State of the daemon, as it knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Reason why appends are not accepted; `None` while they are.
    pub not_ready: Option<NotReady>,
    /// Problems though the daemon serves, by cause.
    pub degraded: BTreeMap<&'static str, String>,
}

impl State {
    /// `ok`, or what is wrong, each cause once: that appends are refused for it says more than that they will be.
    #[must_use]
    pub fn summary(&self) -> String {
        let refused = self.not_ready.as_ref();
        let others = self.degraded.iter().filter(|(cause, _)| refused.is_none_or(|refused| refused.cause != **cause));
        let reasons = refused.map(|refused| &refused.why).into_iter().chain(others.map(|(_, why)| why));
        let reasons: Vec<&str> = reasons.map(String::as_str).collect();
        if reasons.is_empty() { "ok".to_owned() } else { format!("degraded: {}", reasons.join("; ")) }
    }
}

/// The handle through which every part of the daemon reports its state; clones share one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<watch::Sender<State>>);

impl Default for Health {
    /// Not ready: starting.
    fn default() -> Self {
        let not_ready = Some(NotReady { cause: "start", why: "starting".to_owned() });
        let degraded = BTreeMap::new();
        Self(Arc::new(watch::Sender::new(State { not_ready, degraded })))
    }
}

impl Health {
    /// Appends are accepted.
    pub fn ready(&self) {
        self.change(|state| state.not_ready = None);
    }

    /// Appends are not accepted.
    pub fn not_ready(&self, cause: &'static str, why: impl Into<String>) {
        let why = why.into();
        self.change(|state| state.not_ready = Some(NotReady { cause, why }));
    }

    /// Notes a problem though the daemon serves; a later call for the same cause replaces this one.
    pub fn degraded(&self, cause: &'static str, why: impl Into<String>) {
        let why = why.into();
        self.change(|state| {
            state.degraded.insert(cause, why);
        });
    }

    /// Notes that this cause is gone.
    pub fn restored(&self, cause: &'static str) {
        self.change(|state| {
            state.degraded.remove(cause);
        });
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Wakes whenever the state changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.0.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            *state != before
        });
    }
}

/// The pages, for `axum::serve` on `[metrics] listen`.
pub fn router(health: Health, scrape: Scrape) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(scrape)
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health)
}

async fn metrics(Extract(scrape): Extract<Scrape>) -> impl IntoResponse {
    // It reads /proc, which has no business on a thread that serves clients.
    match tokio::task::spawn_blocking(move || scrape.render()).await {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
            format!("the metrics could not be rendered: {error}\n"),
        ),
    }
}

async fn healthz(Extract(health): Extract<Health>) -> String {
    format!("{}\n", health.state().summary())
}

async fn readyz(Extract(health): Extract<Health>) -> (StatusCode, String) {
    match health.state().not_ready {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(NotReady { why, .. }) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

/// Reason why nothing is taken while the journal has failed.
pub(crate) fn journal_failed(reason: &str) -> String {
    format!("the journal failed and recovers by itself: {reason}")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Asks a served router for a page: the status line's code and the body.
    async fn page(health: &Health, path: &str) -> (u16, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = router(health.clone(), Scrape::for_test());
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (code, body)
    }

    #[tokio::test]
    async fn readiness_follows_the_appends_and_health_the_process() {
        let health = Health::default();
        assert_eq!(page(&health, "/readyz").await, (503, "not ready: starting\n".into()));
        assert_eq!(page(&health, "/healthz").await, (200, "degraded: starting\n".into()));
        health.ready();
        assert_eq!(page(&health, "/readyz").await, (200, "ready\n".into()));
        assert_eq!(page(&health, "/healthz").await, (200, "ok\n".into()));
        health.degraded("space", "the reserve is in use");
        assert_eq!(page(&health, "/readyz").await.0, 200);
        assert_eq!(page(&health, "/healthz").await, (200, "degraded: the reserve is in use\n".into()));
        health.restored("space");
        health.not_ready("journal", "the journal failed");
        assert_eq!(page(&health, "/readyz").await, (503, "not ready: the journal failed\n".into()));
        assert_eq!(page(&health, "/none").await.0, 404);
    }

    #[tokio::test]
    async fn metrics_are_served() {
        let (code, body) = page(&Health::default(), "/metrics").await;
        assert_eq!(code, 200);
        assert!(body.contains("clad_build_info"), "{body}");
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let health = Health::default();
        health.ready();
        health.degraded("space", "no room, the active segment is used");
        health.degraded("reload", "the reload was refused");
        assert_eq!(health.state().summary(), "degraded: the reload was refused; no room, the active segment is used");
        health.not_ready("space", "no room");
        assert_eq!(health.state().summary(), "degraded: no room; the reload was refused");
        health.not_ready("journal", "the journal failed");
        assert_eq!(
            health.state().summary(),
            "degraded: the journal failed; the reload was refused; no room, the active segment is used"
        );
    }

    #[test]
    fn only_changes_wake() {
        let health = Health::default();
        let mut seen = health.subscribe();
        health.not_ready("start", "starting");
        assert!(!seen.has_changed().unwrap());
        health.ready();
        assert!(seen.has_changed().unwrap());
        assert_eq!(seen.borrow_and_update().summary(), "ok");
    }
}
