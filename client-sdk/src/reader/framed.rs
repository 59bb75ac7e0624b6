//! READ in the framed protocol.

use super::{
    event::{Chunk, Event, Gap},
    next::{Next, Opened, of_connect, refused},
    plan::{Plan, REQUEST, Start},
};
use crate::{Address, ConnectError, ReadError, clock::now, transport::Framed};
use clad_proto::{
    Cursor, ErrorCode, ErrorInfo, LogId, PayloadView,
    frame::{Frame, Hello, Intent, Records},
    limits::{MAX_VERSION, MIN_VERSION},
};
use std::{num::NonZeroU64, time::Duration};
use tokio::time::{Instant, timeout_at};

/// A reader has nothing else to say, and a daemon may close a connection on which nothing comes.
const PING_EVERY: Duration = Duration::from_secs(15);
/// A daemon that says nothing for so long after it was asked is gone.
const PONG_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct FramedSource {
    framed: Framed,
    address: Address,
    start: Start,
    log_id: LogId,
    ping_at: Instant,
    /// Asked then, and nothing was heard since.
    pinged_at: Option<Instant>,
}

impl FramedSource {
    pub(super) async fn open(plan: &Plan, start: Start, limit: Option<NonZeroU64>) -> Result<Opened<Self>, ReadError> {
        let hello = Hello {
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            intent: Intent { append: false, read: true },
            name: plan.name.clone(),
            ..Hello::default()
        };
        let connected = Framed::connect(&plan.address, &hello).await;
        let (mut framed, welcome) = connected.map_err(|error| of_connect(error, start))?;
        if !welcome.may_read {
            let text = format!("{} does not let this user read", plan.address);
            return Err(ReadError::Refused(Box::new(ErrorInfo::new(ErrorCode::PermissionDenied, text))));
        }
        let read = plan.read(start, limit);
        framed.write(|buf| read.encode(buf));
        framed.send_all().await?;
        let source = Self {
            framed,
            address: plan.address.clone(),
            start,
            log_id: welcome.log_id,
            ping_at: now() + PING_EVERY,
            pinged_at: None,
        };
        Ok(Opened { source, log_id: welcome.log_id, log: Some((&welcome).into()) })
    }

    pub(super) async fn next(&mut self) -> Result<Next, ReadError> {
        let now = now();
        if now >= self.ping_at {
            self.framed.ping();
            self.ping_at = now + PING_EVERY;
            self.pinged_at.get_or_insert(now);
        }
        let silent_until = self.pinged_at.map(|at| at + PONG_WITHIN);
        let until = silent_until.map_or(self.ping_at, |until| until.min(self.ping_at));
        match timeout_at(until, self.framed.next_frame()).await {
            Ok(frame) => {
                self.pinged_at = None;
                self.take(frame.map_err(|error| of_connect(error, self.start))?)
            }
            Err(_) if silent_until == Some(until) => {
                Err(ConnectError::Timeout { address: self.address.clone(), timeout: PONG_WITHIN }.into())
            }
            Err(_) => Ok(Next::Again),
        }
    }

    fn take(&self, frame: Frame) -> Result<Next, ReadError> {
        Ok(match frame {
            Frame::Records(records) if records.request_id == REQUEST => {
                let chunk = chunk(&records)?;
                let cursor = self.cursor(chunk.epoch(), chunk.end_offset());
                Next::Event { event: Event::Records(chunk), cursor }
            }
            Frame::Gap(gap) if gap.request_id == REQUEST => Next::Event {
                event: Event::Gap(Gap { from: gap.from, to: gap.to, reason: gap.reason }),
                cursor: self.cursor(gap.epoch, gap.to),
            },
            Frame::CaughtUp(caught_up) if caught_up.request_id == REQUEST => {
                Next::Event { event: Event::CaughtUp { cursor: caught_up.cursor }, cursor: caught_up.cursor }
            }
            Frame::Progress(progress) if progress.request_id == REQUEST => {
                Next::Event { event: Event::Progress { cursor: progress.cursor }, cursor: progress.cursor }
            }
            Frame::ReadEnd(end) if end.request_id == REQUEST => Next::End { cursor: end.cursor },
            Frame::Error(error) if error.request_id == REQUEST => return Err(refused(error.error, self.start)),
            Frame::Pong(_) => Next::Again,
            other => {
                let what = format!("{:?} where an answer to a read belongs", other.kind());
                return Err(ConnectError::Protocol { address: self.address.clone(), what }.into());
            }
        })
    }

    const fn cursor(&self, epoch: u32, offset: u64) -> Cursor {
        Cursor { log_id: self.log_id, epoch, offset }
    }
}

/// Checks everything that a chunk promises.
fn chunk(records: &Records) -> Result<Chunk, ReadError> {
    let head = &records.head;
    let damaged = |what: String| ReadError::Damaged { offset: head.first_offset, count: head.count, what };
    if !records.checksum_holds() {
        return Err(damaged("their checksum is wrong".to_owned()));
    }
    PayloadView::parse(&records.payload, head.count).map_err(|error| damaged(error.to_string()))?;
    let peer_meta = records.peer_meta().map_err(|fault| damaged(format!("the peer metadata: {fault}")))?;
    if head.first_offset.checked_add(head.count.into()).is_none() {
        return Err(damaged("their offsets pass 64 bits".to_owned()));
    }
    Ok(Chunk {
        head: *head,
        payload: records.payload.clone(),
        raw_peer_meta: Some(records.peer_meta.clone()),
        peer_meta: Box::new(peer_meta),
        matching: None,
    })
}
