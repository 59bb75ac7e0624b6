//! The framed protocol by hand: one frame at a time, well or badly spoken.
//!
//! Invariants: every read has a bound; what is not expected fails the test with what came instead.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::frame::{
    Accepted, AppendHead, Flush, Frame, FrameDecoder, Hello, Intent, Read as ReadFrame, ReadEnd, ReadFrom, Refused,
    Watermark, Welcome, encode_append, encode_bye, encode_ping,
};
use clad_proto::{AckLevel, Body, ErrorInfo, Group, Payload, PayloadBuilder, PayloadView, ProducerId, ValueRef};

use crate::socket::Socket;

/// A connection, spoken by hand.
#[derive(Debug)]
pub struct Raw {
    socket: Socket,
    buf: BytesMut,
    decoder: FrameDecoder,
    written: Option<Watermark>,
    durable: Option<Watermark>,
    reads: u64,
}

/// A record that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// Its offset.
    pub offset: u64,
    /// Its producer.
    pub producer: ProducerId,
    /// Its sequence.
    pub sequence: u64,
    /// Its body, if it is text or bytes.
    pub body: Option<Vec<u8>>,
}

/// HELLO of a program that appends, under an id that the daemon assigns.
#[must_use]
pub fn hello() -> Hello {
    let intent = Intent { append: true, read: false };
    Hello { min_version: 1, max_version: 1, intent, name: "e2e".to_owned(), ..Hello::default() }
}

/// HELLO of a program that goes on as this producer.
#[must_use]
pub fn hello_as(producer_id: ProducerId, producer_epoch: u32, secret: &[u8]) -> Hello {
    Hello { producer_id, producer_epoch, secret: secret.to_vec(), ..hello() }
}

/// HELLO of a program that reads.
#[must_use]
pub fn hello_reader() -> Hello {
    Hello { intent: Intent { append: false, read: true }, ..hello() }
}

/// A payload of these bodies: text where they are UTF-8.
///
/// # Panics
/// When one does not go in.
#[must_use]
pub fn payload(bodies: &[&[u8]]) -> Payload {
    let group = Group::component_named("e2e");
    let mut builder = PayloadBuilder::with_limits(&group, u32::MAX, u32::MAX).expect("a small group");
    for body in bodies {
        let body = std::str::from_utf8(body).map_or(Body::Bytes(body), Body::Text);
        builder.push_body(0, 0, 9, body).expect("a record");
    }
    builder.finish()
}

impl Raw {
    /// Connects to a Unix socket.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn unix(path: &Path) -> Self {
        Self::over(Socket::unix(path))
    }

    /// Connects over TCP.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self::over(Socket::tcp(address))
    }

    fn over(socket: Socket) -> Self {
        Self { socket, buf: BytesMut::new(), decoder: FrameDecoder::default(), written: None, durable: None, reads: 0 }
    }

    /// Reads from the socket that brought something.
    #[must_use]
    pub const fn reads(&self) -> u64 {
        self.reads
    }

    /// Sends bytes, whatever they are.
    ///
    /// # Errors
    /// When the daemon has closed, or takes nothing for too long.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Sends as many of these bytes as go in within a time; how many did.
    ///
    /// # Panics
    /// When the daemon has closed.
    pub fn send_some(&mut self, bytes: &[u8], time: Duration) -> usize {
        self.socket.write_within(bytes, time).unwrap_or_else(|e| panic!("the daemon has closed: {e}"))
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// When it cannot.
    pub fn send(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::new();
        encode(&mut bytes);
        self.send_bytes(&bytes).expect("the daemon takes what is sent");
    }

    /// Says HELLO and takes WELCOME, or the reason why not.
    ///
    /// # Errors
    /// What the daemon says instead of WELCOME.
    pub fn greet(&mut self, hello: &Hello) -> Result<Welcome, ErrorInfo> {
        let mut bytes = BytesMut::new();
        hello.encode(&mut bytes);
        // A daemon that has no place says so unasked, and takes nothing.
        let sent = self.send_bytes(&bytes);
        match self.frame() {
            Some(Frame::Welcome(welcome)) => Ok(welcome),
            Some(Frame::Error(error)) => Err(error.error),
            other => panic!("neither WELCOME nor ERROR to HELLO ({sent:?}): {other:?}"),
        }
    }

    /// Connects to a Unix socket and says HELLO as a new producer.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn producer(path: &Path) -> (Self, Welcome) {
        let mut raw = Self::unix(path);
        let welcome = raw.greet(&hello()).expect("WELCOME");
        (raw, welcome)
    }

    /// Connects as this producer, epoch 0, on a Unix socket.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn resume(path: &Path, id: ProducerId) -> (Self, Welcome) {
        let mut raw = Self::unix(path);
        let welcome = raw.greet(&hello_as(id, 0, b"")).expect("WELCOME");
        (raw, welcome)
    }

    /// Sends an append of these bodies.
    pub fn append(&mut self, first_seq: u64, level: AckLevel, bodies: &[&[u8]]) {
        self.append_payload(first_seq, level, false, &payload(bodies));
    }

    /// Sends an append that says that sequences before it are given up.
    pub fn append_after_gap(&mut self, first_seq: u64, level: AckLevel, bodies: &[&[u8]]) {
        self.append_payload(first_seq, level, true, &payload(bodies));
    }

    /// Sends a payload.
    pub fn append_payload(&mut self, first_seq: u64, level: AckLevel, gap: bool, payload: &Payload) {
        let head = AppendHead { first_seq, count: payload.count, level, gap, payload_crc: payload.checksum() };
        self.send(|buf| encode_append(buf, &head, &payload.bytes));
    }

    /// The next frame; nothing when the daemon has closed.
    ///
    /// # Panics
    /// When nothing comes for too long, or what comes is no frame.
    pub fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next(&mut self.buf).expect("a frame") {
                if let Frame::Watermark(watermark) = &frame {
                    self.note(*watermark);
                }
                return Some(frame);
            }
            let mut chunk = [0; 16 * 1024];
            match self.socket.read(&mut chunk) {
                Ok(0) => return None,
                Ok(length) => {
                    self.buf.extend_from_slice(&chunk[..length]);
                    self.reads += 1;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("nothing came: {e}"),
            }
        }
    }

    fn note(&mut self, watermark: Watermark) {
        match watermark.level {
            AckLevel::Written => self.written = Some(watermark),
            AckLevel::Durable => self.durable = Some(watermark),
            _ => {}
        }
    }

    /// The next frame that is no watermark.
    ///
    /// # Panics
    /// When the daemon has closed.
    pub fn answer(&mut self) -> Frame {
        loop {
            match self.frame() {
                Some(Frame::Watermark(watermark)) if watermark.request_id == 0 => {}
                Some(frame) => return frame,
                None => panic!("the daemon has closed"),
            }
        }
    }

    /// The next answer, which is ACCEPTED.
    ///
    /// # Panics
    /// When it is not.
    pub fn accepted(&mut self) -> Accepted {
        match self.answer() {
            Frame::Accepted(accepted) => accepted,
            other => panic!("not ACCEPTED: {other:?}"),
        }
    }

    /// The next answer, which is REFUSED.
    ///
    /// # Panics
    /// When it is not.
    pub fn refused(&mut self) -> Refused {
        match self.answer() {
            Frame::Refused(refused) => refused,
            other => panic!("not REFUSED: {other:?}"),
        }
    }

    /// Waits until a watermark covers an offset.
    ///
    /// # Panics
    /// When it never does, or something else comes.
    pub fn wait_watermark(&mut self, level: AckLevel, epoch: u32, offset: u64) {
        loop {
            let watermark = if level == AckLevel::Written { self.written } else { self.durable };
            if watermark.is_some_and(|watermark| watermark.covers(epoch, offset)) {
                return;
            }
            match self.frame() {
                Some(Frame::Watermark(_)) => {}
                other => panic!("not the {level} watermark over {offset}: {other:?}"),
            }
        }
    }

    /// Sends one append and waits for its ack.
    ///
    /// # Panics
    /// When it is refused.
    pub fn append_acked(&mut self, first_seq: u64, level: AckLevel, bodies: &[&[u8]]) -> Accepted {
        self.append(first_seq, level, bodies);
        let accepted = self.accepted();
        if level > AckLevel::Received {
            self.wait_watermark(level, accepted.epoch, accepted.first_offset + u64::from(accepted.count) - 1);
        }
        accepted
    }

    /// The error that ends the connection, and its end.
    ///
    /// # Panics
    /// When it goes on, or ends without a word.
    pub fn end(&mut self) -> ErrorInfo {
        let Frame::Error(frame) = self.answer() else { panic!("not ERROR") };
        assert_eq!(frame.request_id, 0, "an error of one request: {frame:?}");
        assert_eq!(self.frame(), None, "the connection goes on behind {frame:?}");
        frame.error
    }

    /// The next answer, which is ACCEPTED, though it may wait for what is said next: a PONG is.
    ///
    /// # Panics
    /// When it is another.
    pub fn accepted_now(&mut self) -> Accepted {
        self.send(|buf| encode_ping(buf, 78));
        let accepted = self.accepted();
        assert_eq!(self.answer(), Frame::Pong(78));
        accepted
    }

    /// Asks for a PONG and takes it: the connection is alive.
    ///
    /// # Panics
    /// When it is not.
    pub fn ping(&mut self) {
        self.send(|buf| encode_ping(buf, 77));
        let answer = self.answer();
        assert_eq!(answer, Frame::Pong(77));
    }

    /// Asks for a level for all that was sent, and waits for it.
    ///
    /// # Errors
    /// What the daemon says instead.
    pub fn flush(&mut self, level: AckLevel) -> Result<Watermark, ErrorInfo> {
        self.send(|buf| Flush { request_id: 55, level }.encode(buf));
        match self.answer() {
            Frame::Watermark(watermark) => Ok(watermark),
            Frame::Error(error) => Err(error.error),
            other => panic!("no answer to FLUSH: {other:?}"),
        }
    }

    /// Says BYE and waits for the end.
    ///
    /// # Panics
    /// When it does not come.
    pub fn bye(mut self) {
        self.send(encode_bye);
        while self.frame().is_some() {}
    }

    /// The sending side, for a thread of its own.
    ///
    /// # Panics
    /// When the system has no more descriptors.
    #[must_use]
    pub fn sender(&self) -> Box<dyn Write + Send> {
        self.socket.sender()
    }

    /// Reads everything from an offset on that has reached a level.
    ///
    /// # Errors
    /// When reading is refused.
    ///
    /// # Panics
    /// On a gap.
    pub fn read_from(&mut self, offset: u64, min_level: AckLevel) -> Result<(Vec<Got>, ReadEnd), ErrorInfo> {
        let from = ReadFrom::Offset(offset);
        let read = ReadFrame {
            request_id: 9,
            from,
            follow: false,
            limit: None,
            min_level,
            since: None,
            until: None,
            filter: None,
        };
        self.send(|buf| read.encode(buf));
        let mut got = Vec::new();
        loop {
            match self.answer() {
                Frame::Records(records) => {
                    let (head, mut offset) = (records.head, records.head.first_offset);
                    let view = PayloadView::parse(&records.payload, head.count).expect("a payload");
                    for (n, record) in view.records().enumerate() {
                        let sequence = head.first_seq + n as u64;
                        let body = match record.body() {
                            Some(ValueRef::String(text)) => Some(text.as_bytes().to_vec()),
                            Some(ValueRef::Bytes(bytes)) => Some(bytes.to_vec()),
                            _ => None,
                        };
                        got.push(Got { offset, producer: head.producer_id, sequence, body });
                        offset += 1;
                    }
                }
                Frame::ReadEnd(end) => return Ok((got, end)),
                Frame::Error(error) => return Err(error.error),
                other => panic!("in a READ: {other:?}"),
            }
        }
    }
}
