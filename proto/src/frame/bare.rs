//! Frames without a field: PING, PONG, CANCEL_READ and BYE.

use super::{control, header::FrameType};
use bytes::BytesMut;

/// Writes a PING; the PONG repeats its request id.
pub fn encode_ping(buf: &mut BytesMut, request_id: u32) {
    control::put(buf, FrameType::Ping, request_id, |_| {});
}

/// Writes a PONG.
pub fn encode_pong(buf: &mut BytesMut, request_id: u32) {
    control::put(buf, FrameType::Pong, request_id, |_| {});
}

/// Writes a CANCEL_READ for the READ of this request id.
pub fn encode_cancel_read(buf: &mut BytesMut, request_id: u32) {
    control::put(buf, FrameType::CancelRead, request_id, |_| {});
}

/// Writes a BYE.
pub fn encode_bye(buf: &mut BytesMut) {
    control::put(buf, FrameType::Bye, 0, |_| {});
}
