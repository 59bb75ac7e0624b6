//! What a reader learns of a sender: the way it came, and the address of a network peer, as the daemon saw it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use clad_client::{PeerMeta, Producer, Record, RecordView, Transport, ValueRef, blocking};
use clad_e2e::raw::{self, Raw};
use clad_proto::frame::{Frame, Read, ReadFrom};

use super::{AckLevel, Daemon, Event, Reader, address, runtime, small};

const WAYS: [(&str, Transport); 4] =
    [("unix", Transport::Unix), ("tcp", Transport::Tcp), ("grpc", Transport::Grpc), ("shm", Transport::Shm)];

/// A record of its name over each transport.
fn daemon() -> Daemon {
    let daemon = small().with_fd_store().start();
    for (way, _) in WAYS {
        let builder = Producer::builder(address(&daemon, way)).level(AckLevel::Written);
        blocking::Producer::connect(builder).expect("connected").append(&[Record::text(0, 9, way)]).expect("written");
    }
    daemon
}

fn text(record: &RecordView<'_>) -> String {
    match record.body() {
        Some(ValueRef::String(text)) => text.to_owned(),
        other => panic!("{other:?}"),
    }
}

fn check(seen: &BTreeMap<String, PeerMeta>, with_addresses: bool) {
    for (way, transport) in WAYS {
        let peer = &seen[way];
        let is_network = matches!(transport, Transport::Tcp | Transport::Grpc);
        assert_eq!((peer.transport, peer.uid.is_some()), (Some(transport), !is_network), "{way}");
        let ip = peer.address.map(|address| address.ip());
        let local = (is_network && with_addresses).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!((ip, peer.unknown_bytes.len()), (local, 0), "{way}");
        assert!(peer.address.is_none_or(|address| address.port() > 0), "{way}");
    }
}

#[test]
fn the_way_and_the_address_of_each_come_back_over_each_transport() {
    let daemon = daemon();
    for way in ["unix", "grpc"] {
        let seen = runtime().block_on(async {
            let reader = Reader::builder(address(&daemon, way)).level(AckLevel::Written);
            let (mut reader, mut seen) = (reader.open().await.expect("a reader"), BTreeMap::new());
            while let Some(event) = reader.next().await.expect("no error") {
                let Event::Records(chunk) = event else { panic!("{event:?}") };
                for (_, record) in chunk.records() {
                    seen.insert(text(&record), chunk.peer_meta().clone());
                }
            }
            seen
        });
        check(&seen, true);
    }
}

/// Protocol version 1 has the numbers alone.
#[test]
fn a_reader_of_an_earlier_version_gets_what_it_knows() {
    let daemon = daemon();
    for version in [1, 2] {
        let mut reader = Raw::unix(&daemon.socket());
        let welcome = reader.greet(&clad_proto::frame::Hello { max_version: version, ..raw::hello_reader() });
        assert_eq!(welcome.expect("welcome").version, version);
        let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
        let (follow, limit, since, until, filter) = (false, None, None, None, None);
        reader.send(|out| Read { request_id: 1, from, follow, limit, min_level, since, until, filter }.encode(out));
        let mut seen = BTreeMap::new();
        loop {
            match reader.frame().expect("it goes on") {
                Frame::Records(records) => {
                    let view = clad_proto::PayloadView::parse(&records.payload, records.head.count).expect("a payload");
                    let peer = records.peer_meta().expect("peer metadata");
                    for record in view.records() {
                        seen.insert(text(&record), peer.clone());
                    }
                }
                Frame::ReadEnd(_) => break,
                other => panic!("{other:?}"),
            }
        }
        check(&seen, version > 1);
    }
}
