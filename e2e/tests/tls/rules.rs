//! Rules and tokens: who may do what, by every way in, and what a change of them does to who is there.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clad_client::{AckLevel, ProducerId, Record, blocking};
use clad_e2e::tool::{clactl, clactl_ends, run};
use clad_e2e::{Setup, TEST_TIMEOUT};
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};

use super::{Host, builder, on, served};

const BILLING: &str = "spiffe://prod/billing";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Billing may append as itself, and slowly; a token appends and reads; operators administer; users of this host do both.
const RULES: &str = r#"
[[access.rule]]
who = "cert:spiffe://prod/billing"
may = ["append"]
component = "billing*"
max_level = "written"

[[access.rule]]
who = ["cert:spiffe://ops/*", "token:ci"]
may = ["append", "read", "admin"]

[[access.rule]]
who = "uid:*"
may = ["append", "read"]
"#;

/// The file of tokens in a folder.
fn tokens(folder: &Path) -> String {
    let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join("tokens");
    fs::write(&path, format!("# of the tests\nci {hash}\n")).expect("written");
    path.display().to_string()
}

fn host(rules: &str) -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("[access]\ntokens_file = {:?}\n{rules}", tokens(folder.path()));
    (Host::start_by(&config, &[]), folder)
}

/// Appends one record of a component at a level, with a token where one is given.
fn append(address: &str, component: &str, level: AckLevel, token: Option<&str>) -> Result<(), String> {
    let builder = builder(address).component(component).level(level);
    let builder = if let Some(token) = token { builder.secret(token) } else { builder };
    on(async {
        let producer = builder.connect().await.map_err(|error| error.to_string())?;
        let records = [Record::text(0, 9, component)];
        let appended = tokio::time::timeout(TEST_TIMEOUT, producer.append(&records)).await.expect("an answer");
        appended.map_err(|error| error.to_string())?;
        producer.close().await.map_err(|error| error.to_string()).map(drop)
    })
}

fn refusals(host: &Host, what: &str) -> f64 {
    host.daemon.metric(&format!("clad_access_refused_total{{what=\"{what}\"}}"))
}

/// Exit code and words of a call of `clactl` with a token.
fn with_token(token: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(clactl(arguments).env("CLAD_TOKEN_FILE", token), b"one line");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_rule_of_a_peer_decides_on_every_way_in() {
    let (host, _folder) = host(RULES);
    let billing = host.client("billing", &host.authority.client(BILLING));
    let stranger = host.client("stranger", &host.authority.client("spiffe://prod/stranger"));
    let unix = host.daemon.address("unix");
    for scheme in ["tcp+tls", "grpcs"] {
        let (own, other, nobody) =
            (host.address_as(scheme, &billing), host.address_as(scheme, &stranger), host.address(scheme));
        append(&own, "billing-2", AckLevel::Written, None).expect("its own component, and its level");
        let error = append(&own, "web", AckLevel::Written, None).expect_err("another component");
        assert!(error.contains("may not append what is not of component billing*: access.rule 1 decides"), "{error}");
        let error = append(&own, "billing", AckLevel::Durable, None).expect_err("a higher level");
        assert!(error.contains("`written` at most"), "{error}");
        for (address, name) in [(other, "cert:spiffe://prod/stranger"), (nobody.clone(), "address:127.0.0.1")] {
            let error = append(&address, "billing", AckLevel::Written, None).expect_err("no rule fits");
            assert!(
                error.contains(name) && error.contains("may not append to this log: no access.rule fits it"),
                "{error}"
            );
        }
        append(&nobody, "ci", AckLevel::Durable, Some(TOKEN)).expect("its token");
        let error = String::from_utf8(clactl_ends(1, &["query", "--server", &own], b"").stderr).expect("text");
        assert!(error.contains("may not read") || error.contains("does not let this user read"), "{error}");
    }
    append(&unix, "local", AckLevel::Durable, None).expect("a user of this host");
    let identities: Vec<(String, Option<String>)> = identities(&unix);
    let wanted = [
        ("billing-2", Some(BILLING)),
        ("ci", Some("token:ci")),
        ("billing-2", Some(BILLING)),
        ("ci", Some("token:ci")),
        ("local", None),
    ];
    assert_eq!(identities, wanted.map(|(body, name)| (body.to_owned(), name.map(str::to_owned))));
    assert_eq!((refusals(&host, "append"), refusals(&host, "component")), (4.0, 2.0));
    assert!(host.daemon.said().contains("refused: it may not append to this log: no access.rule fits it"));
}

/// Bodies and names of everything that there is.
fn identities(address: &str) -> Vec<(String, Option<String>)> {
    let output = clactl_ends(0, &["query", "--server", address, "-o", "json"], b"").stdout;
    let record = |line: &str| {
        let record = clad_e2e::json(line.as_bytes());
        let text = |value: &clad_e2e::Json| value.as_str().map(str::to_owned);
        (text(&record["body"]).expect("a body"), text(&record["peer_meta"]["identity"]))
    };
    String::from_utf8(output).expect("text").lines().map(record).collect()
}

/// A request of HTTP over TLS, by curl.
fn post(host: &Host, path: &str, headers: &[&str], body: &str, files: Option<&super::Files>) -> (String, String) {
    let url = format!("https://{}{path}", host.daemon.port("grpc"));
    let mut curl = std::process::Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}", "--cacert"]);
    curl.arg(&host.ca).args(["--data-binary", "@-", &url]);
    headers.iter().for_each(|header| {
        curl.args(["--header", header]);
    });
    if let Some(files) = files {
        curl.arg("--cert").arg(&files.cert).arg("--key").arg(&files.key);
    }
    let output = run(&mut curl, body.as_bytes());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').expect("a code");
    (code.to_owned(), body.to_owned())
}

#[test]
fn otlp_is_answered_by_the_rule_of_its_sender() {
    let (host, _folder) = host(RULES);
    let billing = host.client("billing", &host.authority.client(BILLING));
    let number = std::cell::Cell::new(0);
    let logs = |component: &str| {
        // Or it would be the same request once more.
        number.set(number.get() + 1);
        let number = number.get();
        let name = format!(r#"{{"key":"service.name","value":{{"stringValue":"{component}"}}}}"#);
        let record = format!(r#"{{"timeUnixNano":"{number}","body":{{"stringValue":"{component}"}}}}"#);
        format!(r#"{{"resource":{{"attributes":[{name}]}},"scopeLogs":[{{"logRecords":[{record}]}}]}}"#)
    };
    let json = "content-type: application/json";
    let one = |component: &str| format!(r#"{{"resourceLogs":[{}]}}"#, logs(component));
    let bearer = format!("authorization: Bearer {TOKEN}");
    let (code, body) = post(&host, "/v1/logs", &[json], &one("web"), None);
    assert_eq!(code, "403", "{body}");
    assert!(body.contains("no access.rule fits it"), "{body}");
    let (code, body) = post(&host, "/v1/logs", &[json, "authorization: Bearer wrong"], &one("web"), None);
    assert!(code == "403" && body.contains("may not use this token"), "{code} {body}");
    let (code, body) = post(&host, "/v1/logs", &[json, &bearer], &one("web"), None);
    assert_eq!((code.as_str(), body.as_str()), ("200", "{}"));
    // The highest level that it may ask for is what it gets; a higher one is refused.
    let (code, body) = post(&host, "/v1/logs", &[json], &one("billing"), Some(&billing));
    assert_eq!((code.as_str(), body.as_str()), ("200", "{}"));
    let (code, body) = post(&host, "/v1/logs", &[json, "clad-ack: durable"], &one("billing"), Some(&billing));
    assert!(code == "400" && body.contains("`written` at most"), "{code} {body}");
    // Of two components one is stored, and the other is counted.
    let both = format!(r#"{{"resourceLogs":[{},{}]}}"#, logs("web"), logs("billing"));
    let (code, body) = post(&host, "/v1/logs", &[json], &both, Some(&billing));
    assert!(
        code == "200" && body.contains(r#""rejectedLogRecords":"1""#) && body.contains("not of component"),
        "{body}"
    );
    let (code, body) = post(&host, "/v1/logs", &[json], &one("web"), Some(&billing));
    assert!(code == "400" && body.contains("not of component billing*"), "{code} {body}");
    let (code, _) = post(&host, "/upload", &["content-type: application/vnd.fdo.journal"], "MESSAGE=x\n\n", None);
    assert_eq!(code, "403");
    let bodies: Vec<String> = identities(&host.daemon.address("unix")).into_iter().map(|(body, _)| body).collect();
    assert_eq!(bodies, ["web", "billing", "billing"]);
    assert_eq!((refusals(&host, "append"), refusals(&host, "token"), refusals(&host, "component")), (2.0, 1.0, 2.0));
}

#[test]
fn clactl_takes_a_token_and_administers_over_the_network_where_a_rule_lets_it() {
    let (host, folder) = host(RULES);
    let token = folder.path().join("token");
    fs::write(&token, format!("{TOKEN}\n")).expect("written");
    let (grpcs, tcp) = (host.address("grpcs"), host.address("tcp+tls"));
    for server in [&grpcs, &tcp] {
        let (code, text) = with_token(&token, &["append", "--server", server]);
        assert_eq!(code, Some(0), "{text}");
        let (code, text) = with_token(&token, &["query", "--server", server]);
        assert!(code == Some(0) && text.contains("one line"), "{text}");
    }
    let status = |token: &Path, arguments: &[&str]| with_token(token, &[&["status", "-o", "json"], arguments].concat());
    for arguments in [&["--admin", grpcs.as_str()], &["--server", grpcs.as_str()]] {
        let (code, text) = status(&token, arguments);
        assert!(code == Some(0) && text.contains("\"listeners\""), "{text}");
    }
    let operator = host.client("operator", &host.authority.client("spiffe://ops/ada"));
    clactl_ends(0, &["sync", "--admin", &host.address_as("grpcs", &operator)], b"");
    let billing = host.client("billing", &host.authority.client(BILLING));
    for (who, address) in [("billing", host.address_as("grpcs", &billing)), ("nobody", grpcs.clone())] {
        let refused = clactl_ends(1, &["rotate", "--admin", &address], b"");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains("may not administer this daemon"), "{who}: {text}");
    }
    assert_eq!(refusals(&host, "admin"), 2.0);
    for (content, problem) in [("", "it is empty"), ("a token of more than 32 bytes, as it is", "32 is the limit")] {
        fs::write(&token, content).expect("written");
        let (code, text) = with_token(&token, &["append", "--server", &tcp]);
        assert!(code == Some(1) && text.contains(problem), "{text}");
    }
    let (code, text) = with_token(&folder.path().join("none"), &["append", "--server", &grpcs]);
    assert!(code == Some(1) && text.contains("CLAD_TOKEN_FILE="), "{text}");
}

/// Without TLS nobody administers over the network, whatever the rules say.
#[test]
fn administration_is_not_served_in_the_clear() {
    let rules = "[[access.rule]]\nwho = \"*\"\nmay = [\"append\", \"read\", \"admin\"]\n";
    let (host, _folder) = (Setup::new(), ());
    fs::write(host.config(), rules).expect("written");
    let daemon = host.start();
    let refused = on(async {
        let channel =
            clad_client::channel(&daemon.address("grpc").parse().expect("an address")).await.expect("reached");
        let mut admin = clad_proto::grpc::v1::admin_client::AdminClient::new(channel);
        admin.status(clad_proto::grpc::v1::StatusRequest {}).await.expect_err("it is not served")
    });
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}

/// A peer with other rights is sent away, at once, and everybody else stays.
#[test]
fn a_reload_ends_the_connections_of_those_whose_rights_have_changed() {
    let (host, folder) = host(RULES);
    let operator = host.client("operator", &host.authority.client("spiffe://ops/ada"));
    let own = |scheme: &str| builder(&host.address_as(scheme, &operator)).component("ops");
    let producers: Vec<blocking::Producer> = ["tcp+tls", "grpcs"]
        .into_iter()
        .map(|scheme| blocking::Producer::connect(own(scheme)).expect("let in"))
        .collect();
    let local = blocking::Producer::connect(builder(&host.daemon.address("unix"))).expect("let in");
    let records = [Record::text(0, 9, "before")];
    for producer in producers.iter().chain([&local]) {
        producer.append(&records).expect("durable");
    }
    let tail = |scheme: &str| {
        let address = host.address_as(scheme, &operator);
        clad_e2e::tool::Running::start(clactl(&["tail", "-f", "--server", &address]).stdin(std::process::Stdio::null()))
    };
    let tails = [tail("tcp+tls"), tail("grpcs")];
    for tail in &tails {
        assert!(tail.wait_lines(1, TEST_TIMEOUT), "{}", tail.said());
    }
    let config = host.daemon.setup().config();
    let with_tokens = format!("[access]\ntokens_file = {:?}\n", tokens(folder.path()));
    fs::write(config, format!("{with_tokens}{}", RULES.replace("cert:spiffe://ops/*", "cert:spiffe://nobody/*")))
        .expect("written");
    let connections = || {
        host.daemon.metric("clad_connections{transport=\"tcp\"}")
            + host.daemon.metric("clad_connections{transport=\"grpc\"}")
    };
    host.daemon.wait_until("all of them", |_| connections() == 4.0);
    host.daemon.signal(Signal::SIGHUP);
    host.daemon.wait_said("connections have other rights now, and are closed");
    host.daemon.wait_until("the connections to end", |_| connections() == 0.0);
    for producer in &producers {
        let error = producer.append(&records).expect_err("it may not any more").to_string();
        assert!(error.contains("may not append"), "{error}");
    }
    for tail in &tails {
        tail.wait_end(TEST_TIMEOUT).expect("it ends");
        assert!(tail.said().contains("may not read") || tail.said().contains("does not let"), "{}", tail.said());
    }
    local.append(&[Record::text(0, 9, "after")]).expect("nothing has changed for it");
    assert_eq!(host.daemon.metric("clad_connections{transport=\"unix\"}"), 1.0);
    // And the other way round: who may more than before is served by it at the next connection.
    fs::write(config, format!("{with_tokens}{RULES}")).expect("written");
    host.daemon.signal(Signal::SIGHUP);
    host.daemon.wait_until("the old rules", |_| {
        append(&host.address_as("grpcs", &operator), "ops", AckLevel::Durable, None).is_ok()
    });
}

/// All or nothing: a name or a file that is not there leaves the old rules in force.
#[test]
fn rules_that_are_not_sound_leave_the_old_in_force() {
    let (host, folder) = host(RULES);
    let config = host.daemon.setup().config().to_owned();
    let good = fs::read_to_string(&config).expect("read");
    let file = folder.path().join("tokens");
    let cases = [
        (good.replace("uid:*", "uid:no-such-user-here"), "access.rule 3 ("),
        (good.replace("[\"append\"]", "[\"apend\"]"), "expected one of append, read, hold, admin"),
        (good.replace("tokens\"", "no-tokens\""), "access.tokens_file = "),
        (good.clone(), "others may write it (mode 0666)"),
    ];
    for (text, problem) in cases {
        if problem.starts_with("others") {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("a mode");
        }
        fs::write(&config, &text).expect("written");
        host.daemon.signal(Signal::SIGHUP);
        host.daemon.wait_said(problem);
        append(&host.address("tcp+tls"), "ci", AckLevel::Durable, Some(TOKEN)).expect("the old ones are in force");
        // A start does not take them either.
        let ended =
            run(std::process::Command::new(clad_e2e::binary("clad")).args(["check", "--config"]).arg(&config), b"");
        assert_eq!(ended.status.code(), Some(78), "{problem}: {}", String::from_utf8_lossy(&ended.stdout));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    // As `clad config` prints them.
    fs::write(&config, "[access]\nrule = [{ who = \"*\", may = [\"append\"] }]\n").expect("written");
    host.daemon.signal(Signal::SIGHUP);
    host.daemon.wait_said("HUP: reloaded: 2 keys changed: access.tokens_file, access.rule");
    append(&host.address("tcp+tls"), "anybody", AckLevel::Durable, None).expect("the new ones are in force");
}

/// Two names own the same producers, as a renewed certificate with another name needs.
#[test]
fn an_owner_keeps_its_producers_where_its_name_changes() {
    let rules = "[[access.rule]]\nwho = [\"cert:spiffe://prod/old\", \"cert:spiffe://prod/new\"]\nmay = [\"append\"]\nowner = \"spiffe://prod/old\"\n\
                 [[access.rule]]\nwho = \"cert:*\"\nmay = [\"append\"]\n";
    let host = Host::start_by(rules, &[]);
    let address = |name: &str| {
        let files = host.client(name, &host.authority.client(&format!("spiffe://prod/{name}")));
        host.address_as("tcp+tls", &files)
    };
    let id = ProducerId::from_bytes([9; 16]);
    let connect = |name: &str, epoch| blocking::Producer::connect(builder(&address(name)).producer(id, epoch));
    let old = connect("old", 1).expect("it is new");
    old.append(&[Record::text(0, 9, "by the old name")]).expect("durable");
    old.close(TEST_TIMEOUT).expect("closed");
    let error = connect("thief", 2).expect_err("another's").to_string();
    assert!(error.contains("producer"), "{error}");
    let new = connect("new", 2).expect("the same owner");
    assert!(new.last_stored().is_some());
}

/// A peer gets its rate; another of the same rule has its own, and nobody else waits.
#[test]
fn a_rate_holds_up_its_peer_alone() {
    let rules = "[[access.rule]]\nwho = \"cert:spiffe://slow/*\"\nmay = [\"append\"]\nmax_bytes_per_second = \"100KiB\"\n\
                 [[access.rule]]\nwho = \"*\"\nmay = [\"append\"]\n";
    let host = Host::start_by(rules, &[]);
    let records: Vec<Record> = (0..100).map(|_| Record::text(0, 9, "x".repeat(1000))).collect();
    let append = |address: &str, times: usize| {
        let producer = blocking::Producer::connect(builder(address).level(AckLevel::Written)).expect("let in");
        let began = Instant::now();
        for _ in 0..times {
            producer.append(&records).expect("it waits, and is taken");
        }
        began.elapsed()
    };
    for scheme in ["tcp+tls", "grpcs"] {
        let files = host.client("slow", &host.authority.client(&format!("spiffe://slow/{}", &scheme[..3])));
        let slow = host.address_as(scheme, &files);
        std::thread::scope(|scope| {
            // A second's worth at once, and a second for each further one.
            let slow = scope.spawn(|| append(&slow, 4));
            append(&host.address(scheme), 40);
            assert!(!slow.is_finished(), "{scheme}: ten times as much is there before it");
            let took = slow.join().expect("no panic");
            assert!(took >= Duration::from_millis(1800), "{scheme}: {took:?}");
        });
    }
}

/// A limit needs a check of each append, and in a ring nothing is checked: its peer logs over the socket.
#[test]
fn a_peer_with_a_limit_gets_no_ring() {
    let rules = |limit: &str| format!("[[access.rule]]\nwho = \"uid:*\"\nmay = [\"append\", \"read\"]\n{limit}");
    for (limit, rings) in [("", 1.0), ("component = \"tls\"\n", 0.0), ("max_bytes_per_second = \"1GiB\"\n", 0.0)] {
        let setup = Setup::new();
        fs::write(setup.config(), rules(limit)).expect("written");
        let daemon = setup.start();
        let address = format!("shm://{}", daemon.socket().display());
        let producer = blocking::Producer::connect(builder(&address).level(AckLevel::Written)).expect("let in");
        producer.append(&[Record::text(0, 9, "by either way")]).expect("written");
        assert_eq!(daemon.metric("clad_shm_rings"), rings, "{limit}");
        drop(producer);
        assert_eq!(served(&daemon.address("unix")).len(), 1);
    }
}

/// A message of a peer that may not append is counted, and not stored; RELP answers a message of another component with an error.
#[test]
fn syslog_and_relp_keep_to_the_rules() {
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("its address");
    let rules = |who: &str| {
        format!(
            "[ingest.syslog.udp]\nlisten = \"udp://{udp}\"\n[ingest.syslog.relp]\nlisten = \"relp://127.0.0.1:0\"\n\
             [[access.rule]]\nwho = \"{who}\"\nmay = [\"append\"]\ncomponent = \"app*\"\n\
             [[access.rule]]\nwho = \"uid:*\"\nmay = [\"read\"]\n"
        )
    };
    let message = |program: &str| format!("<13>1 2026-01-01T00:00:00Z host {program} - - - of {program}");
    let setup = Setup::new();
    fs::write(setup.config(), rules("address:192.0.2.0/24")).expect("written");
    let daemon = setup.start();
    let relp: SocketAddr =
        daemon.status().listeners["syslog.relp"].trim_start_matches("relp://").parse().expect("an address");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let send = |program: &str| assert!(sender.send_to(message(program).as_bytes(), udp).is_ok());
    let denied = || daemon.metric("clad_dropped_records_total{reason=\"denied\"}");
    send("app");
    daemon.wait_until("the drop", |_| denied() == 1.0);
    let mut answer = Vec::new();
    let mut refused = TcpStream::connect(relp).expect("connected");
    let _ = refused.write_all(b"1 open 14 relp_version=0\n");
    let _ = refused.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));

    fs::write(daemon.setup().config(), rules("address:127.0.0.0/8")).expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_said("HUP: reloaded");
    send("app");
    send("other");
    daemon.wait_until("the second drop", |_| denied() == 2.0);
    let mut session = TcpStream::connect(relp).expect("connected");
    session.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    let frame = |number: u32, command: &str, data: &str| format!("{number} {command} {} {data}\n", data.len());
    // Many pairs: a message may have its level before the next is refused, or after.
    const PAIRS: u32 = 300;
    let mut asked = frame(1, "open", "relp_version=0");
    for pair in 1..=PAIRS {
        asked += &frame(2 * pair, "syslog", &message(&format!("app-{pair}")));
        asked += &frame(2 * pair + 1, "syslog", &message("other"));
    }
    asked += &frame(2 * PAIRS + 2, "close", "");
    session.write_all(asked.as_bytes()).expect("sent");
    let mut answers = Vec::new();
    let ended = session.read_to_end(&mut answers);
    let answers = String::from_utf8_lossy(&answers);
    ended.unwrap_or_else(|error| panic!("{error} after {answers}"));
    let lines: Vec<&str> = answers.lines().filter(|line| line.contains(" rsp ")).collect();
    assert_eq!(lines.len(), 2 * PAIRS as usize + 2, "{answers}");
    for pair in 1..=PAIRS {
        let [stored, refused] = [2 * pair, 2 * pair + 1];
        assert_eq!(lines[stored as usize - 1], format!("{stored} rsp 6 200 OK"));
        let refusal = lines[refused as usize - 1];
        assert!(refusal.starts_with(&format!("{refused} rsp ")) && refusal.contains("500 this peer may not append"));
    }
    let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
    let bodies: Vec<String> = served(&daemon.address("unix")).iter().map(|stored| text(&stored.body)).collect();
    let wanted = (1..=PAIRS).map(|pair| format!("of app-{pair}"));
    assert_eq!(bodies, ["of app".to_owned()].into_iter().chain(wanted).collect::<Vec<_>>());
}

/// The decision, its rule, and an exit code for programs.
#[test]
fn check_explains_who_may_do_what() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("clad.toml");
    let write = |rules: &str| fs::write(&config, rules).expect("written");
    write(&format!("[access]\ntokens_file = {:?}\n{RULES}", tokens(folder.path())));
    let check = |arguments: &[&str]| {
        let mut clad = std::process::Command::new(clad_e2e::binary("clad"));
        let ended = run(clad.args(["check", "--config"]).arg(&config).args(arguments), b"");
        let text = String::from_utf8([ended.stdout, ended.stderr].concat()).expect("text");
        (ended.status.code().expect("a code"), text)
    };
    for (arguments, code, words) in [
        (&["--as", "cert:spiffe://prod/billing", "append"][..], 0, "allowed: access.rule 1 ("),
        (&["--as", "cert:spiffe://prod/billing", "read"], 1, "refused: access.rule 1 ("),
        (&["--as", "cert:spiffe://prod/billing", "append", "--component", "web"], 1, "web is no billing*"),
        (&["--as", "cert:spiffe://prod/billing", "append", "--level", "durable"], 1, "durable is above written"),
        (
            &["--as", "cert:spiffe://prod/billing", "append", "--component", "billing", "--level", "written"],
            0,
            "allowed",
        ),
        (&["--as", "cert:spiffe://prod/x", "append"], 1, "refused: no access.rule fits"),
        (&["--as", "token:ci", "admin"], 0, "allowed: access.rule 2 ("),
        (&["--as", "token:none", "admin"], 1, "access.tokens_file has no token of the name none"),
        (&["--as", "uid:root", "read"], 0, "allowed: access.rule 3 ("),
        (&["--as", "uid:12345", "--as", "gid:5", "append"], 0, "allowed: access.rule 3 ("),
        (&["--as", "uid:12345", "admin"], 1, "no rule decides about admin.path"),
        (&["--as", "address:192.0.2.1", "append"], 1, "no access.rule fits"),
        (&["--as", "uid:no-such-user-here", "append"], 2, "there is no user no-such-user-here"),
        (&["--as", "somebody", "append"], 2, "names nobody"),
        (&["--as", "uid:0", "delete"], 2, "one of append, read, admin"),
        (&["--as", "uid:0"], 2, "required"),
    ] {
        let (found, text) = check(arguments);
        assert!(found == code && text.contains(words), "{arguments:?}: {found} {text}");
    }
    write("[ingest.tcp]\nallow_read = true\n");
    for (arguments, code, words) in [
        (
            &["--as", "address:192.0.2.1", "append"][..],
            0,
            "there is no access.rule: whoever reaches a listener may append",
        ),
        (&["--as", "address:192.0.2.1", "read"], 0, "ingest.tcp.allow_read = true, ingest.grpc.allow_read = false"),
        (&["--as", "uid:54321", "--as", "gid:54321", "read"], 1, "access.read_group = \"clad\""),
        (&["--as", "uid:0", "read"], 0, "allowed"),
        (&["--as", "cert:a", "admin"], 1, "nobody administers over the network"),
    ] {
        let (found, text) = check(arguments);
        assert!(found == code && text.contains(words), "{arguments:?}: {found} {text}");
    }
}

/// The blocks of the page, as they stand there.
#[test]
fn the_page_of_access_is_right() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ACCESS.md")).expect("the page");
    let blocks = |kind: &str| -> Vec<String> {
        let fence = format!("```{kind}\n");
        page.split(&fence).skip(1).map(|rest| rest.split("```").next().expect("its end").to_owned()).collect()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let [checks, makes, status] = &blocks("sh")[..] else { panic!("three blocks of commands") };
    let shell = |text: &str| {
        let mut shell = std::process::Command::new("sh");
        let ended = run(shell.args(["-euc", text]).current_dir(folder.path()), b"");
        assert!(ended.status.success(), "{text}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).expect("text")
    };
    shell(makes);
    let token = fs::read_to_string(at("token")).expect("a token");
    let [rules] = &blocks("toml")[..] else { panic!("one block of rules") };
    fs::write(at("clad.toml"), rules.replace("/etc/clad/tokens", &at("tokens").display().to_string()))
        .expect("written");
    let clad = format!("{} --config {}", clad_e2e::binary("clad").display(), at("clad.toml").display());
    let answers = shell(&checks.replace("clad check", &format!("{clad} check")));
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), 4, "{answers}");
    for (line, rule) in lines.iter().zip([1, 5, 2, 3]) {
        assert!(line.starts_with(&format!("allowed: access.rule {rule} (")), "{answers}");
    }
    // The token that was made there is one, and the name of its line.
    let config = fs::read_to_string(at("clad.toml")).expect("written");
    let host = Host::start_by(&config, &[("journal.power_loss_protected", "true")]);
    append(&host.address("grpcs"), "ci", AckLevel::Durable, Some(token.trim())).expect("a token");
    let files = host.client("ops", &host.authority.client("spiffe://ops/ada"));
    let words = status.replace("clactl", &clad_e2e::binary("clactl").display().to_string());
    let address = host.address_as("grpcs", &files);
    assert!(words.contains("grpcs://logs.example?ca=ca.crt&cert=ops.crt&key=ops.key"), "{words}");
    shell(&words.replace("grpcs://logs.example?ca=ca.crt&cert=ops.crt&key=ops.key", &address));
}
