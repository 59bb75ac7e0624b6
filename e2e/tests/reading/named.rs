//! Named cursors of a daemon: set, found again, refused, and held against retention.

use std::fs;
use std::time::Duration;

use clad_client::{Address, Cursor, Cursors, Event, GapReason, ReadError, Reader, Start};
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, is_root, stranger};
use clad_proto::frame::{CommitCursor, Frame, GetCursor};
use clad_proto::grpc::v1;
use clad_proto::grpc::v1::log_client::LogClient;
use clad_proto::{AckLevel, ErrorCode};

use crate::{Appender, address, runtime, small};

fn place(daemon: &Daemon, offset: u64) -> Cursor {
    let status = daemon.status();
    let mut id = [0; 16];
    id.copy_from_slice(&status.log_id);
    Cursor { log_id: clad_client::LogId::from_bytes(id), epoch: status.epoch, offset }
}

/// The cursors by their names, as the administrator sees them.
fn listed(daemon: &Daemon) -> Vec<(String, u64, bool)> {
    let all = daemon.status().cursors.expect("a newer daemon").cursors;
    all.into_iter().map(|cursor| (cursor.name, cursor.offset, cursor.lost)).collect()
}

fn clactl(daemon: &Daemon, exit: i32, arguments: &[&str]) -> String {
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let ended = clactl_ends(exit, &[&["--admin", &admin], arguments].concat(), b"");
    String::from_utf8(ended.stdout).expect("text") + &String::from_utf8_lossy(&ended.stderr)
}

async fn cursors(daemon: &Daemon, transport: &str) -> Cursors {
    Cursors::connect(address(daemon, transport)).await.expect("connected")
}

#[test]
fn what_was_committed_is_found_after_a_kill_and_read_on() {
    let mut daemon = small().start();
    let mut appender = Appender::new(&daemon);
    (0..30).for_each(|number| appender.text(format!("number {number}")));
    let at = place(&daemon, 12);
    runtime().block_on(async {
        let mut cursors = cursors(&daemon, "unix").await;
        assert_eq!(cursors.get("to-b").await.expect("asked"), None);
        let set = cursors.commit("to-b", at, true, "a note").await.expect("committed");
        assert_eq!((set.place, set.hold, set.lost, set.unread_from), (at, true, false, 12));
    });
    daemon.kill9();
    daemon.restart();
    runtime().block_on(async {
        let mut cursors = cursors(&daemon, "unix").await;
        let found = cursors.get("to-b").await.expect("asked").expect("it is there");
        assert_eq!((found.place, &found.note[..]), (at, &b"a note"[..]));
        let reader = Reader::builder(address(&daemon, "unix")).from(Start::Cursor(found.place)).limit(1);
        let mut reader = reader.open().await.expect("opened");
        let Ok(Some(Event::Records(chunk))) = reader.next().await else { panic!("no record") };
        assert_eq!(chunk.first_offset(), 12);
        // Backwards as well: it is its owner's own.
        cursors.commit("to-b", Cursor { offset: 3, ..at }, false, "").await.expect("committed");
        cursors.remove("to-b").await.expect("removed");
        cursors.remove("to-b").await.expect("it is no error that there is none");
        assert_eq!(cursors.get("to-b").await.expect("asked"), None);
    });
}

/// An idle connection is closed by the daemon; the next call makes another.
#[test]
fn a_connection_that_was_lost_is_made_again() {
    let mut daemon = small().start();
    Appender::new(&daemon).text("one");
    let at = place(&daemon, 1);
    let runtime = runtime();
    let mut cursors = runtime.block_on(cursors(&daemon, "unix"));
    runtime.block_on(cursors.commit("a", at, false, "")).expect("committed");
    daemon.kill9();
    let error = runtime.block_on(cursors.get("a")).expect_err("there is no daemon");
    assert!(error.is_retryable(), "{error}");
    for _ in 0..2 {
        daemon.restart();
        assert_eq!(runtime.block_on(cursors.get("a")).expect("asked").expect("it is there").place, at);
        daemon.kill9();
    }
}

#[test]
fn a_place_that_is_none_is_refused_by_its_reason() {
    let daemon = small().start();
    let mut appender = Appender::new(&daemon);
    (0..5).for_each(|number| appender.text(format!("number {number}")));
    let at = place(&daemon, 5);
    runtime().block_on(async {
        let mut cursors = cursors(&daemon, "unix").await;
        let other = Cursor { log_id: clad_client::LogId::from_bytes([9; 16]), ..at };
        for wrong in [other, Cursor { offset: 6, ..at }, Cursor { epoch: at.epoch + 1, ..at }] {
            let error = cursors.commit("a", wrong, false, "").await.expect_err("it is none");
            assert!(matches!(error, ReadError::CursorUnknown { .. }) && !error.is_retryable(), "{error}");
        }
        for name in ["a/b", ".a", "a b"] {
            let error = cursors.commit(name, at, false, "").await.expect_err("it is no name");
            assert_eq!(error.code(), Some(ErrorCode::CursorInvalid), "{error}");
        }
        assert_eq!(cursors.get("a").await.expect("the connection goes on"), None);
    });
    assert!(!daemon.dir().join("cursors").exists(), "nothing was ever committed");
}

/// Records are received, and the disk does not have them yet.
#[test]
fn what_is_not_stored_yet_is_not_committed() {
    let setup = small().set("journal.durability", "fire_and_forget").set("journal.fire_and_forget.sync_interval", "1h");
    let daemon = setup.start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    (0..3).for_each(|sequence| _ = raw.append_acked(sequence, AckLevel::Written, &[b"one"]));
    let watermarks = daemon.status().offsets.expect("offsets");
    let at = place(&daemon, 3);
    let must_wait = daemon.status().not_durable_reason.is_empty() && watermarks.durable < 3;
    runtime().block_on(async {
        let committed = cursors(&daemon, "unix").await.commit("a", at, false, "").await;
        // A log whose storage keeps nothing through a power cut knows no more than `written`.
        match must_wait {
            true => assert_eq!(committed.expect_err("not durable").code(), Some(ErrorCode::Busy)),
            false => assert_eq!(committed.expect("written").place, at),
        }
    });
}

#[test]
fn over_grpc_it_is_the_same_cursor_but_of_another_owner() {
    let daemon = small().set("ingest.grpc.allow_read", "true").start();
    Appender::new(&daemon).text("one");
    let at = place(&daemon, 1);
    runtime().block_on(async {
        let mut unix = cursors(&daemon, "unix").await;
        unix.commit("of-unix", at, false, "n").await.expect("committed");
        let grpc = format!("http://{}", daemon.port("grpc"));
        let mut log = LogClient::connect(grpc).await.expect("connected");
        let got = log.get_cursor(v1::GetCursorRequest { name: "of-unix".into() }).await.expect("asked").into_inner();
        assert_eq!(got.place.as_ref().and_then(v1::Cursor::cursor), Some(at));
        let commit = |name: &str, hold| v1::CommitCursorRequest {
            name: name.into(),
            place: Some(at.into()),
            hold,
            note: Default::default(),
        };
        let code = |status: &tonic::Status| clad_proto::grpc::from_status(status).map(|error| error.code);
        let status = log.commit_cursor(commit("of-unix", false)).await.expect_err("another owner");
        assert_eq!(code(&status), Some(ErrorCode::CursorNotYours), "{status}");
        let status = log.commit_cursor(commit("of-grpc", true)).await.expect_err("the network holds nothing");
        assert_eq!(code(&status), Some(ErrorCode::PermissionDenied), "{status}");
        log.commit_cursor(commit("of-grpc", false)).await.expect("committed");
        let removed = v1::CommitCursorRequest { place: None, ..commit("of-grpc", false) };
        let gone = log.commit_cursor(removed).await.expect("removed").into_inner();
        assert_eq!(gone.place, None);
        let error = unix.commit("of-unix", Cursor { offset: 0, ..at }, false, "").await;
        assert!(error.is_ok(), "its own: {error:?}");
    });
    assert_eq!(listed(&daemon), [("of-unix".to_owned(), 0, false)]);
}

/// Without the right to hold, a cursor holds nothing; a name belongs to the user that made it.
#[test]
fn another_user_has_no_part_in_it() {
    if !is_root() {
        return clad_e2e::not_run("another_user_has_no_part_in_it", "it takes root");
    }
    let rules = "[[access.rule]]\nwho = \"uid:0\"\nmay = [\"append\", \"read\", \"hold\"]\n\
                 [[access.rule]]\nwho = \"*\"\nmay = [\"append\", \"read\"]\n";
    let setup = small();
    fs::write(setup.config(), rules).expect("written");
    let daemon = clad_e2e::open_to_all(setup.start());
    Appender::new(&daemon).text("one");
    let at = place(&daemon, 1);
    runtime().block_on(async {
        cursors(&daemon, "unix").await.commit("a", at, true, "").await.expect("committed");
    });
    let mut raw = stranger(&daemon);
    let mut ask = |name: &str, place: Option<Cursor>, hold: bool| {
        let commit = CommitCursor { request_id: 5, name: name.into(), place, hold, note: Default::default() };
        raw.send(|buf| commit.encode(buf));
        match raw.answer() {
            Frame::Cursor(state) => Ok(state.named),
            Frame::Error(frame) => Err(frame.error.code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask("a", Some(at), false), Err(ErrorCode::CursorNotYours));
    assert_eq!(ask("a", None, false), Err(ErrorCode::CursorNotYours));
    assert_eq!(ask("b", Some(at), true), Err(ErrorCode::PermissionDenied));
    assert!(ask("b", Some(at), false).is_ok());
    raw.send(|buf| GetCursor { request_id: 6, name: "a".into() }.encode(buf));
    let Frame::Cursor(state) = raw.answer() else { panic!("no cursor") };
    assert!(state.named.is_some(), "who may read may look");
    assert!(daemon.metric("clad_access_refused_total{what=\"hold\"}") >= 1.0);
}

/// With the answer its request id is free: a client may have one number for all that it asks in turn.
#[test]
fn an_id_is_free_when_its_answer_is_there() {
    let daemon = small().start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for asked in 0..5000 {
        raw.send(|buf| GetCursor { request_id: 5, name: "a".into() }.encode(buf));
        let answer = raw.answer();
        assert!(matches!(&answer, Frame::Cursor(state) if state.named.is_none()), "{asked}: {answer:?}");
    }
}

/// 64 readers that commit every few milliseconds cost ten writes a second, whatever they are many.
#[test]
fn commits_that_come_together_are_one_write() {
    // An ordinary user may have as many cursors as are still free; root may have all.
    let daemon = small().set("limits.max_cursors", if is_root() { "64" } else { "128" }).start();
    let mut appender = Appender::new(&daemon);
    (0..20).for_each(|number| appender.text(format!("number {number}")));
    let at = place(&daemon, 0);
    let began = std::time::Instant::now();
    runtime().block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for reader in 0..64 {
            let mut cursors = cursors(&daemon, "unix").await;
            tasks.spawn(async move {
                for offset in 0..20 {
                    let at = Cursor { offset, ..at };
                    let set = cursors.commit(&format!("r{reader}"), at, false, "").await.expect("committed");
                    assert_eq!(set.place.offset, offset);
                }
            });
        }
        while tasks.join_next().await.transpose().expect("no panic").is_some() {}
        let error = cursors(&daemon, "unix").await.commit("one-more", at, false, "").await.expect_err("it is full");
        assert_eq!(error.code(), Some(ErrorCode::TooManyCursors), "{error}");
    });
    let table = fs::read(daemon.dir().join("cursors/table")).expect("there");
    let generation = |slot: usize| u64::from_le_bytes(table[slot + 16..slot + 24].try_into().expect("8 bytes"));
    let writes = generation(0).max(generation(96 * 1024));
    let most = began.elapsed().as_millis() as u64 / 100 + 2;
    assert!((20..=most).contains(&writes), "{writes} writes for 1,280 commits, at most {most}");
}

fn fill(raw: &mut Raw, sequences: std::ops::Range<u64>) {
    let body = vec![b'x'; 100 << 10];
    sequences.for_each(|sequence| _ = raw.append_acked(sequence, AckLevel::Written, &[&body]));
}

/// Records that a cursor holds stay, within the bound; an operator sees it, and lets it go.
#[test]
fn retention_passes_over_what_is_held() {
    let mut daemon = small().set("retention.max_bytes", "4MiB").set("retention.max_held_bytes", "16MiB").start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    fill(&mut raw, 0..4);
    let at = place(&daemon, 2);
    runtime().block_on(async {
        let mut cursors = cursors(&daemon, "unix").await;
        cursors.commit("slow", at, true, "to nowhere").await.expect("committed");
    });
    fill(&mut raw, 4..100);
    std::thread::sleep(Duration::from_millis(1000));
    assert!(daemon.status().lowest_offset <= 2, "it was removed");
    let held = daemon.metric("clad_cursor_held_bytes");
    assert!((1e6..17e6).contains(&held), "{held} held");
    assert_eq!(daemon.metric("clad_cursor_lag_records{cursor=\"slow\"}"), 98.0);
    assert!(daemon.metric("clad_cursor_lag_bytes{cursor=\"slow\"}") > 9e6);
    assert!(daemon.metric("clad_cursor_lag_seconds{cursor=\"slow\"}") > 0.5);
    let said = clactl(&daemon, 0, &["cursors"]);
    assert!(said.contains("slow") && said.contains("holds") && said.contains("to nowhere"), "{said}");
    assert!(clactl(&daemon, 0, &["status"]).contains("slow is 98 records behind"));
    // Beyond the bound, the oldest go: the loss is reported, with its offsets.
    fill(&mut raw, 100..300);
    daemon.wait_until("the bound holds", |status| status.lowest_offset > 2);
    assert_eq!(daemon.metric("clad_cursor_lost_total"), 1.0);
    daemon.wait_said("retention removed records that this cursor holds and has not read");
    assert!(listed(&daemon) == [("slow".to_owned(), 2, true)] && clactl(&daemon, 0, &["cursors"]).contains("lost"));
    daemon.kill9();
    daemon.restart();
    let lowest = daemon.status().lowest_offset;
    runtime().block_on(async {
        let mut cursors = cursors(&daemon, "unix").await;
        let found = cursors.get("slow").await.expect("asked").expect("it is there");
        assert!(found.lost && found.hold, "{found:?}");
        let address: Address = address(&daemon, "unix");
        let reader = Reader::builder(address).from(Start::Cursor(found.place));
        let mut reader = reader.open().await.expect("opened");
        let Ok(Some(Event::Gap(gap))) = reader.next().await else { panic!("no gap") };
        assert_eq!((gap.from, gap.to, gap.reason), (2, lowest, GapReason::Retention), "no more is gone than is said");
    });
    // The operator gives it up.
    let dropped = clactl(&daemon, 0, &["cursors", "drop", "slow"]);
    assert!(dropped.contains("slow is removed"), "{dropped}");
    let (mut raw, _) = Raw::producer(&daemon.socket());
    fill(&mut raw, 0..20);
    daemon.wait_until("nothing is held", |status| status.bytes < 8 << 20);
    assert_eq!(daemon.metric("clad_cursor_held_bytes"), 0.0);
    assert!(clactl(&daemon, 1, &["cursors", "drop", "slow"]).contains("no cursor of the name"));
}
