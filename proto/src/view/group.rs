//! Groups in place. [`crate::group`] describes the layout.

use super::{
    record::{check_count, count, find, find_text, text},
    unknown::UnknownIter,
    value::{KvsRef, ValueRef},
};
use crate::{
    fault::Fault,
    group::{EntityRef, Group, Resource, SERVICE_NAME, Scope, tag},
    limits::{GROUP_HEADER_BYTES, MAX_GROUP_BYTES},
    wire::Reader,
};

const GROUP: &str = "the group";
const ENTITY: &str = "an entity reference";

/// A group as it lies in front of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupView<'a> {
    raw: &'a [u8],
    fields: &'a [u8],
}

/// A resource in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceView<'a>(GroupView<'a>);

/// A scope in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeView<'a>(GroupView<'a>);

/// An entity reference in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntityRefView<'a> {
    /// Schema URL of the entity.
    pub schema_url: &'a str,
    /// Its type.
    pub entity_type: &'a str,
    id_keys: &'a [u8],
    description_keys: &'a [u8],
}

/// Iterates over texts, each with its length before it.
#[derive(Debug, Clone)]
pub struct StrIter<'a>(Reader<'a>);

impl<'a> GroupView<'a> {
    /// Takes the group off the front of a payload and checks all of it.
    pub(crate) fn split(payload: &'a [u8]) -> Result<(Self, &'a [u8]), Fault> {
        let len = Reader(payload).u32().ok_or(Fault::Truncated(GROUP))?;
        if len > MAX_GROUP_BYTES {
            return Err(Fault::TooLarge { len: len.into(), max: MAX_GROUP_BYTES.into() });
        }
        if (len as usize) < GROUP_HEADER_BYTES {
            return Err(Fault::TooShort(len));
        }
        let (raw, rest) = payload.split_at_checked(len as usize).ok_or(Fault::Truncated(GROUP))?;
        let group = Self { raw, fields: raw.get(GROUP_HEADER_BYTES..).unwrap_or_default() };
        group.check()?;
        Ok((group, rest))
    }

    fn check(&self) -> Result<(), Fault> {
        let mut reader = Reader(self.fields);
        let (mut last, mut resource, mut scope) = (0, false, false);
        while let Some((tag, content)) = reader.field()? {
            let repeats = tag == tag::ENTITY_REF || tag >= tag::UNKNOWN;
            if tag < last || (tag == last && !repeats) {
                return Err(Fault::FieldOrder(tag)); // catches the tag 0 too
            }
            last = tag;
            match tag {
                tag::RESOURCE => resource = true,
                tag::SCOPE => scope = true,
                tag::RESOURCE_DROPPED | tag::ENTITY_REF if !resource => return Err(Fault::OrphanField(tag)),
                tag::SCOPE_VERSION..=tag::SCOPE_DROPPED if !scope => return Err(Fault::OrphanField(tag)),
                _ => {}
            }
            check_field(tag, content)?;
        }
        Ok(())
    }

    fn field(&self, wanted: u8) -> Option<&'a [u8]> {
        find(self.fields, wanted)
    }

    fn field_text(&self, tag: u8) -> &'a str {
        find_text(self.fields, tag)
    }

    /// The whole group as it lies, its length included.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.raw
    }

    /// The resource, if there is one.
    #[must_use]
    pub fn resource(&self) -> Option<ResourceView<'a>> {
        self.field(tag::RESOURCE).map(|_| ResourceView(*self))
    }

    /// Schema URL that goes with the resource.
    #[must_use]
    pub fn resource_schema_url(&self) -> &'a str {
        self.field_text(tag::RESOURCE_SCHEMA_URL)
    }

    /// The scope, if there is one.
    #[must_use]
    pub fn scope(&self) -> Option<ScopeView<'a>> {
        self.field(tag::SCOPE).map(|_| ScopeView(*self))
    }

    /// Schema URL that goes with the scope and the records.
    #[must_use]
    pub fn scope_schema_url(&self) -> &'a str {
        self.field_text(tag::SCOPE_SCHEMA_URL)
    }

    /// Fields under tags that this version does not know.
    #[must_use]
    pub fn unknown(&self) -> UnknownIter<'a> {
        UnknownIter::new(self.fields, tag::UNKNOWN)
    }

    /// The component: the first string attribute `service.name` of the resource.
    #[must_use]
    pub fn component(&self) -> Option<&'a str> {
        self.resource()?.attributes().iter().find_map(|pair| match pair.value {
            Some(ValueRef::String(name)) if pair.key == SERVICE_NAME => Some(name),
            _ => None,
        })
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(&self) -> Group {
        Group {
            resource: self.resource().map(|resource| resource.to_owned()),
            resource_schema_url: self.resource_schema_url().to_owned(),
            scope: self.scope().map(|scope| scope.to_owned()),
            scope_schema_url: self.scope_schema_url().to_owned(),
            unknown: self.unknown().collect(),
        }
    }
}

fn check_field(tag: u8, content: &[u8]) -> Result<(), Fault> {
    let may_be_empty = matches!(tag, tag::RESOURCE | tag::SCOPE) || tag >= tag::UNKNOWN;
    if content.is_empty() && !may_be_empty {
        return Err(Fault::DefaultField(tag));
    }
    match tag {
        tag::RESOURCE | tag::SCOPE_ATTRIBUTES => KvsRef(content).check(0),
        tag::RESOURCE_DROPPED | tag::SCOPE_DROPPED => check_count(tag, content),
        tag::ENTITY_REF => EntityRefView::read(content).map(|_| ()),
        tag::RESOURCE_SCHEMA_URL | tag::SCOPE_SCHEMA_URL => text(content, "a schema URL"),
        tag::SCOPE => text(content, "the scope name"),
        tag::SCOPE_VERSION => text(content, "the scope version"),
        _ => Ok(()),
    }
}

impl<'a> ResourceView<'a> {
    /// Attributes.
    #[must_use]
    pub fn attributes(&self) -> KvsRef<'a> {
        KvsRef(self.0.field(tag::RESOURCE).unwrap_or_default())
    }

    /// Number of attributes that were dropped before this.
    #[must_use]
    pub fn dropped_attributes_count(&self) -> u32 {
        self.0.field(tag::RESOURCE_DROPPED).map_or(0, count)
    }

    /// Entities that take part in it.
    pub fn entity_refs(&self) -> impl Iterator<Item = EntityRefView<'a>> + use<'a> {
        let mut reader = Reader(self.0.fields);
        std::iter::from_fn(move || reader.field().ok().flatten())
            .filter(|(tag, _)| *tag == tag::ENTITY_REF)
            .filter_map(|(_, content)| EntityRefView::read(content).ok())
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(&self) -> Resource {
        Resource {
            attributes: self.attributes().to_owned(),
            dropped_attributes_count: self.dropped_attributes_count(),
            entity_refs: self.entity_refs().map(|entity| entity.to_owned()).collect(),
        }
    }
}

impl<'a> ScopeView<'a> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.0.field_text(tag::SCOPE)
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &'a str {
        self.0.field_text(tag::SCOPE_VERSION)
    }

    /// Attributes.
    #[must_use]
    pub fn attributes(&self) -> KvsRef<'a> {
        KvsRef(self.0.field(tag::SCOPE_ATTRIBUTES).unwrap_or_default())
    }

    /// Number of attributes that were dropped before this.
    #[must_use]
    pub fn dropped_attributes_count(&self) -> u32 {
        self.0.field(tag::SCOPE_DROPPED).map_or(0, count)
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(&self) -> Scope {
        Scope {
            name: self.name().to_owned(),
            version: self.version().to_owned(),
            attributes: self.attributes().to_owned(),
            dropped_attributes_count: self.dropped_attributes_count(),
        }
    }
}

impl<'a> EntityRefView<'a> {
    fn read(content: &'a [u8]) -> Result<Self, Fault> {
        let mut reader = Reader(content);
        let schema_url = reader.text(ENTITY)?;
        let entity_type = reader.text(ENTITY)?;
        let id_keys = take_keys(&mut reader)?;
        let description_keys = take_keys(&mut reader)?;
        if !reader.is_empty() {
            return Err(Fault::FieldLength(tag::ENTITY_REF));
        }
        Ok(Self { schema_url, entity_type, id_keys, description_keys })
    }

    /// Keys that identify it.
    #[must_use]
    pub fn id_keys(&self) -> StrIter<'a> {
        StrIter(Reader(self.id_keys))
    }

    /// Keys that describe it.
    #[must_use]
    pub fn description_keys(&self) -> StrIter<'a> {
        StrIter(Reader(self.description_keys))
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(&self) -> EntityRef {
        EntityRef {
            schema_url: self.schema_url.to_owned(),
            entity_type: self.entity_type.to_owned(),
            id_keys: self.id_keys().map(str::to_owned).collect(),
            description_keys: self.description_keys().map(str::to_owned).collect(),
        }
    }
}

/// The bytes of a counted list of texts. The count bounds nothing: each turn needs a byte that is there, or ends.
fn take_keys<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Fault> {
    let keys = reader.varint(ENTITY)?;
    let all = reader.0;
    for _ in 0..keys {
        reader.text(ENTITY)?;
    }
    Ok(all.get(..all.len() - reader.0.len()).unwrap_or_default())
}

impl<'a> Iterator for StrIter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() { None } else { self.0.text(ENTITY).ok() }
    }
}
