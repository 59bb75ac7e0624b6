//! A request's body, until it is a message.
//!
//! Invariants:
//! - A body that is whole in its first piece needs no share: it came with memory that is there already. Any other has a
//!   share of the assembly budget, for all of its length where that is known, before its next piece is read.
//! - A share is waited for, with a timeout; the sender is not read from meanwhile. What is there of a body that waits for
//!   more than it has is not counted: all such bodies have at most `WAITING_BYTES`.
//! - A body that is too long is refused when that is known, and read no further than [`DISCARD`]: so its sender gets the
//!   answer.
//! - A body is whole within [`BODY_TIMEOUT`].
//! - A body is inflated, and turned from JSON, on a thread of its own, of which there are a few.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::timeout;
use tonic::codegen::Body as _;

use super::answer::{Format, Refusal};
use super::inflate::{Encoding, NotInflated};
use super::json;
use super::shared::Otlp;
use crate::ingest::ADMISSION_TIMEOUT;
use crate::ingest::http::Caller;
use crate::ingest::quota::{Owner, QuotaGuard, QuotaHandle};
use crate::ops::metrics::OtlpCode;

/// Time for a body to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The most that is read of a body that is refused, and for how long.
const DISCARD: (usize, Duration) = (64 << 20, Duration::from_secs(5));
/// Flag and length before a message over gRPC.
const MESSAGE_HEADER_BYTES: usize = 5;
/// The first share of a body whose length is not known.
const FIRST_SHARE_BYTES: usize = 64 * 1024;
/// Bodies up to this length are transformed where they are, and to at most so much: a thread costs more.
const INLINE_BYTES: (usize, usize) = (4 * 1024, 64 * 1024);

/// Limits of a body.
pub(super) struct Bodies {
    budget: QuotaHandle,
    waiting: QuotaHandle,
    max: usize,
}

impl Bodies {
    pub(super) fn of(otlp: &Otlp, request: &Request<Body>) -> Self {
        let owner = request.extensions().get::<Caller>().map_or(Owner::Network, |caller| caller.owner);
        let service = otlp.live_settings.service();
        let (budget, waiting) = (service.assembly.handle(owner), otlp.waiting.handle(owner));
        Self { budget, waiting, max: otlp.live_settings.max_message_bytes() }
    }
}

/// The share of a body.
pub(super) struct Room {
    budget: QuotaHandle,
    /// Bytes that may wait for room without a share.
    waiting: QuotaHandle,
    max: usize,
    shares: Vec<QuotaGuard>,
    held: usize,
}

impl Room {
    /// Makes it so much in all; `here`: bytes that are there meanwhile. Who has a share gives it back before it waits for
    /// a larger one, or two could wait for each other. A request that needs more than there is has all of it.
    async fn grow(&mut self, to: usize, here: usize) -> Result<(), Refusal> {
        let more = to.saturating_sub(self.held);
        if more == 0 {
            return Ok(());
        }
        if let Some(share) = self.budget.try_take(more) {
            self.shares.push(share);
        } else {
            let _waits = self.waiting.try_take(here).ok_or_else(no_room)?;
            self.shares.clear();
            let share = timeout(ADMISSION_TIMEOUT, self.budget.take(to)).await.ok().flatten();
            self.shares.push(share.ok_or_else(no_room)?);
        }
        self.held = to;
        Ok(())
    }

    /// Inflates a body, and makes protobuf of JSON.
    pub(super) async fn transform(
        &mut self,
        otlp: &Otlp,
        encoding: Encoding,
        format: Format,
        body: Bytes,
    ) -> Result<Bytes, Refusal> {
        if body.len() <= INLINE_BYTES.0 {
            match transformed(encoding, format, &body, INLINE_BYTES.1.min(self.max)) {
                Ok(message) => return Ok(message),
                Err(NotTransformed::TooLong) => {}
                Err(NotTransformed::Refused(refusal)) => return Err(refusal),
            }
        }
        // JSON's protobuf is no longer than itself, and beside it.
        let times = if format == Format::Json { 2 } else { 1 };
        let mut step = encoding.hint(&body).clamp(INLINE_BYTES.1.min(self.max), self.max);
        loop {
            self.grow(body.len() + step * times, body.len()).await?;
            let permit = otlp.transforms.clone().acquire_owned().await.map_err(|_| no_room())?;
            let part = body.clone();
            let work = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                transformed(encoding, format, &part, step)
            });
            let stopping = |_| Refusal::new(OtlpCode::Unavailable, "clad is stopping");
            match work.await.map_err(stopping)? {
                Ok(message) => return Ok(message),
                Err(NotTransformed::TooLong) if step < self.max => step = (2 * step).min(self.max),
                Err(NotTransformed::TooLong) => return Err(too_long(self.max)),
                Err(NotTransformed::Refused(refusal)) => return Err(refusal),
            }
        }
    }
}

enum NotTransformed {
    /// It is longer than that.
    TooLong,
    Refused(Refusal),
}

fn transformed(encoding: Encoding, format: Format, body: &[u8], max: usize) -> Result<Bytes, NotTransformed> {
    let inflated = match encoding {
        Encoding::Identity => None,
        _ => Some(encoding.inflate(body, max).map_err(|error| match error {
            NotInflated::TooLong => NotTransformed::TooLong,
            NotInflated::Broken(error) => {
                NotTransformed::Refused(Refusal::new(OtlpCode::Invalid, format!("the body's compression: {error}")))
            }
        })?),
    };
    match format {
        Format::Json => of_json(inflated.as_deref().unwrap_or(body)).map(Bytes::from).map_err(NotTransformed::Refused),
        Format::Protobuf => Ok(inflated.map_or_else(|| Bytes::copy_from_slice(body), Bytes::from)),
    }
}

/// Protobuf of a JSON body.
fn of_json(body: &[u8]) -> Result<Vec<u8>, Refusal> {
    json::to_protobuf(body).map_err(|error| Refusal::new(OtlpCode::Invalid, format!("JSON: {error}")))
}

pub(super) fn no_room() -> Refusal {
    let text =
        "as many bytes of requests are under way as [limits] max_inflight_bytes allows, or as this user may have";
    Refusal::new(OtlpCode::Busy, text)
}

fn too_long(max: usize) -> Refusal {
    let text = format!("more than {max} bytes ([limits] max_message_bytes), inflated or not: send less at once");
    Refusal::new(OtlpCode::TooLarge, text)
}

/// Reads a body. `is_grpc`: its first bytes say how long it is.
pub(super) async fn read(mut body: Body, bodies: Bodies, is_grpc: bool) -> Result<(Bytes, Room), Refusal> {
    let Bodies { budget, waiting, max } = bodies;
    let mut room = Room { budget, waiting, max, shares: Vec::new(), held: 0 };
    let refusal = match timeout(BODY_TIMEOUT, whole(&mut body, &mut room, is_grpc)).await {
        Ok(Ok(whole)) => return Ok((whole.freeze(), room)),
        Ok(Err(refusal)) => refusal,
        Err(_) => {
            let text = format!("half a request, and not the rest of it within {BODY_TIMEOUT:?}");
            return Err(Refusal::new(OtlpCode::Unavailable, text));
        }
    };
    drop(room);
    discard(body).await;
    Err(refusal)
}

/// Length of a body, as far as it is known: by its header, or by the message's.
fn announced(body: &Body, start: &[u8], is_grpc: bool) -> Option<usize> {
    if is_grpc {
        let [_, a, b, c, d] = *start.first_chunk::<MESSAGE_HEADER_BYTES>()?;
        return Some(MESSAGE_HEADER_BYTES.saturating_add(u32::from_be_bytes([a, b, c, d]) as usize));
    }
    let left = body.size_hint().exact()?;
    usize::try_from(left).ok().map(|left| left.saturating_add(start.len()))
}

async fn whole(body: &mut Body, room: &mut Room, is_grpc: bool) -> Result<BytesMut, Refusal> {
    let limit = room.max + if is_grpc { MESSAGE_HEADER_BYTES } else { 0 };
    let mut got = BytesMut::new();
    while let Some(piece) = {
        let announced = announced(body, &got, is_grpc);
        if announced.is_some_and(|bytes| bytes > limit) {
            return Err(too_long(room.max));
        }
        let is_whole = announced.is_some_and(|bytes| got.len() >= bytes) || body.is_end_stream();
        if !got.is_empty() && !is_whole {
            take_room(room, announced, got.len()).await?;
        }
        body.frame().await
    } {
        let cut_short = |error| Refusal::new(OtlpCode::Invalid, format!("the body ends early: {error}"));
        // Copied: in its own memory it would hold that of other requests' pieces.
        let Ok(piece) = piece.map_err(cut_short)?.into_data() else { continue };
        if got.len() + piece.len() > limit {
            return Err(too_long(room.max));
        }
        got.extend_from_slice(&piece);
    }
    Ok(got)
}

/// A share for what is to come, beside what has come.
async fn take_room(room: &mut Room, announced: Option<usize>, got: usize) -> Result<(), Refusal> {
    // Where the length is not known, half of it is free for the next pieces.
    let most = room.max.max(got);
    let wanted = announced.unwrap_or_else(|| (2 * got).clamp(FIRST_SHARE_BYTES.min(most), most));
    if announced.is_some() || got > room.held / 2 { room.grow(wanted, got).await } else { Ok(()) }
}

/// Reads the rest of a body that is refused, in part: its sender looks for the answer behind it.
pub(super) async fn discard(mut body: Body) {
    let rest = async {
        let mut left = DISCARD.0;
        while let Some(Ok(piece)) = body.frame().await {
            left = left.saturating_sub(piece.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(DISCARD.1, rest).await;
}

/// The one message of a body over gRPC, and whether it is compressed.
pub(super) fn message_of(body: &Bytes) -> Result<(bool, Bytes), Refusal> {
    let invalid = |text: &str| Refusal::new(OtlpCode::Invalid, text);
    let Some(&[flag, a, b, c, d]) = body.first_chunk::<MESSAGE_HEADER_BYTES>() else {
        return Err(invalid("a call without a message"));
    };
    let message = body.slice(MESSAGE_HEADER_BYTES..);
    if message.len() != u32::from_be_bytes([a, b, c, d]) as usize {
        return Err(invalid("the length of the message is not that of the body: one message is taken"));
    }
    match flag {
        0 => Ok((false, message)),
        1 => Ok((true, message)),
        _ => Err(invalid("a flag of a message that is neither 0 nor 1")),
    }
}
