//! The reactor with real sockets: no task is forgotten, no task waits for another's disk, and nothing is burnt.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use std::io::{Read, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::poll::Backoff;
use super::{DEFERRED_WRITE_DELAY_MAX, DEFERRED_WRITE_TASKS_MAX, DeferralLimit, Reactor, Socket, THREAD_DESCRIPTION};
use crate::defect::tests::ends_by_a_panic;

/// Only what hangs takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn reactor(threads: usize) -> (Runtime, Reactor) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let reactor = Reactor::start(threads, runtime.handle()).unwrap();
    (runtime, reactor)
}

fn pair(reactor: &Reactor) -> (UnixStream, (Socket, Socket)) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    (near, reactor.adopt(far).unwrap())
}

/// Answers each byte with the next one.
async fn echo(rd: &mut Socket, wr: &mut Socket) {
    let mut bytes = [0; 64];
    while let Ok(read @ 1..) = rd.read(&mut bytes).await {
        let answer: Vec<u8> = bytes[..read].iter().map(|byte| byte.wrapping_add(1)).collect();
        if wr.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn ask(near: &mut UnixStream, byte: u8) {
    near.write_all(&[byte]).unwrap();
    let mut answer = [0];
    near.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], byte.wrapping_add(1));
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Turns that threads began and ended, once no thread is within one, and none has begun for a while.
fn at_rest(reactor: &Reactor) -> u64 {
    let began = Instant::now();
    loop {
        let before: Vec<u64> = reactor.turns().collect();
        thread::sleep(Duration::from_millis(50));
        if reactor.turns().eq(before.iter().copied()) && before.iter().all(|turns| turns % 2 == 0) {
            return before.iter().sum();
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "they never come to rest");
    }
}

#[test]
fn many_connections_each_get_every_answer_and_end() {
    let (_runtime, reactor) = reactor(2);
    let ended = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..12u8 {
            let (mut near, (mut rd, mut wr)) = pair(&reactor);
            let ended = ended.clone();
            reactor.spawn(async move {
                echo(&mut rd, &mut wr).await;
                ended.fetch_add(1, Ordering::SeqCst);
            });
            scope.spawn(move || {
                for n in 0..500u32 {
                    ask(&mut near, (n as u8).wrapping_add(client));
                }
            });
        }
    });
    until("the ends", || ended.load(Ordering::SeqCst) == 12);
    until("what the sockets left", || reactor.0.0.sources.is_empty());
}

/// A thread in a call that lasts (as one at a disk is) holds up its own task alone, whichever thread led before.
#[test]
fn a_thread_that_blocks_holds_up_no_socket() {
    let (_runtime, reactor) = reactor(2);
    let (mut near, (mut rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move { echo(&mut rd, &mut wr).await });
    for _ in 0..50 {
        ask(&mut near, 1);
        let (release, blocked) = mpsc::sync_channel::<()>(1);
        let (began, begins) = mpsc::sync_channel(1);
        reactor.spawn(async move {
            began.send(()).unwrap();
            let _ = blocked.recv();
        });
        begins.recv_timeout(TEST_TIMEOUT).unwrap();
        for n in 0..20 {
            ask(&mut near, n);
        }
        drop(release);
    }
}

/// From threads that are no ingest threads, at any moment: while it sleeps, while it looks, while it runs.
#[test]
fn what_others_make_ready_is_run() {
    let (runtime, reactor) = reactor(2);
    let counted = Arc::new(AtomicU64::new(0));
    let (there, mut here) = tokio::sync::mpsc::channel::<u64>(1);
    let sum = counted.clone();
    reactor.spawn(async move {
        while let Some(n) = here.recv().await {
            sum.fetch_add(n, Ordering::SeqCst);
        }
        sum.fetch_add(1_000_000, Ordering::SeqCst);
    });
    thread::spawn(move || {
        for n in 0..3_000u64 {
            there.blocking_send(1).unwrap();
            if n % 100 == 0 {
                thread::sleep(Duration::from_micros(n)); // long enough to fall asleep
            }
        }
    });
    until("all of it", || counted.load(Ordering::SeqCst) == 1_003_000);
    // A timer is the runtime's, and wakes a task here.
    let timed = counted.clone();
    reactor.spawn(async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        timed.store(7, Ordering::SeqCst);
    });
    until("the timer", || counted.load(Ordering::SeqCst) == 7);
    drop(runtime);
}

#[test]
fn more_than_a_socket_takes_waits_for_room_and_an_end_is_read_after_what_came_before_it() {
    let (_runtime, reactor) = reactor(2);
    let (mut near, (mut rd, mut wr)) = pair(&reactor);
    let (sender, receiver) = mpsc::sync_channel(1);
    reactor.spawn(async move {
        wr.write_all(&vec![5; 4 << 20]).await.unwrap();
        let mut all = Vec::new();
        rd.read_to_end(&mut all).await.unwrap();
        sender.send(all.len()).unwrap();
        wr.shutdown().await.unwrap();
    });
    near.write_all(&[9; 1000]).unwrap();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    near.read_to_end(&mut all).unwrap();
    assert!(all.len() == 4 << 20 && all.iter().all(|byte| *byte == 5));
    assert_eq!(receiver.recv_timeout(TEST_TIMEOUT).unwrap(), 1000);
}

#[test]
fn who_never_has_enough_starves_nobody_and_who_panics_ends_alone() {
    let (_runtime, reactor) = reactor(2);
    for _ in 0..3 {
        let (mut near, (mut rd, _wr)) = pair(&reactor);
        reactor.spawn(async move {
            let mut bytes = [0; 16]; // as if it were a flood: there is always more
            while let Ok(1..) = rd.read(&mut bytes).await {}
        });
        thread::spawn(move || while near.write_all(&[0; 65_536]).is_ok() {});
    }
    reactor.spawn(async { panic!("on purpose") });
    let (mut near, (mut rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move { echo(&mut rd, &mut wr).await });
    for n in 0..200 {
        ask(&mut near, n);
    }
}

/// More tasks than threads that are ready again as soon as they have had their turn: no thread ever has nothing to do.
#[test]
fn tasks_that_are_always_ready_keep_nobody_from_being_heard() {
    let (_runtime, reactor) = reactor(2);
    let (mut there_before, (mut rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move { echo(&mut rd, &mut wr).await });
    ask(&mut there_before, 1);
    let ended = Arc::new(AtomicBool::new(false));
    for _ in 0..3 {
        let ended = ended.clone();
        reactor.spawn(async move {
            while !ended.load(Ordering::SeqCst) {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(200) {}
                tokio::task::yield_now().await;
            }
        });
    }
    thread::sleep(Duration::from_millis(50)); // all of them are on their way, and no thread looks any more
    let (mut new, (mut rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move { echo(&mut rd, &mut wr).await });
    for n in 0..20 {
        ask(&mut there_before, n);
        ask(&mut new, n);
    }
    ended.store(true, Ordering::SeqCst);
}

/// The kernel reports room to write each time a peer has read; that wakes no task that waits for none, or once did.
#[test]
fn who_takes_an_answer_wakes_nobody() {
    const ANSWERS: usize = 100;
    const OVERSIZED_WRITE_BYTES: usize = 4 << 20;
    let (_runtime, reactor) = reactor(2);
    let (mut near, (mut rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move {
        let mut asked = [0];
        rd.read_exact(&mut asked).await.unwrap();
        wr.write_all(&vec![0; OVERSIZED_WRITE_BYTES]).await.unwrap();
        while let Ok(1) = rd.read(&mut asked).await {
            for n in 0..ANSWERS {
                wr.write_all(&[n as u8]).await.unwrap();
            }
        }
    });
    near.write_all(&[0]).unwrap();
    near.read_exact(&mut vec![0; OVERSIZED_WRITE_BYTES]).unwrap();
    near.write_all(&[0]).unwrap();
    near.write_all(&[0]).unwrap();
    near.read_exact(&mut [0; ANSWERS]).unwrap();
    // The second ones are there, and it waits for a third question.
    until("the second ones", || rustix::io::ioctl_fionread(&near).unwrap() == ANSWERS as u64);
    let before = at_rest(&reactor);
    for _ in 0..ANSWERS {
        near.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(at_rest(&reactor), before);
}

/// The kernel would report again and again that it has closed, and that is no room.
#[test]
fn who_has_closed_its_side_and_takes_nothing_wakes_nobody() {
    const OVERSIZED_WRITE_BYTES: usize = 4 << 20;
    let (_runtime, reactor) = reactor(2);
    let (mut near, (_rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move { wr.write_all(&vec![7; OVERSIZED_WRITE_BYTES]).await.unwrap() });
    near.read_exact(&mut [0]).unwrap();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    at_rest(&reactor);
    near.read_exact(&mut vec![0; OVERSIZED_WRITE_BYTES - 1]).unwrap();
}

#[test]
fn with_the_last_handle_the_threads_end() {
    let (_runtime, reactor) = reactor(3);
    let shared = Arc::downgrade(&reactor.0.0);
    let (mut near, (mut rd, mut wr)) = pair(&reactor);
    reactor.spawn(async move { echo(&mut rd, &mut wr).await });
    ask(&mut near, 1);
    let clone = reactor.clone();
    drop(reactor);
    ask(&mut near, 2);
    drop(near); // a connection that is open keeps what it needs
    until("the connection's end", || clone.0.0.sources.is_empty());
    drop(clone);
    until("the end of the threads", || shared.upgrade().is_none());
}

/// A connection that a stop did not wait for has a timer. The timer wakes it when the runtime goes, and panics if it is
/// polled then. Another connection has always something to do.
#[test]
fn once_it_was_ended_no_task_runs() {
    let (runtime, reactor) = reactor(2);
    let runs = Arc::new(AtomicU64::new(0));
    let (waits, busy) = (runs.clone(), runs.clone());
    reactor.spawn(async move {
        let mut sleep = pin!(tokio::time::sleep(TEST_TIMEOUT));
        std::future::poll_fn(|context| {
            waits.fetch_add(1, Ordering::SeqCst);
            sleep.as_mut().poll(context)
        })
        .await;
    });
    reactor.spawn(std::future::poll_fn(move |context| {
        busy.fetch_add(1, Ordering::SeqCst);
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    }));
    until("both", || runs.load(Ordering::SeqCst) > 10);
    assert!(reactor.end(TEST_TIMEOUT / 10), "the threads are gone");
    let before = runs.load(Ordering::SeqCst);
    drop(runtime);
    assert!(reactor.end(TEST_TIMEOUT / 10), "also where it was ended");
    assert_eq!(runs.load(Ordering::SeqCst), before);
}

#[test]
fn it_looks_only_after_short_waits_and_a_long_one_ends_that() {
    let (short, long) = (Duration::from_micros(3), Duration::from_millis(1));
    let mut backoff = Backoff::for_processors(2);
    let waits = |backoff: &mut Backoff, times: u32, wait| (0..times).for_each(|_| backoff.waited(wait));
    assert!(!backoff.should_spin(Duration::ZERO), "a new thread sleeps");
    waits(&mut backoff, 3, short);
    assert!(!backoff.should_spin(Duration::ZERO));
    waits(&mut backoff, 1, short);
    assert!(
        backoff.should_spin(Duration::ZERO) && backoff.should_spin(short) && !backoff.should_spin(long),
        "and not for long"
    );
    waits(&mut backoff, 1, long);
    assert!(!backoff.should_spin(Duration::ZERO));
    waits(&mut backoff, 3, short);
    assert!(!backoff.should_spin(Duration::ZERO));
    let mut alone = Backoff::for_processors(1);
    waits(&mut alone, 100, short);
    assert!(!alone.should_spin(Duration::ZERO), "what it waits for cannot happen meanwhile");
}

/// State that a thread holds between its tasks would be held for ever: a process of its own shows how that ends.
#[test]
fn a_panic_outside_of_a_task_ends_the_process() {
    const HERE: &str = "CLAD_TEST_PANIC_OUTSIDE_OF_A_TASK";
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose, where an event is reported");
        }
    }
    if std::env::var_os(HERE).is_some() {
        let (_runtime, reactor) = reactor(2);
        let (mut near, (mut rd, _wr)) = pair(&reactor);
        let (waits, it_waits) = mpsc::sync_channel(1);
        reactor.spawn(async move {
            let mut byte = [0];
            let mut read = pin!(rd.read(&mut byte));
            assert!(read.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
            waits.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        it_waits.recv_timeout(TEST_TIMEOUT).unwrap();
        near.write_all(b"x").unwrap();
        thread::sleep(TEST_TIMEOUT);
        return;
    }
    ends_by_a_panic(module_path!(), "a_panic_outside_of_a_task_ends_the_process", HERE, THREAD_DESCRIPTION);
}

#[test]
fn a_deferred_write_is_bounded_by_tasks_and_time() {
    let began = Instant::now();
    let may_run_task = |deferral: &mut DeferralLimit, after| deferral.may_run_task(true, began + after);
    let mut many = DeferralLimit::default();
    assert!((0..DEFERRED_WRITE_TASKS_MAX).all(|_| may_run_task(&mut many, Duration::ZERO)));
    assert!(!may_run_task(&mut many, Duration::ZERO), "one task too many");
    let mut long = DeferralLimit::default();
    assert!(may_run_task(&mut long, Duration::ZERO) && may_run_task(&mut long, DEFERRED_WRITE_DELAY_MAX / 2));
    assert!(!may_run_task(&mut long, DEFERRED_WRITE_DELAY_MAX), "two tasks that took too long");
    assert!(
        long.may_run_task(false, began + DEFERRED_WRITE_DELAY_MAX)
            && may_run_task(&mut long, DEFERRED_WRITE_DELAY_MAX * 2),
        "no write was deferred between"
    );
}
