//! What a call costs: our ring, beside the least that any ring must do, and beside `write`.
//!
//! Four writing processes at once, whatever the number of cores. A *round* is one burst of calls in each process, all
//! begun together; the burst fits the ring, and a reader in another process takes it afterwards, outside of the time.
//! Rounds of all variants take turns, so that a noisy minute hits all alike; the result is the median over rounds of
//!
//! - `wall`: from the first call of any process to the end of the last one, over all calls of all processes,
//! - `cpu`: processor time of the four processes (user and system), over all calls.
//!
//! | variant | what a call does |
//! |---|---|
//! | `limit` | exchange the head, copy, store a commit word: a prefaulted ring, no daemon, nothing is checked |
//! | `limit_sum_clock` | the same with the clock read and a CRC-32C of the payload |
//! | `limit_shared` | as `limit`, with one ring for all four processes, as a host-wide log in memory has it |
//! | `ring` | `Producer::push` |
//! | `ring_drained` | the same, while the reader takes what comes, with 20 µs between passes (a fifth process, on the same cores) |
//! | `sdk` | a record through the SDK into a ring of a daemon that drains it meanwhile, on the same cores (with `--clad`) |
//! | `write` | `write` to one file with O_APPEND, by all four |
//! | `write_own` | the same, each process with its own file |
//! | `writev64` | one `writev` of 64 payloads to the shared file; per payload |
//!
//! What rings and sockets keep up side by side, and a durable answer beside a bare write, are of `clactl bench --spawn`.
//!
//! As a test (without `--bench`) it runs two small rounds, checks what came out of the rings, files and logs, and prints no
//! time.
//!
//! ```text
//! cargo bench -p clad-shm --bench ring_limit [-- --rounds 60] [--dir FOLDER] [--only VARIANT,VARIANT] [--bytes N]
//!     [--clad DAEMON]
//! ```
//! `--only` runs these variants alone, and prints their medians without the ratios, `--bytes` one size alone.
#![allow(unsafe_code)] // a ring of our own to compare with
#![allow(clippy::print_stdout)]

mod child;
mod daemon;
mod limit;
mod report;
mod sdk;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clad_shm::{Drain, Peek, Shape, clock};

pub(crate) const PROCESSES: usize = 4;
pub(crate) const DATA: u32 = 4 << 20;
pub(crate) const SLOTS: u32 = 1 << 16;
pub(crate) const GROUP: usize = 64;
/// Between two passes of the reader in `ring_drained`.
const PAUSE_NS: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Limit,
    LimitSumClock,
    LimitShared,
    Ring,
    RingDrained,
    Write,
    WriteOwn,
    Writev64,
    Sdk,
}

impl Variant {
    pub(crate) const ALL: [Self; 9] = [
        Self::Limit,
        Self::LimitSumClock,
        Self::LimitShared,
        Self::Ring,
        Self::RingDrained,
        Self::Write,
        Self::WriteOwn,
        Self::Writev64,
        Self::Sdk,
    ];

    /// Those that can be run (the last one wants a daemon), or those of them that are asked for.
    fn chosen(with_daemon: bool, only: Option<&str>) -> Vec<Self> {
        let all = if with_daemon { &Self::ALL[..] } else { &Self::ALL[..8] };
        let wanted = |variant: &Self| only.is_none_or(|only| only.split(',').any(|name| name == variant.name()));
        all.iter().copied().filter(wanted).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::LimitSumClock => "limit_sum_clock",
            Self::LimitShared => "limit_shared",
            Self::Ring => "ring",
            Self::RingDrained => "ring_drained",
            Self::Write => "write",
            Self::WriteOwn => "write_own",
            Self::Writev64 => "writev64",
            Self::Sdk => "sdk",
        }
    }
}

/// Payload bytes, and calls of each process in a burst.
pub(crate) const SIZES: [(usize, usize); 3] = [(1, 32768), (128, 16384), (4095, 896)];

/// What the payload of a call is; the reader makes it again.
pub(crate) fn payload(process: usize, size: usize, call: usize) -> u8 {
    (process * 64 + size + call) as u8
}

struct Writer {
    child: Child,
    drain: Drain,
    limit: limit::Ring,
    own: PathBuf,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--child") {
        return child::run(&args[at + 1..]);
    }
    let timed = args.iter().any(|arg| arg == "--bench");
    let after = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let rounds = if timed { after("--rounds").map_or(40, |n| n.parse().expect("a number of rounds")) } else { 2 };
    let shrink = if timed { 1 } else { 64 };
    let folder = after("--dir").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let folder = folder.join(format!("ring_limit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the files");

    // Rings that hold the largest burst.
    let daemon = after("--clad").map(|program| daemon::Daemon::start(Path::new(program), &folder));
    let address = daemon.as_ref().map(daemon::Daemon::address);
    let variants = Variant::chosen(daemon.is_some(), after("--only").map(String::as_str));
    let shared = folder.join("shared");
    let memory = limit::Ring::create(PROCESSES * DATA as usize);
    let mut writers: Vec<Writer> =
        (0..PROCESSES).map(|index| writer(index, &folder, &shared, &memory, address.as_deref())).collect();
    let mut results = report::Results::default();
    let bytes = after("--bytes").map(|n| n.parse::<usize>().expect("bytes"));
    for (size, calls) in SIZES.into_iter().filter(|(size, _)| bytes.is_none_or(|bytes| bytes == *size)) {
        let calls = (calls / shrink / GROUP).max(1) * GROUP;
        for round in 0..rounds {
            for &variant in &variants {
                let times = burst(&mut writers, variant, size, calls);
                check(&mut writers, variant, size, calls, &shared, &memory, !timed || round == 0);
                results.add(size, variant, PROCESSES * calls, &times);
            }
        }
    }
    for writer in &mut writers {
        drop(writer.child.stdin.take());
        assert!(writer.child.wait().expect("a child").success(), "a writing process failed");
    }
    drop(daemon);
    std::fs::remove_dir_all(&folder).expect("the folder is removed");
    if timed {
        println!("{}", results.json());
        eprint!("{}", results.table(&variants));
    } else {
        println!("ring_limit: {} bursts came out as they went in (run with `cargo bench` for times)", results.len());
    }
}

fn writer(index: usize, folder: &Path, shared: &Path, memory: &limit::Ring, daemon: Option<&str>) -> Writer {
    let shape = Shape::new(DATA, SLOTS).expect("a shape");
    let drain = Drain::create(shape, 1, [0; 16], 1).expect("a ring");
    let limit = limit::Ring::create(DATA as usize);
    let own = folder.join(format!("own-{index}"));
    let fds = drain.client_fds();
    let path = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
    let child = Command::new(std::env::current_exe().expect("this program"))
        .arg("--child")
        .arg(index.to_string())
        .arg(path(fds.ring.as_raw_fd()))
        .arg(path(fds.completion_page.as_raw_fd()))
        .arg(path(limit.file().as_raw_fd()))
        .arg(path(memory.file().as_raw_fd()))
        .args([shared, own.as_path()])
        .args(daemon)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a writing process");
    let mut writer = Writer { child, drain, limit, own };
    let mut ready = [0; 1];
    writer.child.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("the child is ready");
    writer
}

/// One burst in all processes at once. Start, end (monotonic), and processor time of each, nanoseconds.
fn burst(writers: &mut [Writer], variant: Variant, size: usize, calls: usize) -> Vec<[u64; 3]> {
    let mut order = vec![variant as u8];
    order.extend((size as u32).to_le_bytes());
    order.extend((calls as u32).to_le_bytes());
    // All start at a time that all have heard of by then.
    order.extend((clock::now() + 1_000_000).to_le_bytes());
    for writer in writers.iter_mut() {
        writer.limit.reset();
        writer.child.stdin.as_mut().expect("a pipe").write_all(&order).expect("the child lives");
    }
    if variant == Variant::RingDrained {
        let mut taken = [0; PROCESSES];
        while taken != [calls; PROCESSES] {
            for (process, writer) in writers.iter_mut().enumerate() {
                taken[process] += take(&mut writer.drain, taken[process], Some((process, size)));
            }
            // A look at a ring takes its lines away from the writer: who looks all the time slows every push down.
            let soon = clock::now() + PAUSE_NS;
            while clock::now() < soon {
                std::hint::spin_loop();
            }
        }
    }
    let read = |writer: &mut Writer| {
        let mut answer = [0; 24];
        writer.child.stdout.as_mut().expect("a pipe").read_exact(&mut answer).expect("the child answers");
        let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
        [word(0), word(8), word(16)]
    };
    writers.iter_mut().map(read).collect()
}

/// Reads everything that the burst wrote, in another process than wrote it; in full where `contents` are asked for.
fn check(
    writers: &mut [Writer],
    variant: Variant,
    size: usize,
    calls: usize,
    shared: &Path,
    memory: &limit::Ring,
    contents: bool,
) {
    for (process, writer) in writers.iter_mut().enumerate() {
        let expected = |call: usize| vec![payload(process, size, call); size];
        match variant {
            Variant::Limit | Variant::LimitSumClock => {
                let mut count = 0;
                writer.limit.read(|bytes| {
                    assert!(!contents || bytes == expected(count), "the limit's ring, call {count}");
                    count += 1;
                });
                assert_eq!(count, calls);
            }
            Variant::LimitShared if process == 0 => {
                let mut count = 0;
                memory.read(|bytes| {
                    assert!(bytes.len() == size, "the limit's shared ring, call {count}");
                    count += 1;
                });
                assert_eq!(count, calls * PROCESSES);
                memory.reset();
            }
            Variant::LimitShared => {}
            Variant::Ring => {
                let taken = take(&mut writer.drain, 0, contents.then_some((process, size)));
                assert_eq!(taken, calls);
            }
            Variant::RingDrained => {} // taken while they came
            Variant::Sdk => {}         // its process has waited until the log has them
            Variant::WriteOwn => check_file(&writer.own, size * calls),
            Variant::Write | Variant::Writev64 if process == 0 => {
                check_file(shared, size * calls * PROCESSES);
            }
            Variant::Write | Variant::Writev64 => {}
        }
    }
}

/// Takes what is in a ring, and gives it back; `expect` says whose calls of which size these are, from call `from` on.
fn take(drain: &mut Drain, from: usize, expect: Option<(usize, usize)>) -> usize {
    let before = clock::now();
    let (mut count, mut bytes) = (0, Vec::new());
    while let Peek::Ready = drain.peek(before).expect("a sound ring") {
        bytes.clear();
        drain.take(&mut bytes).expect("a sound ring");
        if let Some((process, size)) = expect {
            let call = from + count;
            assert_eq!(bytes, vec![payload(process, size, call); size], "our ring, call {call}");
        }
        count += 1;
    }
    drain.release(drain.next());
    count
}

fn check_file(path: &Path, bytes: usize) {
    assert_eq!(std::fs::metadata(path).expect("a file").len(), bytes as u64, "{}", path.display());
    std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)).expect("emptied");
}

pub(crate) fn open(path: &str) -> OwnedFd {
    std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a descriptor of the parent").into()
}
