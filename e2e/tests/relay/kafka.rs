//! From a clad to a topic of Kafka: each record once, in order, read by a client of another make.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clad_client::{AckLevel, Address, Producer, Record, blocking};
use clad_e2e::proxy::{Place, Proxy};
use clad_e2e::{Daemon, Rng, Scratch, json};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use nix::sys::signal::Signal;
use prost::Message as _;

use super::certs::Authority;
use super::forward::{Numbers, small};
use super::objects::{bodies, end};
use super::{Backup, Relay, copied, wait};

pub(crate) const TOPIC: &str = "logs";
const PASSWORD: &str = "a-password-of-tests";
/// Where the server has what checks passwords.
const MODULES: &str = "org.apache.kafka.common.security";
/// Far longer than it takes to cut the connection.
const LATE_ANSWERS: Duration = Duration::from_secs(30);

/// Longer than a relay waits with its cursor.
const CURSOR_WAIT: Duration = Duration::from_secs(2);

/// A server of Kafka, at the same ports over all its starts: for everybody, through a proxy, and within TLS with a password.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    within_tls: SocketAddr,
    proxy: Option<Proxy>,
    scratch: Scratch,
}

/// A message, as the client finds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) partition: u64,
    offset: u64,
    pub(crate) key: String,
    /// Id of the log that it is from.
    pub(crate) log: String,
    pub(crate) first: u64,
    pub(crate) end: u64,
    gap: Option<String>,
    data: Vec<u8>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let behind = SocketAddr::from(([127, 0, 0, 1], clad_e2e::fixed_port()));
        let proxy = Proxy::to(Place::Tcp(behind), Rng::new(1));
        let &Place::Tcp(between) = proxy.place() else { panic!("another place") };
        Self::start_at(behind, between, Some(proxy))
    }

    /// Behind something else, which is given the server's place and gives its own.
    pub(super) fn start_behind(between: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        let behind = SocketAddr::from(([127, 0, 0, 1], clad_e2e::fixed_port()));
        Self::start_at(behind, between(behind), None)
    }

    fn start_at(behind: SocketAddr, between: SocketAddr, proxy: Option<Proxy>) -> Self {
        let scratch = Scratch::new();
        let [address, controller, within_tls] =
            [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], clad_e2e::fixed_port())));
        let authority = Authority::new("kafka");
        let issued = authority.server();
        let (folder, data) = (scratch.data().join("data"), scratch.data().to_owned());
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n\
             listeners=PLAINTEXT://{address},BETWEEN://{behind},TLS://{within_tls},CONTROLLER://{controller}\n\
             advertised.listeners=PLAINTEXT://{address},BETWEEN://{between},TLS://{within_tls}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BETWEEN:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SASL_SSL\n\
             controller.listener.names=CONTROLLER\nlog.dirs={}\nauto.create.topics.enable=false\n\
             offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             transaction.state.log.num.partitions=1\nsasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.tls.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required \
             user_relay=\"{PASSWORD}\";\n\
             listener.name.tls.scram-sha-256.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;\n\
             listener.name.tls.scram-sha-512.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;\n\
             ssl.keystore.type=PEM\nssl.keystore.location={}\n\
             authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             super.users=User:ANONYMOUS\nallow.everyone.if.no.acl.found=true\n",
            folder.display(),
            data.join("server.pem").display(),
        );
        fs::write(data.join("server.properties"), text).expect("written");
        fs::write(data.join("server.pem"), issued.key + &issued.cert).expect("written");
        fs::write(data.join("ca.pem"), authority.pem()).expect("written");
        let done = Self::java(&scratch)
            .args(["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
            .arg(data.join("server.properties"))
            .args(
                ["SCRAM-SHA-256", "SCRAM-SHA-512"]
                    .map(|kind| format!("--add-scram={kind}=[name=relay,password={PASSWORD}]")),
            )
            .status();
        assert!(done.expect("it runs").success(), "no storage");
        let child = Self::child(&scratch);
        let server = Self { child, address, within_tls, proxy, scratch };
        server.wait();
        server
    }

    fn java(scratch: &Scratch) -> Command {
        let jars = std::env::var("CLAD_KAFKA_JARS").expect("call `cargo xtask ci relay`");
        let mut command = Command::new("java");
        command.args(["-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &format!("{jars}/*")]);
        let said = fs::OpenOptions::new().create(true).append(true).open(scratch.data().join("server.log"));
        command.stdin(Stdio::null()).stdout(said.expect("a file")).stderr(Stdio::null());
        command
    }

    fn child(scratch: &Scratch) -> Child {
        let mut command = Self::java(scratch);
        command.arg("kafka.Kafka").arg(scratch.data().join("server.properties")).spawn().expect("it starts")
    }

    /// It answers only when it has all that it had.
    fn wait(&self) {
        wait("the server", || TcpStream::connect(self.address).is_ok());
        let ends = |words: &[&str]| self.asks(words).status().is_ok_and(|status| status.success());
        wait("the topics", || ends(&["read", "ready"]) || ends(&["make", "ready", "1"]));
    }

    pub(super) fn kill9(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    pub(super) fn restart(&mut self) {
        self.child = Self::child(&self.scratch);
        self.wait();
    }

    /// Comes back from a copy of what it had; what it had is taken as a copy where there is none.
    fn copy(&mut self, name: &str, back: bool) {
        self.kill9();
        let (data, copy) = (self.scratch.data().join("data"), self.scratch.data().join(name));
        if back {
            fs::remove_dir_all(&data).expect("removed");
            copied(&copy, &data);
        } else {
            copied(&data, &copy);
        }
        self.restart();
    }

    fn asks(&self, words: &[&str]) -> Command {
        let mut command = Command::new(std::env::var("CLAD_KAFKA_CLIENT").expect("call `cargo xtask ci relay`"));
        command.arg(self.address.to_string()).args(words).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// The other client: what it prints.
    pub(crate) fn client(&self, words: &[&str]) -> String {
        let done = self.asks(words).stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it runs");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lines of `[to.kafka]`.
    pub(crate) fn lines(&self, more: &str) -> String {
        format!("[to.kafka]\nservers = [\"{}\"]\ntopic = \"{TOPIC}\"\n{more}\n", self.address)
    }

    /// The last line of Kafka's own measurement.
    pub(crate) fn perf_test(&self, topic: &str, records: u64, bytes: usize) -> String {
        let mut java = Self::java(&self.scratch);
        java.args(["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"]);
        java.args(["--num-records", &records.to_string(), "--record-size", &bytes.to_string(), "--producer-props"]);
        java.arg(format!("bootstrap.servers={}", self.address)).args(["acks=all", "linger.ms=5", "batch.size=131072"]);
        let done = java.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        said.lines().last().expect("its line").to_owned()
    }

    fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a proxy")
    }

    pub(super) fn make(&self, more: &[&str]) {
        self.client(&[&["make", TOPIC, "1"], more].concat());
    }

    pub(crate) fn read(&self) -> Vec<Found> {
        self.read_by(&["read", TOPIC])
    }

    fn read_by(&self, words: &[&str]) -> Vec<Found> {
        let found = |line: &str| {
            let value = json(line.as_bytes());
            let header = |name: &str| value["headers"][name].as_str().map(str::to_owned);
            let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
            Found {
                partition: value["partition"].as_u64().expect("a partition"),
                offset: value["offset"].as_u64().expect("an offset"),
                key: value["key"].as_str().expect("a key").to_owned(),
                log: header("Clad-Id").and_then(|id| Some(id.split_once(':')?.0.to_owned())).unwrap_or_default(),
                first: number(header("Clad-Id").and_then(|id| id.rsplit(':').next().map(str::to_owned))),
                end: number(header("Clad-End")),
                gap: header("Clad-Gap"),
                data: super::nats::bytes_of(value["data"].as_str().expect("data")),
            }
        };
        self.client(words).lines().map(found).collect()
    }

    /// Where the last message ends.
    pub(super) fn end(&self) -> u64 {
        // What was given up is in the partition, too: where nothing else is at its end, all is looked at.
        let last = |found: Vec<Found>| found.last().map(|found| found.end);
        last(self.read_by(&["read", TOPIC, "100"])).or_else(|| last(self.read())).unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A relay from the beginning to a server, with more lines of `[to.kafka]`.
pub(super) fn relay_at(daemon: &Daemon, address: SocketAddr, more: &str) -> Relay {
    let relay = Relay::new(daemon, "");
    let socket = daemon.socket();
    let text = format!(
        "name = \"test\"\n[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"\n[to.kafka]\n\
         servers = [\"{address}\"]\ntopic = \"{TOPIC}\"\ntimeout = \"5s\"\n{more}\n",
        socket.display()
    );
    fs::write(relay.file(), text).expect("written");
    relay
}

fn relay(daemon: &Daemon, server: &Server) -> Relay {
    relay_at(daemon, server.address, "format = \"body\"")
}

/// Waits until the relay's cursor is at the end of the log.
pub(super) fn wait_stored(relay: &mut Relay, daemon: &Daemon) {
    let end = end(daemon);
    wait("all in the topic", || {
        relay.keep();
        relay.say("status").contains(&format!("next offset  {end}\n"))
    });
}

/// Each message goes on where the one before it ends, and has the body that the log has there.
pub(super) fn assert_chain(found: &[Found], here: &[(u64, String)]) {
    for two in found.windows(2) {
        assert_eq!(two[0].end, two[1].first, "{two:?}");
    }
    assert_same(found, here);
}

fn assert_same(found: &[Found], here: &[(u64, String)]) {
    let there: Vec<_> =
        found.iter().map(|found| (found.first, String::from_utf8_lossy(&found.data).into_owned())).collect();
    assert_eq!(there, here);
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_record_is_in_a_topic_once_over_kills_and_lost_answers() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (mut daemon, mut server) = (small().start(), Server::start());
    server.make(&[]);
    let &Place::Tcp(between) = server.proxy().place() else { panic!("another place") };
    let mut relay = relay_at(&daemon, between, "format = \"body\"");
    relay.start();
    for kill in 0..kills {
        Numbers::new(&daemon).append(20, 100);
        if kill % 3 == 0 {
            // By how far it is, not by a time.
            let end = end(&daemon);
            wait("half of them", || {
                relay.keep();
                server.end() + 20 >= end
            });
        }
        match kill % 6 {
            0 => relay.kill9(),
            // What the relay has read is committed, and the daemon takes no cursor any more.
            2 => {
                wait_stored(&mut relay, &daemon);
                Numbers::new(&daemon).append(5, 10);
                let end = end(&daemon);
                // It waits for others longer than that.
                std::thread::sleep(Duration::from_millis(20));
                daemon.signal(Signal::SIGSTOP);
                let until = Instant::now() + Duration::from_secs(2);
                while server.end() < end && Instant::now() < until {}
                // It was asked for one, and it does not answer any more.
                daemon.kill9();
                relay.kill9();
                daemon.restart();
            }
            1 => {
                daemon.kill9();
                daemon.restart();
            }
            // Requests come through, and their answers are lost.
            3 | 5 => {
                server.proxy().delay_answers(LATE_ANSWERS);
                Numbers::new(&daemon).append(5, 10);
                std::thread::sleep(Duration::from_millis(kill * 37 % 400));
                server.proxy().delay_answers(Duration::ZERO);
                server.proxy().cut();
            }
            // A server takes seconds to start.
            _ if kill % 24 == 4 => {
                server.kill9();
                server.restart();
            }
            _ => server.proxy().halve(),
        }
        relay.keep();
    }
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    assert_chain(&found, &bodies(&daemon));
    let ahead = relay.said().matches("is ahead of the cursor").count();
    assert!(kills < 12 || ahead > 0, "the cursor was always as far as the topic: {}", relay.said());
    println!("kills: {kills}, {} messages, {ahead} times the topic was ahead of the cursor", found.len());
}

/// A relay's own stop.
fn stops(relay: &mut Relay, words: &str) {
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains(words) && relay.said().contains("Nothing was sent"), "{}", relay.said());
}

fn behind(here: &[(u64, String)], offset: u64) -> Vec<(u64, String)> {
    here.iter().filter(|(at, _)| *at >= offset).cloned().collect()
}

fn begins_at_cursor(relay: &Relay) {
    let done = relay.command("begin").arg("--at-cursor").output().expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_topic_that_is_another_or_has_less_stops_it_until_a_person_goes_on() {
    let (mut daemon, mut server) = (small().start(), Server::start());
    let mut relay = relay(&daemon, &server);
    let mut numbers = Numbers::new(&daemon);
    numbers.append(5, 0);
    relay.start();
    wait("it waits", || relay.said().contains("there is no topic logs: it is waited for"));
    server.make(&[]);
    wait_stored(&mut relay, &daemon);
    let older = server.read();
    // The server comes back from an older copy.
    assert!(relay.term(), "{}", relay.said());
    server.copy("older", false);
    numbers.append(5, 0);
    wait_stored(&mut relay, &daemon);
    assert!(relay.term(), "{}", relay.said());
    server.copy("older", true);
    stops(&mut relay, "it was restored from an older copy");
    assert_eq!(server.read(), older, "something was sent");
    let said = relay.say("begin");
    assert!(said.contains("begins at offset 0, behind what is in topic logs"), "{said}");
    relay.start();
    wait_stored(&mut relay, &daemon);
    assert_chain(&server.read()[older.len()..], &bodies(&daemon));
    // No topic, and another of the same name: shorter, and then as long.
    assert!(relay.term(), "{}", relay.said());
    server.client(&["remove", TOPIC]);
    stops(&mut relay, "there is no topic logs any more");
    server.make(&[]);
    stops(&mut relay, "or made again");
    (0..40).for_each(|_| drop(server.client(&["publish", TOPIC, "not a relay's"])));
    stops(&mut relay, "is another one than this relay has brought records to");
    let before = end(&daemon);
    numbers.append(1, 0);
    begins_at_cursor(&relay);
    relay.start();
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    assert_eq!(found.len(), 41);
    assert_same(&found[40..], &behind(&bodies(&daemon), before));
    // What has expired is not missed.
    assert!(relay.term(), "{}", relay.said());
    server.client(&["trim", TOPIC, &(found[40].offset + 1).to_string()]);
    let before = end(&daemon);
    numbers.append(1, 0);
    wait_stored(&mut relay, &daemon);
    assert_same(&server.read(), &behind(&bodies(&daemon), before));
    // A log that was restored.
    let backup = Backup::of(&mut daemon);
    Numbers::new(&daemon).append(5, 0);
    wait_stored(&mut relay, &daemon);
    assert!(relay.term(), "{}", relay.said());
    backup.is_put_back(&mut daemon);
    Numbers::new(&daemon).append(20, 100);
    let before = server.read();
    stops(&mut relay, "have parted");
    assert_eq!(server.read(), before, "something was sent");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_second_process_of_a_relay_ends_the_first() {
    let (daemon, server) = (small().start(), Server::start());
    server.make(&[]);
    let (mut one, mut other) = (relay(&daemon, &server), relay(&daemon, &server));
    let mut numbers = Numbers::new(&daemon);
    numbers.append(5, 0);
    one.start();
    wait_stored(&mut one, &daemon);
    other.start();
    numbers.append(5, 0);
    // Whichever brings these: the first one ends when it is to bring more than the second has begun with.
    wait("the end of the first", || {
        numbers.append(1, 0);
        one.child.as_mut().is_some_and(|child| child.try_wait().expect("a child").is_some())
    });
    assert!(!one.wait(), "it goes on");
    assert!(one.said().contains("another relay of this name has begun for this log"), "{}", one.said());
    wait_stored(&mut other, &daemon);
    assert_chain(&server.read(), &bodies(&daemon));
    // The log of another daemon: the topic has messages.
    let foreign = small().start();
    Numbers::new(&foreign).append(1, 0);
    let mut stranger = relay(&foreign, &server);
    stops(&mut stranger, "nothing says how far this relay is");
    begins(&stranger);
    stranger.start();
    wait_stored(&mut stranger, &foreign);
}

fn begins(relay: &Relay) {
    let done = relay.command("begin").output().expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Lines for a server within TLS, with the password of a file.
fn within_tls(server: &Server, password: &str) -> String {
    let file = |name: &str| server.scratch.data().join(name);
    fs::write(file("password"), PASSWORD).expect("written");
    fs::write(file("wrong"), "another").expect("written");
    format!(
        "tls = true\nca = \"{}\"\nuser = \"relay\"\npassword_file = \"{}\"",
        file("ca.pem").display(),
        file(password).display()
    )
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_message_is_an_append_within_tls_and_what_is_too_large_is_said() {
    let (daemon, server) = (small().start(), Server::start());
    server.make(&["max.message.bytes=65536"]);
    let within = |password| within_tls(&server, password) + "\nsasl = \"PLAIN\"";
    let mut stranger = relay_at(&daemon, server.within_tls, &within("wrong"));
    stranger.start();
    wait("it is refused", || stranger.said().contains("uthentication fail"));
    stranger.kill9();
    let mut relay = relay_at(&daemon, server.within_tls, &within("password"));
    relay.start();
    let mut raw = clad_e2e::Raw::producer(&daemon.socket()).0;
    let mut sequence = 0;
    let mut append = |bodies: &[&[u8]]| {
        raw.append_acked(sequence, AckLevel::Durable, bodies);
        sequence += bodies.len() as u64;
    };
    let (small_one, half, large) = (vec![b'a'; 10], vec![b'b'; 40_000], vec![b'c'; 70_000]);
    append(&[&small_one, &small_one]);
    append(&[&half, &large, &half, &small_one]);
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    let places: Vec<_> = found.iter().map(|found| (found.first, found.end)).collect();
    assert_eq!(places, [(0, 2), (2, 3), (3, 4), (4, 6)]);
    assert!(found[2].gap.as_deref().is_some_and(|gap| gap.starts_with("too large: 70")), "{:?}", found[2].gap);
    let records = |found: &Found| {
        let request = ExportLogsServiceRequest::decode(found.data.as_slice()).expect("OTLP");
        let scopes = request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs);
        scopes.map(|scope| scope.log_records.len()).sum::<usize>()
    };
    assert_eq!([0, 1, 3].map(|at| records(&found[at])), [2, 1, 2]);
    let dead = fs::read_to_string(relay.scratch.data().join("state/test.dead-letters")).expect("a file");
    assert!(dead.contains("\"from\":3") && dead.contains("\"to\":4"), "{dead}");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn components_have_partitions_and_an_outage_is_waited_out() {
    let (daemon, mut server) = (small().start(), Server::start());
    server.client(&["make", TOPIC, "3"]);
    let more = "format = \"body\"\npartition_by = \"component\"\ncompression = \"lz4\"";
    let mut relay = relay_at(&daemon, server.address, more);
    relay.start();
    let components = ["a", "b", "c", "d", "e"];
    let append = |component: &str| {
        let address: Address = daemon.address("unix").parse().expect("an address");
        let builder = Producer::builder(address).component(component).level(AckLevel::Durable);
        let producer = blocking::Producer::connect(builder).expect("connected");
        for number in 0..5 {
            producer.append(&[Record::text(0, 9, format!("{component} {number}"))]).expect("durable");
        }
    };
    components.into_iter().for_each(append);
    wait_stored(&mut relay, &daemon);
    server.kill9();
    components.into_iter().for_each(append);
    wait("it says so", || relay.said().contains("the server takes nothing now, and is asked again"));
    server.restart();
    wait_stored(&mut relay, &daemon);
    let mut found = server.read();
    let partitions: std::collections::BTreeSet<_> = found.iter().map(|found| found.partition).collect();
    assert!(partitions.len() > 1, "one partition has all: {partitions:?}");
    for two in found.windows(2).filter(|two| two[0].partition == two[1].partition) {
        assert!(two[0].first < two[1].first, "not in the log's order: {two:?}");
    }
    for found in &found {
        assert!(found.data.starts_with(found.key.as_bytes()), "{found:?}");
    }
    found.sort_by_key(|found| found.first);
    assert_chain(&found, &bodies(&daemon));
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn without_transactions_nothing_is_missing_and_what_comes_again_is_whole() {
    let kills = super::number("CLAD_RELAY_KILLS").div_ceil(3);
    let (daemon, mut server) = (small().start(), Server::start());
    server.make(&[]);
    for sasl in ["sasl = \"SCRAM-SHA-256\"", ""] {
        let more = within_tls(&server, "wrong") + "\n" + sasl;
        let mut stranger = relay_at(&daemon, server.within_tls, &more);
        stranger.start();
        wait("it is refused", || stranger.said().contains("uthentication fail"));
        stranger.kill9();
        let more = within_tls(&server, "password") + "\n" + sasl + "\nformat = \"body\"\nexactly_once = false";
        let mut relay = relay_at(&daemon, server.within_tls, &more);
        relay.start();
        for kill in 0..kills {
            Numbers::new(&daemon).append(20, 100);
            if kill % 3 == 0 {
                let end = end(&daemon);
                wait("half of them", || {
                    relay.keep();
                    server.end() + 20 >= end
                });
            }
            // What the server has not got is not behind the cursor.
            if kill % 8 == 2 {
                wait_stored(&mut relay, &daemon);
                server.kill9();
                Numbers::new(&daemon).append(5, 10);
                std::thread::sleep(CURSOR_WAIT);
                relay.kill9();
                server.restart();
            } else {
                relay.kill9();
            }
            relay.keep();
        }
        wait_stored(&mut relay, &daemon);
        assert!(relay.term(), "{}", relay.said());
    }
    let found = server.read();
    // Who comes again begins at what was brought before: each message is the next one, or one that is there.
    let mut next = 0;
    let mut again = 0;
    for found in &found {
        assert!(found.first <= next, "{} is missing: {found:?}", next);
        again += usize::from(found.first < next);
        next = next.max(found.end);
    }
    let mut once = found.clone();
    once.sort_by_key(|found| found.first);
    once.dedup_by(|two, one| two.first == one.first && two.data == one.data && two.end == one.end);
    assert_chain(&once, &bodies(&daemon));
    println!("kills: {} without transactions, {} messages, {again} of them again", 2 * kills, found.len());
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn what_a_server_forbids_or_throttles_is_waited_for() {
    const QUOTA: &str = "10000";
    let (daemon, server) = (small().start(), Server::start());
    server.make(&[]);
    let lines = within_tls(&server, "password") + "\nsasl = \"PLAIN\"\nformat = \"body\"\ncompression = \"none\"";
    let mut relay = relay_at(&daemon, server.within_tls, &lines);
    relay.start();
    Numbers::new(&daemon).append(20, 100);
    wait_stored(&mut relay, &daemon);
    // A right is taken, and given back.
    server.client(&["deny", TOPIC, "relay"]);
    let before = server.end();
    Numbers::new(&daemon).append(20, 100);
    wait("it says that the server forbids it", || relay.said().contains("uthorization"));
    assert_eq!(server.end(), before);
    server.client(&["allow", TOPIC, "relay"]);
    wait_stored(&mut relay, &daemon);
    // Slower than a transaction of all these may take. Who appends them does not wait for that.
    server.client(&["quota", "clad-relay-test", QUOTA]);
    Numbers::new(&daemon).append(400, 200);
    assert!(server.end() < end(&daemon), "nothing is throttled");
    wait("a transaction that comes to nothing", || relay.said().contains("Timed out"));
    let half = server.end();
    wait("a smaller one", || server.end() > half);
    // Smaller ones end within an append, too: there another process goes on.
    relay.kill9();
    server.client(&["quota", "clad-relay-test", "0"]);
    relay.start();
    wait_stored(&mut relay, &daemon);
    assert_chain(&server.read(), &bodies(&daemon));
}
