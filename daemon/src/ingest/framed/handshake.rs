//! HELLO and WELCOME.

use std::io;

use bytes::Buf;
use clad_proto::frame::{ErrorFrame, Frame, FrameType, peek};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::buffers::CHUNK_BYTES_MIN;
use super::{Connection, count_refusal, going_down};
use crate::ingest::UNSHARED_FRAME_BYTES_MAX;

impl Connection {
    /// HELLO and WELCOME; `false` when the peer was sent the reason of a refusal.
    pub(super) async fn handshake<R, W>(&mut self, rd: &mut R, wr: &mut W) -> io::Result<bool>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        let hello = async {
            loop {
                if let Some(raw) = peek(&self.buf, self.service.admission.max_append).map_err(|e| e.info())? {
                    let total = raw.total_len();
                    if raw.header.kind != FrameType::Hello {
                        let text = "the first frame must be HELLO";
                        return Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
                    }
                    let frame = raw.decode().map_err(|e| e.info())?;
                    self.buf.advance(total);
                    return Ok(frame);
                }
                self.buf.reserve(CHUNK_BYTES_MIN);
                match rd.read_buf(&mut self.buf).await {
                    Ok(1..) if self.buf.len() <= UNSHARED_FRAME_BYTES_MAX => {}
                    _ => return Err(ErrorInfo::new(ErrorCode::MalformedFrame, "the connection ended before HELLO")),
                }
            }
        };
        let timeout = self.service.handshake_timeout;
        let mut stop = self.service.stop.clone();
        let hello = tokio::select! {
            biased;
            got = tokio::time::timeout(timeout, hello) => got.unwrap_or_else(|_| {
                Err(ErrorInfo::new(ErrorCode::HandshakeTimeout, format!("no HELLO within {timeout:?}")))
            }),
            // It has handed over nothing: no stop waits for it.
            _ = stop.wait_for(|stop| *stop) => {
                ErrorFrame { request_id: 0, error: going_down() }.encode(&mut self.out);
                return Ok(false);
            }
        };
        let answer = match hello {
            Ok(Frame::Hello(hello)) => match self.service.rings.meet(&hello, &self.peer).await {
                Ok(ring) => {
                    self.met_ring = ring;
                    self.service.admission.meet(&hello, &self.peer).await
                }
                Err(error) => Err(error),
            },
            Ok(_) => Err(ErrorInfo::new(ErrorCode::MalformedFrame, "the first frame must be HELLO")),
            Err(e) => Err(e),
        };
        match answer {
            Ok((welcome, producer)) => {
                welcome.encode(&mut self.out);
                self.producer = producer;
                self.welcomed = crate::ingest::rings::now();
                self.say(wr).await
            }
            Err(error) => {
                count_refusal(AckLevel::Received, error.code, 1);
                ErrorFrame { request_id: 0, error }.encode(&mut self.out);
                Ok(false)
            }
        }
    }
}
