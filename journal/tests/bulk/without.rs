//! Without io_uring, without memory that may be locked, without direct I/O: slower, said, and the same bytes.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use clad_journal::bulk::{Engine, Options, Stats};

use crate::{file, folder, pattern};

fn written(options: &Options, path: &Path) -> Stats {
    let mut writer = options.create(path).expect("a writer");
    writer.write_all(&pattern(0, 100_000)).expect("written");
    let stats = writer.finish().expect("finished");
    assert!(fs::read(path).expect("the file") == pattern(0, 100_000));
    stats
}

/// Runs one test of this program again, in a process that may do less.
fn again(test: &str, prepare: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).env("BULK_CONFINED", "1");
    prepare(&mut command);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn is_confined() -> bool {
    std::env::var_os("BULK_CONFINED").is_some()
}

#[test]
fn in_memory_there_is_no_direct_way() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    for engine in [Engine::Ring, Engine::Threads] {
        let stats = written(&Options::new().engine(engine).buffer_bytes(8192), &file(folder.path()));
        assert_eq!((stats.engine, stats.direct, stats.direct_writes), (engine, false, 0), "{stats:?}");
        assert_eq!(stats.regular_bytes, 100_000, "{stats:?}");
        assert_eq!(stats.fallbacks, ["the file system is in memory: no direct I/O, the page cache is used"]);
    }
}

/// As in a container whose seccomp filter refuses io_uring.
#[test]
fn without_io_uring_threads_write() {
    if !is_confined() {
        return again("without::without_io_uring_threads_write", |_| {});
    }
    refuse_io_uring();
    let folder = folder();
    let stats = written(&Options::new().buffer_bytes(8192), &file(folder.path()));
    assert_eq!(stats.engine, Engine::Threads, "{stats:?}");
    assert_eq!(stats.fallbacks, ["no io_uring (Operation not permitted (os error 1)): threads write"]);
    let refused = Options::new().engine(Engine::Ring).create(file(folder.path())).map(drop).expect_err("asked by name");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    // The probe says so too, and why.
    let found = clad_journal::io::probe::uring();
    assert!(!found.permitted && found.notes.len() == 1 && found.notes[0].contains("seccomp"), "{found:?}");
}

fn refuse_io_uring() {
    use seccompiler::{SeccompAction, SeccompFilter};
    let rules = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().expect("a known machine");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch);
    let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
    seccompiler::apply_filter_all_threads(&program).expect("applied");
}

/// Some kernels count a ring as locked memory. Root may lock what it likes, unless that capability is taken away.
#[test]
fn without_locked_memory_there_is_a_ring_or_a_reason() {
    if !is_confined() {
        let is_root = fs::metadata("/proc/self").map(|own| own.uid()).expect("our own process") == 0;
        return again("without::without_locked_memory_there_is_a_ring_or_a_reason", |command| {
            let mut limited = Command::new("prlimit");
            limited.arg("--memlock=0");
            if is_root {
                limited.args(["setpriv", "--bounding-set=-ipc_lock"]);
            }
            *command = with(limited, command);
        });
    }
    let folder = folder();
    let stats = written(&Options::new().buffer_bytes(65_536), &file(folder.path()));
    let said = stats.fallbacks.iter().any(|why| why.contains("RLIMIT_MEMLOCK"));
    assert_eq!(stats.engine, if said { Engine::Threads } else { Engine::Ring }, "{stats:?}");
}

/// A program that runs a command.
fn with(mut program: Command, command: &Command) -> Command {
    program.arg(command.get_program()).args(command.get_args()).env("BULK_CONFINED", "1");
    program
}

#[expect(clippy::print_stdout, reason = "what did not run must be heard")]
#[test]
fn it_is_direct_and_on_a_ring_where_it_may() {
    let folder = folder();
    let stats = written(&Options::new().buffer_bytes(8192), &file(folder.path()));
    if stats.fallbacks.is_empty() {
        assert_eq!((stats.engine, stats.direct), (Engine::Ring, true), "{stats:?}");
        assert_eq!(stats.direct_bytes, 98_304, "{stats:?}");
    } else {
        // This machine does not offer it all; then it says what.
        println!("NOT RUN: it_is_direct_and_on_a_ring_where_it_may: {:?}", stats.fallbacks);
    }
}
