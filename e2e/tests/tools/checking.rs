//! `clad check` and `clad config`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use clad_e2e::tool::is_on_path;
use clad_e2e::{Daemon, Setup, not_run};

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

/// The check reports in advance what a start fails on, with the same exit code; and neither of them takes away
/// what is not clad's.
#[test]
fn a_check_and_a_start_agree() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    type Case<'a> = (&'a str, fn(&Setup, &str) -> Vec<(&'static str, String)>, &'a str, &'a str);
    let cases: [Case<'_>; 9] = [
        (
            "a name that is none of a log's",
            |setup, _| {
                fs::create_dir(setup.dir()).expect("made");
                fs::write(setup.dir().join("hello.txt"), "").expect("written");
                Vec::new()
            },
            "`hello.txt`, which is no part of a log",
            "`hello.txt`, which is no part of a log",
        ),
        (
            "a segment without clad.meta",
            |setup, _| {
                fs::create_dir(setup.dir()).expect("made");
                fs::write(setup.dir().join("00000000000000000000.clog"), "").expect("written");
                Vec::new()
            },
            "no readable clad.meta",
            "no readable clad.meta",
        ),
        (
            "a link that leads nowhere",
            |setup, _| {
                std::os::unix::fs::symlink("nowhere", setup.dir()).expect("made");
                Vec::new()
            },
            "is a link to something that does not exist",
            "is a link to something that does not exist",
        ),
        (
            "a file above the folder",
            |setup, _| vec![("journal.dir", setup.config().join("log").display().to_string())],
            "is not a folder",
            "Not a directory",
        ),
        (
            "nothing above the folder",
            |setup, _| vec![("journal.dir", setup.config().with_file_name("none").join("log").display().to_string())],
            "is not there, and clad makes nothing above its data folder",
            "is not there, and clad makes nothing above its data folder",
        ),
        (
            "a port that another has",
            |_, taken| vec![("ingest.tcp.listen", taken.to_owned())],
            "is taken, by pid",
            "Address already in use",
        ),
        (
            "an address of another host",
            |_, _| {
                vec![("metrics.listen", "192.0.2.1:9744".to_owned()), ("metrics.allow_plaintext", "true".to_owned())]
            },
            "this host has no such address",
            "this host has no such address",
        ),
        (
            "a file in the socket's place",
            |setup, _| {
                fs::write(setup.socket(), "mine").expect("written");
                Vec::new()
            },
            "is there and is no socket",
            "is no socket",
        ),
        (
            "a socket that is answered",
            |setup, _| vec![("admin.path", setup.config().with_file_name("answered.sock").display().to_string())],
            "answered.sock is taken, by pid",
            "another process answers on this socket",
        ),
    ];
    for (what, arrange, checked, started) in cases {
        let mut setup = Setup::new();
        let answered = setup.config().with_file_name("answered.sock");
        let _listener = UnixListener::bind(&answered).expect("a socket");
        for (key, value) in arrange(&setup, &address) {
            setup = setup.set(key, &value);
        }
        let start = setup.run_to_end();
        assert!(start.code == Some(1) && start.said.contains(started), "{what}: {:?}\n{}", start.code, start.said);
        if what.starts_with("a file in") {
            assert_eq!(fs::read(setup.socket()).expect("it is there"), b"mine", "it was removed");
        }
        let setup = setup.arguments(&["check"]);
        let check = setup.run_to_end();
        assert_eq!(check.code, Some(1), "{what}: {}", check.printed);
        assert!(check.printed.contains("PROBLEM: ") && check.printed.contains(checked), "{what}: {}", check.printed);
        assert!(check.printed.ends_with("clad would not start\n"), "{what}: {}", check.printed);
    }
}

/// Files that were made as root are not for the daemon's user, and `check`, asked as that user, says so.
#[test]
fn a_check_as_another_user_sees_what_that_one_may() {
    if !nix::unistd::Uid::effective().is_root() || !is_on_path("setpriv") {
        return not_run("a check as another user", "it needs root and setpriv");
    }
    let mut daemon = Daemon::start();
    assert_eq!(daemon.term(), Some(0));
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for (mode, word) in [(0o755, "belongs to root"), (0o700, "Permission denied")] {
        fs::set_permissions(daemon.dir(), fs::Permissions::from_mode(mode)).expect("given");
        let of = |command: &str| Setup::in_folder(daemon.dir()).under(&as_nobody).arguments(&[command]);
        for command in ["check", "run"] {
            let setup = of(command);
            // Its own folders are nobody's matter here.
            for folder in [setup.config().parent().expect("a folder"), setup.socket().parent().expect("a folder")] {
                fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("given");
            }
            let ended = setup.run_to_end();
            let text = ended.printed + &ended.said;
            assert!(ended.code == Some(1) && text.contains(word), "{command} {mode:o}: {:?}\n{text}", ended.code);
        }
    }
}

#[test]
fn config_shows_each_value_and_its_source() {
    let setup = Setup::new().arguments(&["config", "-o", "json"]);
    fs::write(setup.config(), "[rotation]\nmax_age = \"1h\"\n").expect("written");
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
    fs::write(again.config(), &text).expect("written");
    assert_eq!(again.run_to_end().code, Some(0), "{text}");
}

#[test]
fn a_wrong_call_ends_in_2() {
    assert_eq!(Setup::new().arguments(&["frobnicate"]).run_to_end().code, Some(2));
}

/// After 78 systemd does not start the unit again, and lets go of what it had stored for it.
#[test]
fn what_is_wrong_is_no_end_of_it_while_rings_are_stored() {
    let clad = clad_e2e::binary("clad").display().to_string();
    let ends = |descriptor: &str, setting: &str| {
        let script = format!(
            "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={descriptor}; \
             exec {clad} --config /dev/null --set {setting} 3</dev/null"
        );
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    // A bad value; and a policy that the file system refuses: what was handed over is taken before that is known.
    let memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let policy = format!("journal.policy=sync_file_range --set journal.dir={}", memory.path().display());
    for (setting, why) in [("limits.max_connections=0", "max_connections"), (&*policy, "sync_file_range")] {
        let (code, said) = ends("something-else", setting);
        assert!(code == Some(78) && !said.contains("rings"), "{setting}: {code:?}: {said}");
        let (code, said) = ends("clad-ring-00-ring", setting);
        assert!(code == Some(1) && said.contains(why) && said.contains("holds rings"), "{setting}: {code:?}: {said}");
    }
}
