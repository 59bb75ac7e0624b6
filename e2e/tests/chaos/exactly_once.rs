//! The example of the client's documentation, `client-sdk/examples/exactly_once.rs`: each line of a file is in the log
//! once and in order, though the program and the daemon are killed all the time.

use std::process::{Child, Command};

use clad_e2e::{Daemon, Rng, Scratch, Setup, readback, seed};
use clad_proto::grpc::v1::StatusResponse;

const PROGRAM: &str = env!("CARGO_BIN_EXE_clad-e2e-exactly-once");
/// Lines at the start, and lines that are added as long as there were too few kills.
const LINES: u64 = 4000;
const MORE_LINES: u64 = 1000;
const KILLS_MIN: u64 = 8;
/// Lines that are stored between two kills, at most.
const LINES_BETWEEN_MAX: u64 = 300;
/// Starts in a row; a ring of the one before may keep a start waiting, which ends it.
const LAST_STARTS_MAX: u32 = 20;

fn start(daemon: &Daemon, transport: &str, folder: &Scratch) -> Child {
    let mut command = Command::new(PROGRAM);
    command.arg(daemon.address(transport)).arg(folder.data().join("lines")).arg(folder.data().join("identity"));
    command.spawn().expect("it runs")
}

fn received(status: &StatusResponse) -> u64 {
    status.offsets.as_ref().map_or(0, |offsets| offsets.received)
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn each_line_is_there_once() {
    let mut rng = Rng::new(seed());
    for transport in ["unix", "tcp", "grpc", "shm"] {
        let folder = Scratch::new();
        let mut lines = Vec::new();
        let add_lines = |lines: &mut Vec<String>, more: u64| {
            let first = lines.len() as u64;
            lines.extend((first..first + more).map(|n| format!("line {n}")));
            std::fs::write(folder.data().join("lines"), lines.join("\n") + "\n").expect("lines");
        };
        add_lines(&mut lines, LINES);
        let mut daemon = Setup::new().fixed_ports().start();
        let (mut kills, mut daemon_kills, mut ended_early) = (0, 0, 0);
        loop {
            let before = received(&daemon.status());
            if before >= lines.len() as u64 {
                if kills >= KILLS_MIN && daemon_kills > 0 {
                    break;
                }
                // On a busy machine a program comes far between two looks.
                add_lines(&mut lines, MORE_LINES);
            }
            let mut program = start(&daemon, transport, &folder);
            let target = (before + rng.below(LINES_BETWEEN_MAX)).min(lines.len() as u64);
            daemon.wait_until("more lines", |status| {
                received(status) >= target || program.try_wait().is_ok_and(|ended| ended.is_some())
            });
            if rng.coin() {
                daemon.kill9();
                daemon.restart();
                daemon_kills += 1;
            }
            // It may have ended at an error, or with the last line.
            ended_early += u64::from(program.try_wait().is_ok_and(|ended| ended.is_some()));
            drop(program.kill());
            program.wait().expect("a child");
            kills += 1;
        }
        // A last start finds nothing to do, or brings home what a daemon had not written.
        let ends_well = |_| start(&daemon, transport, &folder).wait().expect("a child").success();
        assert!((0..LAST_STARTS_MAX).any(ends_well), "it does not end well over {transport}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let stored = runtime.block_on(readback::served(&daemon.address("unix")));
        let bodies = stored.iter().map(|stored| String::from_utf8_lossy(&stored.body).into_owned());
        assert!(bodies.eq(lines.iter().cloned()), "{} of {} lines over {transport}", stored.len(), lines.len());
        println!(
            "exactly once over {transport}: {} lines, {kills} kills of the program ({ended_early} had ended), \
             {daemon_kills} of the daemon",
            lines.len()
        );
    }
}
