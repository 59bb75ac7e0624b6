//! A child of `fork` that has a producer of its parent's, where there is no ring, or not yet: all that would wait for the
//! parent's threads, or for a lock that one of them held, is an error at once.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use clad_client::{AckLevel, AppendError, Producer, ReserveError, SubmitError};

use crate::{record, submit};

/// The address that the parent appends to.
const ADDRESS: &str = "CLAD_RINGS_FORKED";
/// Only what hangs takes longer.
const CHILD_TIMEOUT_SECONDS: u32 = 60;

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Not a test of its own: what the process does, and says about it.
#[test]
#[expect(clippy::print_stdout, reason = "it says what it saw")]
fn the_client() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let runtime = one_thread();
    let inside = runtime.enter();
    let producer = Producer::builder(address.parse().expect("an address")).start().expect("started");
    // Nobody answers there: it stays in the parent's memory.
    let [awaited, waited] = ["a", "b"].map(|text| submit(&producer, AckLevel::Written, text.to_owned()));
    let kept = producer.try_reserve(100).expect("room");
    let others = producer.clone();
    std::thread::spawn(move || {
        loop {
            drop((others.batch(), others.log())); // it has the locks most of the time
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    nix::unistd::daemon(true, true).expect("forked");
    nix::unistd::alarm::set(CHILD_TIMEOUT_SECONDS);
    drop(inside);
    let result = kept.submit(&record("c".to_owned()));
    assert!(matches!(result, Err(SubmitError::Forked)), "{result:?}");
    let result = producer.try_reserve(100);
    assert!(matches!(result, Err(ReserveError::Forked)), "{result:?}");
    let mut batch = producer.batch();
    batch.push(&record("d".to_owned())).expect("goes in");
    let result = producer.try_append_batch(&mut batch, None).map(drop);
    assert!(result.is_err() && !producer.try_send(&record("e".to_owned())), "{result:?}");
    assert!(producer.log().is_none() && producer.why_no_ring().is_none() && !producer.has_ring());
    let result = waited.wait(Duration::ZERO);
    assert!(matches!(result, Err(AppendError::Forked)), "{result:?}");
    one_thread().block_on(async {
        let result = awaited.await;
        assert!(matches!(result, Err(AppendError::Forked)), "{result:?}");
        let result = producer.reserve(100).await;
        assert!(matches!(result, Err(ReserveError::Forked)), "{result:?}");
        let result = producer.flush(AckLevel::Written).await;
        assert!(matches!(result, Err(AppendError::Forked)), "{result:?}");
        let result = producer.clone().close().await.map(drop);
        assert!(matches!(result, Err(AppendError::Forked)), "{result:?}");
    });
    drop(producer);
    println!("said: all are errors");
    // Its parent's threads are not here, and a clean end would wait for them.
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
}

#[test]
fn a_child_of_fork_waits_for_nothing_of_its_parents() {
    let own = std::env::current_exe().expect("this test");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let nobody = std::env::temp_dir().join("clad-nobody-listens-here.sock");
    for address in [
        format!("unix://{}", nobody.display()),
        format!("tcp://127.0.0.1:{port}"),
        format!("grpc://127.0.0.1:{port}"),
        format!("shm://{}", nobody.display()),
    ] {
        let mut client = Command::new(&own)
            .args(["forked::the_client", "--exact", "--nocapture"])
            .env(ADDRESS, &address)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a client");
        // Until nobody has its end any more: the child has it.
        let lines = BufReader::new(client.stdout.take().expect("its output")).lines();
        let said = lines.map_while(Result::ok).any(|line| line.contains("said: all are errors"));
        client.wait().expect("ended");
        assert!(said, "{address}");
    }
}
