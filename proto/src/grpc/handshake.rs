//! Hello and Welcome from and to their gRPC messages. What a peer says is checked here, so that nothing behind this
//! file sees an id of the wrong length or a level that is not one.

use super::generated::v1;
use crate::{
    error::{ErrorCode, ErrorInfo},
    frame::{Forwarding, Hello, Intent, LastStored, Welcome},
    ids::{LogId, ProducerId},
    limits::{MAX_CLIENT_NAME_BYTES, MAX_SECRET_BYTES, MAX_WINDOW},
};
use bytes::Bytes;

pub(super) fn malformed(what: &'static str) -> ErrorInfo {
    ErrorInfo::new(ErrorCode::MalformedFrame, what)
}

fn id(bytes: &[u8]) -> Result<[u8; 16], ErrorInfo> {
    bytes.try_into().map_err(|_| malformed("an id is 16 bytes"))
}

fn version(number: u32) -> u16 {
    // A version beyond 16 bits is as good as the highest: no one speaks it.
    u16::try_from(number).unwrap_or(u16::MAX)
}

impl From<Hello> for v1::Hello {
    fn from(hello: Hello) -> Self {
        Self {
            min_version: hello.min_version.into(),
            max_version: hello.max_version.into(),
            producer_id: Bytes::copy_from_slice(hello.producer_id.as_bytes()),
            producer_epoch: hello.producer_epoch,
            secret: hello.secret.into(),
            name: hello.name,
        }
    }
}

impl TryFrom<v1::Hello> for Hello {
    type Error = ErrorInfo;

    fn try_from(hello: v1::Hello) -> Result<Self, ErrorInfo> {
        if hello.name.len() > MAX_CLIENT_NAME_BYTES || hello.secret.len() > MAX_SECRET_BYTES {
            return Err(malformed("the name is longer than 128 bytes, or the secret than 32"));
        }
        let producer_id = if hello.producer_id.is_empty() { [0; 16] } else { id(&hello.producer_id)? };
        Ok(Self {
            min_version: version(hello.min_version),
            max_version: version(hello.max_version),
            producer_id: ProducerId::from_bytes(producer_id),
            producer_epoch: hello.producer_epoch,
            intent: Intent { append: true, read: false },
            name: hello.name,
            secret: hello.secret.to_vec(),
            forward: None,
        })
    }
}

impl From<Welcome> for v1::Welcome {
    fn from(welcome: Welcome) -> Self {
        Self {
            version: welcome.version.into(),
            policy: v1::DurabilityPolicy::from(welcome.policy).into(),
            highest_ack: v1::AckLevel::from(welcome.highest_ack).into(),
            log_id: Bytes::copy_from_slice(welcome.log_id.as_bytes()),
            epoch: welcome.epoch,
            epoch_first_offset: welcome.epoch_first_offset,
            producer_id: Bytes::copy_from_slice(welcome.producer_id.as_bytes()),
            producer_epoch: welcome.producer_epoch,
            secret: welcome.secret.into(),
            last: welcome.last.map(Into::into),
            window: welcome.window,
            max_append_bytes: welcome.max_append_bytes,
            max_record_bytes: welcome.max_record_bytes,
            offsets: Some(v1::Offsets {
                received: welcome.received,
                written: welcome.written,
                durable: welcome.durable,
            }),
            may_read: welcome.may_read,
            earlier_epochs: welcome.earlier.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Welcome> for Welcome {
    type Error = ErrorInfo;

    fn try_from(welcome: v1::Welcome) -> Result<Self, ErrorInfo> {
        let policy = welcome.policy().policy().ok_or_else(|| malformed("a welcome without a policy"))?;
        let highest_ack = welcome.highest_ack().level().ok_or_else(|| malformed("a welcome without a level"))?;
        let v1::Offsets { received, written, durable } = welcome.offsets.ok_or_else(|| malformed("no offsets"))?;
        if !(durable <= written && written <= received) {
            return Err(malformed("watermarks are out of order"));
        }
        if !(1..=MAX_WINDOW).contains(&welcome.window) {
            return Err(malformed("a window that is not between 1 and 65536"));
        }
        Ok(Self {
            version: version(welcome.version),
            policy,
            highest_ack,
            may_read: welcome.may_read,
            log_id: LogId::from_bytes(id(&welcome.log_id)?),
            epoch: welcome.epoch,
            epoch_first_offset: welcome.epoch_first_offset,
            producer_id: ProducerId::from_bytes(id(&welcome.producer_id)?),
            producer_epoch: welcome.producer_epoch,
            secret: welcome.secret.to_vec(),
            last: welcome.last.map(last_stored).transpose()?,
            window: welcome.window,
            max_append_bytes: welcome.max_append_bytes,
            max_record_bytes: welcome.max_record_bytes,
            received,
            written,
            durable,
            earlier: welcome.earlier_epochs.into_iter().map(Into::into).collect(),
            forwarding: Forwarding::No,
        })
    }
}

fn last_stored(last: v1::LastStored) -> Result<LastStored, ErrorInfo> {
    let level = last.level().level().ok_or_else(|| malformed("a last record without a level"))?;
    Ok(LastStored { sequence: last.sequence, offset: last.offset, level })
}
