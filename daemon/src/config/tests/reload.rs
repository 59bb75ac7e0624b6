//! All or nothing.

use super::super::{LoadArgs, reload_diff};
use super::{Config, Fixture};

#[test]
fn live_keys_change_with_their_values_named() {
    let new = Fixture::new()
        .set("log.level=debug")
        .set("retention.max_age=7d")
        .set("rotation.max_age=1h")
        .set("daemon.drain_timeout=3s")
        .set("limits.max_connections=5")
        .loaded();
    let changes = reload_diff(&Config::default(), &new.config).unwrap();
    let keys: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    assert_eq!(
        keys,
        ["rotation.max_age", "retention.max_age", "log.level", "daemon.drain_timeout", "limits.max_connections"]
    );
    assert_eq!((changes[0].from.as_str(), changes[0].to.as_str()), ("0", "\"1h\""));
}

#[test]
fn one_key_that_needs_a_restart_refuses_them_all_by_name() {
    let new = Fixture::new()
        .set("log.level=debug")
        .set("journal.segment_bytes=128MiB")
        .set("ingest.tcp.listen=127.0.0.1:1")
        .loaded();
    let refused = reload_diff(&Config::default(), &new.config).unwrap_err();
    assert_eq!(refused.keys, ["journal.segment_bytes", "ingest.tcp.listen"]);
    assert_eq!(
        refused.to_string(),
        "nothing was changed: a restart is needed for journal.segment_bytes, ingest.tcp.listen"
    );
}

#[test]
fn a_listener_of_syslog_comes_and_goes_with_a_restart() {
    let new = Fixture::new().set("ingest.syslog.net.listen=udp://127.0.0.1:514").loaded();
    for (old, new) in [(&Config::default(), &new.config), (&new.config, &Config::default())] {
        let refused = reload_diff(old, new).unwrap_err();
        assert!(refused.keys.contains(&"ingest.syslog.net.listen".to_owned()), "{refused}");
    }
}

#[test]
fn a_call_that_means_the_same_files_and_folders() {
    let args = |config: Option<&str>, instance: Option<&str>, env: &[(&str, &str)]| LoadArgs {
        config: config.map(Into::into),
        instance: instance.map(Into::into),
        base: "/etc/clad".into(),
        sets: Vec::new(),
        env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
    };
    let unit = [("STATE_DIRECTORY", "/var/lib/clad"), ("RUNTIME_DIRECTORY", "/run/clad:/run/more"), ("HOME", "/")];
    let folders = "STATE_DIRECTORY=/var/lib/clad RUNTIME_DIRECTORY=/run/clad";
    assert_eq!(args(None, None, &[]).as_call("check"), "clad check");
    assert_eq!(args(None, None, &unit).as_call("check"), format!("{folders} clad check"));
    assert_eq!(args(Some("/x.toml"), None, &[]).as_call("check"), "clad --config /x.toml check");
    assert_eq!(args(Some("/x.toml"), None, &unit).as_call("check"), format!("{folders} clad --config /x.toml check"));
    assert_eq!(args(None, Some("audit"), &unit).as_call("check"), "clad --instance audit check");
}

#[test]
fn nothing_changed_is_no_change() {
    assert_eq!(reload_diff(&Config::default(), &Config::default()), Ok(vec![]));
}
