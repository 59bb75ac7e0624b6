//! One worker of the kernel for the writes that it does not take at once, and as many as before when the writer is gone.

use std::fs;
use std::io::Write;

use clad_journal::bulk::{Engine, Options};
use io_uring::IoUring;

use crate::{file, folder};

/// In a thread that has had no ring yet: workers are those of a thread.
fn in_its_own_thread(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().expect("it holds");
}

/// Threads that the kernel started for the rings of this one.
fn workers() -> usize {
    let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let threads = fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|it| it.trim_end() == name).count()
}

/// How many of them it would start at most, for files and for anything else.
fn limits() -> [u32; 2] {
    let mut limits = [0, 0];
    // The first ring of a thread sets them, by its own size.
    let ring = IoUring::new(8).expect("a ring");
    ring.submitter().register_iowq_max_workers(&mut limits).expect("limits");
    limits
}

#[test]
fn writes_that_make_the_file_longer_wait_for_one_worker_and_not_for_each_other() {
    in_its_own_thread(|| {
        let folder = folder();
        let options = Options::new().engine(Engine::Ring).buffers(8).buffer_bytes(1 << 20);
        let mut writer = options.create(file(folder.path())).expect("a writer");
        let megabyte = vec![7; 1 << 20];
        let mut most = 0;
        for _ in 0..32 {
            writer.write_all(&megabyte).expect("written");
            most = most.max(workers());
        }
        assert!(most <= 1, "{most} workers");
        assert_eq!(writer.finish().expect("durable").bytes, 32 << 20);
    });
}

#[test]
fn other_rings_of_the_thread_have_their_workers_back() {
    in_its_own_thread(|| {
        let before = limits();
        assert!(before[0] > 1, "{before:?}: nothing that could be set back");
        let folder = folder();
        let writer = |name: &str| {
            let options = Options::new().engine(Engine::Ring).buffers(1).buffer_bytes(4096);
            options.create(folder.path().join(name)).expect("a writer")
        };
        for first_made_goes_first in [true, false] {
            let pair = (writer("one"), writer("other"));
            assert_eq!(limits(), [1, before[1]]);
            let (goes, stays) = if first_made_goes_first { pair } else { (pair.1, pair.0) };
            drop(goes);
            drop(stays);
            assert_eq!(limits(), before);
        }
    });
}
