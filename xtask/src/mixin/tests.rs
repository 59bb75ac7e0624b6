//! Dashboards are ones that Grafana takes without a migration; alerts are complete; the tests' times are shorter.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::iter::{Enumerate, Peekable};
use std::str::Lines;

use serde_json::Value;

use super::{LONGEST, RULES, SHORTER, folder, shorter};

/// Kinds that the field has not given up: `graph`, `singlestat`, `table-old` and their like are.
const KINDS: [&str; 4] = ["row", "timeseries", "stat", "heatmap"];
/// Units that Grafana knows, as far as they are used here.
const UNITS: [&str; 8] = ["none", "short", "s", "bytes", "binBps", "recps", "ops", "percentunit"];
const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];
/// Where a package puts the manual.
const RUNBOOK: &str = "file:///usr/share/doc/clad/OPERATIONS.md";
/// Lines of rules that say nothing by themselves.
const HEADS: [&str; 7] = [
    "groups:",
    "  - name: clad-recording",
    "  - name: clad-alerts",
    "  - name: clad-relay-alerts",
    "    rules:",
    "        labels:",
    "        annotations:",
];

fn checked_in(name: &str) -> String {
    fs::read_to_string(folder(&crate::root()).join(name)).expect(name)
}

fn dashboards() -> Vec<(String, Value)> {
    let entries = fs::read_dir(folder(&crate::root()).join("dashboards")).expect("the dashboards");
    let names = entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name"));
    let read = |name: String| {
        let text = checked_in(&format!("dashboards/{name}"));
        let dashboard = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, dashboard)
    };
    let dashboards: Vec<_> = names.map(read).collect();
    assert!(!dashboards.is_empty());
    dashboards
}

/// A rule by its keys, those of its labels and annotations among them.
type Rule = BTreeMap<String, String>;

/// The rules of a file. Not all of YAML: each line has one form, by which the daemon's test finds the expressions too.
/// A line of another form fails.
fn rules(file: &str) -> Vec<Rule> {
    let text = checked_in(file);
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let place = format!("{file}:{}: {line}", at + 1);
        let words = line.trim_start();
        if words.is_empty() || words.starts_with('#') || HEADS.contains(&line) {
            continue;
        }
        let (key, value) = words.split_once(": ").unwrap_or_else(|| panic!("{place}"));
        let value = match (line.len() - words.len(), key, value) {
            (6, "- alert" | "- record", name) => {
                rules.push(Rule::new());
                name.to_owned()
            }
            (8, "expr", "|-") => block(&mut lines, "          ").join("\n"),
            (8, "for", plain) | (10, "severity" | "runbook_url", plain) => plain.to_owned(),
            (10, "summary", quoted) => serde_json::from_str(quoted).expect(&place),
            (10, "description", ">-") => block(&mut lines, "            ").join(" "),
            _ => panic!("{place}: no line of a rule is written like this"),
        };
        let before = rules.last_mut().expect(&place).insert(key.trim_start_matches("- ").to_owned(), value);
        assert!(before.is_none(), "{place}: for the second time");
    }
    rules
}

/// The lines of a block, which all begin with this.
fn block<'a>(lines: &mut Peekable<Enumerate<Lines<'a>>>, indent: &str) -> Vec<&'a str> {
    std::iter::from_fn(|| lines.next_if(|(_, line)| line.starts_with(indent))?.1.strip_prefix(indent)).collect()
}

fn alerts() -> Vec<Rule> {
    [rules("rules/clad-alerts.yaml"), rules("rules/clad-relay-alerts.yaml")].concat()
}

fn named<'a>(rules: &'a [Rule], key: &str) -> Vec<&'a str> {
    rules.iter().map(|rule| rule[key].as_str()).collect()
}

fn panels(dashboard: &Value) -> Vec<&Value> {
    dashboard["panels"].as_array().expect("panels").iter().collect()
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
                assert_eq!(expr.matches('[').count(), expr.matches("[$__ra").count(), "{name}: {expr}: a fixed window");
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
        // No gaps: every line of the grid that is used is used to its end.
        let depth = taken.iter().map(|cell| cell.1).max().expect("cells") + 1;
        assert_eq!(taken.len() as u64, depth * 24, "{name} has gaps");
    }
}

#[test]
fn alerts_are_complete_and_have_a_runbook() {
    let manual = fs::read_to_string(crate::root().join("docs/OPERATIONS.md")).expect("the manual");
    let tests = checked_in("tests/alerts.yaml");
    let all = alerts();
    let names: HashSet<_> = named(&all, "alert").into_iter().collect();
    assert!(names.len() == all.len() && !all.is_empty());
    for alert in &all {
        let name = &alert["alert"];
        let text = |key: &str| alert.get(key).unwrap_or_else(|| panic!("{name} has no {key}")).as_str();
        assert!(name.starts_with("Clad") && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        // Grafana, GitHub and mdBook all make the same anchor of a heading that is one word.
        assert_eq!(manual.matches(&format!("\n### {name}\n")).count(), 1, "{name} has no section in the runbook");
        assert_eq!(text("runbook_url"), format!("{RUNBOOK}#{}", name.to_lowercase()));
        for text in [text("summary"), text("description")] {
            assert!(text.len() > 20 && text.ends_with('.'), "{name}: {text}");
        }
        assert!(SEVERITIES.contains(&text("severity")), "{name} has the severity {}", text("severity"));
        assert!(!text("for").is_empty());
        assert!(tests.contains(&format!("ALERTS{{alertname=\"{name}\"}}")), "{name} is in no test of promtool");
    }
    // And no section of an alert that is gone.
    for heading in manual.lines().filter_map(|line| line.strip_prefix("### Clad")) {
        assert!(names.contains(format!("Clad{heading}").as_str()), "the runbook has Clad{heading}, the rules have not");
    }
}

/// An operator replaces it by his own.
#[test]
fn every_rule_asks_for_the_job() {
    for file in RULES {
        let job = if file.contains("clad-relay") { "{job=\"clad-relay\"" } else { "{job=\"clad\"" };
        for rule in rules(file) {
            let expr = rule.get("expr").unwrap_or_else(|| panic!("{rule:?} has no expression"));
            let selectors = expr.matches('{').count();
            assert!(selectors > 0 && expr.matches(job).count() == selectors, "{expr}");
        }
    }
}

/// No alert without its fault: a test on a real Prometheus waits for it to fire and to end.
#[test]
fn each_alert_is_raised_and_ended_by_a_fault() {
    let folder = crate::root().join("e2e/tests/prometheus");
    let [mut fires, mut ends] = [String::new(), String::new()];
    for entry in fs::read_dir(folder).expect("the tests") {
        let text = fs::read_to_string(entry.expect("a file").path()).expect("a test");
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
    for name in named(&alerts(), "alert") {
        let quoted = format!("\"{name}\"");
        assert!(fires.contains(&quoted), "no test makes {name} fire");
        assert!(ends.contains(&quoted), "no test waits for the end of {name}");
    }
}

#[test]
fn recorded_series_are_named_by_level_metric_and_operation() {
    for record in named(&rules("rules/clad-recording.yaml"), "record") {
        let parts: Vec<&str> = record.split(':').collect();
        assert!((2..=3).contains(&parts.len()) && parts[0].starts_with("instance"), "{record}");
        assert!(parts[1].starts_with("clad_"), "{record}");
    }
}

#[test]
fn every_time_has_a_shorter_one_and_every_shorter_one_a_time() {
    let texts = RULES.map(checked_in);
    for text in &texts {
        shorter(text).expect("rules for the tests");
    }
    for (real, short) in SHORTER {
        assert!(texts.iter().any(|text| text.contains(real)), "{short} is for {real}, which is in no rule");
    }
}

#[test]
fn rules_are_the_same_with_shorter_times() {
    let rule = |window: &str, hold: &str, age: &str| {
        format!(
            "- record: a:b:p99_5m\n  expr: rate(b_seconds{{x=\"5\"}}[{window}]) > 30\n  for: {hold}\n  \
             clad_oldest_undurable_age_seconds{{job=\"clad\"}} > {age}\n"
        )
    };
    for (window, seconds) in [("5m", 8), ("15m", 15), ("1h", LONGEST)] {
        for (hold, held) in
            [("0s", "0s"), ("1m", "1s"), ("2m", "2s"), ("5m", "2s"), ("10m", "2s"), ("15m", "2s"), ("1h", "2s")]
        {
            let expected = rule(&format!("{seconds}s"), held, "3");
            assert_eq!(shorter(&rule(window, hold, "30")).expect("known times"), expected);
        }
    }
    assert_eq!(shorter("predict_linear(a[6h], 86400) / 86400").expect("known"), "predict_linear(a[16s], 24) / 86400");
    for unknown in
        ["a[30m]", "a[6h]", "a[1h:5m]", "a offset 1d", "for: 3m\n", "for: 90s\n", "for: 1h30m\n", "interval: 1m\n"]
    {
        assert!(shorter(unknown).is_err(), "{unknown}");
    }
}
