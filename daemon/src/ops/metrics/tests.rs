//! The table: shown as a whole, named by the conventions, and the same as the manual's.

use super::table::{Kind, METRICS};
use super::{CursorLag, Scrape};

#[test]
fn every_metric_of_the_table_is_shown_with_its_labels() {
    let scrape = Scrape::for_test();
    scrape.set_cursors(vec![CursorLag { name: "a".to_owned(), ..CursorLag::default() }]);
    let text = scrape.render();
    for metric in METRICS {
        let name = metric.name;
        assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name}");
        let kind = format!("# TYPE {name} {}\n", metric.kind.as_str());
        let after = text.split_once(&kind).expect(name).1;
        let series = after.lines().next().unwrap();
        assert!(series.starts_with(name), "{series}");
        for label in metric.label.split(',').filter(|label| !label.is_empty()) {
            assert!(series.contains(&format!("{label}=\"")), "{series} lacks {label}");
        }
    }
}

#[test]
fn names_follow_the_conventions() {
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("clad_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert!(metric.help.ends_with('.'), "{name}");
    }
}

/// After a change of the table: `CLAD_UPDATE=1 cargo test -p clad -- --test-threads=1` writes it again.
#[test]
fn the_manual_lists_every_metric() {
    const START: &str = "<!-- metrics: made from the table -->\n";
    const END: &str = "<!-- end of metrics -->\n";
    let mut table = "| metric | kind | labels | what it is |\n|---|---|---|---|\n".to_owned();
    for metric in METRICS {
        let labels = metric.label.replace(',', ", ");
        table += &format!("| `{}` | {} | {labels} | {} |\n", metric.name, metric.kind.as_str(), metric.help);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/REFERENCE.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let (before, rest) = manual.split_once(START).expect("the start mark of the table");
    let (found, after) = rest.split_once(END).expect("the end mark of the table");
    if std::env::var_os("CLAD_UPDATE").is_some() {
        std::fs::write(path, format!("{before}{START}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(found, table, "CLAD_UPDATE=1 cargo test -p clad -- --test-threads=1");
    }
}
