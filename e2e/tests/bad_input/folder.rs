//! Configurations and data folders that clad must not start on: the exit code, and a text that says what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use clad_e2e::tool::{OutputStream, Running, clactl_ends, is_on_path};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT, is_root, not_run};
use clad_proto::AckLevel;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Bystander;

/// Starts what must not start.
fn refused(setup: &Setup, code: i32, words: &[&str]) {
    let ended = setup.run_to_end();
    assert_eq!(ended.code, Some(code), "{}", ended.said);
    for word in words {
        assert!(ended.said.contains(word), "{word:?} is not said:\n{}", ended.said);
    }
    assert!(!ended.printed.contains("ready"), "{}", ended.printed);
}

#[test]
fn a_typo_in_a_setting() {
    refused(&Setup::new().set("journal.durabilty", "per_message"), 78, &["journal.durabilty", "journal.durability"]);
}

#[test]
fn a_typo_in_a_file_and_an_impossible_value() {
    let setup = Setup::new();
    fs::write(setup.config(), "[retention]\nmax_bites = \"1GiB\"\n\n[log]\nlevel = \"loud\"\n").expect("written");
    let file = setup.config().display().to_string();
    refused(&setup, 78, &[&file, "retention.max_bites", "retention.max_bytes", "log.level", "loud"]);
    assert!(!setup.dir().exists(), "nothing was made");
}

#[test]
fn a_typo_is_found_by_check_and_config_too() {
    for command in ["check", "config"] {
        refused(&Setup::new().arguments(&[command]).set("admin.pat", "x"), 78, &["admin.pat", "admin.path"]);
    }
}

#[test]
fn a_policy_that_this_disk_refuses() {
    let memory = std::path::Path::new("/dev/shm");
    if clad_journal::io::device::discover(memory).filesystem != "tmpfs" {
        return not_run("a policy that this disk refuses", "/dev/shm is no memory file system");
    }
    let dir = memory.join(format!("clad-e2e-{}", std::process::id()));
    let setup = Setup::in_folder(&dir).set("journal.durability", "sync_file_range");
    refused(&setup, 78, &["sync_file_range is for ext4 and xfs alone, this is tmpfs", "group_commit"]);
    let _ = fs::remove_dir_all(dir);
}

/// The kernel's signal for it would end the process without a word.
#[test]
fn a_limit_on_the_size_of_files() {
    if !is_on_path("prlimit") {
        return not_run("a limit on the size of files", "no prlimit");
    }
    let mut daemon = Setup::new().under(&["prlimit", "--fsize=100000"]).start();
    daemon.wait_said("open the next segment: File too large");
    assert_eq!(daemon.term(), Some(0));
}

#[test]
fn a_folder_that_another_clad_has() {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let who = format!("pid {} uses it: stop that", daemon.pid());
    refused(&Setup::in_folder(daemon.dir()), 1, &["in use by another clad", &daemon.dir().display().to_string(), &who]);
    bystander.is_served();
}

/// A file system that is not mounted, say: the log is not begun somewhere else.
#[test]
fn a_folder_with_nothing_above_it() {
    let setup = Setup::new();
    let above = setup.config().with_file_name("not-mounted");
    let dir = above.join("log");
    let setup = setup.set("journal.dir", &dir.display().to_string());
    let why = format!("{} is not there, and clad makes nothing above its data folder", above.display());
    refused(&setup, 1, &["make the data folder", &why, "install --directory"]);
    assert!(!above.exists(), "it was made");
}

#[test]
fn a_socket_that_another_clad_answers_on() {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let socket = daemon.socket().display().to_string();
    refused(&Setup::new().set("ingest.unix.path", &socket), 1, &[&socket]);
    bystander.is_served();
}

#[test]
fn a_folder_with_something_else_in_it() {
    let setup = Setup::new();
    fs::create_dir(setup.dir()).expect("a folder");
    fs::write(setup.dir().join("holiday.jpg"), b"sea").expect("a file");
    refused(&setup, 1, &["holiday.jpg", "a folder of its own"]);
    let there: Vec<_> =
        fs::read_dir(setup.dir()).expect("a list").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(there, ["holiday.jpg"], "nothing was touched");
}

#[test]
fn segments_without_their_meta_are_left_alone() {
    let mut daemon = Daemon::start();
    Bystander::of(&daemon);
    assert_eq!(daemon.term(), Some(0));
    fs::rename(daemon.dir().join("clad.meta"), daemon.dir().parent().expect("above").join("away")).expect("moved");
    let setup = Setup::in_folder(daemon.dir());
    refused(&setup, 1, &["clad.meta", "nothing was touched"]);
    fs::rename(daemon.dir().parent().expect("above").join("away"), daemon.dir().join("clad.meta")).expect("back");
    daemon.restart();
    assert_eq!(daemon.status().offsets.expect("offsets").durable, 1);
}

/// Mode bits do not stop root, so as root the daemon is started as `nobody`; a file system that is mounted read-only is
/// tried in `cargo xtask ci disk`.
#[test]
fn a_folder_that_may_not_be_written() {
    const NOBODY: u32 = 65534;
    let mut daemon = Daemon::start();
    Bystander::of(&daemon);
    assert_eq!(daemon.term(), Some(0));
    let dir = daemon.dir().to_owned();
    let mut setup = Setup::in_folder(&dir);
    if is_root() {
        if !is_on_path("setpriv") {
            return not_run("a data folder that may not be written", "root, and there is no setpriv (util-linux)");
        }
        // It may look at everything, and write nowhere but where its sockets go.
        for folder in [dir.parent().expect("above"), &dir, setup.config().parent().expect("its folder")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        chown(setup.socket().parent().expect("its folder"), Some(NOBODY), Some(NOBODY)).expect("an owner");
        setup = setup.under(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    } else {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).expect("a mode");
        for entry in fs::read_dir(&dir).expect("a list").flatten() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o444)).expect("a mode");
        }
    }
    refused(&setup, 1, &["ermission denied"]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = clactl_ends(0, &["verify", &dir.display().to_string()], b"");
    assert!(String::from_utf8_lossy(&output.stdout).contains("no damage"));
}

/// A start waits for the writes of a dead process, for as long as the disk has them. A signal to end is obeyed at once.
#[test]
fn a_start_that_waits_for_the_disk_can_be_stopped() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::start();
        Raw::producer(&daemon.socket()).0.append_acked(0, AckLevel::Durable, &[b"it is there"]);
        daemon.kill9();
        let segments = fs::read_dir(daemon.dir()).expect("a folder").map(|entry| entry.expect("a name").path());
        let segments: Vec<_> =
            segments.filter(|path| path.extension().is_some_and(|ending| ending == "clog")).collect();
        let held: Vec<_> = segments.iter().map(|path| fs::File::open(path).expect("a segment")).collect();
        held.iter().for_each(|file| file.lock_shared().expect("as a write that is under way holds it"));
        let waits = Running::start(&mut daemon.setup().command());
        assert!(
            waits.wait_for(OutputStream::Stderr, "waits for a dead process's writes", TEST_TIMEOUT),
            "{}",
            waits.said()
        );
        kill(Pid::from_raw(waits.pid() as i32), signal).expect("it is there");
        waits.wait_end(TEST_TIMEOUT).unwrap_or_else(|| panic!("it waits on:\n{}", waits.said()));
        assert_eq!(waits.code(), Some(1), "{}", waits.said());
        assert!(waits.said().contains("stopped before the log was open"), "{}", waits.said());
        drop(held);
        daemon.restart();
        assert_eq!(daemon.status().offsets.expect("offsets").durable, 1);
    }
}
