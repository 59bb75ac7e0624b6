//! A model of many hosts: what their relays take of them, and what comes to lie in object storage and in Kafka.
//!
//! Invariant: every number of the model comes from the figures in `docs/benchmarks/relay.json`, which `cargo xtask ci relay speed`
//! measures, or from the caller. Records are those that were measured; other lengths count in proportion.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

const SECONDS_A_DAY: f64 = 86_400.0;
const DAYS_A_MONTH: f64 = 30.0;
/// An object is stored once an hour, or at this size (`max_age` and `object_bytes` of `[to.objects]`).
const OBJECTS_A_DAY_MIN: f64 = 24.0;
const OBJECT_BYTES: f64 = 67_108_864.0;
/// A partition is planned for a part of what it was measured to take.
const PARTITION_LOAD: f64 = 0.5;

/// The figures.
#[derive(Debug, Deserialize)]
pub struct Measured {
    /// Bytes of a record's text.
    pub record_bytes: f64,
    /// Records that were brought.
    pub records: f64,
    /// One for each destination.
    pub rows: Vec<Row>,
}

/// A destination.
#[derive(Debug, Deserialize)]
pub struct Row {
    /// Its name.
    pub to: String,
    /// Records a second, with all programs on one machine.
    pub records_a_second: f64,
    /// Records that one processor of the relay brings in a second.
    pub records_a_processor_second: f64,
    /// The relay's memory at most, MiB.
    pub memory_mib: f64,
    /// Bytes of a record at the destination.
    pub bytes_a_record: Option<f64>,
}

impl Measured {
    /// Those that are kept in a folder `docs`.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn kept(docs: &Path) -> Result<Self> {
        let path = docs.join("benchmarks/relay.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    fn row(&self, to: &str) -> Result<&Row> {
        self.rows.iter().find(|row| row.to == to).with_context(|| format!("nothing was measured to {to}"))
    }

    fn bytes(&self, to: &str) -> Result<f64> {
        self.row(to)?.bytes_a_record.with_context(|| format!("bytes to {to} were not measured"))
    }
}

/// A fleet.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    /// Its hosts.
    pub hosts: f64,
    /// Records a second of each.
    pub rate: f64,
    /// Bytes of a record's text.
    pub bytes: f64,
    /// Days for which everything is kept.
    pub days: f64,
}

/// A plan for a fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Bytes a day of each host's log.
    pub log_bytes: f64,
    /// Parts of one processor of each host that its relays to Parquet and to Kafka take.
    pub archive_load: f64,
    /// As above.
    pub kafka_load: f64,
    /// Partitions of the topic.
    pub partitions: f64,
    /// Objects a day of all hosts.
    pub objects: f64,
    /// Bytes of Parquet, and of a raw archive, of all hosts and days.
    pub parquet_bytes: f64,
    /// As above.
    pub raw_bytes: f64,
}

impl Fleet {
    /// The plan for it.
    ///
    /// # Errors
    /// A figure is missing.
    pub fn plan(&self, measured: &Measured) -> Result<Plan> {
        let longer = self.bytes / measured.record_bytes;
        let day = self.rate * SECONDS_A_DAY * longer;
        let kafka = measured.row("Kafka, body")?;
        let parquet = measured.bytes("objects, parquet")?;
        let load = |row: &Row| self.rate * longer / row.records_a_processor_second;
        let all = self.hosts * self.rate * longer;
        Ok(Plan {
            log_bytes: day * measured.bytes("another clad")?,
            archive_load: load(measured.row("objects, parquet")?),
            kafka_load: load(kafka),
            partitions: (all / (kafka.records_a_second * PARTITION_LOAD)).ceil(),
            objects: self.hosts * (day * parquet / OBJECT_BYTES).ceil().max(OBJECTS_A_DAY_MIN),
            parquet_bytes: self.hosts * self.days * day * parquet,
            raw_bytes: self.hosts * self.days * day * measured.bytes("objects, raw")?,
        })
    }
}

impl Plan {
    /// The price of Parquet a month: of a gigabyte a month, and of a thousand objects.
    #[must_use]
    pub fn price(&self, gigabyte: f64, thousand: f64) -> f64 {
        self.parquet_bytes / 1e9 * gigabyte + self.objects * DAYS_A_MONTH / 1000.0 * thousand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let row = |to: &str, bytes| Row {
            to: to.to_owned(),
            records_a_second: 10_000.0,
            records_a_processor_second: 50_000.0,
            memory_mib: 30.0,
            bytes_a_record: bytes,
        };
        let rows = vec![
            row("another clad", Some(250.0)),
            row("objects, parquet", Some(25.0)),
            row("objects, raw", Some(20.0)),
        ];
        let rows = rows.into_iter().chain([row("Kafka, body", None)]).collect();
        Measured { record_bytes: 200.0, records: 1.0, rows }
    }

    #[test]
    fn a_plan_is_the_figures_times_the_fleet() {
        let fleet = Fleet { hosts: 10.0, rate: 1000.0, bytes: 200.0, days: 30.0 };
        let plan = fleet.plan(&measured()).expect("figures");
        assert_eq!(plan.log_bytes, 1000.0 * 86_400.0 * 250.0);
        assert_eq!((plan.archive_load, plan.kafka_load), (0.02, 0.02));
        // 10,000 a second, and a partition is planned for 5,000.
        assert_eq!(plan.partitions, 2.0);
        // 2.16 GB a day and host are 33 objects.
        assert_eq!(plan.objects, 330.0);
        assert_eq!(plan.parquet_bytes, 10.0 * 30.0 * 86_400_000.0 * 25.0);
        let price = plan.price(0.02, 0.005);
        assert!((price - (648.0 * 0.02 + 9.9 * 0.005)).abs() < 1e-6, "{price}");
        // A quiet host still stores an object an hour; longer records count in proportion.
        let quiet = Fleet { rate: 1.0, ..fleet }.plan(&measured()).expect("figures");
        assert_eq!((quiet.objects, quiet.partitions), (240.0, 1.0));
        let long = Fleet { bytes: 400.0, ..fleet }.plan(&measured()).expect("figures");
        assert_eq!(long.raw_bytes, 2.0 * plan.raw_bytes);
    }

    #[test]
    fn a_figure_that_is_missing_is_an_error() {
        let fleet = Fleet { hosts: 1.0, rate: 1.0, bytes: 200.0, days: 1.0 };
        assert!(fleet.plan(&Measured { rows: Vec::new(), ..measured() }).is_err());
    }
}
