//! Entries of systemd's journal, as the stock `systemd-journal-upload` sends them: on the listeners of OTLP, with its levels,
//! places and words.
//!
//! Invariants:
//! - An entry is stored when it is there, not at the end of the request, which may bring a whole journal. The answer says
//!   that all of them have the level.
//! - A client that lost the answer sends all entries again. Each is an append with a name of its own, so it is stored once,
//!   as far as the journal knows it.
//! - A request holds one entry, whatever length it states. Its sender waits for room; who brings nothing for
//!   [`PIECE_TIMEOUT`] is refused.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use clad_proto::frame::Transport;
use clad_proto::journald::{ExportEntries, ExportFault, JournalEntry};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, PayloadBuilder};
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::timeout;

use super::answer::{self, Refusal};
use super::body;
use super::request;
use super::resends;
use super::shared::Otlp;
use crate::ingest::http::{Call, Caller};
use crate::ingest::own_appends::OwnAppends;
use crate::ingest::quota::Owner;
use crate::ingest::slots::PendingAnswer;
use crate::ingest::{ADMISSION_TIMEOUT, Peer, count_refusal};
use crate::ops::metrics::{self, OtlpCode};

/// Path to which `systemd-journal-upload` posts.
pub(super) const PATH: &str = "/upload";
const CONTENT_TYPE: &str = "application/vnd.fdo.journal";
/// Longest time without a byte in the middle of a request.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most that is kept of an entry, where records may be so long.
const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Sender of all entries, for resends.
const JOURNAL_IDENTITY: u64 = u64::from_be_bytes(*b"journald");
/// Memory of a request, in entries: one that is read, its fields, its payload.
const ENTRIES_HELD: usize = 4;

/// A request.
struct Upload {
    appends: OwnAppends,
    level: AckLevel,
    /// The journal knows what is sent again.
    has_resend_window: bool,
    entries: ExportEntries,
    stored: u64,
    pending_answer: Option<PendingAnswer>,
    _call: Call,
}

/// Takes a request.
pub(super) async fn upload(State(otlp): State<Otlp>, request: Request) -> Response {
    match take(&otlp, request).await {
        Ok((stored, level)) => {
            metrics::journal_upload(OtlpCode::Ok);
            format!("{stored} entries: {level}\n").into_response()
        }
        Err(refusal) => refused(&refusal),
    }
}

/// Answer to a request that has no place.
pub(super) fn refuse(_: &Request, error: &ErrorInfo) -> Response {
    refused(&Refusal::from(error.clone()))
}

fn refused(refusal: &Refusal) -> Response {
    metrics::journal_upload(refusal.code);
    let mut response = (answer::codes(refusal.code).1, format!("{}\n", refusal.text)).into_response();
    answer::retry_after(refusal, response.headers_mut());
    response
}

async fn take(otlp: &Otlp, request: Request) -> Result<(u64, AckLevel), Refusal> {
    let (parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Caller>();
    let checked = || {
        let peer = request::sender(otlp, &parts, Transport::Journal)?;
        check_headers(&parts.headers)?;
        let level = request::level(otlp, &parts.headers, peer.rights())?;
        Ok((peer, level))
    };
    let ((peer, level), mut body) = request::unless_refused(checked(), body).await?;
    let mut upload = Upload::begin(otlp, caller, peer, level)?;
    let service = otlp.live_settings.service();
    let (max_append, max_record) = upload.appends.limits();
    let max_entry = ENTRY_BYTES_MAX.min(max_record.min(max_append) as usize / 2);
    let held = service.assembly.handle(caller.map_or(Owner::Network, |caller| caller.owner));
    let held = timeout(ADMISSION_TIMEOUT, held.take(ENTRIES_HELD * max_entry)).await.ok().flatten();
    let _held = held.ok_or_else(body::no_room)?;
    upload.entries = ExportEntries::new(max_entry);
    let mut stop = service.stop;
    let stored = tokio::select! {
        biased;
        stored = upload.run(&mut body) => stored,
        _ = stop.wait_for(|stop| *stop) => Err(Refusal::new(OtlpCode::Unavailable, "clad is stopping")),
    };
    if stored.is_err() {
        body::discard(body).await;
    }
    stored.map(|()| (upload.stored, level))
}

fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    let is = |name, expected: &str| headers.get(name).is_some_and(|value| value.as_bytes() == expected.as_bytes());
    if !is(header::CONTENT_TYPE, CONTENT_TYPE) {
        return Err(Refusal::new(OtlpCode::Unsupported, format!("content-type: {CONTENT_TYPE}")));
    }
    match headers.contains_key(header::CONTENT_ENCODING) && !is(header::CONTENT_ENCODING, "identity") {
        true => Err(Refusal::new(OtlpCode::Unsupported, "content-encoding: entries are taken uncompressed")),
        false => Ok(()),
    }
}

impl Upload {
    fn begin(otlp: &Otlp, caller: Option<&Caller>, peer: Peer, level: AckLevel) -> Result<Self, Refusal> {
        let service = otlp.live_settings.service();
        service.admission.check_level(level, peer.rights())?;
        Ok(Self {
            appends: OwnAppends::begin(service.admission, &otlp.producers, peer, level)?,
            level,
            has_resend_window: otlp.has_resend_window,
            entries: ExportEntries::new(0),
            stored: 0,
            pending_answer: caller.map(Caller::pending_answer),
            _call: otlp.calls.begin(),
        })
    }

    /// Stores the entries of a body.
    async fn run(&mut self, body: &mut Body) -> Result<(), Refusal> {
        let mut buf = BytesMut::new();
        loop {
            // Who waits for an answer does not make room for others; who brings no more may have to.
            self.appends.release()?;
            let waits = self.appends.unanswered() > 0;
            self.pending_answer.iter_mut().for_each(|pending| pending.set(waits));
            let piece = timeout(PIECE_TIMEOUT, body.frame()).await.map_err(|_| {
                let text = format!("half a request, and nothing more of it within {PIECE_TIMEOUT:?}");
                Refusal::new(OtlpCode::Unavailable, text)
            })?;
            let Some(piece) = piece else { break };
            let cut_short = |error| Refusal::new(OtlpCode::Invalid, format!("the body ends early: {error}"));
            let Ok(piece) = piece.map_err(cut_short)?.into_data() else { continue };
            buf.extend_from_slice(&piece);
            while let Some(entry) = self.entries.next(&mut buf).map_err(|fault| self.invalid(fault))? {
                self.append(&entry).await?;
            }
        }
        if let Some(entry) = self.entries.last(&buf).map_err(|fault| self.invalid(fault))? {
            self.append(&entry).await?;
        }
        self.pending_answer.iter_mut().for_each(|pending| pending.set(true));
        Ok(self.appends.reach_level().await?)
    }

    fn invalid(&self, fault: ExportFault) -> Refusal {
        count_refusal(self.level, ErrorCode::BadRecord, 1);
        Refusal::new(OtlpCode::Invalid, format!("not the journal's export format: {fault}"))
    }

    /// Hands an entry over, when there is room.
    async fn append(&mut self, entry: &JournalEntry) -> Result<(), Refusal> {
        let (max_append, max_record) = self.appends.limits();
        let payload = PayloadBuilder::with_limits(&entry.group(), max_append, max_record).and_then(|mut builder| {
            entry.push_to(&mut builder)?;
            Ok(builder.finish())
        });
        let payload = payload.map_err(|error| Refusal::new(OtlpCode::TooLarge, error.to_string()))?;
        let bytes = payload.bytes.len();
        let admitted = match self.appends.try_admit(bytes) {
            Some(admitted) => Ok(admitted),
            None => self.appends.admit(bytes).await,
        };
        // An entry has no equal, and one that is sent again may come as another user: systemd picks these for each start.
        let is_named = self.has_resend_window && entry.cursor().is_some();
        let key = is_named.then(|| resends::key(JOURNAL_IDENTITY, &payload));
        let taken = admitted.and_then(|admitted| self.appends.take(&payload, key, admitted));
        drop(taken.inspect_err(|error| count_refusal(self.level, error.code, 1))?);
        self.stored += 1;
        Ok(())
    }
}

/// Answer to another method.
pub(super) async fn only_post() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")], "POST, from systemd-journal-upload\n").into_response()
}
