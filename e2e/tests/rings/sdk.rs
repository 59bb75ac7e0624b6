//! The SDK with a ring: records that are too long for it, threads, forks, another clock.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use clad_client::{AckLevel, AppendError, EncodeError, Producer, Record, ReserveError, SubmitError};
use clad_e2e::{Daemon, Setup, readback};

use crate::{producer, record, runtime, submit};

/// What the client of a test does, and the daemon's address.
const ROLE: &str = "CLAD_RINGS_SDK";
/// Threads that log at once.
const THREADS: u64 = 4;
/// Records of each.
const RECORDS_PER_THREAD: u64 = 3_000;
/// Records of a client.
const RECORDS_PER_CLIENT: u64 = 50;

fn bodies(daemon: &Daemon) -> Vec<String> {
    let all = runtime().block_on(readback::served(&daemon.address("unix")));
    all.into_iter().map(|stored| String::from_utf8(stored.body).expect("text")).collect()
}

/// The largest record that goes in, to the byte; one byte more is refused, by a type that names the limit.
#[test]
fn a_record_that_is_too_long_for_the_ring_is_refused_and_never_cut() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "64KiB").start();
    let producer = producer(&runtime, &daemon, "shm");
    let limit = producer.log().expect("greeted").max_append_bytes;
    assert!(limit < 16 * 1024, "a quarter of the ring holds an append and its header");
    let empty = {
        let mut batch = producer.batch();
        batch.push(&record(String::new())).expect("goes in");
        batch.len_bytes()
    };
    let longest = limit as usize - empty;
    let try_submit = |len: usize| {
        let room = producer.try_reserve(limit as usize * 2).expect("room");
        room.at(AckLevel::Durable).submit(&record("x".repeat(len)))
    };
    let receipt = runtime.block_on(try_submit(longest).expect("submitted")).expect("durable");
    assert_eq!(receipt.first_offset, Some(0));
    for over in [1, 2, 100, 1 << 20] {
        match try_submit(longest + over) {
            Err(SubmitError::Record { index: 0, error: error @ EncodeError::RecordTooLarge { len, max } }) => {
                assert!(len > max && error.to_string().contains(&max.to_string()), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    // What several records are together is refused as one, too.
    let half: Vec<Record> = (0..2).map(|_| record("y".repeat(longest / 2 + 64))).collect();
    let together = producer.try_reserve(limit as usize * 2).expect("room").submit_many(&half);
    assert!(
        matches!(&together, Err(SubmitError::Record { index: 1, error: EncodeError::AppendFull { .. } })),
        "{together:?}"
    );
    let receipt = runtime.block_on(try_submit(1).expect("submitted")).expect("durable");
    assert_eq!(receipt.first_offset, Some(1), "what was refused has no place");
    assert_eq!(bodies(&daemon), ["x".repeat(longest), "x".to_owned()]);
}

/// What was encoded before it was known how large the ring is.
#[test]
fn an_append_that_was_made_before_the_ring_is_refused_by_its_ticket() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "64KiB").start();
    let producer = {
        let _inside = runtime.enter();
        Producer::builder(daemon.address("shm").parse().expect("an address")).start().expect("started")
    };
    let mut batch = producer.batch();
    batch.push(&record("z".repeat(100_000))).expect("no limit is known but the default");
    let room = runtime.block_on(producer.reserve(batch.len_bytes())).expect("room");
    let outcome = runtime.block_on(room.at(AckLevel::Posted).submit_batch(&mut batch).expect("submitted"));
    match outcome {
        Err(error @ AppendError::TooLarge { len, max }) => {
            assert!(len > 100_000 && max < 16 * 1024 && error.to_string().contains(&max.to_string()), "{error}");
            assert!(!error.maybe_written() && !error.is_retryable());
        }
        other => panic!("{other:?}"),
    }
    runtime.block_on(submit(&producer, AckLevel::Durable, "small".to_owned())).expect("durable");
    assert_eq!(bodies(&daemon), ["small"]);
}

/// Threads of one process log at once by one producer: each one's records are there once, in its order.
#[test]
fn threads_log_at_once() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().start();
    let producer = producer(&runtime, &daemon, "shm");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let producer = &producer;
            // Some wait for answers, some do not; all by the same ring.
            let level = [AckLevel::Posted, AckLevel::Written][thread as usize % 2];
            scope.spawn(move || {
                for number in 0..RECORDS_PER_THREAD {
                    let ticket = submit(producer, level, format!("{thread}:{number}"));
                    if number % 100 == 0 {
                        ticket.wait(Duration::from_micros(20)).expect("reached");
                    }
                }
            });
        }
    });
    runtime.block_on(producer.flush(AckLevel::Written)).expect("written");
    let all = bodies(&daemon);
    for thread in 0..THREADS {
        let prefix = format!("{thread}:");
        let own: Vec<u64> = all.iter().filter_map(|body| body.strip_prefix(&prefix)?.parse().ok()).collect();
        assert_eq!(own, (0..RECORDS_PER_THREAD).collect::<Vec<_>>(), "thread {thread}");
    }
    assert_eq!(all.len() as u64, THREADS * RECORDS_PER_THREAD);
}

/// Not a test of its own: what a process does, and says about it.
#[test]
#[expect(clippy::print_stdout, reason = "it says what it saw")]
fn the_client() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, server) = role.split_once(' ').expect("a role and an address");
    let server: clad_client::Address = server.parse().expect("an address");
    // A child of `fork` has no threads of its parent, and locks as they were: with workers, those of a runtime too.
    let runtime = match role {
        "forks" => tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
        _ => runtime(),
    };
    let producer = runtime.block_on(Producer::builder(server.clone()).connect()).expect("connected");
    assert!(producer.has_ring(), "{:?}", producer.why_no_ring());
    match role {
        "forks" => {
            for number in 0..RECORDS_PER_CLIENT {
                // Until it has its receipt it may queue in the parent's memory.
                let ticket = submit(&producer, AckLevel::Posted, format!("parent:{number}"));
                runtime.block_on(ticket).expect("posted");
            }
            let room = producer.try_reserve(100).expect("room");
            // The parent ends here, without a word; what goes on is its child.
            nix::unistd::daemon(true, true).expect("forked");
            assert!(matches!(producer.try_reserve(100), Err(ReserveError::Forked)));
            let result = room.at(AckLevel::Posted).submit(&record("the parent's".to_owned()));
            assert!(matches!(result, Err(SubmitError::Forked)), "{result:?}");
            let own = crate::runtime();
            let mine = own.block_on(Producer::builder(server).connect()).expect("connected");
            assert!(mine.has_ring(), "{:?}", mine.why_no_ring());
            for number in 0..RECORDS_PER_CLIENT {
                drop(submit(&mine, AckLevel::Posted, format!("child:{number}")));
            }
            own.block_on(mine.flush(AckLevel::Durable)).expect("durable");
            println!("said: the child has a ring of its own");
            // Its parent's threads are not here, and a clean end would wait for them.
            let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        }
        "stops" => std::thread::scope(|scope| {
            let producer = &producer;
            let log = move |thread: &str| {
                for number in 0..RECORDS_PER_CLIENT {
                    let ticket = submit(producer, AckLevel::Durable, format!("{thread}{number}"));
                    ticket.wait(Duration::ZERO).expect("durable");
                }
            };
            // The one push that stops is among these.
            let first = scope.spawn(move || log("first"));
            while !first.is_finished() && producer.stats().submitted < RECORDS_PER_CLIENT / 2 {
                std::thread::yield_now();
            }
            log("second");
            assert!(!first.is_finished(), "it did not stop");
            println!("said: the others are durable");
            let file = std::env::var_os("CLAD_SHM_STOP_WHILE").expect("a file");
            std::fs::remove_file(file).expect("removed");
            first.join().expect("it goes on");
            println!("said: all are durable");
        }),
        "clock" => {
            for number in 0..RECORDS_PER_CLIENT {
                submit(&producer, AckLevel::Posted, format!("posted:{number}")).wait(Duration::ZERO).expect("posted");
            }
            let receipt =
                submit(&producer, AckLevel::Durable, "durable".to_owned()).wait(Duration::ZERO).expect("durable");
            println!("said: offset {:?}", receipt.first_offset);
        }
        other => panic!("{other}"),
    }
}

/// A thread that stops between any two steps of a push holds up the others of its process for a stated time only; when it
/// goes on, its record comes in, too.
#[test]
#[cfg(feature = "stop-points")]
fn a_thread_that_stops_in_the_middle_holds_up_nobody() {
    for (point, in_a_push) in
        [("push: reserved", 1), ("fill: payload, no header", 1), ("fill: header", 3), ("push: filled", 1)]
    {
        let daemon = Setup::new().with_fd_store().start();
        let file = daemon.setup().socket().with_extension("stopped");
        std::fs::write(&file, "").expect("made");
        let variables = [
            (clad_shm::stop::STOP, format!("{point}#{}", RECORDS_PER_CLIENT / 2 * in_a_push)),
            (clad_shm::stop::WHILE, file.display().to_string()),
        ];
        let said = client_with(&[], "stops", &daemon, &variables);
        assert_eq!(said, ["the others are durable", "all are durable"], "{point}");
        let all = bodies(&daemon);
        for thread in ["first", "second"] {
            let own: Vec<u64> = all.iter().filter_map(|body| body.strip_prefix(thread)?.parse().ok()).collect();
            assert_eq!(own, (0..RECORDS_PER_CLIENT).collect::<Vec<_>>(), "{point}: {thread}");
        }
        assert_eq!(all.len() as u64, 2 * RECORDS_PER_CLIENT);
    }
}

/// Runs the client, below another program perhaps; what it says.
fn client_says(below: &[&str], role: &str, daemon: &Daemon) -> Vec<String> {
    client_with(below, role, daemon, &[])
}

fn client_with(below: &[&str], role: &str, daemon: &Daemon, variables: &[(&str, String)]) -> Vec<String> {
    let own = std::env::current_exe().expect("this test").display().to_string();
    let words: Vec<&str> =
        below.iter().copied().chain([own.as_str(), "sdk::the_client", "--exact", "--nocapture"]).collect();
    let mut client = Command::new(words[0])
        .args(&words[1..])
        .env(ROLE, format!("{role} {}", daemon.address("shm")))
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a client");
    // Until nobody has its end any more, a child that it left among them.
    let lines = BufReader::new(client.stdout.take().expect("its output")).lines();
    let said = lines.map_while(Result::ok).filter_map(|line| Some(line.split_once("said: ")?.1.to_owned())).collect();
    client.wait().expect("ended");
    said
}

/// A child of `fork` never writes into its parent's ring, and gets one of its own when it asks. What the parent, which is
/// gone, had posted is there.
#[test]
fn a_child_of_fork_has_an_error_and_then_a_ring_of_its_own() {
    let daemon = Setup::new().with_fd_store().start();
    assert_eq!(client_says(&[], "forks", &daemon), ["the child has a ring of its own"]);
    daemon.wait_for_rings(0);
    runtime().block_on(async {
        let last =
            Producer::builder(daemon.address("unix").parse().expect("an address")).connect().await.expect("connected");
        last.append(&[record("last".to_owned())]).await.expect("durable");
    });
    let mut expected: Vec<String> = (0..RECORDS_PER_CLIENT).map(|number| format!("parent:{number}")).collect();
    expected.extend((0..RECORDS_PER_CLIENT).map(|number| format!("child:{number}")));
    expected.push("last".to_owned());
    assert_eq!(bodies(&daemon), expected);
}

/// A process whose monotonic clock is 100,000 s off logs as any other: nothing of a ring goes by its client's clock.
#[test]
#[ignore = "cargo xtask ci rings, as root"]
fn a_process_with_another_clock_logs_as_any_other() {
    for off in ["100000", "-100"] {
        let daemon = Setup::new().with_fd_store().start();
        let below = ["unshare", "--time", "--fork", "--monotonic", off];
        let said = client_says(&below, "clock", &daemon);
        assert_eq!(said, [format!("offset Some({RECORDS_PER_CLIENT})")], "{off}");
        let said = client_says(&[], "clock", &daemon);
        assert_eq!(said, [format!("offset Some({})", 2 * RECORDS_PER_CLIENT + 1)], "{off}");
        let once = || (0..RECORDS_PER_CLIENT).map(|number| format!("posted:{number}")).chain(["durable".to_owned()]);
        assert_eq!(bodies(&daemon), once().chain(once()).collect::<Vec<_>>());
    }
}
