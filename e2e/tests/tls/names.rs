//! Who is known by a certificate, and what its name is good for.

use clad_client::{ProducerId, Record, blocking};
use clad_e2e::TEST_TIMEOUT;
use clad_e2e::tool::clactl_ends;

use super::certs::{Authority, Wanted};
use super::{Host, append, builder, refused};

const BILLING: &str = "spiffe://prod/billing";

#[test]
fn the_name_is_stored_with_each_append_and_can_be_asked_for() {
    let host = Host::start();
    let billing = host.client("billing", &host.authority.client(BILLING));
    let names = Wanted { dns_names: &["web.example"], ..Wanted::default() };
    let web = host.client("web", &host.authority.issue(names));
    append(&host.address_as("tcp+tls", &billing), "of billing").expect("durable");
    append(&host.address_as("grpcs", &web), "of web").expect("durable");
    append(&host.address("tcp+tls"), "of nobody").expect("durable");
    let query = |more: &[&str]| {
        let server = host.address("tcp+tls");
        let words = [&["query", "--server", &server, "-o", "json"], more].concat();
        let output = String::from_utf8(clactl_ends(0, &words, b"").stdout).expect("text");
        let record = |line: &str| {
            let record = clad_e2e::json(line.as_bytes());
            let text = |value: &clad_e2e::Json| value.as_str().map(str::to_owned);
            (text(&record["body"]), text(&record["peer_meta"]["identity"]))
        };
        output.lines().map(record).collect::<Vec<_>>()
    };
    let one = |body: &str, name: Option<&str>| (Some(body.to_owned()), name.map(str::to_owned));
    let all = [one("of billing", Some(BILLING)), one("of web", Some("web.example")), one("of nobody", None)];
    assert_eq!(query(&[]), all);
    assert_eq!(query(&["--identity", BILLING]), all[..1]);
    assert_eq!(query(&["--identity", BILLING, "--identity", "web.example"]), all[..2]);
    assert_eq!(query(&["--identity", "nobody.example"]), []);
    let server = host.address("grpcs");
    let verbose = clactl_ends(0, &["query", "--server", &server, "-o", "verbose"], b"").stdout;
    assert!(String::from_utf8_lossy(&verbose).contains(&format!("identity \"{BILLING}\"")), "{verbose:?}");
}

/// The id of a producer is its name's: the secret counts for nothing, and another name gets nowhere.
#[test]
fn a_stolen_producer_is_useless() {
    let host = Host::start();
    let billing = host.client("billing", &host.authority.client(BILLING));
    let thief = host.client("thief", &host.authority.client("spiffe://prod/thief"));
    let renewed = host.client("renewed", &host.authority.client(BILLING));
    let on = blocking::Producer::connect;
    for (scheme, id) in [("tcp+tls", [7; 16]), ("grpcs", [8; 16])] {
        let id = ProducerId::from_bytes(id);
        let own = |address: &str, epoch, secret: &[u8]| builder(address).producer(id, epoch).secret(secret.to_vec());
        let first = on(own(&host.address_as(scheme, &billing), 1, b"a secret of 32 bytes, more or less"));
        let first = first.expect("it is new, or its own");
        first.append(&[Record::text(0, 9, "mine")]).expect("durable");
        first.close(TEST_TIMEOUT).expect("closed");
        for (who, address) in [("another", host.address_as(scheme, &thief)), ("nobody", host.address(scheme))] {
            let stolen = on(own(&address, 2, b"a secret of 32 bytes, more or less"));
            let error = stolen.expect_err("it is another's").to_string();
            assert!(error.contains("producer"), "{who}: {error}");
        }
        let again = on(own(&host.address_as(scheme, &renewed), 3, b"another secret of a good length"));
        let again = again.expect("a renewed certificate is the same name");
        assert!(again.last_stored().is_some());
        drop(again);
        on(own(&host.address_as(scheme, &billing), 0, b"x")).expect_err("an old epoch");
    }
}

/// Each with what the daemon writes to its log, and its count.
#[test]
fn a_certificate_without_one_name_is_refused_and_so_are_strangers() {
    let host = Host::start();
    let stranger = Authority::new("another authority");
    let years = |valid| Wanted { uris: &[BILLING], valid, ..Wanted::default() };
    let long = format!("spiffe://prod/{}", "a".repeat(120));
    let cases = [
        ("no-name", host.authority.issue(Wanted::default()), "it has no name"),
        ("two-uris", host.authority.issue(Wanted { uris: &["a:b", "a:c"], ..Wanted::default() }), "it has 2 URIs"),
        (
            "two-dns",
            host.authority.issue(Wanted { dns_names: &["a.x", "b.x"], ..Wanted::default() }),
            "it has 2 DNS names",
        ),
        ("long", host.authority.client(&long), "134 bytes"),
        ("stranger", stranger.client(BILLING), "no authority of tls.client_ca has issued it"),
        ("old", host.authority.issue(years((2020, 2021))), "it has expired"),
        ("early", host.authority.issue(years((2119, 2120))), "it is not valid yet"),
    ];
    let mut said = 0;
    for (name, issued, words) in &cases {
        let before = host.handshakes("bad_certificate");
        let client = host.client(name, issued);
        let error = refused(&host.address_as("tcp+tls", &client));
        assert!(error.contains("refuses this client") || error.contains("TLS"), "{name}: {error}");
        host.wait_handshakes("bad_certificate", before + 1.0);
        let line = host.daemon.said().lines().rev().find(|line| line.contains("TLS: ")).map(str::to_owned);
        // Lines of one kind are one in a while.
        match line {
            Some(line) if line.contains(words) => said += 1,
            line => assert!(said > 0, "{name}: {line:?}"),
        }
    }
    // One URI is the name, whatever DNS names are beside it.
    let both = Wanted { uris: &[BILLING], dns_names: &["a.x", "b.x"], ..Wanted::default() };
    append(&host.address_as("tcp+tls", &host.client("both", &host.authority.issue(both))), "x").expect("durable");
    assert!(host.daemon.said().contains("the peer's certificate is refused: it has no name"), "{}", host.daemon.said());
}

#[test]
fn where_a_certificate_is_required_nobody_comes_without() {
    let host = Host::start_with(&[("tls.require_client_cert", "true")]);
    for scheme in ["tcp+tls", "grpcs"] {
        refused(&host.address(scheme));
    }
    assert!(host.handshakes("no_certificate") >= 2.0);
    host.daemon.wait_said("the peer has shown no certificate, and tls.require_client_cert wants one");
    let billing = host.client("billing", &host.authority.client(BILLING));
    append(&host.address_as("grpcs", &billing), "x").expect("durable");
}
