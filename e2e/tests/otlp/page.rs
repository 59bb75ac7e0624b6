//! The blocks of docs/SENDERS.md about OpenTelemetry, each run as it stands there but for ports and paths.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use clad_e2e::tool::{OutputStream, Running, run};
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT, binary};
use serde_json::json;

use crate::agent::Agent;
use crate::tools::{HEX, curl, document, is_the_document};
use crate::{given, read};

/// A word of each block, by which a test below takes it.
const BLOCKS: [&str; 5] = ["PROTOCOL=grpc", "PROTOCOL=http/protobuf", "curl", "otlp/clad:", "[ingest.otlp]"];
/// Where the page has the daemon.
const LISTENER: &str = "127.0.0.1:7441";
const JSON: [&str; 2] = ["-H", "Content-Type: application/json"];

fn blocks() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/SENDERS.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("\n## OpenTelemetry\n").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    section.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("lines").1.to_owned()).collect()
}

fn block(word: &str) -> String {
    assert!(BLOCKS.contains(&word), "{word}");
    blocks().into_iter().find(|block| block.contains(word)).unwrap_or_else(|| panic!("no block with {word}"))
}

/// The block, for this daemon.
fn block_for(daemon: &Daemon, word: &str) -> String {
    let text = block(word);
    assert!(text.contains(LISTENER), "{text}");
    text.replace(LISTENER, &daemon.port("grpc").to_string())
}

/// One that is added has a test before it is read.
#[test]
fn each_block_of_the_page_is_run_by_a_test() {
    let blocks = blocks();
    assert_eq!(blocks.len(), BLOCKS.len(), "{blocks:#?}");
    for word in BLOCKS {
        assert_eq!(blocks.iter().filter(|block| block.contains(word)).count(), 1, "{word}: {blocks:#?}");
    }
}

#[test]
#[ignore = "cargo xtask ci otlp"]
fn the_commands_of_the_page() {
    let daemon = Daemon::start();
    let clactl = binary("clactl");
    let path = format!("{}:{}", clactl.parent().expect("a folder").display(), std::env::var("PATH").expect("a path"));
    let mut shell = Command::new("sh");
    shell.args(["-ec", &block_for(&daemon, "curl")]).env("PATH", path).env("CLAD_SERVER", daemon.address("unix"));
    let output = run(&mut shell, b"");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("hello"), "{output:?}");
    let records = read::records(&daemon);
    assert_eq!((records.len(), &records[0]["body"], &records[0]["severity"]), (1, &json!("hello"), &json!("INFO")));
}

#[test]
#[ignore = "cargo xtask ci otlp"]
fn the_listeners_of_the_page() {
    let setup = Setup::new();
    let socket = setup.config().with_file_name("otlp.sock").display().to_string();
    let config = block("[ingest.otlp]").replace(":4317", ":0").replace(":4318", ":0");
    fs::write(setup.config(), config.replace("/run/clad/otlp.sock", &socket)).expect("written");
    let daemon = setup.start();
    let listeners = daemon.status().listeners["otlp"].clone();
    let mut ways: Vec<Vec<String>> = vec![vec!["--unix-socket".into(), socket, "http://localhost/v1/logs".into()]];
    let ports = listeners.split(", ").filter(|listener| listener.starts_with("127.0.0.1:"));
    ways.extend(ports.map(|port| vec![format!("http://{port}/v1/logs")]));
    assert_eq!(ways.len(), 3, "{listeners}");
    for (number, way) in ways.iter().enumerate() {
        let arguments: Vec<&str> = JSON.into_iter().chain(way.iter().map(String::as_str)).collect();
        // What is the same is stored once, however it comes.
        let body = document(HEX).to_string().replace("Example log record", &format!("by way {number}"));
        let (status, answer) = curl(&arguments, body.as_bytes());
        assert_eq!(status, 200, "{way:?}: {answer}");
    }
    let records = read::records(&daemon);
    assert_eq!(records.len(), 3, "{records:#?}");
    // The socket's sender is named by the kernel.
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record["body"], format!("by way {number}"));
        assert_eq!(record["peer_meta"]["uid"].is_u64() && record["peer_meta"]["pid"].is_u64(), number == 0, "{record}");
    }
}

/// A program whose SDK is set up by variables alone.
const BY_VARIABLES: &str = include_str!("../../otlp/python/by_variables.py");

#[test]
#[ignore = "cargo xtask ci otlp"]
fn the_variables_of_the_page() {
    let python = Agent::given().program().to_owned();
    for (word, transport) in [("PROTOCOL=grpc", "otlp_grpc"), ("PROTOCOL=http/protobuf", "otlp_http")] {
        let daemon = Daemon::start();
        let script = format!("{}\nexec \"$0\" -B -c \"$1\"", block_for(&daemon, word));
        let mut shell = Command::new("sh");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OTEL_")) {
            shell.env_remove(name);
        }
        // Python's SDK exports nothing by itself; the others' default is this.
        shell.args(["-ec", &script, &python, BY_VARIABLES]).env("OTEL_LOGS_EXPORTER", "otlp");
        let output = run(&mut shell, b"");
        assert!(output.status.success(), "{script}: {output:?}");
        let records = read::records(&daemon);
        assert_eq!(records.len(), 1, "{script}: {output:?}");
        let found = (&records[0]["body"], &records[0]["severity"], &records[0]["peer_meta"]["transport"]);
        assert_eq!(found, (&json!("by variables"), &json!("ERROR"), &json!(transport)), "{}", records[0]);
    }
}

#[test]
#[ignore = "cargo xtask ci otlp whole"]
fn the_collector_of_the_page() {
    let daemon = Daemon::start();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let exporters = block_for(&daemon, "otlp/clad:");
    let config = daemon.setup().config().with_file_name("collector.yaml");
    let text = format!(
        "receivers:\n  otlp:\n    protocols:\n      http: {{endpoint: {port}}}\n{exporters}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
         pipelines:\n    logs: {{receivers: [otlp], exporters: [otlp/clad]}}\n"
    );
    fs::write(&config, text).expect("written");
    let mut command = Command::new(given("CLAD_OTLP_COLLECTOR"));
    let collector = Running::start(command.arg("--config").arg(&config));
    let ready = collector.wait_for(OutputStream::Stderr, "Everything is ready", TEST_TIMEOUT);
    assert!(ready, "the collector does not start:\n{}", collector.said());
    let url = format!("http://{port}/v1/logs");
    let (status, answer) = curl(&[&JSON[..], &[&url]].concat(), document(HEX).to_string().as_bytes());
    assert_eq!(status, 200, "{answer}");
    let records = read::wait_records(&daemon, 1);
    collector.kill();
    assert_eq!((records.len(), &records[0]["peer_meta"]["transport"]), (1, &json!("otlp_grpc")), "{records:#?}");
    is_the_document(&records[0]);
}
