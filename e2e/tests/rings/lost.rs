//! What a ring had given back is in the log alone; when the log is lost while its client is away, a flush says so.

use std::path::Path;
use std::process::Command;

use clad_client::{AckLevel, AppendError, Producer};
use clad_e2e::{Daemon, Setup};

use crate::{producer, runtime, submit};

#[test]
fn a_flush_reports_a_log_lost_while_the_daemon_was_down() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let client = producer(&runtime, &daemon, "shm");
    let before = runtime.block_on(submit(&client, AckLevel::Written, "in the log that is lost".to_owned()));
    let before = before.expect("written").log_id;
    wait_released(&daemon);
    daemon.kill9();
    std::fs::rename(daemon.dir(), daemon.dir().with_extension("away")).expect("moved");
    daemon.restart();
    let error = runtime.block_on(client.flush(AckLevel::Durable)).expect_err("it is lost");
    assert!(matches!(error, AppendError::Lost), "{error}");
    runtime.block_on(client.flush(AckLevel::Durable)).expect("it was reported");
    let after = runtime.block_on(submit(&client, AckLevel::Durable, "in the next".to_owned())).expect("durable");
    assert_eq!((after.first_offset, Some(after.log_id)), (Some(0), client.log().map(|log| log.log_id)));
    assert!(client.has_ring() && after.log_id != before, "by the same ring, in another log");
}

fn wait_released(daemon: &Daemon) {
    daemon.wait_until("its space is given back", |status| status.rings.as_ref().is_some_and(|r| r.used_bytes == 0));
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success());
}

/// A backup of the folder is put back: the same log, which ends before what the ring had given back, and never knew its
/// producer. It is reported until a flush has heard of it, whatever daemons die before, and not again.
#[test]
fn a_flush_reports_a_restored_backup() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let log = |daemon: &Daemon, text: &str| {
        let client = producer(&runtime, daemon, "unix");
        runtime.block_on(submit(&client, AckLevel::Written, text.to_owned())).expect("written");
        runtime.block_on(client.close()).expect("flushed");
    };
    log(&daemon, "in the backup");
    assert_eq!(daemon.term(), Some(0));
    let backup = daemon.dir().with_extension("backup");
    copy(daemon.dir(), &backup);
    daemon.restart();
    let client = producer(&runtime, &daemon, "shm");
    let write = |daemon: &Daemon, client: &Producer, text: &str| {
        let receipt = runtime.block_on(submit(client, AckLevel::Written, text.to_owned())).expect("written");
        wait_released(daemon);
        receipt.log_id
    };
    let before = write(&daemon, &client, "not in the backup");
    daemon.kill9();
    daemon.restart();
    daemon.wait_for_rings(1);
    runtime.block_on(client.flush(AckLevel::Durable)).expect("nothing is lost by a death");
    daemon.kill9();
    std::fs::rename(daemon.dir(), daemon.dir().with_extension("away")).expect("moved");
    copy(&backup, daemon.dir());
    daemon.restart();
    // Others go on behind the backup's end, past where it was.
    (0..3).for_each(|n| log(&daemon, &n.to_string()));
    assert_eq!(write(&daemon, &client, "the ring goes on"), before, "the same log");
    daemon.kill9();
    daemon.restart();
    let error = runtime.block_on(client.flush(AckLevel::Durable)).expect_err("it is lost");
    assert!(matches!(error, AppendError::Lost), "{error}");
    runtime.block_on(client.flush(AckLevel::Durable)).expect("it was reported");
    write(&daemon, &client, "it was reported");
    daemon.kill9();
    daemon.restart();
    runtime.block_on(client.flush(AckLevel::Durable)).expect("it was reported, and all since is there");
}
