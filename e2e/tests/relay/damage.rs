//! A segment that is damaged under the cursor: each destination gets a word of the offsets that are missing, and the rest.

use std::collections::BTreeSet;
use std::fs;

use clad_client::{Event, Reader};
use clad_e2e::Daemon;

use super::bucket::Bucket;
use super::endpoint::{Endpoint, number};
use super::forward::{Numbers, appends, small};
use super::objects::{SMALL, end, named, verify};
use super::outage::chain_end;
use super::{Relay, nats, wait};

/// Offsets of what the log still has.
fn offsets(daemon: &Daemon) -> BTreeSet<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut reader =
            Reader::builder(daemon.address("unix").parse().expect("an address")).open().await.expect("opened");
        let mut all = BTreeSet::new();
        while let Some(event) = reader.next().await.expect("read") {
            if let Event::Records(chunk) = event {
                all.extend(chunk.records().map(|(offset, _)| offset));
            }
        }
        all
    })
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn of_a_segment_is_said_at_each_destination_and_the_rest_comes() {
    let mut near = small().start();
    Numbers::new(&near).append_noise(60, 50_000);
    let end = end(&near);
    assert_eq!(near.term(), Some(0), "{}", near.said());
    // One byte in the middle of the second segment of three or more.
    let folder = near.setup().dir().to_owned();
    let mut segments: Vec<_> = fs::read_dir(&folder)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "clog"))
        .collect();
    segments.sort();
    assert!(segments.len() > 2, "{segments:?}");
    let mut bytes = fs::read(&segments[1]).expect("a segment");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segments[1], bytes).expect("written");
    near.restart();
    let there = offsets(&near);
    let gone: Vec<u64> = (0..end).filter(|offset| !there.contains(offset)).collect();
    let (first, last) = (gone[0], gone[gone.len() - 1]);
    assert!(first > 0 && last < end - 1 && gone.len() as u64 == last - first + 1, "{gone:?}");

    let (far, endpoint, bucket, server) = (small().start(), Endpoint::start(), Bucket::start(), nats::Server::start());
    server.make();
    let start = |name: &str, to: &dyn Fn(&Relay) -> String| {
        let mut relay = named(name, &near, "", to);
        relay.start();
        relay
    };
    let mut relays = [
        start("clad", &|_| format!("[to.clad]\nserver = \"{}\"\n", far.address("unix"))),
        start("otlp", &|_| format!("[to.otlp]\nendpoint = \"http://{}\"\n", endpoint.at)),
        start("objects", &|relay| bucket.lines(&relay.folder()) + SMALL),
        start("nats", &|_| server.lines("format = \"body\"")),
    ];
    for relay in &mut relays {
        wait("all that there is", || {
            relay.keep();
            relay.say("status").contains(&format!("next offset  {end}\n"))
        });
    }
    assert!(appends(&far) == appends(&near), "{}", relays[0].said());
    assert!(relays[0].said().contains("Damage"), "{}", relays[0].said());

    let records = endpoint.records();
    let (gaps, rest): (Vec<_>, Vec<_>) = records.into_iter().partition(|(_, record)| record.event_name == "clad.gap");
    assert_eq!(rest.iter().map(|(offset, _)| *offset).collect::<BTreeSet<_>>(), there);
    let gap = |(from, record): &(u64, _)| (*from, number(record, "clad.gap.end"));
    assert_eq!(gaps.iter().map(gap).collect::<BTreeSet<_>>(), BTreeSet::from([(first, Some(last as i64 + 1))]));

    let (said, is_right) = verify(&relays[2], &[]);
    assert!(
        is_right && said.contains(&format!("gap: offsets {first} to {last} were not in the log: damage")),
        "{said}"
    );

    let found = server.read();
    assert_eq!(chain_end(found.iter().map(|found| (found.first, found.end))), end);
    let (gaps, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.gap.is_some());
    assert_eq!(rest.len(), there.len());
    assert!(gaps.iter().all(|found| found.gap.as_deref() == Some("they are damaged")), "{gaps:?}");
}
