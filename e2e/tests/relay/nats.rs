//! From a clad to a stream of NATS JetStream: each record once, in order, read by a client of another make.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clad_e2e::proxy::{Place, Proxy};
use clad_e2e::{Daemon, Rng, Scratch, json};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;

use super::forward::{Numbers, small};
use super::objects::{bodies, end};
use super::{Backup, Relay, wait};

const STREAM: &str = "logs";
const SUBJECT: &str = "logs.host";
/// Far longer than it takes to cut the connection.
const LATE_ANSWERS: Duration = Duration::from_secs(30);

/// A server of NATS, at one port over all its starts. What it answers is on the disk.
pub(crate) struct Server {
    child: Child,
    pub(super) address: SocketAddr,
    pub(super) scratch: Scratch,
    /// How the other client comes to it: variables of its environment.
    client: Vec<(&'static str, String)>,
}

/// A message, as the client finds it.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    sequence: u64,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) gap: Option<String>,
    pub(super) data: Vec<u8>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with("", Vec::new())
    }

    /// With more lines of its file.
    pub(super) fn start_with(more: &str, client: Vec<(&'static str, String)>) -> Self {
        let (scratch, port) = (Scratch::new(), clad_e2e::fixed_port());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        configure(&scratch, address, more);
        let child = Self::child(&scratch);
        let server = Self { child, address, scratch, client };
        server.wait();
        server
    }

    fn child(scratch: &Scratch) -> Child {
        let mut command = Command::new(std::env::var("CLAD_NATS_SERVER").expect("call `cargo xtask ci relay`"));
        command.arg("-c").arg(scratch.data().join("nats.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    /// From now on it has other lines.
    pub(super) fn restart_with(&mut self, more: &str) {
        self.kill9();
        configure(&self.scratch, self.address, more);
        self.restart();
    }

    fn wait(&self) {
        wait("the server", || TcpStream::connect(self.address).is_ok());
    }

    pub(super) fn kill9(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    pub(super) fn restart(&mut self) {
        self.child = Self::child(&self.scratch);
        self.wait();
    }

    fn store(&self) -> PathBuf {
        self.scratch.data().join("store")
    }

    /// The other client: what it prints.
    pub(crate) fn client(&self, words: &[&str]) -> String {
        let mut command = Command::new(std::env::var("CLAD_NATS_CLIENT").expect("call `cargo xtask ci relay`"));
        command
            .arg(format!("nats://{}", self.address))
            .args(words)
            .envs(self.client.iter().map(|(name, value)| (name, value)));
        let done = command.output().expect("it runs");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text")
    }

    /// Lines of `[to.nats]`.
    pub(crate) fn lines(&self, more: &str) -> String {
        let address = self.address;
        format!("[to.nats]\nservers = [\"nats://{address}\"]\nstream = \"{STREAM}\"\nsubject = \"{SUBJECT}\"\n{more}\n")
    }

    /// The number of messages in the stream.
    pub(crate) fn count(&self) -> u64 {
        self.client(&["count", STREAM]).trim().parse().expect("a number")
    }

    /// Another stream, with its own name as its subject.
    pub(crate) fn make_other(&self, name: &str) {
        self.client(&["make", name, name]);
    }

    pub(crate) fn make(&self) {
        self.client(&["make", STREAM, SUBJECT]);
    }

    pub(super) fn read(&self) -> Vec<Found> {
        let found = |line: &str| {
            let value = json(line.as_bytes());
            let header = |name: &str| value["headers"][name].as_str().map(str::to_owned);
            let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).expect("a number");
            assert_eq!(value["subject"], SUBJECT);
            Found {
                sequence: value["sequence"].as_u64().expect("a sequence"),
                first: number(header("Clad-Id").and_then(|id| id.rsplit(':').next().map(str::to_owned))),
                end: number(header("Clad-End")),
                gap: header("Clad-Gap"),
                data: bytes_of(value["data"].as_str().expect("data")),
            }
        };
        self.client(&["read", STREAM]).lines().map(found).collect()
    }

    /// Where the last message ends.
    fn end(&self) -> u64 {
        let said = self.client(&["last", STREAM, "Clad-End"]);
        if said.is_empty() { 0 } else { said.trim().parse().expect("a number") }
    }
}

fn configure(scratch: &Scratch, address: SocketAddr, more: &str) {
    let store = scratch.data().join("store");
    let text = format!(
        "listen: \"{address}\"\nmax_payload: 65536\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n{more}",
        store.display()
    );
    fs::write(scratch.data().join("nats.conf"), text).expect("written");
}

pub(crate) fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(byte).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A relay from the beginning to a server, with more lines of `[to.nats]`.
pub(super) fn relay_at(name: &str, daemon: &Daemon, address: SocketAddr, more: &str) -> Relay {
    relay_to(name, daemon, &format!("nats://{address}"), more)
}

pub(super) fn relay_to(name: &str, daemon: &Daemon, server: &str, more: &str) -> Relay {
    let relay = Relay::new(daemon, "");
    let socket = daemon.socket();
    let text = format!(
        "name = \"{name}\"\n[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"\n[to.nats]\n\
         servers = [\"{server}\"]\nstream = \"{STREAM}\"\nsubject = \"{SUBJECT}\"\n{more}\n",
        socket.display()
    );
    fs::write(relay.file(), text).expect("written");
    relay
}

fn relay(daemon: &Daemon, server: &Server) -> Relay {
    relay_at("test", daemon, server.address, "format = \"body\"")
}

/// Waits until the relay's cursor is at the end of the log.
pub(super) fn wait_stored(relay: &mut Relay, daemon: &Daemon) {
    let end = end(daemon);
    wait("all in the stream", || {
        relay.keep();
        relay.say("status").contains(&format!("next offset  {end}\n"))
    });
}

/// Each message goes on where the one before it ends, and has the body that the log has there.
pub(super) fn assert_chain(found: &[Found], here: &[(u64, String)]) {
    for two in found.windows(2) {
        assert_eq!((two[0].sequence + 1, two[0].end), (two[1].sequence, two[1].first), "{two:?}");
    }
    let from = found.first().map_or(0, |found| found.first);
    let there: Vec<_> =
        found.iter().map(|found| (found.first, String::from_utf8_lossy(&found.data).into_owned())).collect();
    assert_eq!(there, here[usize::try_from(from).expect("small")..]);
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_record_is_in_a_stream_once_over_kills_and_lost_answers() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (mut daemon, mut server) = (small().start(), Server::start());
    server.make();
    let proxy = Proxy::to(Place::Tcp(server.address), Rng::new(kills));
    let &Place::Tcp(between) = proxy.place() else { panic!("another place") };
    let mut relay = relay_at("test", &daemon, between, "format = \"body\"");
    relay.start();
    let mut lost = 0;
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
        match kill % 5 {
            0 => relay.kill9(),
            1 => {
                server.kill9();
                server.restart();
            }
            2 => {
                daemon.kill9();
                daemon.restart();
            }
            // The server has acted, and its answers are lost.
            3 => {
                let before = server.end();
                proxy.delay_answers(LATE_ANSWERS);
                Numbers::new(&daemon).append(5, 10);
                let until = std::time::Instant::now() + Duration::from_secs(1);
                while server.end() == before && std::time::Instant::now() < until {}
                lost += u64::from(server.end() > before);
                proxy.delay_answers(Duration::ZERO);
                proxy.cut();
            }
            _ => proxy.halve(),
        }
        relay.keep();
    }
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    assert_chain(&found, &bodies(&daemon));
    assert_eq!(found[0].sequence, 1);
    assert!(kills < 5 || lost > 0, "no answer was lost");
    println!("kills: {kills}, {} messages, {lost} times answers were lost", found.len());
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn two_relays_at_one_stream_make_one_chain() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (daemon, server) = (small().start(), Server::start());
    server.make();
    let mut one = relay(&daemon, &server);
    let mut other = relay_at("other", &daemon, server.address, "format = \"body\"");
    let mut numbers = Numbers::new(&daemon);
    one.start();
    other.start();
    for kill in 0..kills {
        numbers.append(15, 50);
        match kill % 5 {
            1 => one.kill9(),
            3 => other.kill9(),
            _ => {}
        }
        one.keep();
        other.keep();
    }
    wait_stored(&mut one, &daemon);
    wait_stored(&mut other, &daemon);
    assert_chain(&server.read(), &bodies(&daemon));
    let met = [&one, &other].map(|relay| relay.said().matches("another end than was expected").count());
    assert!(met.iter().sum::<usize>() > 0, "they never met: {} {}", one.said(), other.said());
    println!("kills: {kills}, {met:?} times the other was faster");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_stream_goes_on_though_its_messages_were_removed() {
    let (daemon, mut server) = (small().start(), Server::start());
    let mut relay = relay(&daemon, &server);
    let mut numbers = Numbers::new(&daemon);
    numbers.append(10, 0);
    relay.start();
    wait("it waits", || relay.said().contains("there is no stream logs: it is waited for"));
    server.make();
    wait_stored(&mut relay, &daemon);
    let before = server.read().last().expect("a message").sequence;
    // While it runs; and then between two runs of both.
    server.client(&["purge", STREAM]);
    numbers.append(1, 0);
    wait_stored(&mut relay, &daemon);
    assert_eq!(server.read().len(), 1);
    server.client(&["purge", STREAM]);
    assert!(relay.term(), "{}", relay.said());
    server.kill9();
    server.restart();
    numbers.append(2, 0);
    relay.start();
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    assert_eq!((found.len(), found[0].sequence), (3, before + 2), "{found:?}");
    assert_chain(&found, &bodies(&daemon));
}

/// What its relay is at a stop of the relay's own accord.
fn stops(relay: &mut Relay, words: &str) {
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains(words) && relay.said().contains("Nothing was sent"), "{}", relay.said());
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_stream_that_is_another_or_has_less_stops_it_until_a_person_goes_on() {
    let (daemon, mut server) = (small().start(), Server::start());
    server.make();
    let mut relay = relay(&daemon, &server);
    let mut numbers = Numbers::new(&daemon);
    numbers.append(5, 0);
    relay.start();
    wait_stored(&mut relay, &daemon);
    let older = server.read();
    // The server comes back from an older copy.
    server.kill9();
    let copy = server.scratch.data().join("copy");
    super::copied(&server.store(), &copy);
    server.restart();
    numbers.append(5, 0);
    wait_stored(&mut relay, &daemon);
    assert!(relay.term(), "{}", relay.said());
    server.kill9();
    fs::remove_dir_all(server.store()).expect("removed");
    super::copied(&copy, &server.store());
    server.restart();
    stops(&mut relay, &format!("ends at sequence {}, and this relay has brought records up to", older.len()));
    assert_eq!(server.read(), older, "something was sent");
    let said = relay.say("begin");
    assert!(said.contains("begins at offset 0, behind sequence"), "{said}");
    relay.start();
    wait_stored(&mut relay, &daemon);
    let all = bodies(&daemon);
    assert_chain(&server.read()[older.len()..], &all);
    // Another stream of the same name; then none.
    assert!(relay.term(), "{}", relay.said());
    server.client(&["remove", STREAM]);
    stops(&mut relay, "there is no stream logs any more");
    server.make();
    stops(&mut relay, "is another one than this relay has brought records to");
    numbers.append(1, 0);
    let done = relay.command("begin").arg("--at-cursor").output().expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    relay.start();
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    assert_eq!(found.len(), 1);
    assert_chain(&found, &bodies(&daemon));
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn somebody_else_in_the_stream_stops_it() {
    let (daemon, server) = (small().start(), Server::start());
    server.make();
    let mut relay = relay(&daemon, &server);
    let mut numbers = Numbers::new(&daemon);
    numbers.append(5, 0);
    relay.start();
    wait_stored(&mut relay, &daemon);
    server.client(&["publish", SUBJECT, "not a relay's"]);
    numbers.append(1, 0);
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains("is no relay's: a stream has one writer"), "{}", relay.said());
    let said = relay.command("begin").arg("--at-cursor").output().expect("it runs");
    assert!(said.status.success());
    relay.start();
    wait_stored(&mut relay, &daemon);
    let last = server.client(&["read", STREAM]);
    assert!(last.lines().last().is_some_and(|line| line.contains("\"sequence\":11")), "{last}");
    // The log of another daemon.
    let foreign = small().start();
    Numbers::new(&foreign).append(1, 0);
    let mut stranger = super::nats::relay(&foreign, &server);
    stops(&mut stranger, "and this is log");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_stream_of_a_log_that_was_restored_stops_it() {
    let (mut daemon, server) = (small().start(), Server::start());
    server.make();
    let mut relay = relay(&daemon, &server);
    Numbers::new(&daemon).append(10, 0);
    let backup = Backup::of(&mut daemon);
    Numbers::new(&daemon).append(5, 0);
    relay.start();
    wait_stored(&mut relay, &daemon);
    assert!(relay.term());
    backup.is_put_back(&mut daemon);
    Numbers::new(&daemon).append(20, 100);
    let before = server.read();
    stops(&mut relay, "have parted");
    assert_eq!(server.read(), before, "something was sent");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_message_is_an_append_and_what_is_too_large_or_gone_is_said() {
    let daemon = small().set("retention.max_bytes", "4MiB").start();
    let server = Server::start();
    server.make();
    let mut relay = relay_at("test", &daemon, server.address, "");
    relay.start();
    let mut raw = clad_e2e::Raw::producer(&daemon.socket()).0;
    let mut sequence = 0;
    let mut append = |bodies: &[&[u8]]| {
        raw.append_acked(sequence, clad_proto::AckLevel::Durable, bodies);
        sequence += bodies.len() as u64;
    };
    let (small_one, half, large) = (vec![b'a'; 10], vec![b'b'; 40_000], vec![b'c'; 70_000]);
    append(&[&small_one, &small_one]);
    append(&[&half, &large, &half, &small_one]);
    wait_stored(&mut relay, &daemon);
    let records = |found: &Found| -> Vec<(u64, Vec<u8>)> {
        let request = ExportLogsServiceRequest::decode(found.data.as_slice()).expect("OTLP");
        let records =
            request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs).flat_map(|logs| logs.log_records);
        let record = |record: clad_proto::grpc::opentelemetry::proto::logs::v1::LogRecord| {
            use clad_proto::grpc::opentelemetry::proto::common::v1::any_value::Value;
            let offset = record.attributes.iter().find(|pair| pair.key == "clad.offset").expect("its offset");
            let Some(Value::IntValue(offset)) = offset.value.clone().expect("a value").value else {
                panic!("no number")
            };
            let body = match record.body.expect("a body").value.expect("a value") {
                Value::StringValue(text) => text.into_bytes(),
                Value::BytesValue(bytes) => bytes.to_vec(),
                other => panic!("{other:?}"),
            };
            (u64::try_from(offset).expect("an offset"), body)
        };
        records.map(record).collect()
    };
    let found = server.read();
    assert_eq!(records(&found[0]), [(0, small_one.clone()), (1, small_one.clone())]);
    assert_eq!(records(&found[1]), [(2, half.clone())]);
    assert!(found[2].gap.as_deref().is_some_and(|gap| gap.starts_with("too large: 70")), "{:?}", found[2].gap);
    assert_eq!((found[2].first, found[2].end, found[2].data.len()), (3, 4, 0));
    assert_eq!(records(&found[3]), [(4, half.clone()), (5, small_one.clone())]);
    let dead = relay.scratch.data().join("state/test.dead-letters");
    let dead = fs::read_to_string(&dead).unwrap_or_else(|error| panic!("{}: {error}", dead.display()));
    assert!(dead.contains("\"from\":3") && dead.contains("\"to\":4"), "{dead}");
    // Without a hold, retention overtakes it: the stream says which offsets are not there.
    assert!(relay.term());
    let text = fs::read_to_string(relay.file()).expect("there");
    fs::write(relay.file(), text.replace("start = \"beginning\"", "hold = false\nstart = \"beginning\""))
        .expect("written");
    relay.start();
    wait("it has committed", || relay.say("status").contains("next offset  6\n"));
    append(&[&small_one]);
    wait_stored(&mut relay, &daemon);
    relay.kill9();
    (0..200).for_each(|_| append(&[&half]));
    daemon.wait_until("retention has passed it", |status| status.lowest_offset > 20);
    relay.start();
    wait_stored(&mut relay, &daemon);
    let found = server.read();
    for two in found.windows(2) {
        assert_eq!(two[0].end, two[1].first, "{two:?}");
    }
    let gaps: Vec<_> = found.iter().filter_map(|found| found.gap.as_deref()).collect();
    assert!(gaps.len() == 2 && gaps[1] == "retention has removed them", "{gaps:?}");
    assert_eq!(found.last().map(|found| found.end), Some(sequence));
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_outage_of_the_server_is_waited_out() {
    let (daemon, mut server) = (small().start(), Server::start());
    server.make();
    let mut relay = relay(&daemon, &server);
    relay.start();
    let mut numbers = Numbers::new(&daemon);
    numbers.append(5, 0);
    wait_stored(&mut relay, &daemon);
    server.kill9();
    numbers.append(300, 1000);
    wait("it says so", || relay.said().contains("the server takes nothing now, and is asked again"));
    server.restart();
    wait_stored(&mut relay, &daemon);
    assert_chain(&server.read(), &bodies(&daemon));
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_full_stream_and_a_server_that_forbids_are_waited_for() {
    const MESSAGES_MAX: u64 = 30;
    let users = |denied: &str| {
        format!(
            "authorization {{ users = [{{ user: reader, password: a }}, {{ user: relay, password: secret, permissions: \
             {{ publish: {{ deny: \"{denied}\" }} }} }}] }}\n"
        )
    };
    let daemon = small().start();
    let reader = vec![("CLAD_NATS_USER", "reader:a".to_owned())];
    let mut server = Server::start_with(&users("nothing"), reader);
    server.make();
    server.client(&["limit", STREAM, &MESSAGES_MAX.to_string()]);
    let password = server.scratch.data().join("password");
    fs::write(&password, "secret").expect("written");
    let more =
        format!("format = \"body\"\nuser = \"relay\"\npassword_file = \"{}\"\ntimeout = \"1s\"", password.display());
    let mut relay = relay_at("test", &daemon, server.address, &more);
    relay.start();
    Numbers::new(&daemon).append(2 * MESSAGES_MAX, 100);
    wait("it says that the stream is full", || relay.said().contains("maximum messages exceeded"));
    assert_eq!(server.count(), MESSAGES_MAX);
    server.client(&["limit", STREAM, "-1"]);
    wait_stored(&mut relay, &daemon);
    // A right is taken, and given back.
    server.restart_with(&users(SUBJECT));
    Numbers::new(&daemon).append(20, 100);
    wait("it says that the server forbids it", || {
        assert_eq!(relay.child.as_mut().expect("it runs").try_wait().expect("a child"), None, "{}", relay.said());
        relay.said().contains("asked again")
    });
    let before = server.count();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(server.count(), before);
    server.restart_with(&users("nothing"));
    wait_stored(&mut relay, &daemon);
    assert_chain(&server.read(), &bodies(&daemon));
}
