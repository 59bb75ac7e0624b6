//! Asking for a ring.

use std::os::fd::{BorrowedFd, OwnedFd};

use clad_proto::{
    ErrorCode, ErrorInfo,
    frame::{ErrorFrame, Frame, RingId, RingWanted},
};
use clad_shm::Producer;

use crate::{ConnectError, transport::Framed};

/// The one RING of a connection, or the second where the first named a ring that is gone.
const REQUEST: u32 = 1;

/// Answer of the daemon.
pub(crate) enum Asked {
    /// A new ring.
    New {
        id: RingId,
        ring: Box<Producer>,
        /// `posted` is offered.
        stored: bool,
        /// The ring's memory, to be handed back to the next daemon.
        memory: OwnedFd,
    },
    /// The new completion page of the attached ring, and its doorbell, which may be another one.
    Known { completion_page: OwnedFd, waker: Option<OwnedFd>, stored: bool },
    /// None, and why.
    Refused(ErrorInfo),
}

/// Asks for a ring, or to resume one, on a connection that was just greeted. The memory of a known ring goes along: a
/// daemon that does not have the ring takes it from there.
pub(crate) async fn ask(framed: &mut Framed, known: Option<(RingId, BorrowedFd<'_>)>) -> Result<Asked, ConnectError> {
    let wanted = RingWanted { request_id: REQUEST, known: known.map(|(id, _)| id), clock_ns: 0, bytes: 0 };
    match known {
        Some((_, memory)) => framed.send_with_fd(|buf| wanted.encode(buf), memory).await?,
        None => framed.write(|buf| wanted.encode(buf)),
    }
    framed.expect_fds();
    let given = loop {
        match framed.next_frame().await? {
            Frame::RingGiven(given) => break given,
            // What is in the ring that we have is still there: any other word than that it is gone is one for now.
            Frame::Error(ErrorFrame { error, .. }) if known.is_some() && error.code != ErrorCode::RingUnavailable => {
                return Err(framed.refused(error));
            }
            Frame::Error(ErrorFrame { error, .. }) => return Ok(Asked::Refused(error)),
            // Watermarks are reported also without a waiter.
            Frame::Watermark(_) => {}
            other => return Err(framed.protocol(format!("{:?} where RING_GIVEN belongs", other.kind()))),
        }
    };
    let mut fds = framed.take_fds().into_iter();
    match (given.known, fds.next(), fds.next(), fds.next()) {
        (true, Some(completion_page), waker, None) => Ok(Asked::Known { completion_page, waker, stored: given.stored }),
        (false, Some(completion_page), Some(memory), Some(waker)) => {
            let attached = Producer::attach(&memory, &completion_page, waker);
            let ring = Box::new(attached.map_err(|e| framed.protocol(format!("its ring: {e}")))?);
            Ok(Asked::New { id: given.id, ring, stored: given.stored, memory })
        }
        _ => Err(framed.protocol("RING_GIVEN without the descriptors that belong to it")),
    }
}
