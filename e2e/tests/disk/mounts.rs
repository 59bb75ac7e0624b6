//! What the log stands on: read-only, in memory, another file system.

use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::{AckLevel, ErrorCode};

use crate::{append, records, remount, small, stored};

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
