//! Becomes another program that has the descriptors which come on stdin, from 3 on (`LISTEN_FDS`, sd_listen_fds(3)).
//!
//! Invariants: the program keeps the process id, which is why this one exists: `LISTEN_PID` must be that of the program
//! itself. Nothing else is open in it but its three streams.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The first descriptor that is handed over.
const FIRST_FD: i32 = 3;
/// Most descriptors in a message.
const MESSAGE_FDS_MAX: usize = 253;

fn main() {
    // What a shell or a test runner left open would take numbers of theirs.
    let open = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
    let open: Vec<i32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd >= FIRST_FD) {
        let _ = nix::unistd::close(fd); // the folder that was read is closed by now
    }
    let mut next_fd = FIRST_FD;
    loop {
        let fds = receive();
        if fds.is_empty() {
            break;
        }
        for fd in fds {
            assert_eq!(fd.as_raw_fd(), next_fd, "the lowest number that is free");
            next_fd = fd.into_raw_fd() + 1;
        }
    }
    let mut words = std::env::args_os().skip(1);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).stdin(Stdio::null());
    if next_fd > FIRST_FD {
        command.env("LISTEN_PID", std::process::id().to_string());
    }
    panic!("{command:?}: {}", command.exec());
}

/// The descriptors of the next message, which stay open in what this process becomes; none at the end.
fn receive() -> Vec<OwnedFd> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let stdin = std::io::stdin();
    recvmsg(&stdin, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::empty()).expect("received");
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    };
    ancillary.drain().flat_map(rights).collect()
}
