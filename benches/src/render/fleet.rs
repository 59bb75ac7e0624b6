//! The part of docs/FLEET.md that is made from the kept figures, and its curves.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::table::{count, table};
use crate::fleet::{Fleet, Measured};

const BEGIN: &str = "<!-- made by `clad-benches report` from docs/benchmarks/relay.json -->";
const END: &str = "<!-- end of what is made -->";
/// Fleets of the page: hosts, and records a second of each.
const FLEETS: [(f64, f64); 6] =
    [(10.0, 100.0), (10.0, 1_000.0), (10.0, 10_000.0), (100.0, 1_000.0), (1_000.0, 100.0), (1_000.0, 1_000.0)];
/// Days of the page, and its prices in dollars: of a gigabyte a month, and of a thousand objects.
const DAYS: f64 = 30.0;
const PRICES: (f64, f64) = (0.023, 0.005);
/// Rates of the curves, as powers of ten.
const RATES: std::ops::RangeInclusive<u32> = 1..=5;
const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];

/// The page and its curves, as they should be; nothing where there is no page.
pub(super) fn made(docs: &Path) -> Result<Vec<(PathBuf, String)>> {
    let page = docs.join("FLEET.md");
    let Ok(text) = std::fs::read_to_string(&page) else { return Ok(Vec::new()) };
    let measured = Measured::kept(docs)?;
    let (before, rest) = text.split_once(BEGIN).context("the page has no place for what is made")?;
    let (_, after) = rest.split_once(END).context("the page's place for what is made has no end")?;
    let tables = format!(
        "{}\n{}\n![Processors that a relay takes](benchmarks/fleet.svg)\n",
        figures(&measured),
        plans(&measured)?
    );
    let text = format!("{before}{BEGIN}\n\n{tables}\n{END}{after}");
    Ok(vec![(page, text), (docs.join("benchmarks/fleet.svg"), curves(&measured))])
}

fn figures(measured: &Measured) -> String {
    let head = [
        "destination",
        "records a second",
        "a processor second of the relay",
        "its memory, MiB",
        "bytes a record there",
    ];
    let row = |row: &crate::fleet::Row| {
        let bytes = row.bytes_a_record.map_or_else(String::new, count);
        vec![
            row.to.clone(),
            count(row.records_a_second),
            count(row.records_a_processor_second),
            count(row.memory_mib),
            bytes,
        ]
    };
    let text = format!(
        "{} records of {} bytes, in appends of 64; log, relay and destination share two processors.\n\n",
        count(measured.records),
        count(measured.record_bytes)
    );
    text + &table(&head, &measured.rows.iter().map(row).collect::<Vec<_>>())
}

fn plans(measured: &Measured) -> Result<String> {
    let head = [
        "hosts",
        "records a second of each",
        "log of each, GB a day",
        "processors of each: archive",
        "Kafka",
        "partitions",
        "objects a day",
        "Parquet, GB",
        "raw, GB",
        "dollars a month",
    ];
    let mut rows = Vec::new();
    for (hosts, rate) in FLEETS {
        let plan = Fleet { hosts, rate, bytes: measured.record_bytes, days: DAYS }.plan(measured)?;
        rows.push(vec![
            count(hosts).trim_end_matches(".0").to_owned(),
            count(rate),
            count(plan.log_bytes / 1e9),
            format!("{:.4}", plan.archive_load),
            format!("{:.4}", plan.kafka_load),
            format!("{:.0}", plan.partitions),
            count(plan.objects),
            count(plan.parquet_bytes / 1e9),
            count(plan.raw_bytes / 1e9),
            count(plan.price(PRICES.0, PRICES.1)),
        ]);
    }
    let text = format!(
        "The model: {DAYS} days, records of {} bytes; {} dollars for a gigabyte a month and {} for a thousand objects, which are no more \
         than an example.\n\n",
        count(measured.record_bytes),
        PRICES.0,
        PRICES.1
    );
    Ok(text + &table(&head, &rows))
}

/// Processors of a host over its records a second, both by powers of ten.
fn curves(measured: &Measured) -> String {
    let (left, top, width, height) = (70.0, 40.0, 480.0, 300.0);
    // From a ten-thousandth of a processor to ten.
    let (lowest, highest) = (-4_i32, 1_i32);
    let range = f64::from(highest - lowest);
    let span = f64::from(RATES.end() - RATES.start());
    let x = |power: f64| left + (power - f64::from(*RATES.start())) / span * width;
    let y =
        |power: f64| top + (f64::from(highest) - power.clamp(f64::from(lowest), f64::from(highest))) / range * height;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"390\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"8\" y=\"21\" font-size=\"14\" fill=\"#111111\">Processors \
         that a relay takes, over a host's records a second</text>\n",
    );
    for power in RATES {
        let (at, text) = (x(f64::from(power)), count(10_f64.powi(power as i32)));
        let bottom = top + height;
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{top:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"#d0d7de\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            text.trim_end_matches(".0")
        );
    }
    for power in lowest..=highest {
        let at = y(f64::from(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#d0d7de\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + width,
            left - 6.0,
            at + 4.0,
            10_f64.powi(power)
        );
    }
    for (row, colour) in measured.rows.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<String> = RATES
            .map(|power| {
                let load = 10_f64.powi(power as i32) / row.records_a_processor_second;
                format!("{:.1},{:.1}", x(f64::from(power)), y(load.log10()))
            })
            .collect();
        let last = 10_f64.powi(*RATES.end() as i32) / row.records_a_processor_second;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            left + width + 6.0,
            y(last.log10()) + 4.0,
            row.to
        );
    }
    svg + "</svg>\n"
}
