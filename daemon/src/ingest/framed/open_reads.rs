//! The READs of a connection that have not ended, and its requests about named cursors.
//!
//! Invariants: at most [`MAX_READS_PER_CONNECTION`] are open, each with a request id of its own. One is forgotten when
//! its task is over and its last block was taken. All end with the connection.

use std::collections::HashMap;
use std::future::Future;

use bytes::{Bytes, BytesMut};
use clad_proto::frame::{CursorState, ErrorFrame, Read};
use clad_proto::limits::{MAX_READS_PER_CONNECTION, MIN_VERSION};
use clad_proto::{ErrorCode, ErrorInfo};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::service::Service;
use crate::config::Right;
use crate::ingest::peer::Peer;

/// Blocks between the log and the output.
const QUEUED_BLOCKS_MAX: usize = 2;

/// The open READs, and their blocks.
pub(super) struct OpenReads {
    blocks: (mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>),
    open: HashMap<u32, OpenRead>,
    /// Version of the protocol that the peer speaks, by WELCOME.
    pub(super) version: u16,
}

struct OpenRead {
    task: AbortHandle,
    follows: bool,
    cancel: watch::Sender<bool>,
}

impl OpenReads {
    pub(super) fn new() -> Self {
        Self { blocks: mpsc::channel(QUEUED_BLOCKS_MAX), open: HashMap::new(), version: MIN_VERSION }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Begins a READ; an error is its answer.
    pub(super) fn begin(&mut self, service: &Service, peer: &Peer, read: &Read) -> Result<(), ErrorInfo> {
        self.forget_ended();
        let refuse = |code, text: &str| Err(ErrorInfo::new(code, text));
        peer.check(Right::Read)?;
        if self.has(read.request_id) || read.request_id == 0 {
            return refuse(ErrorCode::MalformedFrame, "a READ needs a request id that no open READ has");
        }
        if self.open.len() >= MAX_READS_PER_CONNECTION {
            return refuse(ErrorCode::Busy, "too many READs are open on this connection");
        }
        let start = service.reads.start(read, peer.quota_owner())?.for_version(self.version);
        let (cancel, cancelled) = watch::channel(false);
        let task = tokio::spawn(start.run(self.blocks.0.clone(), service.stop.clone(), cancelled));
        self.open.insert(read.request_id, OpenRead { task: task.abort_handle(), follows: read.follow, cancel });
        Ok(())
    }

    /// Begins a request about a named cursor: its answer comes as a block. An error is its answer.
    pub(super) fn begin_cursor(
        &mut self,
        request_id: u32,
        answer: impl Future<Output = Result<CursorState, ErrorInfo>> + Send + 'static,
    ) -> Result<(), ErrorInfo> {
        self.forget_ended();
        if self.has(request_id) {
            return Err(ErrorInfo::new(ErrorCode::MalformedFrame, "this request id is in use on this connection"));
        }
        if self.open.len() >= MAX_READS_PER_CONNECTION {
            let text = "too many READs and cursors are under way on this connection";
            return Err(ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(100));
        }
        let blocks = self.blocks.0.clone();
        let (cancel, under_way) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut block = BytesMut::new();
            match answer.await {
                Ok(state) => state.encode(&mut block),
                Err(error) => ErrorFrame { request_id, error }.encode(&mut block),
            }
            let Ok(room) = blocks.reserve().await else { return };
            drop(under_way); // before the peer can know: with the answer the id is free
            room.send(block.freeze());
        });
        self.open.insert(request_id, OpenRead { task: task.abort_handle(), follows: false, cancel });
        Ok(())
    }

    /// Returns true if what has this id has not sent its last block.
    fn has(&self, request_id: u32) -> bool {
        self.open.get(&request_id).is_some_and(|open| !open.cancel.is_closed())
    }

    pub(super) fn cancel(&mut self, request_id: u32) {
        // The read itself reports where it ends, behind what it has given. One that has ended already has done that.
        if let Some(read) = self.open.get(&request_id) {
            read.cancel.send_replace(true);
        }
    }

    /// The next block of any of them. Cancel safe.
    pub(super) async fn next_block(&mut self) -> Option<Bytes> {
        self.blocks.1.recv().await
    }

    /// Forgets READs whose task is over and whose last block was taken.
    pub(super) fn forget_ended(&mut self) {
        // In this order: a task that is over has sent its last block, and it is in the channel or was taken.
        let blocks = &self.blocks.1;
        self.open.retain(|_, read| !(read.task.is_finished() && blocks.is_empty()));
    }

    /// Ends those that follow the log.
    pub(super) fn end_following(&mut self) {
        self.open.retain(|_, read| {
            if read.follows {
                read.task.abort();
            }
            !read.follows
        });
    }
}

impl Drop for OpenReads {
    fn drop(&mut self) {
        self.open.values().for_each(|read| read.task.abort());
    }
}
