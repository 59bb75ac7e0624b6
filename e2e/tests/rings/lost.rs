//! What a ring had given back is in the log alone; when the log is lost while its client is away, a flush says so.

use clad_client::{AckLevel, AppendError};
use clad_e2e::Setup;

use crate::{producer, runtime, submit};

#[test]
fn a_flush_tells_of_a_log_that_was_lost_while_nobody_ran() {
    let runtime = runtime();
    let mut daemon = Setup::new().start();
    let client = producer(&runtime, &daemon, "shm");
    let before = runtime.block_on(submit(&client, AckLevel::Written, "in the log that is lost".to_owned()));
    let before = before.expect("written").log_id;
    daemon.wait_until("its space is given back", |status| status.rings.as_ref().is_some_and(|r| r.used_bytes == 0));
    daemon.kill9();
    std::fs::rename(daemon.dir(), daemon.dir().with_extension("away")).expect("moved");
    daemon.restart();
    let told = runtime.block_on(client.flush(AckLevel::Durable)).expect_err("it is lost");
    assert!(matches!(told, AppendError::Lost), "{told}");
    runtime.block_on(client.flush(AckLevel::Durable)).expect("it was told");
    let after = runtime.block_on(submit(&client, AckLevel::Durable, "in the next".to_owned())).expect("durable");
    assert_eq!((after.first_offset, Some(after.log_id)), (Some(0), client.log().map(|log| log.log_id)));
    assert!(client.has_ring() && after.log_id != before, "by the same ring, in another log");
}
