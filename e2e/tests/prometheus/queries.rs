//! A loaded clad: every panel and every rule has something to show, and nothing is wrong.

use std::fs;
use std::path::Path;

use clad_e2e::{Setup, json};

use crate::load::Load;
use crate::relay::{FILES, Relay};
use crate::server::{Prometheus, given};

/// What the disk of the machine may raise by itself; all others are ours.
const OF_THE_MACHINE: [&str; 4] = ["CladSyncSlow", "CladDiskLow", "CladDiskFullSoon", "CladSegmentsUnprepared"];

/// What Grafana puts in for its variables.
fn filled_in(expr: &str) -> String {
    expr.replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", "8s").replace("$__range", "16s")
}

/// Title and queries of every panel.
fn panels() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/mixin/dashboards");
    let mut queries = Vec::new();
    for entry in fs::read_dir(folder).expect("the dashboards") {
        let dashboard = json(&fs::read(entry.expect("a file").path()).expect("a dashboard"));
        for panel in dashboard["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let title = format!("{}: {}", dashboard["title"], panel["title"]);
                queries.push((title, filled_in(target["expr"].as_str().expect("a query"))));
            }
        }
    }
    queries
}

/// The names that the recording rules record.
fn recorded() -> Vec<String> {
    let text = fs::read_to_string(given("CLAD_PROMETHEUS_RULES").join("rules/clad-recording.yaml")).expect("rules");
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    names.map(|name| name.trim_matches('"').to_owned()).collect()
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn every_panel_and_every_rule_gives_data() {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    let daemon = setup.set("journal.max_record_bytes", "128KiB").set("retention.max_bytes", "3MiB").start();
    let prometheus = Prometheus::over(&daemon);
    let load = Load::on(&daemon);
    let relay = Relay::start(&daemon, FILES);
    fs::write(relay.path("a.log"), "one\ntwo\n").expect("written");
    prometheus.scrape_relay(relay.metrics());
    // Until everything has happened that is shown: rotation, retention, and acks at each level for a whole window.
    prometheus.wait("retention", || {
        prometheus.value("clad_retention_removed_segments_total{rule=\"max_bytes\"} > 2").is_some()
            && prometheus.query("instance_level:clad_append_duration_seconds:p99_5m >= 0").len() == 3
    });
    let panels = panels();
    assert!(panels.len() > 60, "{} queries", panels.len());
    for (panel, expr) in &panels {
        prometheus.wait(&format!("data for {panel}: {expr}"), || has_data(&prometheus.query(expr)));
    }
    let recorded = recorded();
    assert!(recorded.len() > 5, "{recorded:?}");
    for name in &recorded {
        prometheus.wait(&format!("data for {name}"), || has_data(&prometheus.query(name)));
    }
    for rule in prometheus.rules() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    assert!(load.acked() > 100, "{} appends only", load.acked());
    let ours = prometheus.firing().into_iter().map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned));
    let ours: Vec<_> = ours.flatten().filter(|name| !OF_THE_MACHINE.contains(&name.as_str())).collect();
    assert!(ours.is_empty(), "all is well, and these fire: {ours:?}");
    load.end();
}

/// Something, and not only the quotient of nothing and nothing.
fn has_data(values: &[f64]) -> bool {
    values.iter().any(|value| value.is_finite())
}
