//! Writing a group. [`crate::group`] describes the layout.

use super::{
    sink::{Limit, Sink},
    value::KvWriter,
};
use crate::{
    fault::EncodeError,
    group::{EntityRef, Group, tag},
    limits::{GROUP_HEADER_BYTES, MAX_GROUP_BYTES},
    wire::{close_delimited, put_delimited, put_field, put_varint, varint_bytes},
};
use bytes::{BufMut, BytesMut};

/// Writes a whole group, its length in front.
pub(crate) fn put_group(sink: &mut Sink, group: &Group) -> Result<(), EncodeError> {
    put_group_with(sink, |sink| {
        put_fields(sink, group);
        Ok(())
    })
}

/// The same of fields that `content` writes, in the order of their tags.
pub(crate) fn put_group_with(
    sink: &mut Sink,
    content: impl FnOnce(&mut Sink) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    sink.fault = None;
    let start = sink.buf.len();
    let too_large = |len, max| EncodeError::GroupTooLarge { len, max };
    sink.limit = Some(Limit { start, max: MAX_GROUP_BYTES as usize, too_large });
    sink.buf.put_u32_le(0);
    content(sink)?;
    let len = sink.buf.len() - start;
    let whole = u32::try_from(len).ok().filter(|&len| len <= MAX_GROUP_BYTES);
    match (sink.fault.take(), whole) {
        (Some(fault), _) => Err(fault),
        (None, None) => Err(too_large(len as u64, MAX_GROUP_BYTES.into())),
        (None, Some(whole)) => {
            if let Some(place) = sink.buf.get_mut(start..start + GROUP_HEADER_BYTES) {
                place.copy_from_slice(&whole.to_le_bytes());
            }
            Ok(())
        }
    }
}

fn put_fields(sink: &mut Sink, group: &Group) {
    if let Some(resource) = &group.resource {
        put_pairs(sink, tag::RESOURCE, |pairs| pairs.pairs(&resource.attributes));
        put_count(&mut sink.buf, tag::RESOURCE_DROPPED, resource.dropped_attributes_count);
        for entity in &resource.entity_refs {
            put_entity(&mut sink.buf, entity);
        }
    }
    put_text(sink, tag::RESOURCE_SCHEMA_URL, &group.resource_schema_url);
    if let Some(scope) = &group.scope {
        sink.put_field(tag::SCOPE, scope.name.as_bytes());
        put_text(sink, tag::SCOPE_VERSION, &scope.version);
        if !scope.attributes.is_empty() {
            put_pairs(sink, tag::SCOPE_ATTRIBUTES, |pairs| pairs.pairs(&scope.attributes));
        }
        put_count(&mut sink.buf, tag::SCOPE_DROPPED, scope.dropped_attributes_count);
    }
    put_text(sink, tag::SCOPE_SCHEMA_URL, &group.scope_schema_url);
    let mut last = tag::UNKNOWN;
    for field in &group.unknown {
        if field.tag < last {
            sink.fail(EncodeError::FieldOrder(field.tag));
        }
        last = field.tag.max(last);
        sink.put_field(field.tag, &field.data);
    }
}

pub(crate) fn put_pairs(sink: &mut Sink, tag: u8, content: impl FnOnce(&mut KvWriter<'_>)) {
    sink.buf.put_u8(tag);
    let start = sink.buf.len();
    sink.buf.put_u8(0);
    content(&mut KvWriter { sink, depth: 0 });
    close_delimited(&mut sink.buf, start);
}

pub(crate) fn put_text(sink: &mut Sink, tag: u8, text: &str) {
    if !text.is_empty() {
        sink.put_field(tag, text.as_bytes());
    }
}

pub(crate) fn put_count(buf: &mut BytesMut, tag: u8, count: u32) {
    if count != 0 {
        let (bytes, len) = varint_bytes(count.into());
        put_field(buf, tag, bytes.get(..len).unwrap_or_default());
    }
}

fn put_entity(buf: &mut BytesMut, entity: &EntityRef) {
    buf.put_u8(tag::ENTITY_REF);
    let start = buf.len();
    buf.put_u8(0);
    put_delimited(buf, entity.schema_url.as_bytes());
    put_delimited(buf, entity.entity_type.as_bytes());
    for keys in [&entity.id_keys, &entity.description_keys] {
        put_varint(buf, keys.len() as u64);
        for key in keys {
            put_delimited(buf, key.as_bytes());
        }
    }
    close_delimited(buf, start);
}
