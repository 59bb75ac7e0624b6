//! Real processes that are killed (`SIGKILL`) or stopped for ever at every named point, while others log on.
//!
//! The processes are this test's own program, started again: [`child`] is what they run. They find their rings below
//! `/proc/PID/fd` of the test.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::crash::points;
use crate::client::producer::push_once;
use crate::client::writer::Content;
use crate::daemon::reader::{Peek, Reader};
use crate::layout::Shape;
use crate::mapped::Mapped;
use crate::memory::{Memory, Ordering};
use crate::{Drain, Level, Stored, checksum, clock, drain};

const ROLE: &str = "CLAD_SHM_CHILD";
const SHAPE: Shape = match Shape::new(16 << 10, 64) {
    Ok(shape) => shape,
    Err(_) => panic!("a shape"),
};
/// Pushes before the one that is hit.
const BEFORE: u64 = 30;
/// Pushes of the processes that log on.
const OTHERS: u64 = 500;

fn payload(n: u64) -> Vec<u8> {
    (0..20 + n % 50).map(|i| (n * 3 + i) as u8).collect()
}

/// A mapping whose user is killed, or stops for ever, at the nth time that it comes past a point.
struct Deadly<'a> {
    memory: &'a Mapped,
    point: String,
    left: std::cell::Cell<u64>,
    stop: bool,
}

impl Memory for Deadly<'_> {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.memory.load(at, order)
    }
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.memory.store(at, value, order);
    }
    fn exchange(&self, at: usize, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.memory.exchange(at, old, new, success, failure)
    }
    fn add(&self, at: usize, value: u64) -> u64 {
        self.memory.add(at, value)
    }
    fn set_bits(&self, at: usize, bits: u64) -> u64 {
        self.memory.set_bits(at, bits)
    }
    fn fence(&self) {
        self.memory.fence();
    }
    fn fence_of(&self, order: Ordering) {
        self.memory.fence_of(order);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }
    fn read(&self, at: usize, bytes: &mut [u8]) {
        self.memory.read(at, bytes);
    }
    fn point(&self, name: &'static str) {
        if name != self.point {
            return;
        }
        self.left.set(self.left.get().wrapping_sub(1));
        if self.left.get() == 0 {
            report(&format!("at {name}"));
            if self.stop {
                loop {
                    std::thread::park();
                }
            }
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            unreachable!("killed");
        }
    }
}

fn report(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    // The test harness has begun a line of its own.
    out.write_all(format!("\n> {line}\n").as_bytes()).and_then(|()| out.flush()).expect("the test listens");
}

/// Main function of a started process: `role|ring path|point|nth`.
#[test]
fn child() {
    let Ok(order) = std::env::var(ROLE) else { return };
    // Whatever becomes of the test, this process ends with it, and never hangs for ever.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("a signal");
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_secs(60));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::ABORT)
    });
    let [role, path, point, nth] = order.split('|').collect::<Vec<_>>()[..] else { panic!("four words: {order}") };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the test's ring");
    let (memory, shape) = drain::map_ring(&OwnedFd::from(file)).expect("a ring");
    let left = std::cell::Cell::new(nth.parse().expect("a number"));
    let ring = Deadly { memory: &memory, point: point.to_owned(), left, stop: role == "stop" };
    match role {
        "kill" => (0..BEFORE + 10).for_each(|n| push(&ring, shape, n)),
        "stop" => std::thread::scope(|threads| {
            (0..BEFORE).for_each(|n| push(&ring, shape, n));
            // The one that stops; the others are threads of the same process.
            let others = Deadly { memory: &memory, point: String::new(), left: 0.into(), stop: false };
            threads.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                (1000..1000 + OTHERS).for_each(|n| push(&others, shape, n));
                report("the others are done");
                // The thread that stopped never ends.
                #[allow(clippy::disallowed_methods)]
                std::process::exit(0);
            });
            push(&ring, shape, BEFORE);
            report("did not stop");
        }),
        "others" => (0..OTHERS).for_each(|n| push(&ring, shape, n)),
        "drain" => {
            let mut reader = Reader::adopt(&ring, shape).expect("a sound tail");
            reader.set_commit_timeout_ns(100_000);
            work(&ring, &mut reader);
        }
        role => panic!("{role}?"),
    }
}

fn push(ring: &Deadly<'_>, shape: Shape, n: u64) {
    let bytes = payload(n);
    let (summed, trailer) = bytes.split_last_chunk().expect("twenty bytes at least");
    let content = Content::Summed { bytes: summed, sum: checksum::of(&bytes), trailer: u64::from_le_bytes(*trailer) };
    for _ in 0..100_000 {
        match push_once(ring, shape, content, 1) {
            Ok(Some(_)) => return,
            Ok(None) => {}
            Err(crate::PushError::Full) => std::thread::sleep(std::time::Duration::from_micros(100)),
            Err(error) => panic!("push {n}: {error}"),
        }
    }
    panic!("push {n}: the ring stays full");
}

/// A daemon: takes, says that it wrote, gives back. Without an end.
fn work(ring: &Deadly<'_>, reader: &mut Reader) {
    loop {
        let before = clock::now();
        let mut bytes = Vec::new();
        while let Peek::Ready = reader.peek(ring, before).expect("a sound ring") {
            bytes.clear();
            let entry = reader.take(ring, &mut bytes).expect("a sound ring").expect("seen");
            report(&format!("{} {} {bytes:?}", entry.append, entry.sequence));
        }
        reader.note_stored(Stored { log_id: [9; 16], epoch: 1, end: reader.next() });
        reader.release(ring, reader.next());
        std::thread::yield_now();
    }
}

fn start(role: &str, ring: BorrowedFd<'_>, point: &str, nth: u64) -> Child {
    let fd = ring.as_raw_fd();
    let order = format!("{role}|/proc/{}/fd/{fd}|{point}|{nth}", std::process::id());
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tests::kill::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, order)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn is_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

/// Lines that a process printed, to its end.
fn report_lines(child: &mut Child) -> Vec<String> {
    let mut all = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut all).expect("text");
    all.lines().filter_map(|line| line.strip_prefix("> ")).map(str::to_owned).collect()
}

fn ring() -> Drain {
    Drain::create(SHAPE, 1, [0; 16], 1).expect("a ring")
}

/// Takes all that is there, and gives it back.
fn take(ring: &mut Drain) -> Vec<Vec<u8>> {
    let before = clock::now();
    let mut taken = Vec::new();
    while let Peek::Ready = ring.peek(before).expect("a sound ring") {
        let mut bytes = Vec::new();
        ring.take(&mut bytes).expect("a sound ring").expect("seen");
        taken.push(bytes);
    }
    ring.release(ring.next());
    taken
}

/// Takes from all rings until the process has ended.
fn take_until_end(rings: &mut [Drain], taken: &mut [Vec<Vec<u8>>], child: &mut Child) -> ExitStatus {
    for _ in 0..200_000 {
        let ended = child.try_wait().expect("a child");
        for (ring, taken) in rings.iter_mut().zip(taken.iter_mut()) {
            taken.extend(take(ring));
        }
        if let Some(status) = ended {
            return status;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    panic!("the process does not end");
}

fn payloads(numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(payload).collect()
}

/// Asserts that two rows are the same, and reports the first difference.
fn same<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T], what: &str) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("{what}: entry {at} is {:?} instead of {:?}", found[at], expected[at]);
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

#[test]
fn a_writer_is_killed_at_every_point_while_another_process_logs_on() {
    let [points, _] = points();
    assert!(points.len() >= 5, "{points:?}");
    for (point, times) in points {
        let mut rings = [ring(), ring()];
        let mut taken = [Vec::new(), Vec::new()];
        let mut other = start("others", rings[1].client_fds().ring, "", 0);
        let mut victim = start("kill", rings[0].client_fds().ring, point, BEFORE * times + 1);
        let status = take_until_end(&mut rings, &mut taken, &mut victim);
        assert!(is_killed(status), "not killed {point}: {status}");
        assert_eq!(report_lines(&mut victim), [format!("at {point}")]);
        rings[0].client_gone();
        taken[0].extend(take(&mut rings[0]));
        assert_eq!(rings[0].peek(clock::now()), Ok(Peek::Empty), "{point}");
        let own = BEFORE + u64::from(point == "push: committed");
        same(&taken[0], &payloads(0..own), point);
        let status = take_until_end(&mut rings, &mut taken, &mut other);
        assert!(status.success(), "{status}");
        same(&taken[1], &payloads(0..OTHERS), point);
    }
}

#[test]
fn a_thread_stops_for_ever_at_every_point_while_others_of_its_process_log_on() {
    for (point, times) in points()[0].clone() {
        let mut rings = [ring()];
        rings[0].set_commit_timeout_ns(1_000_000);
        let mut taken = [Vec::new()];
        let mut process = start("stop", rings[0].client_fds().ring, point, BEFORE * times + 1);
        let status = take_until_end(&mut rings, &mut taken, &mut process);
        let lines = report_lines(&mut process);
        assert!(status.success(), "{point}: {status}, {lines:?}");
        assert_eq!(lines, [format!("at {point}"), "the others are done".to_owned()]);
        let own = BEFORE + u64::from(point == "push: committed");
        same(&taken[0], &[payloads(0..own), payloads(1000..1000 + OTHERS)].concat(), point);
    }
}

#[test]
fn a_drain_is_killed_at_every_point_and_another_takes_up() {
    let [_, points] = points();
    assert!(points.contains(&("region: gone", 1)) && points.contains(&("abandon: done", 1)), "{points:?}");
    for (point, _) in points {
        let mut ring = ring();
        // Under this number the others find it, whatever becomes of the drain.
        let kept = ring.client_fds().ring.try_clone_to_owned().expect("a descriptor");
        // A thread stopped in the middle of a copy, so that there is an append to abandon, and an abandoned region.
        let mapped = drain::map_ring(&kept).expect("a ring").0;
        let alive = Deadly { memory: &mapped, point: String::new(), left: 0.into(), stop: false };
        push(&alive, SHAPE, 0);
        let stopped = crate::client::writer::reserve(&mapped, SHAPE, 30).expect("there is space");
        let mut writer = start("others", kept.as_fd(), "", 0);
        let mut daemon = start("drain", kept.as_fd(), point, 1);
        let mut found = std::collections::BTreeMap::new();
        let late = ["region: range, number gone", "region: gone", "region: none"].contains(&point);
        if late {
            // These come when the stopped thread has gone on and left.
            let mut out = BufReader::new(daemon.stdout.take().expect("piped"));
            lines_until(&mut out, 200, &mut found);
            crate::client::writer::fill(&mapped, SHAPE, stopped, Content::Parts(&[&[9; 30]]), 1);
            assert!(!crate::client::writer::commit(&mapped, SHAPE, stopped));
            lines_until(&mut out, u64::MAX, &mut found);
        } else {
            lines_until(&mut BufReader::new(daemon.stdout.take().expect("piped")), u64::MAX, &mut found);
        }
        assert!(is_killed(daemon.wait().expect("a child")), "not killed {point}");
        // The next daemon has nothing but the descriptors.
        let fds = ring.client_fds();
        let own = |fd: BorrowedFd<'_>| fd.as_fd().try_clone_to_owned().expect("a descriptor");
        ring = Drain::adopt(own(fds.ring), own(fds.waker), [0; 16], 2).expect("a sound ring");
        ring.set_commit_timeout_ns(100_000);
        assert_eq!(ring.watermarks().of(Level::Written), ring.released());
        loop {
            let ended = writer.try_wait().expect("a child");
            let before = clock::now();
            while let Peek::Ready = ring.peek(before).expect("a sound ring") {
                let mut bytes = Vec::new();
                let entry = ring.take(&mut bytes).expect("a sound ring").expect("seen");
                add(&mut found, entry.append, format!("{} {bytes:?}", entry.sequence));
            }
            ring.release(ring.next());
            if let Some(status) = ended {
                assert!(status.success(), "{status}");
                break;
            }
        }
        let bytes: Vec<_> = found.values().map(|line| line.split_once(' ').expect("two").1.to_owned()).collect();
        let expected: Vec<_> = std::iter::once(0).chain(0..OTHERS).map(|n| format!("{:?}", payload(n))).collect();
        same(&bytes, &expected, point);
        let sequences: Vec<u64> =
            found.values().map(|line| line.split_once(' ').expect("two").0.parse().expect("a number")).collect();
        same(&sequences, &(1..=OTHERS + 1).collect::<Vec<_>>(), point);
    }
}

#[test]
fn what_is_posted_survives_both_ends_whichever_dies_first() {
    for daemon_first in [true, false] {
        let drain = ring();
        let kept = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        let (file, waker) = (kept(drain.client_fds().ring), kept(drain.client_fds().waker));
        let mut drain = Some(drain);
        if daemon_first {
            drain = None;
        }
        let mut client = start("kill", file.as_fd(), "push: committed", BEFORE + 1);
        assert!(is_killed(client.wait().expect("a child")));
        drop(drain.take());
        let mut next = Drain::adopt(file, waker, [0; 16], 2).expect("a sound ring");
        next.client_gone();
        same(&take(&mut next), &payloads(0..BEFORE + 1), "posted");
        assert_eq!(next.peek(clock::now()), Ok(Peek::Empty));
    }
}

/// Reports of a dying daemon: entries that it had before it gave them back. The same entry again is the same.
fn lines_until(out: &mut impl BufRead, count: u64, found: &mut std::collections::BTreeMap<u64, String>) {
    let mut line = String::new();
    for _ in 0..count {
        line.clear();
        if out.read_line(&mut line).expect("text") == 0 {
            return;
        }
        let Some(reported) = line.trim_end().strip_prefix("> ") else { continue };
        if let Some((append, rest)) = reported.split_once(' ').filter(|(append, _)| *append != "at") {
            add(found, append.parse().expect("a number"), rest.to_owned());
        }
    }
}

fn add(found: &mut std::collections::BTreeMap<u64, String>, append: u64, entry: String) {
    if let Some(known) = found.insert(append, entry.clone()) {
        assert_eq!(known, entry, "append {append} is another one the second time");
    }
}
