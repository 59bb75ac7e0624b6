//! What is checked in is what is made; dashboards are ones that Grafana takes without a migration; alerts are complete.

use std::collections::HashSet;

use serde_json::Value;

use super::{Options, alerts, folder, recording, render};

/// Kinds that the field has not given up: `graph`, `singlestat`, `table-old` and their like are.
const KINDS: [&str; 4] = ["row", "timeseries", "stat", "heatmap"];
/// Units that Grafana knows, as far as they are used here.
const UNITS: [&str; 8] = ["none", "short", "s", "bytes", "binBps", "recps", "ops", "percentunit"];

fn dashboards() -> Vec<(&'static str, Value)> {
    let files = render(&Options::default()).into_iter().filter(|(name, _)| name.ends_with(".json"));
    files.map(|(name, text)| (name, serde_json::from_str(&text).expect(name))).collect()
}

fn panels(dashboard: &Value) -> Vec<&Value> {
    dashboard["panels"].as_array().expect("panels").iter().collect()
}

#[test]
fn what_is_checked_in_is_what_is_made() {
    let here = folder(&crate::root());
    for (name, text) in render(&Options::default()) {
        let found = std::fs::read_to_string(here.join(name)).unwrap_or_default();
        assert!(found == text, "deploy/mixin/{name} is not what is made: cargo xtask mixin");
    }
}

#[test]
fn dashboards_choose_their_data_source_and_instances() {
    let dashboards = dashboards();
    let uids: HashSet<_> = dashboards.iter().map(|(_, dashboard)| dashboard["uid"].as_str()).collect();
    assert_eq!(uids.len(), dashboards.len());
    for (name, dashboard) in &dashboards {
        assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "{name}");
        let variables = dashboard["templating"]["list"].as_array().expect("variables");
        let names: Vec<_> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
        assert_eq!(names, ["datasource", "job", "instance"], "{name}");
        assert_eq!(variables[0]["type"], "datasource", "{name}");
        for panel in panels(dashboard).iter().filter(|panel| panel["type"] != "row") {
            let title = &panel["title"];
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}: {title}");
            for target in panel["targets"].as_array().expect("targets") {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{name}: {title}");
                let expr = target["expr"].as_str().expect("a query");
                let selectors = expr.matches('{').count();
                assert!(selectors > 0, "{name}: {title}: {expr}");
                assert_eq!(expr.matches(r#"job=~"$job", instance=~"$instance""#).count(), selectors, "{name}: {expr}");
            }
        }
    }
}

#[test]
fn panels_are_complete() {
    for (name, dashboard) in dashboards() {
        let mut ids = HashSet::new();
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().expect("a title");
            let kind = panel["type"].as_str().expect("a type");
            assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{name}: {title}: the id is taken");
            assert!(KINDS.contains(&kind), "{name}: {title} is a {kind}");
            if kind == "row" {
                continue;
            }
            let description = panel["description"].as_str().unwrap_or_default();
            assert!(description.len() > 20 && description.ends_with('.'), "{name}: {title} has no description");
            let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
            assert!(UNITS.contains(&unit), "{name}: {title} has the unit {unit}");
            let targets = panel["targets"].as_array().expect("targets");
            let refs: HashSet<_> = targets.iter().map(|target| target["refId"].as_str()).collect();
            assert!(!targets.is_empty() && refs.len() == targets.len(), "{name}: {title}: {refs:?}");
            for target in targets {
                let heatmap = target["format"] == "heatmap";
                assert_eq!(heatmap, kind == "heatmap", "{name}: {title}");
                assert!(!heatmap || target["legendFormat"] == "{{le}}", "{name}: {title}: buckets have no name");
            }
        }
    }
}

#[test]
fn panels_fill_the_grid_and_do_not_cover_each_other() {
    for (name, dashboard) in dashboards() {
        let mut taken = HashSet::new();
        for panel in panels(&dashboard) {
            let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
            let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
            assert!(x + w <= 24 && w > 0 && h > 0, "{name}: {}", panel["title"]);
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(cell), "{name}: {} covers another", panel["title"]);
            }
        }
        // No holes: every line of the grid that is used is used to its end.
        let depth = taken.iter().map(|cell| cell.1).max().expect("cells") + 1;
        assert_eq!(taken.len() as u64, depth * 24, "{name} has holes");
    }
}

#[test]
fn alerts_are_complete_and_have_a_runbook() {
    let manual = std::fs::read_to_string(crate::root().join("docs/OPERATIONS.md")).expect("the manual");
    let tests = std::fs::read_to_string(folder(&crate::root()).join("tests/alerts.yaml")).expect("promtool's tests");
    let all = alerts::alerts(&Options::default());
    let names: HashSet<_> = all.iter().map(|alert| alert.name).collect();
    assert_eq!(names.len(), all.len());
    for alert in &all {
        let name = alert.name;
        assert!(name.starts_with("Clad") && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        // Grafana, GitHub and mdBook all make the same anchor of a heading that is one word.
        assert_eq!(manual.matches(&format!("\n### {name}\n")).count(), 1, "{name} has no section in the runbook");
        for text in [alert.summary, alert.description.as_str()] {
            assert!(text.len() > 20 && text.ends_with('.'), "{name}: {text}");
        }
        assert!(tests.contains(&format!("ALERTS{{alertname=\"{name}\"}}")), "{name} is in no test of promtool");
    }
    // And no section of an alert that is gone.
    for heading in manual.lines().filter_map(|line| line.strip_prefix("### Clad")) {
        assert!(names.contains(format!("Clad{heading}").as_str()), "the runbook has Clad{heading}, the rules have not");
    }
}

/// No alert without its fault: a test on a real Prometheus waits for it to fire and to end.
#[test]
fn each_alert_is_raised_and_ended_by_a_fault() {
    let folder = crate::root().join("e2e/tests/prometheus");
    let [mut fires, mut ends] = [String::new(), String::new()];
    for entry in std::fs::read_dir(folder).expect("the tests") {
        let text = std::fs::read_to_string(entry.expect("a file").path()).expect("a test");
        for test in text.split("#[test]").skip(1) {
            // A list that both calls take stands for its names.
            let list = test.split_once("const ALERTS").and_then(|(_, rest)| rest.split_once("];")).map_or("", |l| l.0);
            let of = |calls: &[&str]| -> String {
                let named = calls.iter().flat_map(|call| test.split(call).skip(1));
                let named = named.map(|rest| rest.split_once(')').map_or("", |(args, _)| args).replace("ALERTS", list));
                named.collect()
            };
            fires.push_str(&of(&["wait_firing(", "fires("]));
            ends.push_str(&of(&["wait_over("]));
        }
    }
    for alert in alerts::alerts(&Options::default()) {
        let quoted = format!("\"{}\"", alert.name);
        assert!(fires.contains(&quoted), "no test makes {} fire", alert.name);
        assert!(ends.contains(&quoted), "no test waits for the end of {}", alert.name);
    }
}

#[test]
fn recorded_series_are_named_by_level_metric_and_operation() {
    for rule in recording::rules(&Options::default()) {
        let parts: Vec<&str> = rule.record.split(':').collect();
        assert!((2..=3).contains(&parts.len()) && parts[0].starts_with("instance"), "{}", rule.record);
        assert!(parts[1].starts_with("clad_"), "{}", rule.record);
    }
}
