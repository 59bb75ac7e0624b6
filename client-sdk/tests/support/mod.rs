//! A daemon played by hand: it speaks the frames of clad-proto over a Unix socket and does what a test says.

#![allow(dead_code)] // no test uses all of it

use bytes::BytesMut;
use clad_client::{AckLevel, Address, DurabilityPolicy, ErrorInfo, LogId, Producer, ProducerBuilder, Record};
use clad_proto::frame::*;
use clad_proto::{Group, PayloadBuilder, ProducerId};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{UnixListener, UnixStream},
};

pub(crate) const LOG: LogId = LogId::from_bytes([7; 16]);

pub(crate) struct Fake {
    _folder: tempfile::TempDir,
    listener: UnixListener,
    pub(crate) address: Address,
}

/// One connection of a client.
pub(crate) struct Peer {
    stream: UnixStream,
    buf: BytesMut,
    pub(crate) hello: Hello,
}

pub(crate) fn welcome(hello: &Hello) -> Welcome {
    Welcome {
        version: 1,
        policy: DurabilityPolicy::GroupCommit,
        highest_ack: AckLevel::Durable,
        may_read: true,
        log_id: LOG,
        epoch: 1,
        epoch_first_offset: 0,
        producer_id: hello.producer_id,
        producer_epoch: hello.producer_epoch,
        secret: Vec::new(),
        last: None,
        window: 64,
        max_append_bytes: 8 << 20,
        max_record_bytes: 2 << 20,
        received: 0,
        written: 0,
        durable: 0,
        earlier: Vec::new(),
        forwarding: Forwarding::No,
    }
}

pub(crate) fn record(text: impl Into<String>) -> Record {
    Record::text(1, 9, text)
}

/// An append as a daemon gives it to a reader.
pub(crate) fn records(first_offset: u64, bodies: &[&str], skip: u32) -> Records {
    let mut builder = PayloadBuilder::new(&Group::component_named("app")).expect("fits");
    bodies.iter().for_each(|body| builder.push(&record(*body)).expect("fits"));
    let payload = builder.finish();
    let peer_meta = PeerMeta { transport: Some(Transport::Unix), pid: Some(42), ..PeerMeta::default() };
    let head = RecordsHead {
        epoch: 1,
        count: payload.count,
        first_offset,
        append_time: 99,
        producer_id: ProducerId::from_bytes([3; 16]),
        producer_epoch: 0,
        payload_crc: payload.checksum(),
        first_seq: 1000,
        skip,
        take: payload.count - skip,
    };
    Records { request_id: 0, head, peer_meta: peer_meta.to_bytes().into(), payload: payload.bytes }
}

/// Fails a test that hangs.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it hangs")
}

impl Fake {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("clad.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        Self { _folder: folder, listener, address: Address::unix(path) }
    }

    /// One whose clients ask for a ring.
    pub(crate) fn with_ring() -> Self {
        let mut fake = Self::new();
        fake.address = Address::shm(fake._folder.path().join("clad.sock"));
        fake
    }

    pub(crate) fn builder(&self) -> ProducerBuilder {
        let ms = Duration::from_millis;
        Producer::builder(self.address.clone()).component("test").backoff(ms(1), ms(20))
    }

    /// A producer and its connection.
    pub(crate) async fn producer(&self, builder: ProducerBuilder) -> (Producer, Peer) {
        let (producer, peer) = soon(async { tokio::join!(builder.connect(), self.accept()) }).await;
        (producer.expect("connected"), peer)
    }

    /// Takes the next client and reads its greeting.
    pub(crate) async fn meet(&self) -> Peer {
        Peer::meet(self.connection().await).await.expect("the client hung up")
    }

    /// Takes the next connection.
    pub(crate) async fn connection(&self) -> UnixStream {
        soon(self.listener.accept()).await.expect("a client").0
    }

    /// Takes the next client and welcomes it.
    pub(crate) async fn accept(&self) -> Peer {
        self.accept_with(|_| {}).await
    }

    pub(crate) async fn accept_with(&self, change: impl FnOnce(&mut Welcome)) -> Peer {
        let mut peer = self.meet().await;
        let mut welcome = welcome(&peer.hello);
        change(&mut welcome);
        peer.send(Frame::Welcome(welcome)).await;
        peer
    }
}

impl Peer {
    /// Reads the greeting; nothing when the client hangs up before it says anything, as one that ends may.
    pub(crate) async fn meet(stream: UnixStream) -> Option<Self> {
        let mut peer = Self { stream, buf: BytesMut::new(), hello: Hello::default() };
        let Frame::Hello(hello) = peer.try_next().await? else { panic!("HELLO comes first") };
        peer.hello = hello;
        Some(peer)
    }

    /// The next frame; nothing when the client hangs up.
    pub(crate) async fn try_next(&mut self) -> Option<Frame> {
        soon(async {
            loop {
                if let Some(frame) = FrameDecoder::default().next(&mut self.buf).expect("a frame") {
                    return Some(frame);
                }
                match self.stream.read_buf(&mut self.buf).await {
                    // A process that ends takes no answers any more.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                    read if read.as_ref().expect("bytes") == &0 => return None,
                    _ => {}
                }
            }
        })
        .await
    }

    /// The next frame, and the descriptors that come with it.
    pub(crate) async fn next_with_fds(&mut self) -> (Frame, Vec<OwnedFd>) {
        let (mut bytes, mut fds) = ([0; 4096], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let read = soon(self.stream.async_io(Interest::READABLE, || {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got = recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            Ok(got.bytes)
        }))
        .await
        .expect("bytes");
        self.buf.extend_from_slice(&bytes[..read]);
        (self.next().await, fds)
    }

    pub(crate) async fn next(&mut self) -> Frame {
        self.try_next().await.expect("the client hung up")
    }

    pub(crate) async fn append(&mut self) -> Append {
        match self.next().await {
            Frame::Append(append) => append,
            other => panic!("{other:?} where APPEND was expected"),
        }
    }

    pub(crate) async fn flush(&mut self) -> Flush {
        match self.next().await {
            Frame::Flush(flush) => flush,
            other => panic!("{other:?} where FLUSH was expected"),
        }
    }

    pub(crate) async fn send(&mut self, frame: Frame) {
        let mut buf = BytesMut::new();
        frame.encode(&mut buf);
        self.bytes(&buf).await;
    }

    /// Sends a frame with descriptors, in one message.
    pub(crate) async fn send_with_fds(&mut self, frame: Frame, fds: &[OwnedFd]) {
        let mut buf = BytesMut::new();
        frame.encode(&mut buf);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "three descriptors at most");
        self.stream.writable().await.expect("a stream");
        let sent = sendmsg(&self.stream, &[IoSlice::new(&buf)], &mut control, SendFlags::empty()).expect("sent");
        assert_eq!(sent, buf.len());
    }

    pub(crate) async fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    pub(crate) async fn accepted(&mut self, append: &Append, first_offset: u64, epoch: u32) {
        let AppendHead { first_seq, count, .. } = append.head;
        self.send(Frame::Accepted(Accepted { first_seq, first_offset, count, epoch, duplicate: false })).await;
    }

    pub(crate) async fn refused(&mut self, append: &Append, error: ErrorInfo) {
        let AppendHead { first_seq, count, .. } = append.head;
        self.send(Frame::Refused(Refused { first_seq, count, error })).await;
    }

    pub(crate) async fn durable(&mut self, offset: u64) {
        self.watermark(0, AckLevel::Durable, offset, 1, 0).await;
    }

    pub(crate) async fn watermark(
        &mut self,
        request_id: u32,
        level: AckLevel,
        offset: u64,
        epoch: u32,
        epoch_first_offset: u64,
    ) {
        self.send(Frame::Watermark(Watermark { request_id, epoch, epoch_first_offset, level, offset })).await;
    }
}
