//! The example `tailer`, killed again and again: it misses nothing.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Appender, small};

#[path = "../../../client-sdk/examples/tailer.rs"]
#[allow(dead_code)] // its `main`
mod example;

/// Set: this process is the tailer, and no test.
const ADDRESS: &str = "CLAD_TEST_TAILER";
const KILLS: u64 = 25;
/// Records between two kills.
const STRETCH: u64 = 8;

/// Not a test: the process that is killed.
#[test]
fn the_tailer() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let folder = std::env::current_dir().expect("a folder");
    let mut out = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("out")).expect("a file");
    let handle = |offset, record: &clad_client::RecordView<'_>| {
        let body = String::from_utf8_lossy(record.body_bytes().expect("a body")).into_owned();
        out.write_all(format!("{offset} {body}\n").as_bytes())
    };
    let ended = crate::runtime().block_on(example::follow(&address, Path::new("cursor"), handle));
    panic!("it ended: {ended:?}");
}

fn lines(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("out")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn killed_between_any_two_records_it_misses_none() {
    let mut daemon = small().start();
    let mut appender = Appender::new(&daemon);
    let folder = tempfile::tempdir().expect("a folder");
    let mut next = 0;
    for round in 0..KILLS {
        let mut tailer = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "tailer::the_tailer", "--nocapture"])
            .env(ADDRESS, daemon.address("unix"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        for _ in 0..STRETCH {
            appender.text(format!("number {next}"));
            next += 1;
        }
        if round % 8 == 3 {
            daemon.kill9();
            daemon.restart();
            appender = Appender::new(&daemon);
        }
        // Anywhere in the stretch: as far as it came, by one record more each round.
        let came = lines(folder.path()).len() as u64 + round % STRETCH;
        let began = std::time::Instant::now();
        while (lines(folder.path()).len() as u64) < came.min(next) {
            assert!(
                began.elapsed() < clad_e2e::TEST_TIMEOUT,
                "it comes to no more than {:?}",
                lines(folder.path()).last()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        tailer.kill().expect("killed");
        tailer.wait().expect("ended");
    }
    let mut last = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tailer::the_tailer", "--nocapture"])
        .env(ADDRESS, daemon.address("unix"))
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let ending = format!("{} number {}", next - 1, next - 1);
    let began = std::time::Instant::now();
    while lines(folder.path()).last() != Some(&ending) {
        assert!(began.elapsed() < clad_e2e::TEST_TIMEOUT, "it comes to no more than {:?}", lines(folder.path()).last());
        std::thread::sleep(Duration::from_millis(1));
    }
    last.kill().expect("killed");
    last.wait().expect("ended");
    // Every record, in order; a kill between a record and its cursor repeats from there, and skips nothing.
    let offsets: Vec<u64> = lines(folder.path())
        .iter()
        .map(|line| {
            let (offset, body) = line.split_once(' ').expect("whole lines");
            assert_eq!(body, format!("number {offset}"));
            offset.parse().expect("a number")
        })
        .collect();
    assert_eq!(offsets.first(), Some(&0));
    let skips = offsets.windows(2).find(|pair| pair[1] > pair[0] + 1);
    assert_eq!(skips, None, "{offsets:?}");
    let mut back = offsets.windows(2).filter(|pair| pair[1] <= pair[0]).count() as u64;
    back = back.saturating_sub(KILLS);
    assert_eq!(back, 0, "it goes back more often than it is killed");
    assert_eq!(offsets.iter().collect::<std::collections::BTreeSet<_>>().len() as u64, next);
}
