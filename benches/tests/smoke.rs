//! Every bench for a moment: counts and contents, never a time. (Contents are compared within the benches: a run whose bytes
//! are not found is an error.)

use std::path::Path;
use std::process::{Command, Output};

use clad_benches::append::{self, Cell};
use clad_benches::durable::{Contender, Engine, Work};
use clad_benches::place::{On, Place};
use clad_benches::writers::Limit;
use clad_benches::{Outcome, bulk, cells, file_writer, logging_call, read, speed, write_sync};
use clap::ValueEnum;

/// Small, and yet with room for every writer.
const FILE: u64 = 1 << 20;
const OPS: u64 = 20;

/// On the file system that holds the build: the one for temporary files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn place(dir: &tempfile::TempDir) -> Place {
    Place::new(dir.path(), On::Folder).expect("a folder on a disk")
}

fn empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("the folder").next().is_none()
}

#[test]
fn every_contender_makes_every_write_durable() {
    for by in Contender::value_variants() {
        for engine in [Engine::Blocking, Engine::Uring] {
            if engine == Engine::Uring && !by.has_engines() {
                continue;
            }
            for (writers, size) in [(1, 4096), (8, 4096), (2, 64 << 10)] {
                let dir = folder();
                let work = Work { by: *by, engine, writers, size, limit: Limit::ops(OPS), file: FILE };
                let said = work.run(dir.path()).unwrap_or_else(|e| panic!("{work:?}: {e:#}"));
                let ops = OPS * u64::from(writers);
                assert_eq!((said.ops, said.failed), (ops, 0), "{said:?}");
                // Of a file that is written over, the last round is there (what no group fits into, left out).
                let round = FILE / size as u64 - u64::from(writers);
                assert!(said.verified >= ops.min(round) && said.verified <= ops, "{said:?}");
                assert!(said.latency_us.min > 0.0 && said.latency_us.max >= said.latency_us.p99, "{said:?}");
            }
        }
    }
}

#[test]
fn records_that_are_no_blocks_are_found_again() {
    for by in [Contender::GroupCommit, Contender::BareGroupCommit] {
        let dir = folder();
        let work = Work { by, engine: Engine::Blocking, writers: 16, size: 256, limit: Limit::ops(OPS), file: FILE };
        let said = work.run(dir.path()).unwrap_or_else(|e| panic!("{by:?}: {e:#}"));
        assert_eq!((said.ops, said.verified), (16 * OPS, 16 * OPS), "{said:?}");
    }
}

#[test]
fn every_writer_makes_the_same_file() {
    let dir = folder();
    let works = [100, 800, 4096].map(|chunk| bulk::Work { chunk, total: 3 << 20, buffers: None });
    let results = file_writer::run(&place(&dir), 2, &works).expect("it runs");
    assert_eq!(results.rows.len(), 3 * bulk::Contender::ALL.len());
    for row in &results.rows {
        let chunk: u64 = row.cell["chunk"].parse().expect("a number");
        let chunks = 2 * (3u64 << 20).div_ceil(chunk);
        assert_eq!((row.ops, row.verified, row.failed), (chunks, chunks, 0), "{row:?}");
        assert!(row.beside["bufwriter_8k"].min > 0.0 && row.beside["bufwriter_2m"].min > 0.0, "{row:?}");
    }
    assert!(empty(dir.path()));
}

#[test]
fn every_space_with_every_method() {
    let dir = folder();
    let plan = append::Plan { rounds: 2, limit: Limit::ops(OPS), file: FILE };
    let results = plan.run(&place(&dir)).expect("it runs");
    assert_eq!(results.rows.len(), Cell::all().count());
    for row in &results.rows {
        assert_eq!((row.ops, row.verified, row.failed), (2 * OPS, 2 * OPS, 0), "{row:?}");
        if row.cell["method"] != "sync_file_range" {
            assert!(row.safe, "{row:?}");
        } else if row.cell["space"] != "zero-written" {
            assert!(!row.safe, "{row:?}");
        }
    }
    assert!(empty(dir.path()));
}

#[test]
fn methods_stand_beside_the_plain_one() {
    let dir = folder();
    let plan = write_sync::Plan {
        methods: write_sync::METHODS.to_vec(),
        engines: vec![Engine::Blocking],
        writers: vec![1, 4],
        sizes: vec![4096],
        rounds: 2,
        limit: Limit::ops(OPS),
        file: FILE,
    };
    let results = plan.run(&place(&dir)).expect("it runs");
    assert_eq!(results.rows.len(), 2 * write_sync::METHODS.len());
    for row in &results.rows {
        let writers: u64 = row.cell["writers"].parse().expect("a number");
        assert_eq!((row.ops, row.failed), (2 * OPS * writers, 0), "{row:?}");
        assert_eq!(row.beside["write+sync"].median == 1.0, row.cell["method"] == "write+sync", "{row:?}");
    }
    let none = results.find(&[("method", "none")]).expect("a row");
    assert!(!none.safe, "nothing is synced");
    assert!(empty(dir.path()));
}

#[test]
fn a_segment_is_read_whole_through_its_checksums_and_after_a_crash() {
    let dir = folder();
    let plan = read::Plan { rounds: 2, segment: 4 << 20, size: 256 };
    let results = plan.run(&place(&dir)).expect("it runs");
    let records = |of: &str| results.find(&[("read", of)]).expect("a row").verified;
    assert!(records("checked") > 2 * 8_000 && records("checked") == records("plain"), "{results:?}");
    assert!(records("scan") > 2 * 8_000 && records("scan") == records("plain_direct"), "{results:?}");
    assert_eq!(results.aims.len(), 2);
    assert!(empty(dir.path()));
}

#[test]
fn every_way_to_read_and_write() {
    let dir = folder();
    let plan = cells::Plan { rounds: 1, limit: Limit::ops(100), file: 2 << 20, fio: false };
    let results = plan.run(&place(&dir)).expect("it runs");
    assert_eq!(results.rows.len(), 2 * 3 * 2 * 3);
    for row in &results.rows {
        let depth = if row.cell["way"] == "sync" { 1 } else { u64::from(cells::DEPTH) };
        assert_eq!((row.ops, row.failed), (100 * depth, 0), "{row:?}");
        // Of those that only write one after the other, each block once (the file has more).
        if row.cell["do"] == "write" && row.cell["order"] == "sequential" {
            assert_eq!(row.verified, (100 * depth).min((2 << 20) / cells::BLOCK as u64), "{row:?}");
        }
    }
    assert!(empty(dir.path()));
}

#[test]
fn a_row_stands_without_the_peers_that_are_not_there() {
    let dir = folder();
    let plan = speed::Plan {
        rows: vec!["append_1".to_owned(), "bulk_800".to_owned()],
        rounds: 1,
        seconds: 0.01,
        mebibytes: 2,
        peers: Some(dir.path().to_owned()),
        own: env!("CARGO_BIN_EXE_clad-benches").into(),
    };
    let results = plan.run(&place(&dir)).expect("it runs");
    assert_eq!((results.rows.len(), results.aims.len()), (3 + 4, 2 + 2));
    let peer = results.find(&[("contender", "agave-fs 4.2.0, direct")]).expect("a row");
    assert_eq!((peer.ops, peer.notes.len()), (0, 1));
    for aim in &results.aims {
        assert_eq!(aim.beside.is_empty(), aim.ratio.median == 0.0, "{aim:?}");
    }
    assert!(results.aims[2].missing == ["agave-fs 4.2.0, direct"], "{:?}", results.aims[2]);
    let unknown = speed::Plan { rows: vec!["nothing".to_owned()], ..plan };
    assert!(unknown.run(&place(&dir)).is_err());
    assert!(empty(dir.path()));
}

fn program(arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clad-benches"));
    command.args(arguments).arg("--dir").arg(dir).output().expect("it can be started")
}

#[test]
fn the_program_prints_what_a_driver_reads_and_refuses_memory() {
    let dir = folder();
    let durable = ["durable", "--by", "write_at_sync", "--writers", "2", "--ops", "5", "--seconds", "60"];
    let bulk = ["bulk", "--by", "clad_direct", "--chunk", "800", "--mebibytes", "1"];
    for (arguments, ops) in [(&durable[..], 10), (&bulk[..], 1311)] {
        let said = program(arguments, dir.path());
        let outcome: Outcome = serde_json::from_slice(&said.stdout).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        assert_eq!((outcome.ops, outcome.failed, said.status.code()), (ops, 0, Some(0)), "{said:?}");
        assert_eq!(outcome.verified, ops);
        let said = program(arguments, Path::new("/dev/shm"));
        let stderr = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.code() == Some(1) && said.stdout.is_empty() && stderr.contains("in memory"), "{said:?}");
    }
    assert!(empty(dir.path()));
}

/// The other contender has every line; a daemon that is not there is an error.
#[test]
fn a_logging_call_is_counted() {
    let dir = folder();
    let turn = logging_call::appender(dir.path(), 500).expect("every line is there");
    assert_eq!((turn.events, turn.dropped), (500, 0));
    let nobody = clad_client::Address::unix(dir.path().join("nobody.sock"));
    let dir_path = dir.path().to_owned();
    let plan = logging_call::Plan { server: nobody, dir: dir_path, events: 1, rounds: 1, c_program: None, level: None };
    plan.run().expect_err("there is no daemon");
    assert!(empty(dir.path()));
}

/// Nobody listens there, or nobody could.
#[test]
fn a_sender_of_log_requests_without_a_receiver_has_no_figures() {
    for to in ["grpc://127.0.0.1:1", "http://127.0.0.1:1", "ingest://127.0.0.1:1", "udp://127.0.0.1:1", "127.0.0.1:1"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clad-benches"));
        let said =
            command.args(["otlp_load", to, "--connections", "1", "--requests", "1"]).output().expect("it starts");
        assert!(said.status.code() == Some(1) && said.stdout.is_empty() && !said.stderr.is_empty(), "{to}: {said:?}");
    }
}
