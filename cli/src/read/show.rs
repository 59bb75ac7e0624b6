//! Records on their way to the screen.
//!
//! Invariants: the cursor in the end is the place after the last record that was looked at, shown or not, so that a
//! later reading from there misses none (reversed: after the last that was shown). Whatever was read is on the
//! screen before more is waited for.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use clad_client::Start;
use clad_proto::Cursor;
use clad_proto::frame::GapReason;
use jiff::tz::TimeZone;

use super::filter::Filter;
use super::piece::{Event, Gap, Piece, Standing};
use super::source::Source;
use super::walk::{Backward, Part};
use crate::exit::{Exit, Outcome, Stop};
use crate::format::{Entry, Format, Renderer};
use crate::output::{Output, reader_gone};

/// Where records go.
pub(super) struct Show<'a> {
    output: &'a mut Output,
    format: Format,
    renderer: Renderer,
    filter: Filter,
    standing: Option<Standing>,
    place: Option<Cursor>,
    damaged: bool,
    lines: Vec<u8>,
}

impl<'a> Show<'a> {
    /// Nothing shown yet.
    pub(super) fn new(output: &'a mut Output, format: Format, zone: TimeZone, filter: Filter) -> Self {
        let renderer = Renderer::new(format, zone, output.colour());
        Self { output, format, renderer, filter, standing: None, place: None, damaged: false, lines: Vec::new() }
    }

    /// Which records are shown.
    pub(super) const fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Says something that is no record.
    pub(super) fn note(&mut self, text: &str, damage: bool) -> Result<(), Stop> {
        self.damaged |= damage;
        if damage {
            self.output.fail();
        }
        self.output.note(text)
    }

    /// Says which log it is and where the reading starts.
    pub(super) fn begin(&mut self, standing: Standing, after: Option<Cursor>) {
        self.standing = Some(standing);
        self.place = after;
    }

    /// Shows everything from a place on.
    pub(super) async fn forward(&mut self, source: &Source, start: Start, follow: bool) -> Result<(), Stop> {
        let mut stream = source.read(start, follow, None).await?;
        let from = if let Start::Offset(offset) = start { offset } else { 0 };
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        let gone = follow.then(reader_gone).transpose().map_err(anyhow::Error::new)?;
        let gone = async {
            match gone {
                Some(gone) => gone.await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(gone);
        loop {
            let event = {
                let mut next = pin!(stream.next());
                match poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
                    Poll::Ready(event) => event?,
                    Poll::Pending => {
                        // Whoever waits sees all there is so far.
                        self.output.flush()?;
                        tokio::select! {
                            biased;
                            _ = &mut interrupted, if follow => return Ok(()),
                            () = &mut gone, if follow => return Err(Stop::ReaderGone),
                            event = next => event?,
                        }
                    }
                }
            };
            match event {
                // The place also moves over what the daemon did not send.
                None => {
                    self.place = stream.cursor().or(self.place);
                    return Ok(());
                }
                Some(Event::CaughtUp | Event::Progress(_)) => self.place = stream.cursor().or(self.place),
                Some(Event::Records(piece)) => self.piece(&piece, from)?,
                Some(Event::Gap(gap)) => self.gap(&gap)?,
                Some(Event::Parted(text)) => self.note(&text, true)?,
            }
        }
    }

    fn piece(&mut self, piece: &Piece, from: u64) -> Result<(), Stop> {
        let Some(standing) = self.standing else { return Ok(()) };
        let Self { renderer, filter, lines, output, .. } = self;
        let wanted = |entry: &Entry<'_>| filter.lets(entry);
        piece.render(standing.log_id, from..u64::MAX, renderer, lines, wanted, |lines| output.write(lines))?;
        self.place = Some(Cursor { log_id: standing.log_id, epoch: piece.head.epoch, offset: piece.range().1 });
        Ok(())
    }

    fn gap(&mut self, gap: &Gap) -> Result<(), Stop> {
        self.note(&gap.note(), gap.reason == GapReason::Damage)
    }

    /// Shows a part of a log from its end, at most so many records.
    pub(super) async fn backward(&mut self, source: &Source, part: Part, last: Option<u64>) -> Result<(), Stop> {
        let mut left = last.unwrap_or(u64::MAX);
        let mut walk = Backward::new(source, part);
        while left > 0 {
            let Self { renderer, filter, .. } = self;
            let turned = walk
                .next(|entry, lines| {
                    if filter.lets(entry) {
                        renderer.render(entry, lines);
                    }
                })
                .await?;
            let Some(turned) = turned else { return Ok(()) };
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            for (line, cursor) in turned.lines().take(most) {
                self.output.write(line)?;
                self.place = Some(cursor);
                left -= 1;
            }
            if left > 0 {
                for gap in turned.gaps.iter().rev() {
                    self.gap(gap)?;
                }
            }
        }
        Ok(())
    }

    /// The end: the cursor, if it is wanted, and what it all amounts to.
    pub(super) fn end(self, cursor: bool) -> Outcome {
        if cursor && let Some(place) = self.place.or(self.standing.map(|standing| standing.end)) {
            match self.format {
                // One object a line, this one too.
                Format::Json => self.output.line(&format!("{{\"cursor\":\"{place}\"}}"))?,
                _ => self.output.line(&format!("-- cursor: {place}"))?,
            }
        }
        self.output.flush()?;
        Ok(if self.damaged { Exit::Failed } else { Exit::Done })
    }
}
