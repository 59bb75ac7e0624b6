//! A start with certificates that are not right: refused, in words that say what to do; and `clad check` says the same.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::certs::{Authority, Wanted};
use super::setup_with;

#[test]
fn a_start_without_sound_files_is_refused_and_check_says_why() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("the tests' authority"));
    let ca = folder.path().join("ca.crt");
    fs::write(&ca, authority.pem()).expect("written");
    let good = authority.server().put(folder.path(), "good");
    let other = authority.server().put(folder.path(), "other");
    let years = |valid| authority.issue(Wanted { dns_names: &["localhost"], valid, ..Wanted::default() });
    let old = years((2020, 2021)).put(folder.path(), "old");
    let early = years((2119, 2120)).put(folder.path(), "early");
    let open = authority.server().put(folder.path(), "open");
    fs::set_permissions(&open.key, fs::Permissions::from_mode(0o644)).expect("its mode");
    let path = |path: &std::path::Path| path.display().to_string();
    let cases = [
        (setup_with(&old, &ca), "it was valid until"),
        (setup_with(&early, &ca), "is the clock right?"),
        (setup_with(&open, &ca), "chmod 640, or 600"),
        (setup_with(&good, &ca).set("tls.key", &path(&other.key)), "it is not the key of tls.cert"),
        (setup_with(&good, &ca).set("tls.cert", "/nowhere/x"), "No such file"),
        (setup_with(&good, &good.key), "there is no certificate in it"),
        (setup_with(&good, &ca).unset("tls.key"), "a certificate has a key"),
        (
            setup_with(&good, &ca).unset("tls.cert").unset("tls.key").unset("tls.client_ca"),
            "set `tls.cert` and `tls.key`",
        ),
        (setup_with(&good, &ca).unset("tls.client_ca").set("tls.require_client_cert", "true"), "set `tls.client_ca`"),
    ];
    for (setup, words) in cases {
        let ended = setup.run_to_end();
        assert!(ended.code == Some(78) && ended.said.contains(words), "{words}: {ended:?}");
        let checked = setup.arguments(&["check"]).run_to_end();
        let said = format!("{}{}", checked.printed, checked.said);
        assert!(checked.code == Some(78) && said.contains(words), "{words}: {checked:?}");
    }
    let soon = authority.server_for(10).put(folder.path(), "soon");
    let checked = setup_with(&soon, &ca).arguments(&["check"]).run_to_end();
    assert!(checked.code == Some(0) && checked.printed.contains("certificate and key fit, 9 days left"), "{checked:?}");
}

/// Beyond the loopback: TLS is enough, and without it the operator's word is wanted as before.
#[test]
fn tls_opens_the_network() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("the tests' authority"));
    let ca = folder.path().join("ca.crt");
    fs::write(&ca, authority.pem()).expect("written");
    let files = authority.server().put(folder.path(), "server");
    let wide = || setup_with(&files, &ca).set("ingest.tcp.listen", "0.0.0.0:0").set("ingest.grpc.listen", "0.0.0.0:0");
    let checked = wide().arguments(&["check"]).run_to_end();
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let ended = wide().set("ingest.tcp.tls", "false").run_to_end();
    assert!(
        ended.code == Some(78) && ended.said.contains("`ingest.tcp.tls = true`, with certificate and key in [tls]"),
        "{ended:?}"
    );
}
