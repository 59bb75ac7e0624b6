//! The example `client-sdk/examples/audit.rs`: nothing is done without its record, also while the daemon dies and is away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_e2e::{Setup, TEST_TIMEOUT, readback};

#[path = "../../../client-sdk/examples/audit.rs"]
#[allow(dead_code)] // its `main`
mod example;

const RECORD_TIMEOUT: Duration = Duration::from_millis(50);
/// Actions between two deaths of the daemon.
const ACTIONS: usize = 50;
const DEATHS: usize = 4;

#[derive(Default)]
struct Seen {
    done: Vec<String>,
    refused: Vec<String>,
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TEST_TIMEOUT, "not within {TEST_TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nothing_is_done_without_its_record() {
    let mut daemon = Setup::new().fixed_ports().start();
    let trail = example::trail(daemon.address("unix").parse().expect("an address"), RECORD_TIMEOUT).expect("a trail");
    let (seen, over) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
    let user = {
        let (seen, over) = (seen.clone(), over.clone());
        std::thread::spawn(move || {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let what = format!("action {number}");
                let done = example::audited(&trail, &what, || seen.lock().expect("no panic").done.push(what.clone()));
                if done.is_err() {
                    seen.lock().expect("no panic").refused.push(what);
                }
            }
        })
    };
    let count = |of: fn(&Seen) -> &Vec<String>| of(&seen.lock().expect("no panic")).len();
    for _ in 0..DEATHS {
        let (done, refused) = (count(|seen| &seen.done), count(|seen| &seen.refused));
        until("actions are done", || count(|seen| &seen.done) >= done + ACTIONS);
        daemon.kill9();
        until("an action is refused", || count(|seen| &seen.refused) > refused);
        daemon.restart();
    }
    // It has the record, and neither answers nor hangs up: the user is refused all the same.
    let (done, refused) = (count(|seen| &seen.done), count(|seen| &seen.refused));
    until("actions are done", || count(|seen| &seen.done) >= done + ACTIONS);
    daemon.signal(nix::sys::signal::Signal::SIGSTOP);
    until("an action is refused", || count(|seen| &seen.refused) > refused);
    daemon.signal(nix::sys::signal::Signal::SIGCONT);
    over.store(true, Ordering::Relaxed);
    user.join().expect("no panic");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut stored: HashMap<String, u64> = HashMap::new();
    for record in runtime.block_on(readback::served(&daemon.address("unix"))) {
        *stored.entry(String::from_utf8_lossy(&record.body).into_owned()).or_default() += 1;
    }
    let seen = seen.lock().expect("no panic");
    for what in &seen.done {
        assert_eq!(stored.get(what), Some(&1), "{what} was done");
    }
    for what in &seen.refused {
        assert!(stored.get(what).is_none_or(|times| *times == 1), "{what} was refused, and is there more than once");
    }
}
