//! A connection that forwards one stream.
//!
//! Invariants:
//! - Receipts come in the order of the appends, and never before the daemon's word on the level asked for.
//! - No more appends are unanswered than the window allows.
//! - After a refusal nothing more is sent. The receipts of what was sent before it still come, and then the refusal.
//! - Every wait can be dropped at any time: an append is in line whole or not at all, and no receipt is lost.

use super::{error::ForwardError, raw::RawRecords};
use crate::{Address, ConnectError, LogInfo, clock::now, transport::Framed};
use clad_proto::{
    AckLevel, LogId,
    frame::{
        Accepted, ForwardHead, Forwarding, Frame, Hello, Origin, OriginState, SkipReason, StreamName, Watermark,
        Welcome, forward_prefix,
    },
    limits::MAX_VERSION,
};
use std::{collections::VecDeque, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Bytes in line beyond which no append is added.
const QUEUE_BYTES: usize = 1 << 20;
/// A daemon may close a connection on which nothing comes.
const PING_EVERY: Duration = Duration::from_secs(15);
/// A daemon that says nothing for so long after it was asked is gone.
const PONG_WITHIN: Duration = Duration::from_secs(60);

/// Settings that most forwarders leave as they are.
#[derive(Debug, Clone)]
pub struct ForwarderOptions {
    /// Name of the program, for people.
    pub name: String,
    /// Secret by which a forwarder without a certificate or token owns its streams over the network.
    pub secret: Vec<u8>,
    /// The longest time to wait for a connection and its greeting.
    pub connect_timeout: Duration,
}

impl Default for ForwarderOptions {
    fn default() -> Self {
        Self { name: "forwarder".to_owned(), secret: Vec::new(), connect_timeout: Duration::from_secs(10) }
    }
}

/// The place of an append in its stream, and the level that is wanted for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardAs {
    /// The source offset at which what was forwarded before ends; of a stream that begins, where it begins.
    pub previous: u64,
    /// Why the append does not begin there, if it does not.
    pub skip: Option<SkipReason>,
    /// The log knows nothing of the stream ([`Forwarder::state`]), and it begins with this append.
    pub begins: bool,
    /// The level that the receipt waits for; not `none`, and not `posted`.
    pub level: AckLevel,
}

/// Receipt of a forwarded append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded {
    /// Source offset of the first record.
    pub first: u64,
    /// The source offset behind the last: all before it is in the log, but for what was stated as skipped.
    pub end: u64,
    /// Offset of the first record in the log that took it.
    pub offset: u64,
    /// Epoch of that offset.
    pub epoch: u32,
    /// The level that was reached.
    pub level: AckLevel,
}

#[derive(Debug)]
struct Pending {
    first: u64,
    count: u32,
    level: AckLevel,
    /// Its place in the log, once it has one: offset and epoch.
    given: Option<(u64, u32)>,
    refused: Option<ForwardError>,
}

/// Forwards one stream of one log to another log.
#[derive(Debug)]
pub struct Forwarder {
    framed: Framed,
    address: Address,
    log: LogInfo,
    state: Option<OriginState>,
    pending: VecDeque<Pending>,
    /// The newest word on `written` and `durable`.
    reached: [Watermark; 2],
    /// Nothing more is sent.
    ended: bool,
    ping_at: Instant,
    pinged_at: Option<Instant>,
}

impl Forwarder {
    /// Connects to the log that takes a stream of the log `source`, and asks it where the stream stands.
    ///
    /// # Errors
    /// [`ForwardError`]: no connection; a daemon that does not forward; a stream that this client may not forward, or that
    /// would go in a circle, or whose records that log has lost.
    pub async fn connect(
        address: &Address,
        source: LogId,
        stream: StreamName,
        options: &ForwarderOptions,
    ) -> Result<Self, ForwardError> {
        let hello = Hello {
            min_version: MAX_VERSION,
            max_version: MAX_VERSION,
            name: options.name.clone(),
            secret: options.secret.clone(),
            forward: Some(Origin { log_id: source, stream }),
            ..Hello::default()
        };
        let timeout = options.connect_timeout;
        let connecting = tokio::time::timeout(timeout, Box::pin(Framed::connect(address, &hello))).await;
        let timed_out = |_| ConnectError::Timeout { address: address.clone(), timeout };
        let (framed, welcome) = connecting.map_err(timed_out)?.map_err(ForwardError::of_hello)?;
        let state = match welcome.forwarding {
            Forwarding::No => return Err(ForwardError::NotSupported { address: address.clone() }),
            Forwarding::Unknown => None,
            Forwarding::Known(state) => Some(state),
        };
        let reached = [AckLevel::Written, AckLevel::Durable].map(|level| begin(&welcome, level));
        Ok(Self {
            framed,
            address: address.clone(),
            log: (&welcome).into(),
            state,
            pending: VecDeque::new(),
            reached,
            ended: false,
            ping_at: now() + PING_EVERY,
            pinged_at: None,
        })
    }

    /// The log that takes the stream, as it was at the greeting.
    #[must_use]
    pub const fn log(&self) -> &LogInfo {
        &self.log
    }

    /// Where the stream stood in the log at the greeting; nothing where the log does not know it. What it says was received,
    /// and no more: see [`Forwarder::state_level`] before anything is forgotten at the source.
    #[must_use]
    pub const fn state(&self) -> Option<&OriginState> {
        self.state.as_ref()
    }

    /// The level that all of [`Forwarder::state`] had reached at the greeting.
    #[must_use]
    pub fn state_level(&self) -> Option<AckLevel> {
        let state = self.state.as_ref()?;
        let end = state.offset.saturating_add(state.count.into());
        Some(match end {
            _ if end <= self.log.durable => AckLevel::Durable,
            _ if end <= self.log.written => AckLevel::Written,
            _ => AckLevel::Received,
        })
    }

    /// The number of appends that have no receipt yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// True if [`Forwarder::forward`] does not wait.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.pending.len() < self.log.window as usize && self.framed.queued_bytes() < QUEUE_BYTES
    }

    /// Puts an append in line, as its source's daemon gave it. Waits while the window is full. Cancel safe: it is in line or
    /// it is not. Its receipt comes from [`Forwarder::next`], which also sends what is in line.
    ///
    /// # Errors
    /// [`ForwardError::TooLarge`] and [`ForwardError::Level`] leave the forwarder as it was. After any other it is at its
    /// end; [`Forwarder::next`] still gives the receipts that there are.
    pub async fn forward(&mut self, how: ForwardAs, records: &RawRecords) -> Result<(), ForwardError> {
        if matches!(how.level, AckLevel::None | AckLevel::Posted) || how.level > self.log.highest_ack {
            return Err(ForwardError::Level { level: how.level });
        }
        let sizes = [
            (records.payload().len() as u64, u64::from(self.log.max_append_bytes)),
            (records.longest_record(), u64::from(self.log.max_record_bytes)),
        ];
        if let Some((len, max)) = sizes.into_iter().find(|(len, max)| len > max) {
            return Err(ForwardError::TooLarge { len, max });
        }
        while !self.ended && !self.has_room() {
            self.exchange().await?;
        }
        if self.ended {
            let why = self.pending.iter().find_map(|pending| pending.refused.clone());
            return Err(why.unwrap_or_else(|| ConnectError::Closed { address: self.address.clone() }.into()));
        }
        let (previous, skip, begins, level) = (how.previous, how.skip, how.begins, how.level);
        let head = ForwardHead { previous, level, begins, skip };
        let len = records.prefix().len() + records.payload().len();
        self.framed.write(|buf| buf.extend_from_slice(&forward_prefix(&head, u32::try_from(len).unwrap_or(u32::MAX))));
        self.framed.push(records.prefix().clone());
        self.framed.push(records.payload().clone());
        let (first, count) = (records.head().first_offset, records.head().count);
        self.pending.push_back(Pending { first, count, level, given: None, refused: None });
        Ok(())
    }

    /// The next receipt, in the order of the appends. Sends what is in line. Without an append that waits it keeps the
    /// connection alive and waits for its end. Cancel safe.
    ///
    /// # Errors
    /// [`ForwardError`], once all receipts before it were given.
    pub async fn next(&mut self) -> Result<Forwarded, ForwardError> {
        loop {
            if let Some(receipt) = self.take_receipt()? {
                return Ok(receipt);
            }
            self.exchange().await?;
        }
    }

    /// Waits until something came, and takes it in. Cancel safe.
    async fn exchange(&mut self) -> Result<(), ForwardError> {
        let at = now();
        if at >= self.ping_at {
            self.framed.ping();
            self.ping_at = at + PING_EVERY;
            self.pinged_at.get_or_insert(at);
        }
        let silent_until = self.pinged_at.map(|at| at + PONG_WITHIN);
        let until = silent_until.map_or(self.ping_at, |until| until.min(self.ping_at));
        let frame = match timeout_at(until, self.framed.next_frame()).await {
            Ok(frame) => frame.inspect_err(|_| self.ended = true)?,
            Err(_) if silent_until == Some(until) => {
                self.ended = true;
                return Err(ConnectError::Timeout { address: self.address.clone(), timeout: PONG_WITHIN }.into());
            }
            Err(_) => return Ok(()),
        };
        self.pinged_at = None;
        self.take(frame).inspect_err(|_| self.ended = true)
    }

    fn take(&mut self, frame: Frame) -> Result<(), ForwardError> {
        match frame {
            Frame::Accepted(Accepted { first_seq, first_offset, count, epoch, duplicate: false }) => {
                let waits = self.pending.iter_mut().find(|waits| waits.given.is_none() && waits.refused.is_none());
                let waits = waits.filter(|waits| (waits.first, waits.count) == (first_seq, count));
                let Some(waits) = waits else { return Err(self.protocol("an answer to what was not sent")) };
                waits.given = Some((first_offset, epoch));
            }
            Frame::Refused(refused) => {
                // One that was accepted may still fail with the disk.
                let of_it = |waits: &&mut Pending| waits.first == refused.first_seq && waits.refused.is_none();
                let Some(waits) = self.pending.iter_mut().find(of_it) else {
                    return Err(self.protocol("a refusal of what was not sent"));
                };
                waits.refused = Some(ForwardError::refused(refused.error));
                self.ended = true;
            }
            Frame::Watermark(watermark) => {
                if let Some(known) = self.reached.iter_mut().find(|known| known.level == watermark.level) {
                    *known = watermark;
                }
            }
            Frame::Pong(_) => {}
            other => return Err(self.protocol(format!("{:?} where an answer to an append belongs", other.kind()))),
        }
        Ok(())
    }

    fn protocol(&self, what: impl Into<String>) -> ForwardError {
        self.framed.protocol(what).into()
    }

    fn take_receipt(&mut self) -> Result<Option<Forwarded>, ForwardError> {
        let Some(front) = self.pending.front() else { return Ok(None) };
        if let Some(error) = &front.refused {
            return Err(error.clone());
        }
        let Some((offset, epoch)) = front.given else { return Ok(None) };
        let (first, count, level) = (front.first, u64::from(front.count), front.level);
        let end = offset.saturating_add(count);
        if level > AckLevel::Received && !self.reached.iter().any(|w| w.level >= level && covers(w, end, epoch)) {
            return Ok(None);
        }
        self.pending.pop_front();
        Ok(Some(Forwarded { first, end: first.saturating_add(count), offset, epoch, level }))
    }
}

/// The word of WELCOME on a level.
fn begin(welcome: &Welcome, level: AckLevel) -> Watermark {
    let nothing = Watermark { request_id: 0, epoch: 0, epoch_first_offset: 0, level, offset: 0 };
    welcome.watermark(level).unwrap_or(nothing)
}

/// True if a watermark covers what ends at `end` and was accepted in this epoch.
fn covers(watermark: &Watermark, end: u64, epoch: u32) -> bool {
    let is_below = end <= watermark.offset;
    let is_next = epoch.checked_add(1) == Some(watermark.epoch);
    is_below && (epoch == watermark.epoch || is_next && end <= watermark.epoch_first_offset)
}
