//! Descriptors over Unix sockets (`SCM_RIGHTS`).
//!
//! Invariants: a message has at most [`MAX_FDS`] descriptors, and one that comes with more is refused. A message for
//! whose descriptors this process has no numbers left says that. Descriptors that were received and are not wanted are
//! closed; every one that comes is closed on exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors in one message.
pub(crate) const MAX_FDS: usize = 3;
/// Most descriptors that are received and not taken yet: one may come with a frame, and a second one shows that more did.
pub(crate) const RECEIVED_FDS_MAX: usize = 2;

/// Sends bytes, the descriptors with the first of them. On a stream fewer bytes may be taken; then the descriptors went
/// with those that were.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space is rounded up: the count is what is looked at.
    if fds.len() > MAX_FDS || (!fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds))) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors that come with them.
#[cfg(test)]
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    take(socket, bytes, RecvFlags::empty())
}

/// Reads some bytes of a stream and the descriptors that come with them; returns true if any did, which ends a read
/// early. The kernel closes those that are more than [`RECEIVED_FDS_MAX`].
///
/// # Errors
/// Where this process has no number left for a descriptor.
pub(crate) fn read(socket: impl AsFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut came = 0;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for fd in rights {
                came += 1;
                if fds.len() < RECEIVED_FDS_MAX {
                    fds.push(fd);
                }
            }
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) && came < RECEIVED_FDS_MAX {
        return Err(rustix::io::Errno::MFILE.into());
    }
    Ok((got.bytes, came > 0))
}

/// Receives a message that is there, and stays there for the next reader.
pub(crate) fn look(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    take(socket, bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT)
}

fn take(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // The kernel gives as many as there are free numbers for. (A security module that withholds one looks the same.)
    if got.flags.contains(ReturnFlags::CTRUNC) && fds.len() < MAX_FDS {
        return Err(rustix::io::Errno::MFILE.into());
    }
    if fds.len() > MAX_FDS || got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message with more than belongs in it"));
    }
    Ok((got.bytes, fds))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes_and_is_the_same_file() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        assert_eq!(send(&a, b"here", &[far.as_fd()]).unwrap(), 4);
        drop(far);
        let mut bytes = [0; 16];
        let (n, mut fds) = receive(&b, &mut bytes).unwrap();
        assert_eq!((&bytes[..n], fds.len()), (&b"here"[..], 1));
        UnixStream::from(fds.remove(0)).write_all(b"through it").unwrap();
        let mut text = String::new();
        near.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }

    #[test]
    fn more_than_belongs_in_a_message_is_refused_on_both_sides() {
        let (a, b) = UnixStream::pair().unwrap();
        let many = vec![a.as_fd(); MAX_FDS + 1];
        assert_eq!(send(&a, b"x", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(receive(&b, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
