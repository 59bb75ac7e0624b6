//! Refusals: another history, a stream that it does not know, one too many, what a peer may not forward, and bodies
//! that lie.

use bytes::{Bytes, BytesMut};
use clad_client::{AckLevel, ForwardAs, ForwardError, Forwarder, ForwarderOptions, LogId, RawRecords, StreamName};
use clad_e2e::raw::Raw;
use clad_e2e::tool::run;
use clad_e2e::{Daemon, Setup, binary};
use clad_proto::frame::{ForwardHead, Frame, Hello, Origin, PeerMeta, Records, RecordsHead, encode_forward};
use clad_proto::limits::{FRAME_HEADER_BYTES, MAX_VERSION};
use clad_proto::{ErrorCode, ErrorInfo, Payload};

use super::{appends, connect, main_stream, on, unix};

const SOURCE: LogId = LogId::from_bytes([0x51; 16]);

/// An append of a source that there is not.
fn records(first_offset: u64, epoch: u32, payload: &Payload, peer_meta: Vec<u8>) -> Records {
    let head = RecordsHead {
        epoch,
        count: payload.count,
        first_offset,
        payload_crc: payload.checksum(),
        take: payload.count,
        ..RecordsHead::default()
    };
    Records { request_id: 0, head, peer_meta: peer_meta.into(), payload: payload.bytes.clone() }
}

fn body(records: &Records) -> Bytes {
    let mut buf = BytesMut::new();
    records.encode(&mut buf);
    buf.freeze().split_off(FRAME_HEADER_BYTES)
}

fn raw(first_offset: u64, epoch: u32, text: &str) -> RawRecords {
    let payload = clad_e2e::raw::payload(&[text.as_bytes()]);
    RawRecords::parse(body(&records(first_offset, epoch, &payload, vec![1, 2]))).expect("a body")
}

fn how(previous: u64, begins: bool) -> ForwardAs {
    ForwardAs { previous, skip: None, begins, level: AckLevel::Written }
}

#[test]
fn another_history_is_a_stop_that_names_both_sides() {
    let daemon = Daemon::start();
    on(async {
        let address = unix(&daemon);
        let error = |records: RawRecords, how: ForwardAs| {
            let address = address.clone();
            async move {
                let mut forwarder = connect(&address, SOURCE).await.expect("it is there");
                forwarder.forward(how, &records).await.expect("in line");
                forwarder.next().await.expect_err("it is not next")
            }
        };
        let unknown = error(raw(7, 2, "a"), how(7, false)).await;
        assert!(matches!(unknown, ForwardError::Unknown { .. }) && !unknown.is_retryable(), "{unknown}");
        let mut forwarder = connect(&address, SOURCE).await.expect("it is there");
        assert!(forwarder.state().is_none() && forwarder.state_level().is_none());
        forwarder.forward(how(7, true), &raw(7, 2, "a")).await.expect("in line");
        assert_eq!(forwarder.next().await.expect("a receipt").end, 8);
        let again = error(raw(7, 2, "a"), how(7, false)).await;
        assert!(matches!(again, ForwardError::Gap { expected: 8, .. }), "the very same is no success: {again}");
        for (records, parts) in [
            (raw(7, 2, "b"), ["source epoch 2, source offsets 7 to 8", "CRC "]),
            (raw(8, 1, "c"), ["source epoch 1, source offsets 8 to 9", "last append here has source epoch 2"]),
        ] {
            let parted = error(records.clone(), how(records.head().first_offset, false)).await;
            assert!(matches!(parted, ForwardError::Parted { .. }) && !parted.is_retryable(), "{parted}");
            assert!(parts.iter().all(|part| parted.to_string().contains(part)), "{parted}");
        }
        let begun = error(raw(8, 2, "c"), how(8, true)).await;
        assert!(matches!(begun, ForwardError::Gap { expected: 8, .. }), "{begun}");
        assert_eq!(appends(address).await.len(), 1);
    });
}

#[test]
fn one_stream_too_many_is_refused_and_those_that_are_there_go_on() {
    let daemon = Setup::new().set("limits.max_origins", "2").start();
    on(async {
        let begin = async |name: &str, previous, begins| {
            let stream = StreamName::new(name).expect("a name");
            let mut forwarder =
                Forwarder::connect(&unix(&daemon), SOURCE, stream, &ForwarderOptions::default()).await.expect("let in");
            forwarder.forward(how(previous, begins), &raw(previous, 1, name)).await.expect("in line");
            forwarder.next().await
        };
        for name in ["a", "b"] {
            begin(name, 0, true).await.expect("there is room");
        }
        let error = begin("c", 0, true).await.expect_err("a third");
        assert!(matches!(&error, ForwardError::TooManyOrigins { error } if error.limit == Some(2)), "{error}");
        begin("a", 1, false).await.expect("it goes on");
    });
    assert_eq!(daemon.metric("clad_origins"), 2.0);
    assert_eq!(daemon.metric("clad_appended_records_total{transport=\"relay\"}"), 3.0);
}

#[test]
fn an_append_too_large_is_said_before_it_is_sent() {
    let daemon = Setup::new().set("limits.max_append_bytes", "64KiB").set("journal.max_record_bytes", "32KiB").start();
    on(async {
        let mut forwarder = connect(&unix(&daemon), SOURCE).await.expect("it is there");
        for (bytes, limit) in [(100_000, 64 << 10), (40_000, 32 << 10)] {
            let error = forwarder.forward(how(0, true), &raw(0, 1, &"x".repeat(bytes))).await.expect_err("too large");
            assert!(matches!(error, ForwardError::TooLarge { max, .. } if max == limit), "{error}");
        }
        // Then it is skipped, and said so.
        let skip = Some(clad_client::SkipReason::TooLarge);
        forwarder.forward(ForwardAs { skip, ..how(0, true) }, &raw(1, 1, "small")).await.expect("in line");
        assert_eq!(forwarder.next().await.expect("a receipt").first, 1);
    });
}

#[test]
fn who_may_forward_is_a_rule_of_its_own() {
    let rules = format!(
        "[[access.rule]]\nwho = \"uid:{}\"\nmay = [\"append\", \"read\", \"forward\"]\nlogs = [\"{SOURCE}\"]\n",
        nix::unistd::geteuid()
    );
    let setup = Setup::new();
    std::fs::write(setup.config(), rules).expect("written");
    let (daemon, open) = (setup.start(), Daemon::start());
    let denied = |error: ForwardError| {
        assert_eq!((error.code(), error.is_retryable()), (Some(ErrorCode::PermissionDenied), false), "{error}");
        error.to_string()
    };
    on(async {
        connect(&unix(&daemon), SOURCE).await.expect("the rule names it");
        let other = LogId::from_bytes([0x52; 16]);
        let error = denied(connect(&unix(&daemon), other).await.expect_err("another log"));
        assert!(error.contains("`logs` of its rule does not name it: access.rule 1 decides"), "{error}");
        // Without rules: root and the daemon's user, on the Unix socket alone.
        connect(&unix(&open), other).await.expect("the same user");
        let tcp = open.address("tcp").parse().expect("an address");
        let error = denied(connect(&tcp, other).await.expect_err("over the network"));
        assert!(error.contains("may not forward"), "{error}");
    });
    assert_eq!(open.metric("clad_access_refused_total{what=\"forward\"}"), 1.0);
    assert_eq!(daemon.metric("clad_access_refused_total{what=\"forward\"}"), 1.0);
    let config = daemon.setup().config().display().to_string();
    let uid = format!("uid:{}", nix::unistd::geteuid());
    for (log, code, says) in [
        (SOURCE.to_string(), 0, "access.rule 1"),
        (LogId::ZERO.to_string(), 1, "`logs` does not name 00000000000000000000000000000000"),
    ] {
        let mut check = std::process::Command::new(binary("clad"));
        check.args(["--config", &config, "check", "--as", &uid, "forward", "--log", &log]);
        let output = run(&mut check, b"");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.code() == Some(code) && text.contains(says), "{text}");
    }
}

fn hello() -> Hello {
    let forward = Some(Origin { log_id: SOURCE, stream: main_stream() });
    Hello { min_version: MAX_VERSION, max_version: MAX_VERSION, forward, ..Hello::default() }
}

/// Sends a body behind a head that is right, and returns the answer.
fn answer(daemon: &Daemon, head: ForwardHead, body: &[u8]) -> (ErrorInfo, bool) {
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello()).expect("WELCOME");
    raw.send(|buf| encode_forward(buf, &head, body));
    match raw.answer() {
        Frame::Refused(refused) => {
            raw.ping();
            (refused.error, true)
        }
        Frame::Error(error) => {
            assert_eq!((error.request_id, raw.frame()), (0, None));
            (error.error, false)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_body_that_lies_is_refused_and_says_why() {
    let daemon = Daemon::start();
    let payload = clad_e2e::raw::payload(&[b"a", b"b"]);
    let head = ForwardHead { previous: 0, level: AckLevel::Written, begins: true, skip: None };
    let good = || records(0, 1, &payload, vec![1, 2]);
    let with_meta = |meta: Vec<u8>| body(&Records { peer_meta: meta.into(), ..good() });
    let flipped = |at: usize| {
        let mut bytes = body(&good()).to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    let of_head = |change: fn(&mut RecordsHead)| {
        let mut records = good();
        change(&mut records.head);
        body(&records)
    };
    let last = body(&good()).len() - 1;
    let path = |count: u8, ids: usize| [&[64, (2 + 16 * ids) as u8, count][..], &vec![7; 16 * ids], b"s"].concat();
    let origin = |id: u8| [&[65, 64][..], &[id; 64]].concat();
    let cases = [
        ("its fields", flipped(20), ErrorCode::BadChecksum, false),
        ("its payload", flipped(last), ErrorCode::BadChecksum, true),
        ("its count", of_head(|head| (head.count, head.take) = (3, 3)), ErrorCode::BadRecord, true),
        ("no records", of_head(|head| (head.count, head.take) = (0, 0)), ErrorCode::MalformedFrame, false),
        ("a jump without a reason", of_head(|head| head.first_offset = 5), ErrorCode::MalformedFrame, false),
        ("offsets past the last", of_head(|head| head.first_offset = u64::MAX), ErrorCode::MalformedFrame, false),
        ("tags out of order", with_meta(vec![4, 1, 1, 2]), ErrorCode::BadRecord, true),
        ("a number without an end", with_meta(vec![1, 0x80]), ErrorCode::BadRecord, true),
        ("a path and no origin", with_meta(path(1, 1)), ErrorCode::BadRecord, true),
        ("an origin and no path", with_meta(origin(7)), ErrorCode::BadRecord, true),
        ("an origin that is not first", with_meta([path(1, 1), origin(8)].concat()), ErrorCode::BadRecord, true),
        ("a path of seven", with_meta([path(7, 7), origin(7)].concat()), ErrorCode::BadRecord, true),
        ("a count of ids that lies", with_meta([path(2, 1), origin(7)].concat()), ErrorCode::BadRecord, true),
        ("a path of six", with_meta([path(6, 6), origin(7)].concat()), ErrorCode::ForwardLoop, true),
        ("its own of 257", with_meta([&[33, 0xFE, 1][..], &[b'x'; 254]].concat()), ErrorCode::BadRecord, true),
    ];
    for (what, body, code, goes_on) in cases {
        let (error, went_on) = answer(&daemon, head, &body);
        assert_eq!((error.code, went_on), (code, goes_on), "{what}: {error}");
        assert!(!error.text.is_empty());
    }
    // A head that lies.
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello()).expect("WELCOME");
    let mut frame = BytesMut::new();
    encode_forward(&mut frame, &head, &body(&good()));
    frame[FRAME_HEADER_BYTES] ^= 1;
    raw.send_bytes(&frame).expect("sent");
    assert_eq!(raw.end().code, ErrorCode::BadChecksum);
    // A connection that did not say that it forwards.
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&Hello { forward: None, ..hello() }).expect("WELCOME");
    raw.send(|buf| encode_forward(buf, &head, &body(&good())));
    assert_eq!(raw.end().code, ErrorCode::MalformedFrame);
    assert_eq!(daemon.metric("clad_origins"), 0.0, "nothing of all that left a trace");
    let seen = PeerMeta { pid: Some(1), identity: Some("x".repeat(128)), ..PeerMeta::default() };
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello()).expect("WELCOME");
    raw.send(|buf| encode_forward(buf, &head, &with_meta(seen.to_bytes())));
    assert_eq!(raw.accepted_now().first_offset, 0, "what is right is taken");
}
