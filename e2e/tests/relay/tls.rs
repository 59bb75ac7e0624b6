//! To a daemon within TLS: the place of a relay belongs to the name in its certificate.

use std::fs;

use clad_e2e::Setup;
use clad_e2e::tool::clactl_ends;

use super::certs::Authority;
use super::{Relay, append, wait_for};

const FROM: &str = "[from.files]\npaths = [\"FOLDER/*.log\"]\nstart = \"beginning\"";
const NAME: &str = "spiffe://prod/relay";

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn lines_come_within_tls_once_over_kills_and_a_renewed_certificate() {
    const LINES: usize = 200;
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("an authority"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    authority.server().put(folder.path(), "server");
    authority.client(NAME).put(folder.path(), "relay");
    fs::write(path("ca.crt"), authority.pem()).expect("written");
    let tls = [("cert", "server.crt"), ("key", "server.key"), ("client_ca", "ca.crt")];
    let setup = tls.iter().fold(Setup::new(), |setup, (key, file)| setup.set(&format!("tls.{key}"), &path(file)));
    let setup = setup.set("tls.require_client_cert", "true").set("ingest.tcp.tls", "true");
    let mut daemon = setup.set("ingest.tcp.allow_read", "true").fixed_ports().start();

    let mut relay = Relay::new(&daemon, FROM);
    let unix = format!("unix://{}", daemon.socket().display());
    let at = format!("tcp+tls://{}?ca={}", daemon.port("tcp"), path("ca.crt"));
    let own = format!("&cert={}&key={}", path("relay.crt"), path("relay.key"));
    let config = fs::read_to_string(relay.file()).expect("its file");
    let to = |server: &str| fs::write(relay.file(), config.replace(&unix, server)).expect("written");
    for (server, words) in [
        (at.clone(), "to.clad.server: cert=FILE and key=FILE"),
        (format!("{at}&cert={}&key={}", path("relay.crt"), path("server.key")), "do not belong together"),
        (format!("{at}&cert={}&key={}", path("relay.crt"), path("missing.key")), "missing.key: No such file"),
    ] {
        to(&server);
        let said = relay.say("check");
        assert!(said.contains("is not right") && said.contains(words), "{server}: {said}");
    }
    to(&format!("{at}{own}"));
    let said = relay.say("check");
    assert!(said.contains("relay test\n") && said.contains(&at), "{said}");

    for round in 0..4 {
        for line in round * LINES..(round + 1) * LINES {
            append(&relay.path("a.log"), &format!("line {line}\n"));
        }
        let bodies = wait_for(&daemon, &mut relay, (round + 1) * LINES);
        let wanted: Vec<String> = (0..(round + 1) * LINES).map(|line| format!("line {line}")).collect();
        assert_eq!(bodies, wanted, "round {round}");
        match round {
            0 => relay.kill9(),
            1 => {
                daemon.kill9();
                daemon.restart();
            }
            _ => {
                relay.kill9();
                authority.client(NAME).put(folder.path(), "relay");
            }
        }
    }
    relay.kill9();
    let words = ["query", "--server", &daemon.address("unix"), "--identity", NAME, "--component", "test", "-o", "cat"];
    let said = String::from_utf8(clactl_ends(0, &words, b"").stdout).expect("text");
    assert_eq!(said.lines().filter(|line| line.starts_with("line ")).count(), 4 * LINES);
    // Another name does not go on with it.
    authority.client("spiffe://prod/another").put(folder.path(), "relay");
    relay.start();
    assert!(!relay.wait());
    assert!(relay.said().contains("the daemon refuses this relay: producer_not_yours"), "{}", relay.said());
}
