//! A flood that would remove everybody's history.
//!
//! Invariants: with `[retention] per_owner_bytes` it is refused at its share of the log, retryable and certainly not written,
//! with a text that names the key; others notice nothing; and there is room for it again once retention has removed some of it.

use std::time::Instant;

use clad_e2e::raw::hello;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Raw, Setup, TEST_TIMEOUT, is_root, json, not_run};
use clad_proto::frame::Frame;
use clad_proto::{AckLevel, ErrorCode};

static BODY: [u8; 40_000] = [b'x'; 40_000];
const SHARE_BYTES: u64 = 384 << 10;

#[test]
fn is_refused_at_its_share_of_the_log() {
    let small = [
        ("journal.segment_bytes", "128KiB"),
        ("limits.max_append_bytes", "64KiB"),
        ("journal.max_record_bytes", "48KiB"),
        ("retention.max_bytes", "1MiB"),
        ("retention.per_owner_bytes", "384KiB"),
    ];
    let daemon = small.into_iter().fold(Setup::new(), |setup, (key, value)| setup.set(key, value)).start();
    let mut network = Raw::tcp(daemon.port("tcp"));
    network.greet(&hello()).expect("WELCOME");
    let mut taken = 0;
    let error = loop {
        network.append(taken, AckLevel::Durable, &[&BODY]);
        match network.answer() {
            Frame::Accepted(answer) => network.wait_watermark(AckLevel::Durable, answer.epoch, answer.first_offset),
            Frame::Refused(refused) => break refused.error,
            other => panic!("{other:?}"),
        }
        taken += 1;
        assert!(taken * (BODY.len() as u64) < SHARE_BYTES, "it is not refused");
    };
    assert_eq!((error.code, error.retryable, error.maybe_written), (ErrorCode::QuotaExceeded, true, false), "{error}");
    assert!(error.text.contains("per_owner_bytes") && error.retry_after_ms.is_some(), "{error}");
    assert_eq!(taken, SHARE_BYTES / BODY.len() as u64, "{error}");
    let refusals = |name: &str| daemon.metric(&format!("clad_{name}"));
    assert_eq!(refusals("rejected_records_total{reason=\"quota\"}"), 1.0);
    assert_eq!(refusals("rejected_records_total{reason=\"no_space\"}"), 0.0);
    assert_eq!(refusals("refused_for_share_total{what=\"log_bytes\"}"), 1.0);

    // Somebody on this host notices nothing.
    let (mut local, _) = Raw::producer(&daemon.socket());
    let mut sequence = 0;
    let mut write = || {
        local.append_acked(sequence, AckLevel::Durable, &[&BODY]);
        sequence += 1;
    };
    write();
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let status = json(&clactl_ends(0, &["status", "--admin", &admin, "-o", "json"], b"").stdout);
    assert_eq!(status["owners"][0]["owner"], "network", "{status}");
    assert!(status["owners"][0]["bytes"].as_u64().is_some_and(|bytes| bytes <= SHARE_BYTES), "{status}");
    assert_eq!(status["owners"][1]["owner"], nix::unistd::geteuid().as_raw(), "{status}");
    let log = status["shares"].as_array().and_then(|all| all.iter().find(|share| share["what"] == "log_bytes"));
    let largest = log.map(|share| &share["largest"][0]["owner"]);
    assert_eq!(largest, Some(&serde_json::json!("network")), "{status}");

    // What it writes makes retention remove the oldest, which are the network's.
    if !is_root() {
        return not_run("room in a share once retention has removed some of it", "only root writes beyond a share");
    }
    let began = Instant::now();
    loop {
        write();
        network.append(taken, AckLevel::Durable, &[&BODY]);
        match network.answer() {
            Frame::Accepted(_) => break,
            Frame::Refused(refused) => assert_eq!(refused.error.code, ErrorCode::QuotaExceeded, "{}", refused.error),
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "it does not resume");
    }
    assert!(daemon.status().lowest_offset > 0);
}
