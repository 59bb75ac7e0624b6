//! Stop points in a whole program: it dies where the test says, and what it had committed is there.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use clad_shm::{Drain, Peek, Producer, Shape, clock, stop};

const ROLE: &str = "CLAD_SHM_STOPPING";

#[test]
fn child() {
    let Ok(paths) = std::env::var(ROLE) else { return };
    let (ring, completion_page) = paths.split_once('|').expect("two paths");
    let open = |path: &str, write| -> OwnedFd {
        std::fs::OpenOptions::new().read(true).write(write).open(path).expect("the test's descriptor").into()
    };
    let waker = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    let producer = Producer::attach(&open(ring, true), &open(completion_page, false), waker).expect("attached");
    for n in 1..10_u8 {
        producer.push(&[&[n]], 1).expect("there is space");
    }
}

#[test]
fn a_program_dies_at_its_stop_point() {
    let points =
        [("push: reserved#4", 3), ("fill: payload, no header", 0), ("push: filled#9", 8), ("push: committed#2", 2)];
    for (point, expected) in points {
        let mut drain = Drain::create(Shape::new(4096, 16).expect("a shape"), 1, [0; 16], 1).expect("a ring");
        let fds = drain.client_fds();
        let path =
            |fd: std::os::fd::BorrowedFd<'_>| format!("/proc/{}/fd/{}", std::process::id(), fd.as_fd().as_raw_fd());
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child"])
            .env(ROLE, format!("{}|{}", path(fds.ring), path(fds.completion_page)))
            .env(stop::VARIABLE, point)
            .stdout(std::process::Stdio::null())
            .status()
            .expect("a process");
        assert_eq!(status.signal(), Some(9), "{point}");
        drain.client_gone();
        let (before, mut taken) = (clock::now(), Vec::new());
        while let Peek::Ready = drain.peek(before).expect("a sound ring") {
            drain.take(&mut taken).expect("a sound ring");
        }
        assert_eq!(taken, (1..=expected).collect::<Vec<u8>>(), "{point}");
    }
}
