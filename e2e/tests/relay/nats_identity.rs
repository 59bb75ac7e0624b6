//! To a server of NATS within TLS, by each way in which a relay says who it is.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use clad_e2e::{Scratch, TEST_TIMEOUT};

use super::certs::Authority;
use super::forward::{Numbers, small};
use super::nats::{Server, assert_chain, relay_to, wait_stored};
use super::objects::bodies;

/// A way to say who one is.
struct Way {
    name: &'static str,
    /// Lines of the server's file.
    server: String,
    /// How the other client says it.
    client: Option<(&'static str, String)>,
    /// Lines of the relay's file.
    relay: String,
    /// Lines that the server refuses.
    wrong: String,
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_relay_says_who_it_is_within_tls_in_each_way() {
    let scratch = Scratch::new();
    let folder = scratch.data();
    let path = |name: &str| folder.join(name).display().to_string();
    let (authority, stranger) = (Authority::new("ours"), Authority::new("another"));
    authority.server().put(folder, "server");
    for (authority, name) in [(&authority, "relay"), (&authority, "reader"), (&stranger, "stranger")] {
        authority.client(&format!("spiffe://prod/{name}")).put(folder, name);
    }
    fs::write(path("ca.crt"), authority.pem()).expect("written");
    fs::write(path("another.crt"), stranger.pem()).expect("written");
    fs::write(path("secret"), "a secret\n").expect("written");
    fs::write(path("wrong"), "another\n").expect("written");
    let mut program = Command::new(std::env::var("CLAD_NATS_CLIENT").expect("call `cargo xtask ci relay`"));
    for name in ["accounts", "strangers"] {
        fs::create_dir(folder.join(name)).expect("a folder");
    }
    for name in ["accounts", "strangers"] {
        assert!(program.args([&path(name), "accounts"]).status().expect("it runs").success());
        program = Command::new(program.get_program());
    }
    let tls = |verify| {
        let (cert, key, ca) = (path("server.crt"), path("server.key"), path("ca.crt"));
        format!("tls {{ cert_file: \"{cert}\", key_file: \"{key}\", ca_file: \"{ca}\", verify: {verify} }}\n")
    };
    let own = |name: &str| {
        let (cert, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
        format!("cert = \"{cert}\"\nkey = \"{key}\"\n")
    };
    let ways = [
        Way { name: "certificate", server: tls(true), client: None, relay: own("relay"), wrong: own("stranger") },
        Way {
            name: "password",
            server: tls(false) + "authorization { user: relay, password: \"a secret\" }\n",
            client: Some(("CLAD_NATS_USER", "relay:a secret".to_owned())),
            relay: format!("user = \"relay\"\npassword_file = \"{}\"\n", path("secret")),
            wrong: format!("user = \"relay\"\npassword_file = \"{}\"\n", path("wrong")),
        },
        Way {
            name: "token",
            server: tls(false) + "authorization { token: \"a secret\" }\n",
            client: Some(("CLAD_NATS_TOKEN", "a secret".to_owned())),
            relay: format!("token_file = \"{}\"\n", path("secret")),
            wrong: format!("token_file = \"{}\"\n", path("wrong")),
        },
        Way {
            name: "credentials",
            server: tls(false) + &fs::read_to_string(folder.join("accounts/server.conf")).expect("there"),
            client: Some(("CLAD_NATS_CREDENTIALS", path("accounts/user.creds"))),
            relay: format!("credentials_file = \"{}\"\n", path("accounts/user.creds")),
            wrong: format!("credentials_file = \"{}\"\n", path("strangers/user.creds")),
        },
    ];
    for way in ways {
        let mut variables = vec![
            ("CLAD_NATS_CA", path("ca.crt")),
            ("CLAD_NATS_CERT", path("reader.crt")),
            ("CLAD_NATS_KEY", path("reader.key")),
        ];
        variables.extend(way.client);
        let mut server = Server::start_with(&way.server, variables);
        server.make();
        let daemon = small().start();
        Numbers::new(&daemon).append(20, 100);
        let at = format!("tls://{}", server.address);
        let ca = |name: &str| format!("format = \"body\"\nca = \"{}\"\n", path(name));
        // Each says why, and is tried again: an operator mends such things at the server, too.
        let nobody = format!("{}allow_plaintext = true\n", ca("ca.crt"));
        for (what, lines, words) in [
            ("who is not known", ca("ca.crt") + &way.wrong, ["fatal alert", "uthorization"]),
            ("who says nothing", nobody, ["fatal alert", "uthorization"]),
            ("another authority", ca("another.crt") + &way.relay, ["UnknownIssuer", "UnknownIssuer"]),
        ] {
            let mut relay = relay_to("test", &daemon, &at, &lines);
            relay.start();
            let until = Instant::now() + TEST_TIMEOUT;
            while !words.iter().any(|word| relay.said().contains(word)) {
                assert!(Instant::now() < until, "{}, {what}: {}", way.name, relay.said());
                relay.keep();
                std::thread::sleep(Duration::from_millis(20));
            }
            relay.kill9();
        }
        assert_eq!(server.count(), 0, "{}", way.name);
        let mut relay = relay_to("test", &daemon, &at, &(ca("ca.crt") + &way.relay));
        relay.start();
        wait_stored(&mut relay, &daemon);
        server.kill9();
        Numbers::new(&daemon).append(20, 100);
        server.restart();
        wait_stored(&mut relay, &daemon);
        assert_chain(&server.read(), &bodies(&daemon));
    }
}
