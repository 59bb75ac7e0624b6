//! Named cursors: the place of a reader, kept by the daemon.

use crate::{Address, ConnectError, ReadError, clock::now, transport::Framed};
use bytes::{Bytes, BytesMut};
use clad_proto::{
    Cursor, ErrorCode, ErrorInfo,
    frame::{CommitCursor, CursorState, ErrorFrame, Frame, GetCursor, Hello, Intent, NamedCursor},
    limits::{MAX_VERSION, MIN_VERSION},
};
use std::time::Duration;
use tokio::time::timeout_at;

/// Time for an answer: the daemon waits for its disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Sets and reads the named cursors of a log, over the framed protocol (`unix://`, `tcp://`, `tcp+tls://`).
///
/// A cursor is where a reader goes on. The daemon has it on its disk when a commit returns, so that a reader without a disk
/// of its own can be started again anywhere. A name belongs to the user, or the name in the certificate, that first committed
/// it. A cursor that holds keeps what is not read from retention, up to the operator's bound; a full disk wins.
///
/// A reader that commits behind its own work gets nothing twice only if it stores its place with its results; a cursor alone
/// gives each record at least once.
///
/// A connection that was lost is made again by the next call. All methods are cancel safe: a commit that was dropped is made,
/// or not.
#[derive(Debug)]
pub struct Cursors {
    address: Address,
    connection: Option<Framed>,
    last_id: u32,
}

impl Cursors {
    /// Connects.
    ///
    /// # Errors
    /// There is no daemon, or this peer may not read.
    pub async fn connect(address: Address) -> Result<Self, ReadError> {
        let mut cursors = Self { address, connection: None, last_id: 0 };
        cursors.connection = Some(cursors.dial().await?);
        Ok(cursors)
    }

    /// The cursor of a name, if there is one.
    ///
    /// # Errors
    /// [`ReadError`]; a retryable one may succeed later.
    pub async fn get(&mut self, name: &str) -> Result<Option<NamedCursor>, ReadError> {
        let name = name.to_owned();
        self.ask(|request_id, buf| GetCursor { request_id, name: name.clone() }.encode(buf), None).await
    }

    /// Sets a cursor to the place of the next record to read, and makes it where there is none. `note` is up to 256 bytes of
    /// the reader's own.
    ///
    /// # Errors
    /// [`ReadError::CursorAbandoned`] where the records that were read are not in the log any more. A refusal `busy` where
    /// they are not on the disk yet; `cursor_not_yours`, `too_many_cursors`, `cursor_invalid`, `permission_denied`.
    pub async fn commit(
        &mut self,
        name: &str,
        place: Cursor,
        hold: bool,
        note: impl Into<Bytes>,
    ) -> Result<NamedCursor, ReadError> {
        let mut commit =
            CommitCursor { request_id: 0, name: name.to_owned(), place: Some(place), hold, note: note.into() };
        let encode = |request_id, buf: &mut BytesMut| {
            commit.request_id = request_id;
            commit.encode(buf);
        };
        self.ask(encode, Some(place)).await?.ok_or_else(|| self.protocol("a commit left no cursor"))
    }

    /// Removes a cursor. It is no error if there is none.
    ///
    /// # Errors
    /// [`ReadError`]; `cursor_not_yours`.
    pub async fn remove(&mut self, name: &str) -> Result<(), ReadError> {
        let mut commit =
            CommitCursor { request_id: 0, name: name.to_owned(), place: None, hold: false, note: Bytes::new() };
        let encode = |request_id, buf: &mut BytesMut| {
            commit.request_id = request_id;
            commit.encode(buf);
        };
        self.ask(encode, None).await.map(drop)
    }

    fn protocol(&self, what: &str) -> ReadError {
        ConnectError::Protocol { address: self.address.clone(), what: what.to_owned() }.into()
    }

    async fn dial(&self) -> Result<Framed, ReadError> {
        let grpc = self.protocol("named cursors go over unix://, tcp:// and tcp+tls://");
        match &self.address {
            #[cfg(feature = "grpc")]
            Address::Grpc(_) => return Err(grpc),
            #[cfg(all(feature = "grpc", feature = "tls"))]
            Address::Grpcs(_) => return Err(grpc),
            _ => drop(grpc),
        }
        let hello = Hello {
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            intent: Intent { append: false, read: true },
            name: "cursors".to_owned(),
            ..Hello::default()
        };
        let (framed, welcome) = Framed::connect(&self.address, &hello).await?;
        if !welcome.may_read {
            let text = format!("{} does not let this user read, and so not keep cursors", self.address);
            return Err(ReadError::Refused(Box::new(ErrorInfo::new(ErrorCode::PermissionDenied, text))));
        }
        Ok(framed)
    }

    /// Asks once more on a new connection where an idle one has been closed meanwhile: each question may be asked twice.
    async fn ask(
        &mut self,
        mut encode: impl FnMut(u32, &mut BytesMut),
        place: Option<Cursor>,
    ) -> Result<Option<NamedCursor>, ReadError> {
        let mut was_idle = self.connection.is_some();
        loop {
            // Taken out: an answer to a call that was dropped must not be read as that to the next.
            let mut framed = match self.connection.take() {
                Some(framed) => framed,
                None => self.dial().await?,
            };
            self.last_id = self.last_id.wrapping_add(1).max(1);
            let id = self.last_id;
            framed.write(|buf| encode(id, buf));
            let answer = timeout_at(now() + ANSWER_TIMEOUT, answer(&mut framed, id)).await;
            let lost = || ConnectError::Timeout { address: self.address.clone(), timeout: ANSWER_TIMEOUT };
            match answer.unwrap_or_else(|_| Err(lost())) {
                Ok(answered) => {
                    self.connection = Some(framed);
                    return answered.map_err(|error| match (error.code, place) {
                        (ErrorCode::CursorAbandoned, Some(cursor)) => {
                            ReadError::CursorAbandoned { cursor, parting: error.cursor }
                        }
                        (ErrorCode::CursorUnknown, Some(cursor)) => {
                            ReadError::CursorUnknown { cursor, text: error.text }
                        }
                        _ => ReadError::Refused(Box::new(error)),
                    });
                }
                Err(error) if error.is_retryable() && std::mem::take(&mut was_idle) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

async fn answer(framed: &mut Framed, id: u32) -> Result<Result<Option<NamedCursor>, ErrorInfo>, ConnectError> {
    loop {
        match framed.next_frame().await? {
            Frame::Cursor(CursorState { request_id, named }) if request_id == id => return Ok(Ok(named)),
            Frame::Error(ErrorFrame { request_id, error }) if request_id == id => return Ok(Err(error)),
            Frame::Watermark(_) | Frame::Pong(_) => {}
            other => return Err(framed.protocol(format!("{:?} where CURSOR belongs", other.kind()))),
        }
    }
}
