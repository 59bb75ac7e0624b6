//! What dashboards and rules ask for is there: every metric that they name is in the registry, and is asked for as what
//! it is: rates of counters, quantiles of histograms, gauges as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// Metrics that Prometheus makes itself.
const OF_PROMETHEUS: [&str; 2] = ["up", "ALERTS"];
/// Functions that make sense of a counter; each takes a range.
const OF_COUNTERS: [&str; 2] = ["rate", "increase"];
/// Functions of a gauge over a range.
const OF_GAUGES: [&str; 2] = ["changes", "predict_linear"];

fn mixin() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/mixin")
}

/// Kind by name, as the daemon says it.
fn registry() -> BTreeMap<String, String> {
    let text = clad::ops::metrics::install().render();
    let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    typed.filter_map(|line| line.split_once(' ')).map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// Labels of each metric, as the daemon shows them.
fn labels() -> BTreeMap<String, BTreeSet<String>> {
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in clad::ops::metrics::install().render().lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let pairs = rest.split('}').next().unwrap_or_default().split(',');
        labels.entry(name.to_owned()).or_default().extend(pairs.filter_map(|p| Some(p.split_once('=')?.0.to_owned())));
    }
    labels
}

/// All queries of the mixin: those of panels, of recording rules and of alerts; and the names of recorded series.
fn queries() -> (Vec<String>, BTreeSet<String>) {
    let (mut queries, mut recorded) = (Vec::new(), BTreeSet::new());
    for name in ["clad-throughput", "clad-disk"] {
        let path = mixin().join(format!("dashboards/{name}.json"));
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().into_iter().flatten();
            queries.extend(targets.map(|target| target["expr"].as_str().unwrap().to_owned()));
        }
    }
    for name in ["clad-recording", "clad-alerts"] {
        let text = std::fs::read_to_string(mixin().join(format!("rules/{name}.yaml"))).unwrap();
        let mut block: Option<String> = None;
        for line in text.lines() {
            if let Some(name) = line.trim().strip_prefix("- record: ") {
                recorded.insert(name.trim_matches('"').to_owned());
            }
            // An expression is a block of ten spaces below its key.
            match (&mut block, line.strip_prefix("          ")) {
                (Some(expr), Some(more)) => expr.push_str(&format!("{more}\n")),
                (Some(_), None) => queries.extend(block.take()),
                (None, _) => {}
            }
            if line == "        expr: |-" {
                block = Some(String::new());
            }
        }
        queries.extend(block);
    }
    (queries, recorded)
}

/// A metric in a query, with what is around it.
#[derive(Debug)]
struct Use {
    name: String,
    /// The functions and operators whose brackets it stands in, the innermost last.
    within: Vec<String>,
    /// Whether a range stands behind it.
    range: bool,
    /// The labels that its selector names.
    labels: Vec<String>,
}

/// The metrics of a query. Not all of PromQL: what the mixin uses; a word that is none of it fails.
fn uses(query: &str) -> Vec<Use> {
    const WORDS: [&str; 13] = [
        "by",
        "without",
        "and",
        "or",
        "on",
        "ignoring",
        "sum",
        "min",
        "max",
        "time",
        "absent",
        "histogram_quantile",
        "count",
    ];
    let (mut uses, mut within, mut last) = (Vec::<Use>::new(), Vec::<String>::new(), String::new());
    let mut rest = query;
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        if word > 0 {
            last = rest[..word].to_owned();
            rest = &rest[word..];
            let listed = within.last().is_some_and(|w| ["by", "without", "on", "ignoring"].contains(&w.as_str()));
            let number = last.starts_with(|c: char| c.is_ascii_digit());
            let known = WORDS.contains(&last.as_str()) || OF_COUNTERS.contains(&last.as_str());
            if !listed && !number && !known && !OF_GAUGES.contains(&last.as_str()) {
                uses.push(Use { name: last.clone(), within: within.clone(), range: false, labels: Vec::new() });
            }
            continue;
        }
        let at = match c {
            '(' => {
                within.push(std::mem::take(&mut last));
                1
            }
            ')' => {
                within.pop().expect(query);
                last.clear();
                1
            }
            '{' => {
                let end = rest.find('}').expect(query);
                let pairs = rest[1..end].split(", ");
                uses.last_mut().expect(query).labels =
                    pairs.map(|p| p[..p.find(['=', '!']).expect(p)].to_owned()).collect();
                end + 1
            }
            '[' => {
                uses.last_mut().expect(query).range = true;
                rest.find(']').expect(query) + 1
            }
            _ => c.len_utf8(),
        };
        rest = &rest[at..];
    }
    uses
}

#[test]
fn what_is_asked_for_is_there_with_its_type() {
    let (registry, labels) = (registry(), labels());
    let (queries, recorded) = queries();
    assert!(queries.len() > 60 && recorded.len() > 5, "{} queries, {} recorded", queries.len(), recorded.len());
    let mut seen = BTreeSet::new();
    for query in &queries {
        for Use { name, within, range, labels: asked } in uses(query) {
            if OF_PROMETHEUS.contains(&name.as_str()) {
                continue;
            }
            if name.contains(':') {
                assert!(recorded.contains(&name), "no rule records {name}: {query}");
                continue;
            }
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let histogram = base.filter(|base| registry.get(*base).is_some_and(|kind| kind == "histogram"));
            let kind = registry.get(histogram.unwrap_or(&name)).unwrap_or_else(|| panic!("no {name}: {query}"));
            let inner = within.last().map_or("", String::as_str);
            match kind.as_str() {
                "histogram" => {
                    assert!(histogram.is_some(), "{name} is a histogram: {query}");
                    assert!(range && OF_COUNTERS.contains(&inner), "{name} without a rate: {query}");
                    let quantile = within.iter().any(|word| word == "histogram_quantile");
                    assert!(!quantile || name.ends_with("_bucket"), "a quantile of {name}: {query}");
                }
                // Since the start is a question too, and is asked without a function.
                "counter" => assert!(!range || OF_COUNTERS.contains(&inner), "{name} is a counter: {query}"),
                _ => assert!(!range || OF_GAUGES.contains(&inner), "{name} is a gauge: {query}"),
            }
            let known = labels.get(&name);
            for label in asked.iter().filter(|label| !["job", "instance"].contains(&label.as_str())) {
                assert!(known.is_some_and(|known| known.contains(label)), "{name} has no label {label}: {query}");
            }
            seen.insert(histogram.unwrap_or(&name).to_owned());
        }
    }
    // And the other way round: what the daemon counts is looked at, but for what only names things.
    let unseen = registry.keys().filter(|name| name.starts_with("clad_") && !seen.contains(*name));
    let unseen: Vec<_> = unseen.filter(|name| *name != "clad_build_info").collect();
    assert!(unseen.is_empty(), "no panel and no rule asks for {unseen:?}");
}

#[test]
fn queries_are_read_as_they_are_written() {
    let uses = uses("sum by (le, x) (rate(a_bucket{job=~\"$job\", le!=\"1\"}[5m])) / on (y) b:c * 2\n  or d");
    let shown: Vec<_> = uses.iter().map(|u| (u.name.as_str(), u.within.join(" "), u.range, u.labels.len())).collect();
    assert_eq!(
        shown,
        [("a_bucket", " rate".to_owned(), true, 2), ("b:c", String::new(), false, 0), ("d", String::new(), false, 0)]
    );
}
