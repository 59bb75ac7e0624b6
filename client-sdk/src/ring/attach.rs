//! Asking for a ring.

use std::os::fd::OwnedFd;

use clad_proto::{
    ErrorCode, ErrorInfo,
    frame::{ErrorFrame, Frame, RingId, RingWanted},
};
use clad_shm::{Producer, clock};

use crate::{ConnectError, transport::Framed};

/// The one RING of a connection, or the second where the first named a ring that is gone.
const REQUEST: u32 = 1;

/// Answer of the daemon.
pub(crate) enum Asked {
    /// A new ring.
    New { id: RingId, ring: Box<Producer>, other_clock: bool },
    /// The new completion page of the attached ring.
    Known { completion_page: OwnedFd },
    /// None, and why.
    Refused(ErrorInfo),
}

/// Asks for a ring, or to resume one, on a connection that was just greeted.
pub(crate) async fn ask(framed: &mut Framed, known: Option<RingId>) -> Result<Asked, ConnectError> {
    let wanted = RingWanted { request_id: REQUEST, known, clock_ns: clock::now(), bytes: 0 };
    framed.write(|buf| wanted.encode(buf));
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
        (true, Some(completion_page), None, None) => Ok(Asked::Known { completion_page }),
        (false, Some(completion_page), Some(ring), Some(waker)) => {
            let attached = Producer::attach(&ring, &completion_page, waker);
            let ring = Box::new(attached.map_err(|e| framed.protocol(format!("its ring: {e}")))?);
            Ok(Asked::New { id: given.id, ring, other_clock: given.other_clock })
        }
        _ => Err(framed.protocol("RING_GIVEN without the descriptors that belong to it")),
    }
}
