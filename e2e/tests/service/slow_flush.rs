//! A device that takes very long to flush, and a daemon that hangs: the one is waited for, the other is not hidden.
//!
//! The flush is held in the daemon's own threads ([`Holder`]), so that plain writes go on, as on a disk whose cache takes
//! writes while it flushes. Nothing here waits for a time but what has its bound in the daemon: five seconds until the
//! disk is called slow, and five for room.

use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::admin::Admin;
use clad_e2e::grpc::Call;
use clad_e2e::hold::{Holder, threads};
use clad_e2e::manager::Manager;
use clad_e2e::raw::{hello_reader, payload};
use clad_e2e::tool::{OutputStream, Running, clactl, clactl_ends};
use clad_e2e::web::{metrics, page};
use clad_e2e::{Raw, Setup, TEST_TIMEOUT, is_root, not_run};
use clad_proto::AckLevel::{Durable, Received, Written};
use clad_proto::frame::Frame;
use clad_proto::{ErrorCode, ErrorInfo};
use nix::sys::signal::Signal;
use tokio::sync::oneshot;

/// Between two words to the watchdog: half of what the manager says.
const WATCHDOG_PERIOD: Duration = Duration::from_millis(100);
const BUDGET_BYTES: u64 = 1 << 20;
const SHARE_BYTES: u64 = 384 << 10;
const BODY_BYTES: usize = 60 << 10;

/// A daemon under a service manager, its pages, and its threads that write.
struct Watched {
    // Before its folders, which can be removed only when nobody writes there.
    process: Running,
    setup: Setup,
    manager: Manager,
    pages: std::net::SocketAddr,
}

impl Watched {
    fn start(setup: Setup) -> Self {
        let setup = setup
            .set("journal.io_engine", "blocking") // what a ring does is no call of a thread
            .set("limits.max_inflight_bytes", &BUDGET_BYTES.to_string())
            .set("limits.max_connection_inflight_bytes", &SHARE_BYTES.to_string())
            .set("limits.max_append_bytes", "128KiB")
            .set("journal.max_record_bytes", "128KiB");
        let manager = Manager::new();
        let period = (2 * WATCHDOG_PERIOD).as_micros().to_string();
        let process = manager.start(setup.command().env("WATCHDOG_USEC", period));
        manager.recv_until("READY=1");
        let status = Admin::at(&setup.admin_socket()).status().expect("a status");
        let pages = status.listeners["metrics"].parse().expect("an address");
        Self { setup, manager, process, pages }
    }

    fn producer(&self) -> Raw {
        Raw::producer(&self.setup.socket()).0
    }

    fn writers(&self) -> Vec<(i32, String)> {
        threads(self.process.pid(), |name| name.starts_with("clad-write"))
    }

    /// Those that may be at the disk for an append: who read it may write it.
    fn flushers(&self) -> Vec<(i32, String)> {
        threads(self.process.pid(), |name| name.starts_with("clad-write") || name.starts_with("clad-ingest"))
    }

    /// The watchdog is not notified, in ten periods. A notification that was under way may still come before.
    fn is_silent(&self, what: &str) {
        self.manager.barks_within(3 * WATCHDOG_PERIOD);
        let barks = self.manager.barks_within(10 * WATCHDOG_PERIOD);
        assert_eq!(barks, 0, "{what}: held, and the watchdog was notified");
    }

    /// The watchdog is notified again.
    fn check_bark(&self, what: &str) {
        self.manager.recv_until("WATCHDOG=1");
        assert!(self.manager.barks_within(10 * WATCHDOG_PERIOD) > 0, "{what}: goes on, and there was one notification");
    }

    /// Ends it as the manager would; what it holds then, by number and in the files.
    fn ends_well(self, records: u64) {
        let mut reader = Raw::unix(&self.setup.socket());
        reader.greet(&hello_reader()).expect("WELCOME");
        let (got, _) = reader.read_from(0, Written).expect("a read");
        assert_eq!(got.len() as u64, records);
        drop(reader);
        self.process.send(Signal::SIGTERM);
        self.process.wait_end(TEST_TIMEOUT).expect("it ends");
        assert_eq!(self.process.code(), Some(0), "{}", self.process.said());
        clactl_ends(0, &["verify", &self.setup.dir().display().to_string()], b"");
    }
}

/// Sends appends of [`BODY_BYTES`] until one is refused: how many were taken, and the refusal.
fn fill(raw: &mut Raw) -> (u64, ErrorInfo) {
    fill_from(raw, 0)
}

fn fill_from(raw: &mut Raw, first: u64) -> (u64, ErrorInfo) {
    let body = payload(&[&[b'f'; BODY_BYTES]]);
    for taken in 0..2 * BUDGET_BYTES / BODY_BYTES as u64 {
        raw.append_payload(first + taken, Received, false, &body);
        match raw.answer() {
            Frame::Accepted(_) => {}
            Frame::Refused(refused) => return (taken, refused.error),
            other => panic!("{other:?}"),
        }
    }
    panic!("more than twice the budget was taken");
}

/// Refused at a bound: for now, and certainly not written.
fn is_for_now(error: &ErrorInfo) {
    assert_eq!((error.code, error.retryable, error.maybe_written), (ErrorCode::Busy, true, false), "{error:?}");
    assert!(error.retry_after_ms.is_some(), "{error:?}");
}

#[test]
fn a_flush_that_does_not_end_is_waited_for() {
    let daemon = Watched::start(Setup::new());
    let (mut one, mut two) = (daemon.producer(), daemon.producer());
    one.append_acked(0, Durable, &[b"before"]);
    let disk = Holder::of_flushes(&daemon.flushers());
    disk.hold();

    // `written` needs no flush: each is answered while the sync of the first is held.
    for sequence in 1..=20 {
        one.append_acked(sequence, Written, &[b"written"]);
    }
    disk.wait_held(1);
    // A `durable` append is taken at once, and its write, which is a flush too, is held as well.
    two.append(0, Durable, &[b"durable"]);
    let durable = two.accepted_now();
    disk.wait_held(2);
    // `received` waits for no device.
    for sequence in 21..=120 {
        one.append_acked(sequence, Received, &[b"received"]);
    }
    // `written` now stands behind a write that has not ended: it is taken, and not answered yet.
    one.append(121, Written, &[b"written, behind it"]);
    let written = one.accepted_now();
    let mut records = written.first_offset + 1;
    assert_eq!(records, 1 + 20 + 1 + 100 + 1);

    // Meanwhile new appends are taken up to the bound of all connections, and refused there.
    let mut fillers = [(); 3].map(|()| daemon.producer());
    let filled = thread::scope(|scope| {
        let filling = fillers.each_mut().map(|raw| scope.spawn(move || fill(raw)));
        filling.map(|one| one.join().expect("a refusal"))
    });
    filled.iter().for_each(|(_, error)| is_for_now(error));
    let bounds: Vec<_> = filled.iter().filter_map(|(_, error)| error.limit).collect();
    assert!(
        bounds.contains(&BUDGET_BYTES) && bounds.iter().all(|bound| [BUDGET_BYTES, SHARE_BYTES].contains(bound)),
        "{filled:?}"
    );
    // One user has half of it, but for root.
    let least = if is_root() { BUDGET_BYTES / 2 } else { BUDGET_BYTES / 4 };
    let taken: u64 = filled.iter().map(|(taken, _)| taken).sum();
    assert!(
        taken * BODY_BYTES as u64 <= BUDGET_BYTES && taken * BODY_BYTES as u64 > least,
        "{taken} appends of {BODY_BYTES} bytes"
    );
    records += taken;

    // Degraded, not dead: it serves, says why, and notifies its watchdog.
    let barks = daemon.manager.barks_until(|_| page(daemon.pages, "/healthz").1.contains("waiting for the disk"));
    let (code, health) = page(daemon.pages, "/healthz");
    assert_eq!((code, health.starts_with("degraded: ")), (200, true), "{health}");
    let barks = barks + daemon.manager.barks_within(10 * WATCHDOG_PERIOD);
    assert!(barks >= 5, "the watchdog was notified {barks} times");
    let inflight = metrics(daemon.pages)["clad_inflight_bytes"];
    assert!(inflight > least as f64 && inflight <= BUDGET_BYTES as f64, "{inflight} bytes");
    let watermarks = Admin::at(&daemon.setup.admin_socket()).status().expect("a status").offsets.expect("offsets");
    assert_eq!((watermarks.durable, watermarks.written, watermarks.received), (1, 21, records), "nothing ran ahead");

    // It ends: everything that waited is answered, and there is room again.
    disk.release();
    two.wait_watermark(Durable, durable.epoch, durable.first_offset);
    one.wait_watermark(Written, written.epoch, written.first_offset);
    for (raw, (taken, _)) in fillers.iter_mut().zip(&filled) {
        raw.append_acked(*taken, Durable, &[b"sent again"]);
    }
    // A refusal is shown for a minute more.
    daemon.manager.barks_until(|_| !page(daemon.pages, "/healthz").1.contains("waiting for the disk"));
    assert!(page(daemon.pages, "/healthz").1.contains("max_inflight_bytes"));
    daemon.ends_well(records + 3);
}

/// A client that asks for `received` waits for no disk; one that asks for more gets the reason why it waits.
#[test]
fn a_tool_that_asks_for_received_waits_for_no_flush() {
    let daemon = Watched::start(Setup::new());
    let mut raw = daemon.producer();
    raw.append_acked(0, Durable, &[b"before"]);
    let disk = Holder::of_flushes(&daemon.flushers());
    disk.hold();
    raw.append(1, Durable, &[b"held"]);
    let held = raw.accepted_now();
    disk.wait_held(1);

    let server = format!("unix://{}", daemon.setup.socket().display());
    let append = |ack: &'static str| ["append", "--server", &server, "--ack", ack];
    // It ends, well, while the flush is held: nothing below lets it go before.
    for (ack, says) in [("received", "2 lines received, offsets 2 to 3"), ("none", "2 lines sent; ")] {
        let done = clactl_ends(0, &append(ack), b"one\ntwo\n");
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(printed.starts_with(says), "{printed}");
        assert!(done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    // What comes by `none` has its place before what is asked for below.
    let (input, mut line) = std::io::pipe().expect("a pipe");
    line.write_all(b"three\n").expect("room");
    drop(line);
    let durable = Running::start(clactl(&append("durable")).stdin(input));
    let waits = "nothing was acknowledged for 5 s, and 1 line wait: ";
    assert!(durable.wait_for(OutputStream::Stderr, waits, TEST_TIMEOUT), "{}", durable.said());
    assert!(durable.said().contains("its disk is slow"), "{}", durable.said());
    assert!(durable.is_running() && durable.output().is_empty(), "{}", durable.printed());
    assert!(disk.held() > 0, "the flush has ended by itself");

    disk.release();
    raw.wait_watermark(Durable, held.epoch, held.first_offset);
    durable.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(
        (durable.code(), durable.printed().as_str()),
        (Some(0), "1 line durable, offset 6\n"),
        "{}",
        durable.said()
    );
    daemon.ends_well(7);
}

/// The bytes of one connection have a bound of their own, and it is shown like that of all: on both transports, at once
/// where it has been waited for, and taken again when there is room.
#[test]
fn a_connections_share_is_refused_at_its_bound() {
    if !is_root() {
        return not_run("a connection's share at its bound", "an ordinary user's share of all bytes comes first");
    }
    let daemon = Watched::start(Setup::new());
    let mut other = daemon.producer();
    other.append_acked(0, Durable, &[b"before"]);
    let disk = Holder::of_flushes(&daemon.flushers());
    disk.hold();
    other.append(1, Durable, &[b"held"]);
    other.accepted_now();
    disk.wait_held(1);
    let status = Admin::at(&daemon.setup.admin_socket()).status().expect("a status");
    let address = &status.listeners["grpc"];

    let most = SHARE_BYTES / BODY_BYTES as u64;
    let (release, released) = oneshot::channel();
    let (refused, is_refused) = mpsc::sync_channel(1);
    let mut framed = daemon.producer();
    thread::scope(|scope| {
        let grpc = scope.spawn(|| grpc_fills_its_share(address, refused, released));
        let (taken, error) = fill(&mut framed);
        is_for_now(&error);
        assert_eq!((taken, error.limit), (most, Some(SHARE_BYTES)));
        // It has waited long enough once: what is sent behind it is refused without another wait. The time is the daemon's
        // own bound, of five seconds, twenty times.
        let again = Instant::now();
        for _ in 0..20 {
            framed.append_payload(taken, Received, false, &payload(&[&[b'f'; BODY_BYTES]]));
            is_for_now(&framed.refused().error);
        }
        assert!(again.elapsed() < Duration::from_secs(100), "each of them waited");
        other.append_acked(2, Received, &[b"nobody else is refused"]);
        is_refused.recv_timeout(TEST_TIMEOUT).expect("gRPC is refused, too");
        disk.release();
        framed.flush(Durable).expect("durable");
        framed.append_acked(taken, Durable, &[b"sent again"]);
        // There was room again, so the next one that finds none is waited for as the first was.
        disk.hold();
        other.append(3, Durable, &[b"held"]);
        disk.wait_held(1);
        let again = Instant::now();
        let (more, error) = fill_from(&mut framed, taken + 1);
        is_for_now(&error);
        assert!(again.elapsed() >= Duration::from_secs(5), "refused without a wait");
        assert_eq!(more, most);
        disk.release();
        release.send(()).expect("gRPC waits for it");
        assert_eq!(grpc.join().expect("the same by gRPC"), most);
    });
    daemon.ends_well(4 + most + 2 * (most + 1));
}

/// The same by gRPC: how many were taken before the first refusal.
#[tokio::main(flavor = "current_thread")]
async fn grpc_fills_its_share(address: &str, refused: mpsc::SyncSender<()>, released: oneshot::Receiver<()>) -> u64 {
    let body = "g".repeat(BODY_BYTES);
    let mut call = Call::open(address).await;
    for taken in 0..2 * BUDGET_BYTES / BODY_BYTES as u64 {
        if let Err(error) = call.append(taken, Received, &body).await {
            is_for_now(&error);
            assert_eq!(error.limit, Some(SHARE_BYTES));
            refused.send(()).expect("somebody waits");
            released.await.expect("the disk goes on");
            let accepted = call.append(taken, Durable, "sent again").await.expect("taken");
            call.reached(Durable, accepted.first_offset + 1).await;
            return taken;
        }
    }
    panic!("more than twice the budget was taken");
}

/// Threads that hang without a device: whichever they are, the watchdog is not notified until they go on.
#[test]
fn the_watchdog_is_not_notified_by_a_hung_daemon() {
    let daemon = Watched::start(Setup::new());
    let mut raw = daemon.producer();
    raw.append_acked(0, Durable, &[b"before"]);
    let workers = threads(daemon.process.pid(), |name| name.starts_with("tokio-r"));
    for (what, threads) in [("the threads that write", daemon.writers()), ("the workers that serve", workers)] {
        let frozen = Holder::freeze(&threads);
        daemon.is_silent(what);
        drop(frozen);
        daemon.check_bark(what);
    }
    daemon.process.send(Signal::SIGSTOP);
    daemon.is_silent("the whole process");
    daemon.process.send(Signal::SIGCONT);
    daemon.check_bark("the whole process");
    raw.append_acked(1, Durable, &[b"after"]);
    daemon.ends_well(2);
}
