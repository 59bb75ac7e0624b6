//! The part of docs/BENCHMARKS.md that is made from the kept results, and the plots beside it.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::svg::{Bar, chart};
use super::table::{count, spread, table};
use crate::results::{Results, Row};

/// The kept results, in the order of the page: file name without its end, title, and description.
pub const RESULTS: &[(&str, &str, &str)] = &[
    (
        "speed",
        "What is to be reached",
        "The ratio is ours to the named one with the best median, round by round. Contenders take turns, each in its own \
         process.",
    ),
    (
        "device_bytes",
        "Bytes that reach the device",
        "The kernel counts on a device of its own, over four segments. Preparing the next segment is in it.",
    ),
    ("read", "Reading through checksums", "One segment of 64 MiB, records of 256 B."),
    (
        "write_sync",
        "Sync methods",
        "A plain sync also pays for what other writers wrote; `strict` gives each writer its own file. `none` syncs nothing.",
    ),
    (
        "write_sync_xfs",
        "Sync methods on xfs",
        "On an xfs in a file, behind a loop device that writes around the page cache.",
    ),
    ("append", "Space and method", "4 KiB at the end of what was written so far, one writer."),
    (
        "cells",
        "Twelve ways to read and write",
        "4 KiB; `fio` stands beside where it has the same. Its figures are without reading back.",
    ),
    ("file_writer", "The file writer", "A new file in chunks of so many bytes. The time includes a final sync."),
];

const BEGIN: &str = "<!-- made by `clad-benches report` from docs/benchmarks/*.json -->";
const END: &str = "<!-- end of what is made -->";

/// Makes the page's part and the plots from the results in `docs/benchmarks`; answers the files that are not as they should be,
/// after writing them where that is asked for.
///
/// # Errors
/// Results cannot be read, or the page has no place for them.
pub fn render(docs: &Path, write: bool) -> Result<Vec<String>> {
    let kept = docs.join("benchmarks");
    let mut made = String::new();
    let mut files = Vec::new();
    let mut place = String::new();
    for (name, title, about) in RESULTS {
        let path = kept.join(format!("{name}.json"));
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let results: Results = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let its_place = stood_on(&results);
        // Said where it is another one than in the section before.
        let said = if its_place == place { "There again." } else { &its_place };
        let (section, plots) = section(name, title, &format!("{about}\n\n{said} {}", method(&results)), &results);
        place = its_place;
        made += &section;
        files.extend(plots.into_iter().map(|(name, svg)| (kept.join(name), svg)));
    }
    let page = docs.join("BENCHMARKS.md");
    let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let (before, rest) = text.split_once(BEGIN).context("the page has no place for what is made")?;
    let (_, after) = rest.split_once(END).context("the page's place for what is made has no end")?;
    ensure!(!after.contains(BEGIN), "the page has two places for what is made");
    files.push((page, format!("{before}{BEGIN}\n\n{made}{END}{after}")));
    files.extend(super::fleet::made(docs)?);
    let mut stale = Vec::new();
    for (path, should) in files {
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&should) {
            stale.push(path.display().to_string());
            if write {
                std::fs::write(&path, should).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(stale)
}

fn section(name: &str, title: &str, about: &str, results: &Results) -> (String, Vec<(String, String)>) {
    let mut text = format!("### {title}\n\n{about}\n\n");
    if !results.aims.is_empty() {
        text += &aims(results);
        text += "\n";
    }
    // Many rows are no page: it has the plots.
    let all = || format!("All figures: [benchmarks/{name}.json](benchmarks/{name}.json).\n");
    let (rows, plots) = match name {
        "append" => (all(), append_plots(results)),
        "speed" => (all(), speed_plots(results)),
        "cells" => (all(), cells_plots(results)),
        "write_sync" | "write_sync_xfs" | "file_writer" => (all(), plain_plots(name, title, results)),
        _ => (plain(results), plain_plots(name, title, results)),
    };
    text += &rows;
    text += "\n";
    for (file, svg_title, _) in &plots {
        let within = svg_title.strip_prefix(title).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(svg_title);
        text += &format!("![{within}](benchmarks/{file})\n");
    }
    text += "\n";
    (text, plots.into_iter().map(|(file, _, svg)| (file, svg)).collect())
}

fn stood_on(results: &Results) -> String {
    let machine = &results.machine;
    let virtual_machine = if machine.virtual_machine { ", a virtual machine" } else { "" };
    format!(
        "{}; {}. {} processors{virtual_machine}, Linux {}, scheduling: {}.",
        results.ground.filesystem,
        results.ground.disks.join("; "),
        machine.processors,
        machine.kernel,
        machine.scheduling,
    )
}

fn method(results: &Results) -> String {
    let time = match results.seconds {
        0.0 => String::new(),
        seconds => format!(" of {} s", count(seconds)),
    };
    format!("Medians of {} rounds{time}.", results.rounds)
}

fn aims(results: &Results) -> String {
    let row = |aim: &crate::results::Aim| {
        let beside = match aim.missing.is_empty() {
            true => aim.beside.join(", "),
            false => format!("{} (not there: {})", aim.beside.join(", "), aim.missing.join(", ")),
        };
        let reached = if aim.is_reached() { "yes" } else { "**no**" };
        vec![aim.work.clone(), aim.of.clone(), beside, count(aim.at_least), spread(&aim.ratio), reached.to_owned()]
    };
    let rows: Vec<_> = results.aims.iter().map(row).collect();
    table(&["work", "ours", "beside", "at least", "ratio", "reached"], &rows)
}

fn safe(row: &Row) -> &'static str {
    if row.safe { "" } else { " (not power-safe here)" }
}

fn cell<'a>(row: &'a Row, name: &str) -> &'a str {
    row.cell.get(name).map_or("", String::as_str)
}

fn plain(results: &Results) -> String {
    let Some(first) = results.rows.first() else { return String::new() };
    let words: Vec<&str> = first.cell.keys().map(String::as_str).collect();
    let beside: Vec<&str> = first.beside.keys().map(String::as_str).collect();
    let timed = results.rows.iter().any(|row| row.latency_us.max > 0.0);
    let mut head: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    head.extend(["operations/s", "MB/s"].map(str::to_owned));
    if timed {
        head.extend(["p50 µs", "p95 µs"].map(str::to_owned));
    }
    head.extend(beside.iter().map(|name| format!("to {name}")));
    let rows: Vec<_> = results
        .rows
        .iter()
        .map(|row| {
            let mut cells: Vec<String> = words.iter().map(|word| cell(row, word).to_owned()).collect();
            if let Some(last) = cells.iter_mut().find(|cell| !cell.is_empty()).filter(|_| !row.safe) {
                last.push_str(safe(row));
            }
            cells.extend([spread(&row.rate), count(row.megabytes.median)]);
            if timed {
                cells.extend([row.latency_us.p50, row.latency_us.p95].map(count));
            }
            cells.extend(beside.iter().map(|name| row.beside.get(*name).map_or(String::new(), spread)));
            cells
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    table(&head, &rows)
}

type Plot = (String, String, String);

fn bar(row: &Row, name: String, ours: bool, megabytes: bool) -> Bar {
    let it = if megabytes { &row.megabytes } else { &row.rate };
    Bar { name: name + safe(row), value: it.median, from: it.min, to: it.max, ours }
}

/// One chart for each row of contenders.
fn speed_plots(results: &Results) -> Vec<Plot> {
    let mut names: Vec<&str> = results.rows.iter().map(|row| cell(row, "row")).collect();
    names.dedup();
    let plot = |name: &&str| {
        let rows: Vec<&Row> = results.rows.iter().filter(|row| cell(row, "row") == *name && row.ops > 0).collect();
        let title = rows.first().map_or(String::new(), |row| cell(row, "work").to_owned());
        let bulk = name.starts_with("bulk");
        let ours = |row: &Row| {
            results.aims.iter().any(|aim| aim.work == cell(row, "work") && aim.of == cell(row, "contender"))
        };
        let bars: Vec<Bar> =
            rows.iter().map(|row| bar(row, cell(row, "contender").to_owned(), ours(row), bulk)).collect();
        let svg = chart(&title, if bulk { "MB/s" } else { "operations/s" }, &bars);
        (format!("speed_{name}.svg"), title, svg)
    };
    names.iter().map(plot).collect()
}

fn append_plots(results: &Results) -> Vec<Plot> {
    let name = |row: &Row| format!("{}, {}", cell(row, "space"), cell(row, "method"));
    let bars: Vec<Bar> = results.rows.iter().map(|row| bar(row, name(row), row.safe, false)).collect();
    let title = "Durable 4 KiB, one writer, by space and method".to_owned();
    vec![("append.svg".to_owned(), title.clone(), chart(&title, "operations/s", &bars))]
}

fn cells_plots(results: &Results) -> Vec<Plot> {
    let plot = |cache: &str| {
        let rows = results.rows.iter().filter(|row| cell(row, "cache") == cache);
        let name = |row: &Row| {
            let by = if cell(row, "by") == "fio" { "fio: " } else { "" };
            format!("{by}{}, {}, {}", cell(row, "do"), cell(row, "order"), cell(row, "way"))
        };
        let bars: Vec<Bar> = rows.map(|row| bar(row, name(row), cell(row, "by") != "fio", false)).collect();
        let title = format!("4 KiB in twelve ways, {cache}");
        (format!("cells_{cache}.svg"), title.clone(), chart(&title, "operations/s", &bars))
    };
    ["buffered", "direct"].map(plot).into()
}

/// One chart for each number of writers and each size, or one for all.
fn plain_plots(name: &str, title: &str, results: &Results) -> Vec<Plot> {
    let apart: Vec<&str> = ["writers", "size", "chunk"]
        .into_iter()
        .filter(|k| results.rows.iter().any(|r| r.cell.contains_key(*k)))
        .collect();
    let key = |row: &Row| apart.iter().map(|k| cell(row, k).to_owned()).collect::<Vec<_>>();
    let mut keys: Vec<Vec<String>> = results.rows.iter().map(key).collect();
    keys.dedup();
    let megabytes = name == "file_writer" || name == "read";
    let plot = |its: &Vec<String>| {
        let rows = results.rows.iter().filter(|row| key(row) == *its);
        let label = |row: &Row| {
            let words = row.cell.iter().filter(|(k, v)| !apart.contains(&k.as_str()) && !v.is_empty());
            // The method first: the names come in the order of the alphabet.
            words.map(|(_, v)| v.clone()).rev().collect::<Vec<_>>().join(", ")
        };
        let ours = |row: &Row| !cell(row, "writer").starts_with("bufwriter") && !cell(row, "read").starts_with("plain");
        let bars: Vec<Bar> = rows.map(|row| bar(row, label(row), ours(row), megabytes)).collect();
        let what: Vec<String> = apart.iter().zip(its).map(|(k, v)| format!("{k} {v}")).collect();
        let title = if what.is_empty() { title.to_owned() } else { format!("{title}: {}", what.join(", ")) };
        let file = std::iter::once(name.to_owned()).chain(its.iter().cloned()).collect::<Vec<_>>().join("_") + ".svg";
        (file, title.clone(), chart(&title, if megabytes { "MB/s" } else { "operations/s" }, &bars))
    };
    keys.iter().map(plot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page is what the kept results give: nobody has written a figure by hand, or forgotten to make it again.
    #[test]
    fn the_page_is_what_the_kept_results_give() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let stale = render(&docs, false).expect("it can be made");
        assert!(stale.is_empty(), "clad-benches report --docs docs; not as they should be: {stale:?}");
    }

    #[test]
    fn a_page_is_made_once_and_then_is_as_it_should_be() {
        let docs = crate::test_folder();
        std::fs::create_dir(docs.path().join("benchmarks")).expect("a folder");
        let page = docs.path().join("BENCHMARKS.md");
        std::fs::write(&page, format!("before\n{BEGIN}\nold\n{END}\nafter\n")).expect("a page");
        let mut results = Results::default();
        let run = crate::Outcome { ops: 5, seconds: 1.0, verified: 5, size: 4096, ..Default::default() };
        results.add(&[("read", "a way")], std::slice::from_ref(&run)).safe = false;
        results.write(&docs.path().join("benchmarks/read.json")).expect("kept");
        assert_eq!(render(docs.path(), true).expect("made").len(), 2, "the page and a plot");
        assert!(render(docs.path(), false).expect("looked at").is_empty());
        let text = std::fs::read_to_string(&page).expect("a page");
        assert!(text.starts_with("before\n") && text.ends_with("\nafter\n") && !text.contains("old"), "{text}");
        assert!(text.contains("| a way (not power-safe here) |") && text.contains("read.svg"), "{text}");
        std::fs::write(&page, "nothing").expect("a page");
        assert!(render(docs.path(), true).is_err());
    }
}
