//! The page docs/TLS.md as an operator would follow it, and programs of other makes. Run by `cargo xtask ci tls`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use clad_e2e::{Setup, tool};
use nix::sys::signal::Signal;

use super::Host;

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

/// Each block, as it stands there but for ports, paths and the name of the host, which is none of this machine's.
#[test]
#[ignore = "cargo xtask ci tls"]
fn the_blocks_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let blocks = blocks();
    let block =
        |word: &str| blocks.iter().find(|block| block.contains(word)).unwrap_or_else(|| panic!("no block with {word}"));
    for word in ["req -x509", "server.csr", "client.csr"] {
        sh(block(word), folder.path());
    }
    let setup = Setup::new().unset("ingest.tcp.listen").unset("ingest.grpc.listen");
    let config = block("[tls]").replace("/etc/clad/tls", &folder.path().display().to_string());
    let config = config.replace("0.0.0.0:7440", "127.0.0.1:0").replace("0.0.0.0:7441", "127.0.0.1:0");
    fs::write(setup.config(), config.replace("0.0.0.0:6514", "127.0.0.1:0")).expect("written");
    let daemon = setup.start();
    let at = format!("tcp+tls://{}?server_name=logs.example&", daemon.port("tcp"));
    let call = block("clactl append").replace("tcp+tls://logs.example?", &at);
    let clactl = clad_e2e::binary("clactl").display().to_string();
    sh(&call.replace("clactl", &clactl), folder.path());
    let stored = format!("{clactl} query --server unix://{} -o json", daemon.socket().display());
    let record = clad_e2e::json(sh(&stored, folder.path()).as_bytes());
    assert_eq!(record["body"], "it is safe");
    assert_eq!(record["peer_meta"]["identity"], "spiffe://prod/billing");
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
