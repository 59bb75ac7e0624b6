//! HTTP/2 by hand, as badly spoken as a test wants: no library would send most of this.
//!
//! Invariants: every read has a bound; flow control is kept where a test says so, because a peer that ignores it is
//! thrown out and shows nothing about windows.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clad_e2e::TEST_TIMEOUT;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
/// The largest frame that a peer must take.
pub(super) const FRAME: usize = 16 * 1024;
const FIRST_WINDOW: i64 = 65_535;

/// A frame that came.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) kind: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Got {
    /// The code of RST_STREAM or GOAWAY.
    pub(super) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

/// A connection.
pub(super) struct Http2 {
    socket: TcpStream,
    got: Vec<u8>,
    /// What may still be sent, in all and on each stream.
    window: i64,
    stream_window: i64,
    /// Streams that the daemon allows.
    pub(super) streams: u32,
    windows: HashMap<u32, i64>,
}

/// A gRPC message around these bytes.
pub(super) fn message(bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0];
    message.extend((bytes.len() as u32).to_be_bytes());
    message.extend(bytes);
    message
}

/// One header, literal, without indexing.
pub(super) fn header(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        // An integer of a 7-bit prefix (RFC 7541, 5.1).
        match text.len() {
            short @ 0..127 => block.push(short as u8),
            long => {
                block.push(127);
                let mut rest = long - 127;
                while rest >= 128 {
                    block.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                block.push(rest as u8);
            }
        }
        block.extend(text.as_bytes());
    }
}

/// The headers of a call of `Ingest.Append`.
pub(super) fn call() -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/clad.v1.Ingest/Append"),
        (":authority", "clad"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        header(&mut block, name, value);
    }
    block
}

impl Http2 {
    /// Connects, and takes the daemon's settings.
    pub(super) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect_timeout(&address, TEST_TIMEOUT).expect("a connection");
        socket.set_nodelay(true).expect("no delay");
        socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        socket.set_write_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        let mut this = Self {
            socket,
            got: Vec::new(),
            window: FIRST_WINDOW,
            stream_window: FIRST_WINDOW,
            streams: 0,
            windows: HashMap::new(),
        };
        this.socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
        this.send(SETTINGS, 0, 0, &[]);
        while this.frame().expect("settings").kind != SETTINGS {}
        this.send(SETTINGS, 1, 0, &[]);
        this
    }

    /// Sends a frame; nothing where the daemon has closed.
    pub(super) fn try_send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<()> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.write(&frame)
    }

    pub(super) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.try_send(kind, flags, stream, payload).expect("the daemon takes it");
    }

    /// Sends bytes; nothing where the daemon has closed, or takes nothing within the time that writes have.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Option<()> {
        match self.socket.write_all(bytes) {
            Ok(()) => Some(()),
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => None,
            Err(e) if [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&e.kind()) => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// From now on, a write that gets nowhere for so long is given up.
    pub(super) fn set_read_timeout(&self, time: Duration) {
        self.socket.set_write_timeout(Some(time)).expect("a bound");
    }

    /// Begins a call of `Ingest.Append`.
    pub(super) fn open(&mut self, stream: u32) {
        self.send(HEADERS, END_HEADERS, stream, &call());
        self.windows.insert(stream, self.stream_window);
    }

    /// The same; where the daemon has closed, nothing is begun.
    pub(super) fn try_open(&mut self, stream: u32) {
        if self.try_send(HEADERS, END_HEADERS, stream, &call()).is_some() {
            self.windows.insert(stream, self.stream_window);
        }
    }

    /// Sends data, whatever the windows say.
    pub(super) fn data(&mut self, stream: u32, bytes: &[u8], last: bool) {
        self.send(DATA, if last { END_STREAM } else { 0 }, stream, bytes);
    }

    /// Sends as many of these bytes on a stream as its windows have room for.
    pub(super) fn data_within(&mut self, stream: u32, bytes: &[u8]) -> usize {
        self.take_updates();
        let stream_room = self.windows.get(&stream).copied().unwrap_or(0);
        let room = self.window.min(stream_room).clamp(0, bytes.len() as i64) as usize;
        for piece in bytes[..room].chunks(FRAME) {
            if self.try_send(DATA, 0, stream, piece).is_none() {
                return 0;
            }
        }
        self.window -= room as i64;
        *self.windows.entry(stream).or_default() -= room as i64;
        room
    }

    /// Takes what has come, without waiting.
    fn take_updates(&mut self) {
        self.socket.set_nonblocking(true).expect("a socket that does not wait");
        let mut chunk = [0; 16 * 1024];
        while let Ok(length @ 1..) = self.socket.read(&mut chunk) {
            self.got.extend_from_slice(&chunk[..length]);
        }
        self.socket.set_nonblocking(false).expect("a socket that waits");
        while self.buffered().is_some() {}
    }

    fn buffered(&mut self) -> Option<Got> {
        let header = self.got.first_chunk::<9>()?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let (kind, stream) = (
            header[3],
            u32::from_be_bytes([header[5], header[6], header[7], header[8]]) >> 1 << 1 | u32::from(header[8] & 1),
        );
        if self.got.len() < 9 + length {
            return None;
        }
        let payload = self.got[9..9 + length].to_vec();
        self.got.drain(..9 + length);
        self.note(kind, stream, &payload);
        Some(Got { kind, stream, payload })
    }

    fn note(&mut self, kind: u8, stream: u32, payload: &[u8]) {
        match kind {
            WINDOW_UPDATE => {
                let more = i64::from(u32::from_be_bytes(payload[..4].try_into().expect("four bytes")));
                match stream {
                    0 => self.window += more,
                    _ => *self.windows.entry(stream).or_insert(self.stream_window) += more,
                }
            }
            SETTINGS => {
                for setting in payload.chunks(6) {
                    let value = u32::from_be_bytes(setting[2..6].try_into().expect("four bytes"));
                    match setting[..2] {
                        [0, 3] => self.streams = value,
                        [0, 4] => {}
                        _ => continue,
                    }
                    if setting[1] == 3 {
                        continue;
                    }
                    let window = i64::from(value);
                    let more = window - self.stream_window;
                    self.stream_window = window;
                    self.windows.values_mut().for_each(|window| *window += more);
                }
            }
            _ => {}
        }
    }

    /// The next frame; nothing when the daemon has closed.
    pub(super) fn frame(&mut self) -> Option<Got> {
        loop {
            if let Some(got) = self.buffered() {
                return Some(got);
            }
            let mut chunk = [0; 16 * 1024];
            match self.socket.read(&mut chunk) {
                Ok(0) => return None,
                Ok(length) => self.got.extend_from_slice(&chunk[..length]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("nothing came: {e}"),
            }
        }
    }

    /// Takes frames until the stream or the connection is answered or ended; what ended it.
    pub(super) fn until_answered(&mut self, stream: u32) -> Option<Got> {
        loop {
            match self.frame() {
                Some(got) if got.kind == GOAWAY => return Some(got),
                Some(got) if got.stream == stream && [HEADERS, RST_STREAM].contains(&got.kind) => return Some(got),
                Some(_) => {}
                None => return None,
            }
        }
    }
}
