//! The page docs/TLS.md as an operator would follow it, and programs of other makes. Run by `cargo xtask ci tls`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use clad_e2e::{Daemon, Setup, tool};
use nix::sys::signal::Signal;

use super::Host;
use super::certs::{Authority, Files};

/// Blocks of the page.
const BLOCKS: usize = 6;

fn blocks() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TLS.md");
    let page = fs::read_to_string(page).expect("the page");
    page.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("lines").1.to_owned()).collect()
}

fn sh(script: &str, folder: &Path) -> String {
    let mut command = Command::new("sh");
    let output = tool::run(command.args(["-ec", script]).current_dir(folder), b"");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{script}\n{said}");
    said
}

/// The one block with these words.
fn block(word: &str) -> String {
    let blocks = blocks();
    assert_eq!(blocks.len(), BLOCKS, "one that is added has a test: {blocks:#?}");
    blocks.into_iter().find(|block| block.contains(word)).unwrap_or_else(|| panic!("no block with {word}"))
}

/// The daemon of the page, with what its commands make in a folder. Ports and paths are this machine's.
fn daemon_of_the_page(folder: &Path) -> Daemon {
    for word in ["req -x509", "server.csr", "client.csr"] {
        sh(&block(word), folder);
    }
    // As Python from 3.13 on looks at them.
    sh("openssl verify -x509_strict -CAfile ca.crt server.crt client.crt", folder);
    let setup = Setup::new().unset("ingest.tcp.listen").unset("ingest.grpc.listen");
    let config = block("[tls]").replace("/etc/clad/tls", &folder.display().to_string());
    let config = config.replace("0.0.0.0:7440", "127.0.0.1:0").replace("0.0.0.0:7441", "127.0.0.1:0");
    fs::write(setup.config(), config.replace("0.0.0.0:6514", "127.0.0.1:0")).expect("written");
    setup.start()
}

/// Body, name and transport of each record.
fn stored(daemon: &Daemon) -> Vec<[Option<String>; 3]> {
    let output = tool::clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "json"], b"").stdout;
    let one = |line: &str| {
        let record = clad_e2e::json(line.as_bytes());
        let (meta, text) = (&record["peer_meta"], |value: &clad_e2e::Json| value.as_str().map(str::to_owned));
        [text(&record["body"]), text(&meta["identity"]), text(&meta["transport"])]
    };
    String::from_utf8(output).expect("text").lines().map(one).collect()
}

fn record(body: &str, name: &str, transport: &str) -> [Option<String>; 3] {
    [body, name, transport].map(|text| Some(text.to_owned()))
}

/// Each block, as it stands there but for ports, paths and the name of the host, which is none of this machine's.
#[test]
#[ignore = "cargo xtask ci tls"]
fn the_blocks_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = daemon_of_the_page(folder.path());
    let at = format!("tcp+tls://{}?server_name=logs.example&", daemon.port("tcp"));
    let call = block("clactl append").replace("tcp+tls://logs.example?", &at);
    let clactl = clad_e2e::binary("clactl").display().to_string();
    sh(&call.replace("clactl", &clactl), folder.path());
    assert_eq!(stored(&daemon), [record("it is safe", "spiffe://prod/billing", "tcp")]);
}

/// An SDK by the variables of the page, over both protocols: a program, and its words for each. `logs.example` is this host in
/// a namespace of its own.
fn by_the_variables(program: &str, words: [&[&str]; 2], body: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = daemon_of_the_page(folder.path());
    fs::write(folder.path().join("hosts"), "127.0.0.1 localhost logs.example\n").expect("written");
    let grpc = block("OTEL_").replace(":7441", &format!(":{}", daemon.port("grpc").port()));
    let http = grpc
        .replace(" OTEL_EXPORTER_OTLP_LOGS_PROTOCOL=grpc", "/v1/logs OTEL_EXPORTER_OTLP_LOGS_PROTOCOL=http/protobuf");
    for (variables, words) in [grpc, http].iter().zip(words) {
        let script = format!("mount --bind hosts /etc/hosts\n{variables}\nexec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &script, program]).args(words).current_dir(folder.path());
        // Both go before what the page names, over HTTP.
        command.env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
        // Python's SDK exports nothing by itself; the others' default is this.
        let output = tool::run(command.env("OTEL_LOGS_EXPORTER", "otlp"), b"");
        assert!(output.status.success(), "{script}: {output:?}");
    }
    let wanted = ["otlp_grpc", "otlp_http"].map(|way| record(body, "spiffe://prod/billing", way));
    assert_eq!(stored(&daemon), wanted, "{}", daemon.said());
}

#[test]
#[ignore = "cargo xtask ci tls"]
fn the_exporter_of_the_page() {
    let python = std::env::var("CLAD_OTLP_PYTHON").expect("cargo xtask ci tls names it");
    let words: &[&str] = &["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/otlp/python/by_variables.py")];
    by_the_variables(&python, [words; 2], "by variables");
}

#[test]
#[ignore = "cargo xtask ci tls whole"]
fn the_exporter_of_the_page_in_go() {
    let agent = std::env::var("CLAD_OTLP_GO").expect("cargo xtask ci tls whole names it");
    by_the_variables(&agent, [&["grpc", "simple", "1"], &["http", "simple", "1"]], "record 0");
}

#[test]
#[ignore = "cargo xtask ci tls"]
fn grpcurl_exports_by_its_certificate_alone() {
    const BODY: &str = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"by grpcurl"}}]}]}]}"#;
    let host = Host::start_with(&[("tls.require_client_cert", "true")]);
    let client = host.client("grpcurl", &host.authority.client("spiffe://prod/grpcurl"));
    let other = Authority::new("another");
    let stranger = host.client("stranger", &other.client("spiffe://prod/grpcurl"));
    let other_ca = host.folder.path().join("other.crt");
    fs::write(&other_ca, other.pem()).expect("written");
    let export = |ca: &Path, files: Option<&Files>| {
        let mut command = Command::new(std::env::var("CLAD_OTLP_GRPCURL").expect("cargo xtask ci tls names it"));
        command.args(["-max-time", "20", "-connect-timeout", "5", "-cacert"]).arg(ca);
        if let Some(files) = files {
            command.arg("-cert").arg(&files.cert).arg("-key").arg(&files.key);
        }
        command.args(["-H", "clad-ack: durable", "-d", BODY, &host.daemon.port("grpc").to_string()]);
        tool::run(command.arg("opentelemetry.proto.collector.logs.v1.LogsService/Export"), b"")
    };
    for (ca, files) in [(&host.ca, None), (&host.ca, Some(&stranger)), (&other_ca, Some(&client))] {
        let output = export(ca, files);
        assert!(!output.status.success(), "{files:?} with {}: {output:?}", ca.display());
    }
    assert_eq!(stored(&host.daemon), [] as [[Option<String>; 3]; 0]);
    let output = export(&host.ca, Some(&client));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stored(&host.daemon), [record("by grpcurl", "spiffe://prod/grpcurl", "otlp_grpc")]);
}

/// Each version by openssl; old ones are refused.
#[test]
#[ignore = "cargo xtask ci tls"]
fn openssl_speaks_what_is_spoken_and_nothing_older() {
    let host = Host::start();
    let call = |version: &str| {
        let mut command = Command::new("openssl");
        command.args(["s_client", version, "-cipher", "DEFAULT@SECLEVEL=0", "-verify_return_error", "-CAfile"]);
        command.arg(&host.ca).args(["-connect", &host.daemon.port("tcp").to_string()]);
        let output = command.stdin(Stdio::null()).output().expect("openssl");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (spoken, said) = call(version);
        assert!(spoken && said.contains(name) && said.contains("Verify return code: 0 (ok)"), "{version}: {said}");
    }
    for version in ["-tls1", "-tls1_1"] {
        let (spoken, said) = call(version);
        assert!(!spoken, "{version}: {said}");
    }
    host.wait_handshakes("incompatible", 2.0);
    fs::write(host.daemon.setup().config(), "[tls]\nmin_version = \"1.3\"\n").expect("written");
    host.daemon.signal(Signal::SIGHUP);
    host.daemon.wait_said("HUP: reloaded");
    assert!(call("-tls1_3").0 && !call("-tls1_2").0, "{}", host.daemon.said());
}

/// OTLP's JSON by curl, over both versions of HTTP, with a certificate and without.
#[test]
#[ignore = "cargo xtask ci tls"]
fn curl_exports_over_https() {
    let host = Host::start();
    let client = host.client("curl", &host.authority.client("spiffe://prod/curl"));
    let body = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"1700000000000000001","body":{"stringValue":"TEXT"}}]}]}]}"#;
    let url = format!("https://{}/v1/logs", host.daemon.port("grpc"));
    let export = |text: &str, more: &[&str]| {
        let mut command = Command::new("curl");
        command.args([
            "-sS",
            "--fail-with-body",
            "-w",
            "\n%{http_code} %{http_version}",
            "-H",
            "content-type: application/json",
        ]);
        command.arg("--cacert").arg(&host.ca).args(more).args(["-d", &body.replace("TEXT", text), &url]);
        let output = command.output().expect("curl");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let named =
        ["--cert".to_owned(), client.cert.display().to_string(), "--key".to_owned(), client.key.display().to_string()];
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    assert!(export("one", &["--http1.1"]).ends_with("\n200 1.1"));
    assert!(export("two", &[&named[..], &["--http2"]].concat()).ends_with("\n200 2"));
    let plain = Command::new("curl").args(["-sS", &url.replace("https", "http")]).output().expect("curl");
    assert!(String::from_utf8_lossy(&plain.stdout).contains("use https://"), "{plain:?}");
    let query = tool::clactl_ends(0, &["query", "--server", &host.daemon.address("unix"), "-o", "json"], b"").stdout;
    let query = String::from_utf8(query).expect("text");
    let records: Vec<_> = query.lines().map(|line| clad_e2e::json(line.as_bytes())).collect();
    let seen: Vec<_> =
        records.iter().map(|one| (one["body"].as_str(), one["peer_meta"]["identity"].as_str())).collect();
    assert_eq!(seen, [(Some("one"), None), (Some("two"), Some("spiffe://prod/curl"))]);
}

/// RELP within TLS, its frames typed into openssl.
#[test]
#[ignore = "cargo xtask ci tls"]
fn relp_is_answered_within_tls() {
    let host = Host::start_with(&[("ingest.syslog.relp.listen", "relps://127.0.0.1:0")]);
    let client = host.client("relp", &host.authority.client("spiffe://prod/relp"));
    let address = host.daemon.status().listeners["syslog.relp"].trim_start_matches("relps://").to_owned();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-verify_return_error", "-connect", &address]);
    command.arg("-CAfile").arg(&host.ca).arg("-cert").arg(&client.cert).arg("-key").arg(&client.key);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut openssl = command.spawn().expect("openssl");
    let mut input = openssl.stdin.take().expect("its input");
    let mut answers = BufReader::new(openssl.stdout.take().expect("its output")).lines();
    let offers = "relp_version=0\nrelp_software=test\ncommands=syslog";
    write!(input, "1 open {} {offers}\n2 syslog 3 one\n3 syslog 3 two\n", offers.len()).expect("sent");
    for number in [2, 3] {
        let answer =
            answers.by_ref().map(|line| line.expect("a line")).find(|line| line.starts_with(&format!("{number} rsp ")));
        assert_eq!(answer.as_deref(), Some(&*format!("{number} rsp 6 200 OK")));
    }
    let words = ["query", "--server", &host.daemon.address("unix"), "--identity", "spiffe://prod/relp", "-o", "cat"];
    assert_eq!(tool::clactl_ends(0, &words, b"").stdout, b"one\ntwo\n");
    let _ = openssl.kill();
    let _ = openssl.wait();
}

/// rsyslog by syslog over TLS, with its own certificate.
#[test]
#[ignore = "cargo xtask ci tls"]
fn rsyslog_forwards_over_tls() {
    const MESSAGES: usize = 500;
    let host =
        Host::start_with(&[("tls.require_client_cert", "true"), ("ingest.syslog.net.listen", "tls://127.0.0.1:0")]);
    let client = host.client("rsyslog", &host.authority.client("spiffe://prod/rsyslog"));
    let status = host.daemon.status();
    let address = &status.listeners["syslog.net"];
    let port = address.rsplit_once(':').expect("a port").1;
    let folder = host.folder.path();
    let programs = std::env::var("CLAD_SYSLOG_PROGRAMS").expect("cargo xtask ci tls names it");
    let libraries = format!("{programs}/usr/lib/x86_64-linux-gnu");
    let input = folder.join("in.sock");
    let config = format!(
        "global(workDirectory=\"{folder}\" defaultNetstreamDriverCAFile=\"{ca}\" defaultNetstreamDriverCertFile=\"{cert}\" \
         defaultNetstreamDriverKeyFile=\"{key}\")\n\
         module(load=\"{libraries}/rsyslog/imuxsock.so\" SysSock.Use=\"off\")\n\
         input(type=\"imuxsock\" Socket=\"{input}\" RateLimit.Interval=\"0\")\n\
         action(type=\"omfwd\" target=\"127.0.0.1\" port=\"{port}\" protocol=\"tcp\" StreamDriver=\"ossl\" StreamDriverMode=\"1\" \
         StreamDriverAuthMode=\"x509/certvalid\" template=\"RSYSLOG_SyslogProtocol23Format\")\n",
        folder = folder.display(),
        ca = host.ca.display(),
        cert = client.cert.display(),
        key = client.key.display(),
        input = input.display(),
    );
    fs::write(folder.join("rsyslog.conf"), config).expect("written");
    let mut command = Command::new(format!("{programs}/usr/sbin/rsyslogd"));
    command.args(["-n", "-f"]).arg(folder.join("rsyslog.conf")).arg("-i").arg(folder.join("pid"));
    command.arg("-M").arg(format!("{libraries}/rsyslog")).env("LD_LIBRARY_PATH", &libraries);
    let rsyslog = tool::Running::start(&mut command);
    let began = std::time::Instant::now();
    while !input.exists() {
        assert!(
            began.elapsed() < clad_e2e::TEST_TIMEOUT && rsyslog.is_running(),
            "{}{}",
            rsyslog.said(),
            rsyslog.printed()
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
    for number in 0..MESSAGES {
        socket.send_to(format!("<13>Nov 28 10:00:00 app[1]: {number}").as_bytes(), &input).expect("sent");
    }
    host.daemon.wait_until("every message", |status| {
        status.offsets.is_some_and(|offsets| offsets.durable >= MESSAGES as u64) || {
            assert!(rsyslog.is_running(), "{}", rsyslog.said());
            false
        }
    });
    rsyslog.kill();
    let words = ["query", "--server", &host.daemon.address("unix"), "--identity", "spiffe://prod/rsyslog", "-o", "cat"];
    let output = String::from_utf8(tool::clactl_ends(0, &words, b"").stdout).expect("text");
    // rsyslog keeps the blank behind the tag.
    let bodies: Vec<_> = output.lines().map(str::trim_start).collect();
    assert_eq!(bodies, (0..MESSAGES).map(|number| number.to_string()).collect::<Vec<_>>());
}
