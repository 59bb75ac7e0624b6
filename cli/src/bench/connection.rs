//! One connection of the load, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use clad_proto::frame::{Accepted, Flush, Frame, FrameType, encode_bye};
use clad_proto::{AckLevel, ProducerId};

use super::body::{Id, Template};
use super::flight::Flight;
use super::plan::Load;
use super::wire::Wire;
use crate::clock;

/// A greeted connection, and what became of its appends so far.
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) producer: ProducerId,
    pub(super) number: u16,
    pub(super) flight: Flight,
    pub(super) load: Load,
    pub(super) level: AckLevel,
    pub(super) template: Arc<Template>,
    pub(super) acked: Arc<AtomicU64>,
}

/// State of a connection.
pub(super) struct End {
    pub(super) number: u16,
    pub(super) producer: ProducerId,
    pub(super) start: Instant,
    pub(super) flight: Flight,
    pub(super) broken: Option<anyhow::Error>,
}

impl Connection {
    /// Appends leave as long as there is room and time; `false` when there is neither, nor any under way.
    pub(super) fn leave(&mut self, now: Instant, start: Instant) -> bool {
        if now < start + self.load.duration && !self.load.interrupt.came() {
            let time = clock::unix_nanos();
            let room = self.load.in_flight.saturating_sub(self.flight.in_flight());
            if room > 0 {
                let first = Id { connection: self.number, record: self.flight.leave(room, now) };
                self.template.write_timestamped(&mut self.wire.out, first, room, self.level, time);
            }
            return true;
        }
        self.flight.in_flight() > 0
    }

    /// Takes the answers out of what was received.
    pub(super) fn answers(&mut self, now: Instant) -> anyhow::Result<()> {
        let before = self.flight.acked;
        while let Some(raw) = self.wire.next()? {
            match raw.header.kind {
                // Most of what comes.
                FrameType::Accepted => self.flight.accepted(&Accepted::parse(&raw)?, now)?,
                _ => self.flight.answer(&raw.decode()?, now)?,
            }
        }
        self.acked.fetch_add((self.flight.acked - before) * u64::from(self.load.records), Relaxed);
        Ok(())
    }

    /// It is over, or broken.
    pub(super) fn over(mut self, start: Instant, mut broken: Option<anyhow::Error>) -> End {
        if broken.is_none() {
            broken = self.end().err();
        }
        self.flight.end();
        End { number: self.number, producer: self.producer, start, flight: self.flight, broken }
    }

    /// Records that are read back afterwards must be readable: written.
    fn end(&mut self) -> anyhow::Result<()> {
        if self.level < AckLevel::Written {
            self.wire.queue(|out| Flush { request_id: 1, level: AckLevel::Written }.encode(out));
            let mut flushed = false;
            while !flushed {
                self.wire.exchange()?;
                while let Some(raw) = self.wire.next()? {
                    flushed |= match raw.decode()? {
                        Frame::Watermark(watermark) => watermark.request_id == 1,
                        Frame::Error(error) => return Err(error.error.into()),
                        _ => false,
                    };
                }
            }
        }
        // The daemon need not remember this producer any more; it closes when it has heard.
        self.wire.queue(encode_bye);
        while self.wire.exchange().is_ok() {
            while self.wire.next()?.is_some() {}
        }
        Ok(())
    }
}
