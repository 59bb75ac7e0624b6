//! fio, the yardstick that everybody knows, where it is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::outcome::Outcome;
use crate::stats::Latency;

/// What fio is to do.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// `--rw`
    pub rw: &'static str,
    /// `--ioengine`
    pub engine: &'static str,
    /// `--iodepth`
    pub depth: u32,
    /// `--bs`
    pub block: usize,
    /// Around the page cache.
    pub direct: bool,
    /// Each write with its own sync.
    pub dsync: bool,
    /// The file is made by this run, and synced at its end.
    pub new_file: bool,
    /// Bytes of the file.
    pub size: u64,
    /// Seconds; 0: once through the file.
    pub seconds: f64,
}

impl Job {
    /// Synced writes over a file, eight under way.
    pub const DURABLE_8: Self = Self {
        rw: "write",
        engine: "io_uring",
        depth: 8,
        block: 4096,
        direct: true,
        dsync: true,
        new_file: false,
        size: crate::durable::FILE,
        seconds: 1.0,
    };
    /// A new file in writes of 1 MiB.
    pub const BULK: Self = Self {
        rw: "write",
        engine: "io_uring",
        depth: 8,
        block: 1 << 20,
        direct: true,
        dsync: false,
        new_file: true,
        size: 0,
        seconds: 0.0,
    };

    /// The same for so long, or for so large a file.
    #[must_use]
    pub fn with(self, seconds: f64, size: u64) -> Self {
        if self.new_file { Self { size, ..self } } else { Self { seconds, ..self } }
    }

    fn arguments(&self, file: &Path) -> Vec<String> {
        let flag = |is: bool| if is { "1" } else { "0" };
        let mut arguments = vec![
            "--name=bench".to_owned(),
            format!("--filename={}", file.display()),
            format!("--rw={}", self.rw),
            format!("--ioengine={}", self.engine),
            format!("--iodepth={}", self.depth),
            format!("--bs={}", self.block),
            format!("--size={}", self.size),
            format!("--direct={}", flag(self.direct)),
            "--rwmixread=80".to_owned(),
            "--fallocate=none".to_owned(),
            "--output-format=json".to_owned(),
        ];
        if self.dsync {
            arguments.push("--sync=dsync".to_owned());
        }
        if self.new_file {
            arguments.extend(["--end_fsync=1", "--create_on_open=1"].map(str::to_owned));
        } else {
            // Over blocks that are written.
            arguments.push("--overwrite=1".to_owned());
        }
        if self.seconds > 0.0 {
            arguments.extend(["--time_based".to_owned(), format!("--runtime={}ms", (self.seconds * 1e3).ceil())]);
        }
        arguments
    }
}

/// Where fio is, if it is there.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("fio")).find(|fio| fio.is_file())
}

/// Runs it on a file, which it lays out where it is not there.
///
/// # Errors
/// It failed, or counted an error.
pub fn run(program: &Path, job: &Job, file: &Path) -> Result<Outcome> {
    if job.new_file && file.exists() {
        std::fs::remove_file(file)?;
    }
    let mut command = Command::new(program);
    // It takes the folder in which it is started for its own.
    command.args(job.arguments(file)).current_dir(file.parent().context("a file lies in a folder")?);
    let said = crate::place::said(&mut command)?;
    let json = said.find('{').map_or("", |at| &said[at..]);
    let outcome = outcome(&serde_json::from_str(json).with_context(|| said.clone())?, job)?;
    if job.new_file {
        std::fs::remove_file(file)?;
    }
    Ok(outcome)
}

fn outcome(said: &Value, job: &Job) -> Result<Outcome> {
    let job_said = &said["jobs"][0];
    ensure!(job_said["error"] == 0, "fio counted an error: {}", job_said["error"]);
    let number = |side: &str, name: &str| job_said[side][name].as_f64().unwrap_or(0.0);
    let ops = number("read", "total_ios") + number("write", "total_ios");
    let bytes = number("read", "io_bytes") + number("write", "io_bytes");
    // The time of one job is that of its sides, which run together.
    let millis = number("read", "runtime").max(number("write", "runtime"));
    ensure!(ops > 0.0 && millis > 0.0, "fio did nothing: {job_said}");
    let side = if number("write", "total_ios") >= number("read", "total_ios") { "write" } else { "read" };
    let latency = &job_said[side]["clat_ns"];
    let micros = |value: &Value| value.as_f64().unwrap_or(0.0) / 1e3;
    let at = |percent: &str| micros(&latency["percentile"][percent]);
    Ok(Outcome {
        work: "fio".to_owned(),
        by: format!("fio, {}, {}, depth {}", job.rw, job.engine, job.depth),
        writers: job.depth,
        size: (bytes / ops).round() as usize,
        ops: ops as u64,
        failed: 0,
        verified: 0,
        seconds: millis / 1e3,
        latency_us: Latency {
            avg: micros(&latency["mean"]),
            min: micros(&latency["min"]),
            p50: at("50.000000"),
            p95: at("95.000000"),
            p99: at("99.000000"),
            p999: at("99.900000"),
            max: micros(&latency["max"]),
            stddev: micros(&latency["stddev"]),
            outliers: 0.0,
        },
        notes: vec!["fio reads nothing back".to_owned()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says() {
        let side = |ios: u64, bytes: u64, runtime: u64| {
            serde_json::json!({
                "total_ios": ios, "io_bytes": bytes, "runtime": runtime,
                "clat_ns": {"mean": 2000.0, "min": 1000, "max": 9000, "stddev": 500.0,
                            "percentile": {"50.000000": 1500, "99.000000": 8000}},
            })
        };
        let said = serde_json::json!({"jobs": [{"error": 0, "read": side(80, 80 * 4096, 500), "write": side(20, 20 * 4096, 490)}]});
        let outcome_of = |said: &Value| outcome(said, &Job::DURABLE_8);
        let good = outcome_of(&said).expect("figures");
        assert_eq!((good.ops, good.size, good.seconds, good.latency_us.p99), (100, 4096, 0.5, 8.0));
        let mut bad = said.clone();
        bad["jobs"][0]["error"] = 5.into();
        assert!(outcome_of(&bad).is_err());
        assert!(outcome_of(&serde_json::json!({})).is_err());
    }

    #[test]
    fn the_arguments_of_fio() {
        let arguments = Job::BULK.with(3.0, 1 << 30).arguments(Path::new("/x/file"));
        for word in ["--filename=/x/file", "--size=1073741824", "--end_fsync=1", "--direct=1", "--bs=1048576"] {
            assert!(arguments.iter().any(|it| it == word), "{word}: {arguments:?}");
        }
        assert!(!arguments.iter().any(|it| it.contains("time_based")));
        let arguments = Job::DURABLE_8.with(0.5, 0).arguments(Path::new("/x/file"));
        assert!(
            arguments.contains(&"--runtime=500ms".to_owned()) && arguments.contains(&"--sync=dsync".to_owned()),
            "{arguments:?}"
        );
    }
}
