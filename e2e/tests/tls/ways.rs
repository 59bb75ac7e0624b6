//! Every way in and out within TLS: what is durable is there after a kill, and what is read is what was appended.

use std::collections::BTreeSet;

use clad_client::{Record, blocking};
use clad_e2e::TEST_TIMEOUT;
use clad_e2e::tool::clactl_ends;

use super::{Host, append, builder, on, served};

#[test]
fn what_is_durable_survives_and_is_read_back_in_both_protocols() {
    let mut host = Host::start();
    for scheme in ["tcp+tls", "grpcs"] {
        let address = host.address(scheme);
        for number in 0..20 {
            append(&address, &format!("{scheme} {number}")).expect("durable");
        }
    }
    host.daemon.kill9();
    host.daemon.restart();
    let wanted: BTreeSet<String> = ["tcp+tls", "grpcs"]
        .iter()
        .flat_map(|scheme| (0..20).map(move |number| format!("{scheme} {number}")))
        .collect();
    for scheme in ["tcp+tls", "grpcs"] {
        let read = served(&host.address(scheme));
        let bodies: BTreeSet<String> =
            read.iter().map(|one| String::from_utf8(one.body.clone()).expect("text")).collect();
        assert_eq!((read.len(), &bodies), (40, &wanted), "{scheme}");
    }
}

/// Records of every length around a record of TLS (16 KiB), in both directions.
#[test]
fn long_records_go_through_whole() {
    let host = Host::start();
    let lengths = [0, 1, 16_300, 16_384, 16_385, 40_000, 300_000, 1_500_000];
    let producer =
        blocking::Producer::connect(builder(&host.address("tcp+tls")).max_buffered_bytes(32 << 20)).expect("connected");
    for (number, length) in lengths.into_iter().enumerate() {
        let body = char::from(b'a' + u8::try_from(number).expect("few")).to_string().repeat(length);
        producer.append(&[Record::text(0, 9, body)]).expect("durable");
    }
    producer.close(TEST_TIMEOUT).expect("closed");
    let read = served(&host.address("tcp+tls"));
    let got: Vec<(usize, Option<u8>)> = read.iter().map(|one| (one.body.len(), one.body.first().copied())).collect();
    let wanted: Vec<(usize, Option<u8>)> = lengths
        .iter()
        .enumerate()
        .map(|(number, length)| (*length, (*length > 0).then(|| b'a' + number as u8)))
        .collect();
    assert_eq!(got, wanted);
    assert!(read.iter().all(|one| one.body.iter().all(|byte| Some(byte) == one.body.first())), "bytes of another");
}

/// Many appends in flight at once, as a load has them.
#[test]
fn a_load_loses_nothing_and_keeps_its_order() {
    const RECORDS: u64 = 20_000;
    let host = Host::start();
    on(async {
        let producer = builder(&host.address("tcp+tls")).connect().await.expect("connected");
        for number in 0..RECORDS {
            producer.send(&Record::text(0, 9, number.to_string())).await.expect("taken");
        }
        tokio::time::timeout(TEST_TIMEOUT, producer.close()).await.expect("in time").expect("all durable");
    });
    let read = served(&host.address("tcp+tls"));
    assert_eq!(read.len() as u64, RECORDS);
    assert!(read.iter().zip(0..).all(|(one, number)| one.body == u64::to_string(&number).as_bytes()));
}

#[test]
fn the_tool_appends_and_queries() {
    let host = Host::start();
    for scheme in ["tcp+tls", "grpcs"] {
        let address = host.address(scheme);
        clactl_ends(0, &["append", "--server", &address], scheme.as_bytes());
        let output = clactl_ends(0, &["query", "--server", &address, "-o", "cat"], b"");
        assert!(String::from_utf8_lossy(&output.stdout).lines().any(|line| line == scheme), "{output:?}");
    }
}

/// A reconnect costs no new handshake.
#[test]
fn a_reconnect_resumes_its_session() {
    let host = Host::start();
    let address = host.address("tcp+tls");
    for number in 0..30 {
        append(&address, &number.to_string()).expect("durable");
    }
    let (full, resumed) = (host.handshakes("full"), host.handshakes("resumed"));
    assert!(full + resumed == 30.0 && resumed >= 27.0, "{full} of {}", full + resumed);
}
