//! Ten hosts, one topic of Kafka, one bucket, DuckDB over all of them: the files of deploy/fleet/ as they are.

use std::fs;
use std::path::{Path, PathBuf};

use clad_client::{AckLevel, LogId, Producer, Record, blocking};
use clad_e2e::Daemon;

use super::bucket::Bucket;
use super::forward::small;
use super::kafka::{Found, Server};
use super::objects::end;
use super::{Relay, wait};

const HOSTS: u64 = 10;
const PARTITIONS: &str = "6";
const COMPONENTS: [&str; 3] = ["web", "shop", "db"];
/// Appends of a component between two kills.
const APPENDS: u64 = 4;

struct Host {
    daemon: Daemon,
    kafka: Relay,
    archive: Relay,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/fleet").join(name)
}

/// A file of the fleet with other places: each of the lines must be in it.
fn with_places(name: &str, socket: &Path, places: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(file(name)).expect("a file");
    let server = format!("[from.clad]\nserver = \"unix://{}\"", socket.display());
    let listen = text.lines().find(|line| line.starts_with("listen = ")).expect("a port of metrics").to_owned();
    for (from, to) in [("[from.clad]", server.as_str()), (&listen, "listen = \"127.0.0.1:0\"")].iter().chain(places) {
        assert!(text.contains(from), "{name} has no {from}");
        text = text.replace(from, to);
    }
    text
}

impl Host {
    fn start(kafka: &Server, bucket: &Bucket) -> Self {
        let daemon = small().start();
        let socket = daemon.socket();
        let (to_kafka, to_bucket) = (Relay::new(&daemon, ""), Relay::new(&daemon, ""));
        let servers = format!("[\"{}\"]", kafka.address());
        let text = with_places(
            "kafka.toml",
            &socket,
            &[
                ("[\"kafka-1.example:9093\", \"kafka-2.example:9093\", \"kafka-3.example:9093\"]", &servers),
                ("tls = true\n", "timeout = \"5s\"\n"),
                ("user = \"clad\"\n", ""),
                ("password_file = \"/run/credentials/clad-relay@kafka.service/password\"\n", ""),
            ],
        );
        fs::write(to_kafka.file(), text).expect("written");
        let lines = bucket.lines(&to_bucket.folder());
        let line = |key: &str| lines.lines().find(|line| line.starts_with(key)).expect(key);
        let more = format!("{}\nmax_age = \"300ms\"", line("endpoint"));
        let text = with_places(
            "archive.toml",
            &socket,
            &[
                ("url = \"s3://logs/fleet\"", line("url")),
                ("region = \"eu-central-1\"", line("region")),
                ("access_key_file = \"/run/credentials/clad-relay@archive.service/access\"", line("access_key_file")),
                (
                    "secret_key_file = \"/run/credentials/clad-relay@archive.service/secret\"",
                    &format!("{}\n{more}", line("secret_key_file")),
                ),
            ],
        );
        fs::write(to_bucket.file(), text).expect("written");
        let mut host = Self { daemon, kafka: to_kafka, archive: to_bucket };
        host.kafka.start();
        host.archive.start();
        host
    }

    fn append(&self) {
        for component in COMPONENTS {
            let address = self.daemon.address("unix").parse().expect("an address");
            let builder = Producer::builder(address).component(component).level(AckLevel::Durable);
            let producer = blocking::Producer::connect(builder).expect("connected");
            for append in 0..APPENDS {
                let records: Vec<Record> = (0..=append % 3).map(|at| Record::text(0, 9, format!("{at}"))).collect();
                producer.append(&records).expect("appended");
            }
        }
    }

    fn log_id(&self) -> String {
        LogId::from_bytes(self.daemon.status().log_id[..].try_into().expect("16 bytes")).to_string()
    }

    fn wait_stored(&mut self) {
        let end = end(&self.daemon);
        for relay in [&mut self.kafka, &mut self.archive] {
            wait("all of a host", || {
                relay.keep();
                relay.say("status").contains(&format!("next offset  {end}\n"))
            });
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn ten_hosts_come_to_one_topic_and_one_bucket_and_each_is_found_whole() {
    let (server, bucket) = (Server::start(), Bucket::start());
    server.client(&["make", super::kafka::TOPIC, PARTITIONS]);
    let mut hosts: Vec<Host> = (0..HOSTS).map(|_| Host::start(&server, &bucket)).collect();
    let mut kills = 0;
    for round in 0..3 {
        for (number, host) in (0..).zip(&mut hosts) {
            host.append();
            match (number + round) % 4 {
                0 => host.kafka.kill9(),
                1 => host.archive.kill9(),
                2 => {
                    host.daemon.kill9();
                    host.daemon.restart();
                }
                _ => continue,
            }
            kills += 1;
            host.kafka.keep();
            host.archive.keep();
        }
    }
    hosts.iter_mut().for_each(Host::wait_stored);

    let found = server.read();
    let by_duckdb = bucket.fleet(&file("logs.sql"), "s3://logs/fleet");
    assert_eq!(by_duckdb.len(), hosts.len());
    let mut partitions: Vec<u64> = found.iter().map(|found| found.partition).collect();
    partitions.sort_unstable();
    partitions.dedup();
    assert!(partitions.len() > 1, "all components are in one partition");
    let mut all = 0;
    for host in &hosts {
        let (log, end) = (host.log_id(), end(&host.daemon));
        all += end;
        let here: Vec<&Found> = found.iter().filter(|found| found.log == log).collect();
        assert_once(&here, end);
        let row = by_duckdb.iter().find(|row| row["log"] == log.as_str()).expect("its log");
        assert_eq!((row["records"].as_u64(), row["missing"].as_i64()), (Some(end), Some(0)), "{row}");
        assert_eq!(
            (row["offsets"].as_u64(), row["components"].as_array().map(Vec::len)),
            (Some(end), Some(3)),
            "{row}"
        );
    }
    println!("kills: {kills}, {all} records of {HOSTS} hosts in one topic and one bucket");
}

/// Each offset is in one message, and each component is in one partition, in the order of the log.
fn assert_once(found: &[&Found], end: u64) {
    let mut ranges: Vec<(u64, u64)> = found.iter().map(|found| (found.first, found.end)).collect();
    ranges.sort_unstable();
    let behind = ranges.iter().try_fold(0, |at, &(first, end)| (first == at).then_some(end));
    assert_eq!(behind, Some(end), "{ranges:?}");
    for component in COMPONENTS {
        let of: Vec<&&Found> = found.iter().filter(|found| found.key == component).collect();
        assert!(!of.is_empty() && of.iter().all(|found| found.partition == of[0].partition), "{component}");
        assert!(of.windows(2).all(|two| two[0].first < two[1].first), "{component} is in another order");
    }
}
