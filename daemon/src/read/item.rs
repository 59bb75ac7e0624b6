//! Items of a read, before a transport gives them a form.
//!
//! Invariants: a chunk's own bytes go from the batch into the transport's block in one step. So the framed way copies
//! them once and the gRPC way decodes them where they lie. `stream.rs` alone decides which items are sent, in which
//! order and when.

use bytes::{Bytes, BytesMut};
use clad_proto::frame::{CaughtUp, ErrorFrame, Gap, Progress, ReadEnd, RecordsHead, encode_records};

/// One item sent to a reader.
pub(crate) enum Item<'a> {
    /// One append, whole, and which of its records were asked for.
    Records { request_id: u32, head: RecordsHead, peer_meta: &'a [u8], payload: &'a [u8] },
    /// Offsets are missing for good.
    Gap(Gap),
    /// All there is was given; more may follow.
    CaughtUp(CaughtUp),
    /// All before this place was given, or does not match the filter.
    Progress(Progress),
    /// The last thing.
    End(ReadEnd),
    /// The last thing, when it cannot go on.
    Failed(ErrorFrame),
}

/// Items in the form in which a transport sends them.
pub(crate) trait Block: Default + Send + 'static {
    /// Form that goes over the channel to the connection.
    type Sent: Send + 'static;

    /// Adds one.
    fn put(&mut self, item: Item<'_>);

    /// About how many bytes of memory it holds; 0 is empty.
    fn size(&self) -> usize;

    /// The block as it is sent.
    fn finish(self) -> Self::Sent;
}

/// Frames back to back.
#[derive(Default)]
pub(super) struct Frames(BytesMut);

impl Block for Frames {
    type Sent = Bytes;

    fn put(&mut self, item: Item<'_>) {
        let out = &mut self.0;
        match item {
            Item::Records { request_id, head, peer_meta, payload } => {
                encode_records(out, request_id, &head, peer_meta, payload);
            }
            Item::Gap(gap) => gap.encode(out),
            Item::CaughtUp(caught_up) => caught_up.encode(out),
            Item::Progress(progress) => progress.encode(out),
            Item::End(end) => end.encode(out),
            Item::Failed(error) => error.encode(out),
        }
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    fn finish(self) -> Bytes {
        self.0.freeze()
    }
}
