//! The speed that the journal is to reach: rows of contenders, ours and others', and what ours must be beside them.
//!
//! Invariants: within a round every contender of a row runs once, each in a process of its own, one after the other;
//! where they begin differs from round to round; the ratio of a round is ours to that of the others whose median over the
//! rounds is the best; where one of them is not there (a peer that was not built, no fio), the row says so, and the aim is about those that are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::fio;
use crate::outcome::Outcome;
use crate::place::Place;
use crate::results::{Aim, Results};
use crate::stats::Spread;
use crate::writers::Limit;

/// How a contender is run.
#[derive(Clone, Copy, Debug)]
enum How {
    /// This program, with these words.
    Ours(&'static str),
    /// A program of `benches/peers`, with these words.
    Peer(&'static str, &'static str),
    /// fio, writing in this way.
    Fio(fio::Job),
}

/// Ours beside others.
struct Wanted {
    of: &'static str,
    /// The one of these whose median is the best.
    beside: &'static [&'static str],
    at_least: f64,
}

/// Contenders that take turns.
struct Row {
    name: &'static str,
    about: &'static str,
    contenders: &'static [(&'static str, How)],
    wanted: &'static [Wanted],
}

const COMMONWARE: [(&str, How); 3] = [
    ("commonware 2026.5.0, tokio", How::Peer("clad-peers", "durable --by commonware")),
    ("commonware 2026.5.0, io_uring", How::Peer("clad-peers-uring", "durable --by commonware")),
    ("commonware 2026.10.0", How::Peer("clad-peers-newest", "durable --by commonware")),
];
const COMMONWARES: &[&str] = &["commonware 2026.5.0, tokio", "commonware 2026.5.0, io_uring", "commonware 2026.10.0"];

const ROWS: &[Row] = &[
    Row {
        name: "durable_1",
        about: "4096 B durable at the storage operation, 1 writer",
        contenders: &[
            ("write_at_sync", How::Ours("durable --by write_at_sync")),
            ("bare loop, RWF_DSYNC", How::Ours("durable --by bare_dsync")),
            ("bare loop, O_DIRECT + RWF_DSYNC", How::Ours("durable --by bare_direct")),
            COMMONWARE[0],
            COMMONWARE[1],
            COMMONWARE[2],
        ],
        wanted: &[
            Wanted {
                of: "write_at_sync",
                beside: &["bare loop, RWF_DSYNC", "bare loop, O_DIRECT + RWF_DSYNC"],
                at_least: 0.95,
            },
            Wanted { of: "write_at_sync", beside: COMMONWARES, at_least: 1.25 },
        ],
    },
    Row {
        name: "durable_8",
        about: "4096 B durable, 8 writers",
        contenders: &[
            ("group_commit", How::Ours("durable --by group_commit --writers 8")),
            ("bare group commit", How::Ours("durable --by bare_group_commit --writers 8")),
            ("commonware 2026.5.0, tokio", How::Peer("clad-peers", "durable --by commonware --writers 8")),
            ("commonware 2026.5.0, io_uring", How::Peer("clad-peers-uring", "durable --by commonware --writers 8")),
            ("commonware 2026.10.0", How::Peer("clad-peers-newest", "durable --by commonware --writers 8")),
            ("fio, io_uring, direct, dsync, depth 8", How::Fio(fio::Job::DURABLE_8)),
        ],
        wanted: &[
            Wanted { of: "group_commit", beside: COMMONWARES, at_least: 2.0 },
            Wanted { of: "group_commit", beside: &["fio, io_uring, direct, dsync, depth 8"], at_least: 0.9 },
        ],
    },
    Row {
        name: "durable_64",
        about: "256 B durable, 64 writers",
        contenders: &[
            ("group_commit", How::Ours("durable --by group_commit --writers 64 --size 256")),
            ("bare group commit", How::Ours("durable --by bare_group_commit --writers 64 --size 256")),
            ("okaywal 0.3.1", How::Peer("clad-peers", "durable --by okaywal --writers 64 --size 256")),
            ("okaywal 0.3.1, 64 MiB files", How::Peer("clad-peers", "durable --by okaywal64m --writers 64 --size 256")),
        ],
        wanted: &[
            Wanted { of: "group_commit", beside: &["okaywal 0.3.1", "okaywal 0.3.1, 64 MiB files"], at_least: 1.5 },
            Wanted { of: "group_commit", beside: &["bare group commit"], at_least: 0.9 },
        ],
    },
    Row {
        name: "append_1",
        about: "durable append of 4096 B, 1 writer",
        contenders: &[
            ("group_commit", How::Ours("durable --by group_commit")),
            ("sync_file_range", How::Ours("durable --by journal_range")),
            ("append + fdatasync", How::Ours("durable --by append_fdatasync")),
        ],
        wanted: &[
            Wanted { of: "group_commit", beside: &["append + fdatasync"], at_least: 1.9 },
            Wanted { of: "sync_file_range", beside: &["append + fdatasync"], at_least: 3.0 },
        ],
    },
    bulk("bulk_100", "bulk file, chunks of 100 B", &BULK_100, &AIMS_BULK),
    bulk("bulk_800", "bulk file, chunks of 800 B", &BULK_800, &AIMS_BULK),
    bulk("bulk_4096", "bulk file, chunks of 4096 B", &BULK_4096, &AIMS_BULK_4096),
];

const fn bulk(
    name: &'static str,
    about: &'static str,
    contenders: &'static [(&'static str, How)],
    wanted: &'static [Wanted],
) -> Row {
    Row { name, about, contenders, wanted }
}

const BULK_100: [(&str, How); 4] = [
    ("file writer, direct", How::Ours("bulk --by clad_direct --chunk 100")),
    ("agave-fs 4.2.0, direct", How::Peer("clad-peers", "bulk --by agave-direct --chunk 100")),
    ("BufWriter, 8 KiB", How::Ours("bulk --by bufwriter_8k --chunk 100")),
    ("BufWriter, 2 MiB", How::Ours("bulk --by bufwriter_2m --chunk 100")),
];
const BULK_800: [(&str, How); 4] = [
    ("file writer, direct", How::Ours("bulk --by clad_direct --chunk 800")),
    ("agave-fs 4.2.0, direct", How::Peer("clad-peers", "bulk --by agave-direct --chunk 800")),
    ("BufWriter, 8 KiB", How::Ours("bulk --by bufwriter_8k --chunk 800")),
    ("BufWriter, 2 MiB", How::Ours("bulk --by bufwriter_2m --chunk 800")),
];
const BULK_4096: [(&str, How); 5] = [
    ("file writer, direct", How::Ours("bulk --by clad_direct --chunk 4096")),
    ("agave-fs 4.2.0, direct", How::Peer("clad-peers", "bulk --by agave-direct --chunk 4096")),
    ("BufWriter, 8 KiB", How::Ours("bulk --by bufwriter_8k --chunk 4096")),
    ("BufWriter, 2 MiB", How::Ours("bulk --by bufwriter_2m --chunk 4096")),
    ("fio, direct, 1 MiB, depth 8", How::Fio(fio::Job::BULK)),
];
const AIM_AGAVE: Wanted = Wanted { of: "file writer, direct", beside: &["agave-fs 4.2.0, direct"], at_least: 1.0 };
const AIM_STANDARD: Wanted =
    Wanted { of: "file writer, direct", beside: &["BufWriter, 8 KiB", "BufWriter, 2 MiB"], at_least: 1.6 };
const AIMS_BULK: [Wanted; 2] = [AIM_AGAVE, AIM_STANDARD];
const AIMS_BULK_4096: [Wanted; 3] = [
    AIM_AGAVE,
    AIM_STANDARD,
    Wanted { of: "file writer, direct", beside: &["fio, direct, 1 MiB, depth 8"], at_least: 0.9 },
];

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of rows; none means all.
    pub rows: Vec<String>,
    /// How often.
    pub rounds: u32,
    /// Seconds of each run that is bounded by time.
    pub seconds: f64,
    /// Megabytes (2^20) of a bulk file.
    pub mebibytes: u64,
    /// Where the programs of `benches/peers` are.
    pub peers: Option<PathBuf>,
    /// This program.
    pub own: PathBuf,
}

/// The names of all rows.
#[must_use]
pub fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

impl Plan {
    /// Runs the rows.
    ///
    /// # Errors
    /// A contender that is there failed, or a row is not known.
    pub fn run(&self, place: &Place) -> Result<Results> {
        for name in &self.rows {
            ensure!(names().contains(&name.as_str()), "there is no row {name}; there are {}", names().join(", "));
        }
        let limit = Limit { time: std::time::Duration::try_from_secs_f64(self.seconds)?, ops: u64::MAX };
        let mut results = Results::new("speed", place, self.rounds, limit);
        for row in ROWS.iter().filter(|row| self.rows.is_empty() || self.rows.iter().any(|name| name == row.name)) {
            self.row(row, place.path(), &mut results)?;
        }
        Ok(results)
    }

    fn row(&self, row: &Row, dir: &Path, results: &mut Results) -> Result<()> {
        let mut outcomes: BTreeMap<&str, Vec<Outcome>> = BTreeMap::new();
        let there: Vec<_> = row.contenders.iter().filter(|(_, how)| self.is_there(how)).collect();
        for round in 0..self.rounds as usize {
            // Nobody is always the first, or always comes after the same one.
            for (name, how) in there.iter().cycle().skip(round).take(there.len()) {
                let outcome = self.one(how, dir).with_context(|| format!("{}: {name}", row.name))?;
                outcomes.entry(name).or_default().push(outcome);
            }
        }
        for (name, how) in row.contenders {
            let cell = [("row", row.name), ("work", row.about), ("contender", name)];
            match outcomes.get(name) {
                Some(runs) => {
                    let safe = !matches!(how, How::Ours(words) if words.contains("journal_range"));
                    results.add(&cell, runs).safe = safe || results.ground.range_sync_is_safe;
                }
                None => results.add(&cell, &[]).notes.push("not there in this sitting".to_owned()),
            }
        }
        for wanted in row.wanted {
            results.aims.push(aim(row.about, wanted, &outcomes));
        }
        Ok(())
    }

    fn program(&self, how: &How) -> Option<PathBuf> {
        match how {
            How::Ours(_) => Some(self.own.clone()),
            How::Peer(name, _) => self.peers.as_ref().map(|folder| folder.join(name)),
            How::Fio(_) => fio::program(),
        }
    }

    fn is_there(&self, how: &How) -> bool {
        self.program(how).is_some_and(|program| program.is_file())
    }

    fn one(&self, how: &How, dir: &Path) -> Result<Outcome> {
        let program = self.program(how).context("it is not there")?;
        let words = match how {
            How::Fio(job) => {
                return fio::run(&program, &job.with(self.seconds, self.mebibytes << 20), &dir.join("fio"));
            }
            How::Ours(words) | How::Peer(_, words) => words,
        };
        let mut command = Command::new(&program);
        command.args(words.split(' ')).arg("--dir").arg(dir);
        if words.starts_with("bulk") {
            command.args(["--mebibytes", &self.mebibytes.to_string()]);
        } else {
            command.args(["--seconds", &self.seconds.to_string()]);
        }
        let said = crate::place::said(&mut command)?;
        let outcome: Outcome = serde_json::from_str(said.trim()).with_context(|| format!("{words}: {said}"))?;
        outcome.checked()
    }
}

fn aim(about: &str, wanted: &Wanted, outcomes: &BTreeMap<&str, Vec<Outcome>>) -> Aim {
    let median = |runs: &Vec<Outcome>| Spread::of(runs.iter().map(speed)).median;
    let others = wanted.beside.iter().filter_map(|name| outcomes.get(name));
    let best = others.max_by(|a, b| median(a).total_cmp(&median(b)));
    let best_of_round = |round: usize| best.and_then(|runs| runs.get(round)).map_or(0.0, speed);
    let ours = outcomes.get(wanted.of).map_or(&[][..], Vec::as_slice);
    let rounds = ours.iter().enumerate().map(|(round, run)| (speed(run), best_of_round(round)));
    let ratios: Vec<f64> = rounds.filter(|(_, best)| *best > 0.0).map(|(ours, best)| ours / best).collect();
    Aim {
        work: about.to_owned(),
        of: wanted.of.to_owned(),
        beside: wanted.beside.iter().filter(|name| outcomes.contains_key(*name)).map(|n| (*n).to_owned()).collect(),
        missing: wanted.beside.iter().filter(|name| !outcomes.contains_key(*name)).map(|n| (*n).to_owned()).collect(),
        at_least: wanted.at_least,
        ratio: Spread::of(ratios),
    }
}

/// Operations of different sizes stand beside each other in bulk files: bytes count.
fn speed(outcome: &Outcome) -> f64 {
    outcome.megabytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ops: u64) -> Outcome {
        Outcome { ops, seconds: 1.0, size: 1_000_000, ..Outcome::default() }
    }

    #[test]
    fn a_ratio_is_to_the_best_of_the_others() {
        let wanted = Wanted { of: "a", beside: &["b", "c", "d"], at_least: 1.5 };
        let outcomes = BTreeMap::from([
            ("a", vec![run(30), run(40), run(50)]),
            ("b", vec![run(10), run(400), run(5)]),
            ("c", vec![run(20), run(40), run(25)]),
        ]);
        let aim = aim("work", &wanted, &outcomes);
        assert_eq!(aim.ratio, Spread { median: 1.5, min: 1.0, max: 2.0 });
        assert_eq!((&aim.beside[..], &aim.missing[..]), (&["b".to_owned(), "c".to_owned()][..], &["d".to_owned()][..]));
        assert!(aim.is_reached());
    }

    #[test]
    fn every_aim_is_about_contenders_of_its_row() {
        for row in ROWS {
            for wanted in row.wanted {
                for name in [wanted.of].iter().chain(wanted.beside) {
                    assert!(row.contenders.iter().any(|(it, _)| it == name), "{}: {name}", row.name);
                }
            }
        }
    }
}
