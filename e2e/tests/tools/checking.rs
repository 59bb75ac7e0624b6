//! `clad check` and `clad config`.

use clad_e2e::{Daemon, Setup};

#[test]
fn check_says_what_it_would_do_and_does_nothing() {
    let setup = Setup::new().arguments(&["check"]);
    let ended = setup.run_to_end();
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    for word in ["clad would start", "group_commit", "will be made"] {
        assert!(ended.printed.contains(word), "{word}:\n{}", ended.printed);
    }
    assert!(!setup.dir().exists() && !setup.socket().exists(), "something was made");
    // It may be asked beside a daemon that runs.
    let daemon = Daemon::start();
    let ended = Setup::in_folder(daemon.dir()).arguments(&["check"]).run_to_end();
    assert_eq!(ended.code, Some(0), "{}", ended.printed);
    let says = format!("clad would start once pid {} has ended\n", daemon.pid());
    assert!(ended.printed.ends_with(&says), "{says}{}", ended.printed);
    assert_eq!(daemon.status().epoch, 1);
}

#[test]
fn config_tells_each_value_and_its_source() {
    let setup = Setup::new().arguments(&["config", "-o", "json"]);
    std::fs::write(setup.config(), "[rotation]\nmax_age = \"1h\"\n").expect("written");
    let ended = setup.run_to_end();
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    let config = clad_e2e::json(ended.printed.as_bytes());
    let age = &config["rotation"]["max_age"];
    assert_eq!(age["seconds"], 3600.0, "{age}");
    assert!(age["source"].as_str().is_some_and(|source| source.contains("clad.toml")), "{age}");
    assert_eq!(config["journal"]["segment_bytes"]["bytes"], 4 << 20);
    assert_eq!(config["journal"]["durability"]["layer"], "default");
    // The other form is a configuration itself.
    let text = Setup::new().arguments(&["config"]).run_to_end().printed;
    let again = Setup::new().arguments(&["config"]);
    std::fs::write(again.config(), &text).expect("written");
    assert_eq!(again.run_to_end().code, Some(0), "{text}");
}

#[test]
fn a_wrong_call_ends_in_2() {
    assert_eq!(Setup::new().arguments(&["frobnicate"]).run_to_end().code, Some(2));
}
