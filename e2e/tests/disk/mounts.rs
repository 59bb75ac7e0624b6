//! What the log stands on: read-only, in memory, another file system.

use std::fs;
use std::process::Command;

use clad_e2e::tool::clactl_ends;
use clad_e2e::web::page;
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::{AckLevel, ErrorCode};

use crate::{append, mount_point, records, remount, small, stored};

#[test]
#[ignore = "cargo xtask ci disk"]
fn is_read_only() {
    let mut daemon = small().start();
    append(&mut Raw::producer(&daemon.socket()).0, AckLevel::Durable, 0..10);
    assert_eq!(daemon.term(), Some(0));
    remount("ro");
    let ended = daemon.setup().run_to_end();
    assert_eq!(ended.code, Some(1), "{}", ended.said);
    assert!(ended.said.to_lowercase().contains("read-only"), "{}", ended.said);
    // It can be read and checked all the same.
    let dir = daemon.dir().display().to_string();
    let output = clactl_ends(0, &["query", "--dir", &dir, "-o", "cat"], b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 10);
    clactl_ends(0, &["verify", &dir], b"");
    remount("rw");
    daemon.restart();
    assert_eq!(stored(&daemon), records(0..10));
}

/// An error of the file system makes it read-only under a daemon that runs: readers go on, appends are refused, and the daemon
/// stays. Mounted again, everything that was acknowledged is there.
#[test]
#[ignore = "cargo xtask ci disk"]
fn becomes_read_only() {
    let mut daemon = small().start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    append(&mut raw, AckLevel::Durable, 0..10);
    remount("errors=remount-ro");
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
    let point = mount_point().display().to_string();
    let device = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&point)).expect("it is mounted");
    let device = device.split(' ').next().expect("a device").to_owned();
    let name = device.strip_prefix("/dev/").expect("a device");
    fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "a test").expect("ext4 takes an error");

    raw.append(10, AckLevel::Durable, &[b"record 10"]);
    let status = daemon.wait_until("it has failed", |status| status.failed);
    // Answered at once, where it would wait for as long as the disk is broken.
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let said = clactl_ends(1, &["sync", "--admin", &admin], b"");
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("the journal has failed"), "{said}");
    assert!(!status.ready && status.failure.contains("ead-only"), "{status:?}");
    assert_eq!(status.offsets.map(|offsets| offsets.durable), Some(10), "{status:?}");
    let pages = daemon.port("metrics");
    assert_eq!(page(pages, "/readyz").0, 503);
    assert!(page(pages, "/healthz").0 == 200, "it serves readers");
    assert_eq!(stored(&daemon), records(0..10));
    let (mut other, _) = Raw::producer(&daemon.socket());
    other.append(0, AckLevel::Durable, &[b"refused"]);
    let error = other.refused().error;
    assert!(error.retryable && !error.maybe_written, "{error}");

    // Ext4 does not become writable again but by a new mount.
    assert_eq!(daemon.term(), Some(1), "an end that is not clean: {}", daemon.said());
    let said = daemon.said();
    assert!(said.contains("not written yet is lost (1 records, offsets 10 to 10)"), "{said}");
    for words in [vec!["umount", &point], vec!["mount", &device, &point]] {
        let output = Command::new(words[0]).args(&words[1..]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
    daemon.restart();
    let found = stored(&daemon);
    assert!(found.len() >= 10 && found[..] == records(0..found.len() as u64)[..], "{found:?}");
    append(&mut Raw::producer(&daemon.socket()).0, AckLevel::Durable, 0..1);
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}

#[test]
#[ignore = "cargo xtask ci disk"]
fn is_in_memory() {
    let mut daemon = Daemon::start();
    daemon.wait_said("memory");
    let status = daemon.status();
    assert_eq!(status.substrate.expect("substrate").filesystem, "tmpfs");
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.highest_ack, AckLevel::Written);
    raw.append(0, AckLevel::Durable, &[b"more than there is"]);
    let error = raw.refused().error;
    assert_eq!((error.code, error.retryable), (ErrorCode::LevelUnreachable, false), "{error}");
    for transport in ["unix", "tcp", "grpc"] {
        let server = daemon.address(transport);
        let output = clactl_ends(1, &["append", "--server", &server, "--ack", "durable"], b"x\n");
        assert!(String::from_utf8_lossy(&output.stderr).contains("written"), "{output:?}");
    }
    assert_eq!(raw.flush(AckLevel::Durable).expect_err("no flush either").code, ErrorCode::LevelUnreachable);
    append(&mut raw, AckLevel::Written, 0..100);
    daemon.kill9();
    daemon.restart();
    assert_eq!(stored(&daemon), records(0..100), "`written` survives the death of the daemon");
    // A person sees why.
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let text = clactl_ends(0, &["status", "--admin", &admin], b"").stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("tmpfs") && text.contains("highest ack written"), "{text}");
    // And nothing is called durable that is not.
    assert!(text.contains("synced (not durable here)"), "{text}");
    let output = clactl_ends(1, &["sync", "--admin", &admin], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing can be made durable"), "{output:?}");
}

/// An ext4 without a journal: `durable` is refused, and offered on the operator's word; `check` and `status` say why.
#[test]
#[ignore = "cargo xtask ci disk"]
fn has_no_journal() {
    let daemon = Setup::new().set("journal.power_loss_protected", "false").start();
    daemon.wait_said("shows no journal");
    daemon.wait_said("or state journal.power_loss_protected = true");
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.highest_ack, AckLevel::Written);
    raw.append(0, AckLevel::Durable, &[b"more than there is"]);
    assert_eq!(raw.refused().error.code, ErrorCode::LevelUnreachable);
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let text = String::from_utf8_lossy(&clactl_ends(0, &["status", "--admin", &admin], b"").stdout).into_owned();
    assert!(text.contains("highest ack written") && text.contains("has no journal"), "{text}");
    drop(daemon);
    let check = Setup::new().set("journal.power_loss_protected", "false").arguments(&["check"]).run_to_end();
    assert!(check.printed.contains("shows no journal"), "{}{}", check.printed, check.said);
    assert!(check.printed.contains("or state journal.power_loss_protected = true"), "{}", check.printed);
    let daemon = Setup::new().set("journal.power_loss_protected", "true").start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.highest_ack, AckLevel::Durable);
    append(&mut raw, AckLevel::Durable, 0..10);
}

/// A log on this file system, whatever it is: written, killed, read, checked, under each policy.
#[test]
#[ignore = "cargo xtask ci disk"]
fn holds_a_log() {
    for policy in ["group_commit", "per_message", "fire_and_forget"] {
        let mut daemon = Setup::new().set("journal.durability", policy).start();
        let (mut raw, welcome) = Raw::producer(&daemon.socket());
        let level = if policy == "fire_and_forget" { AckLevel::Written } else { AckLevel::Durable };
        assert_eq!(welcome.highest_ack, level, "{policy}");
        append(&mut raw, level, 0..500);
        daemon.admin().rotate().expect("rotated");
        append(&mut raw, level, 500..600);
        daemon.kill9();
        daemon.restart();
        assert_eq!(stored(&daemon), records(0..600), "{policy}");
        let (mut raw, _) = Raw::resume(&daemon.socket(), welcome.producer_id);
        append(&mut raw, level, 600..700);
        assert_eq!(daemon.term(), Some(0));
        clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
        daemon.restart();
        assert_eq!(stored(&daemon), records(0..700), "{policy}");
    }
}
