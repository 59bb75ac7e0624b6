//! Ack levels: never lowered, never run ahead, and `none` is not answered.

use std::thread;

use clad_e2e::grpc::Call;
use clad_e2e::raw::hello_reader;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, Setup, not_run, web};
use clad_proto::grpc::v1;
use clad_proto::{AckLevel, DurabilityPolicy, ErrorCode};

#[test]
fn a_level_that_the_policy_cannot_reach() {
    let daemon = Setup::new().set("journal.durability", "fire_and_forget").start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!((welcome.policy, welcome.highest_ack), (DurabilityPolicy::FireAndForget, AckLevel::Written));
    raw.append(0, AckLevel::Durable, &[b"too much"]);
    let error = raw.refused().error;
    assert_eq!(error.code, ErrorCode::LevelUnreachable, "{error}");
    assert!(!error.retryable && !error.maybe_written && error.text.contains("written"), "{error}");
    raw.append_acked(0, AckLevel::Written, &[b"enough"]);
    raw.append(1, AckLevel::Posted, &[b"shared memory only"]);
    assert_eq!(raw.refused().error.code, ErrorCode::LevelUnreachable);
    for transport in ["unix", "tcp", "grpc"] {
        let server = daemon.address(transport);
        let output = clactl_ends(1, &["append", "--server", &server, "--ack", "durable"], b"a line\n");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("durable") && said.contains("written"), "{transport}: {said}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(daemon.status().offsets.expect("offsets").received, 1);
}

/// Beside others, one packet and one wake-up of the client for each append: what acknowledges nothing yet waits for what
/// does.
#[test]
fn accepted_and_its_watermark_come_together() {
    const APPENDS: u64 = 100;
    const CLIENTS: u64 = 8;
    let daemon = Daemon::start();
    let reads: u64 = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let socket = daemon.socket();
                scope.spawn(move || {
                    let (mut raw, _) = Raw::producer(&socket);
                    let (before, level) = (raw.reads(), [AckLevel::Written, AckLevel::Durable][client as usize % 2]);
                    for sequence in 0..APPENDS {
                        raw.append_acked(sequence, level, &[b"one at a time"]);
                    }
                    raw.reads() - before
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    // Answered at once they would be twice as many; an append that finds nothing under way is answered twice.
    let appends = CLIENTS * APPENDS;
    assert!((appends..appends * 3 / 2).contains(&reads), "{reads} reads for {appends} appends");
}

/// A FLUSH that the log cannot answer is refused by its number, and ends nothing; one that no log could answer is no
/// FLUSH. The same on both transports.
#[test]
fn a_flush_that_is_refused_ends_nothing_and_one_that_is_none_does() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return not_run("a FLUSH that is refused", "no /dev/shm, where no log is durable");
    };
    let daemon = Setup::in_folder(&memory.path().join("log")).start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.highest_ack, AckLevel::Written);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut call = Call::open(&daemon.port("grpc").to_string()).await;
        for sequence in 0..3 {
            let errors = [
                raw.flush(AckLevel::Durable).expect_err("it is memory"),
                call.flush(9, AckLevel::Durable).await.expect_err("it is memory"),
            ];
            for error in errors {
                assert_eq!(error.code, ErrorCode::LevelUnreachable, "{error}");
                assert!(!error.retryable && !error.maybe_written && error.text.contains("`written`"), "{error}");
            }
            raw.append_acked(sequence, AckLevel::Written, &[b"it goes on"]);
            call.append(sequence, AckLevel::Received, "it goes on").await.expect("it goes on");
            let end = 2 * (sequence + 1);
            for level in [AckLevel::Received, AckLevel::Written] {
                let watermark = raw.flush(level).expect("a mark");
                assert_eq!((watermark.level, watermark.offset), (level, end));
                let watermark = call.flush(10, level).await.expect("a mark");
                assert_eq!((watermark.level(), watermark.offset), (v1::AckLevel::from(level), end));
            }
        }
        // No level that has a mark, and no number.
        for level in [AckLevel::None, AckLevel::Posted] {
            let (mut raw, _) = Raw::producer(&daemon.socket());
            assert_eq!(raw.flush(level).expect_err("no FLUSH").code, ErrorCode::MalformedFrame);
            assert!(raw.frame().is_none(), "it goes on");
        }
        for (id, level) in [(1, v1::AckLevel::None), (1, v1::AckLevel::Unspecified), (0, v1::AckLevel::Written)] {
            let mut call = Call::open(&daemon.port("grpc").to_string()).await;
            call.ask_flush(id, level).await;
            assert_eq!(call.ended().await.code, ErrorCode::MalformedFrame, "{id} {level:?}");
        }
    });
}

#[test]
fn level_none_is_not_answered() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append(0, AckLevel::None, &[b"into the dark"]);
    raw.append(1, AckLevel::None, &[b"and another"]);
    raw.append(2, AckLevel::Received, &[b"heard"]);
    // Answers come in the order of the appends: the first one is for the third.
    assert_eq!(raw.accepted().first_seq, 2);
    raw.flush(AckLevel::Durable).expect("durable");
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&hello_reader()).expect("WELCOME");
    let (got, _) = reader.read_from(0, AckLevel::Durable).expect("a read");
    let bodies: Vec<_> = got.into_iter().filter_map(|got| got.body).collect();
    assert_eq!(bodies, [&b"into the dark"[..], b"and another", b"heard"]);
}

/// Nor is its refusal: what is not taken is dropped, and counted.
#[test]
fn level_none_is_dropped_and_counted_where_it_is_not_taken() {
    let daemon = Daemon::start();
    let dropped = |daemon: &Daemon| -> f64 {
        let samples = web::metrics(daemon.port("metrics"));
        samples.iter().filter(|(name, _)| name.starts_with("clad_dropped_records_total")).map(|(_, value)| value).sum()
    };
    let (mut raw, _) = Raw::producer(&daemon.socket());
    assert_eq!(dropped(&daemon), 0.0);
    raw.append(7, AckLevel::None, &[b"behind a gap", b"of two"]);
    raw.append(0, AckLevel::Received, &[b"heard"]);
    assert_eq!(raw.accepted().first_seq, 0, "the answer before would have been the refusal");
    assert_eq!(dropped(&daemon), 2.0);
    assert_eq!(daemon.status().offsets.expect("offsets").received, 1);
}
