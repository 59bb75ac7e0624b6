//! The owned group: what all records of an append share.
//!
//! # Encoding
//! `u32` length of the whole group, then tagged fields, ascending:
//!
//! | tag | content | rule |
//! |---|---|---|
//! | 1 | resource attributes: pairs | there exactly when the resource is, even if it is empty |
//! | 2 | resource: dropped attributes, LEB128 | needs 1; not 0 |
//! | 3 | resource: one entity reference; repeats | needs 1 |
//! | 4 | schema URL of the resource | not empty |
//! | 5 | scope name | there exactly when the scope is, even if it is empty |
//! | 6 | scope version | needs 5; not empty |
//! | 7 | scope attributes: pairs | needs 5; not empty |
//! | 8 | scope: dropped attributes, LEB128 | needs 5; not 0 |
//! | 9 | schema URL of the scope | not empty |
//! | 10… | not known to this version, preserved | |
//!
//! An entity reference is: schema URL, type, number of id keys, id keys, number of description keys, description keys;
//! each text with its length before it.

use crate::{
    record::UnknownField,
    value::{AnyValue, KeyValue},
};

pub(crate) mod tag {
    pub(crate) const RESOURCE: u8 = 1;
    pub(crate) const RESOURCE_DROPPED: u8 = 2;
    pub(crate) const ENTITY_REF: u8 = 3;
    pub(crate) const RESOURCE_SCHEMA_URL: u8 = 4;
    pub(crate) const SCOPE: u8 = 5;
    pub(crate) const SCOPE_VERSION: u8 = 6;
    pub(crate) const SCOPE_ATTRIBUTES: u8 = 7;
    pub(crate) const SCOPE_DROPPED: u8 = 8;
    pub(crate) const SCOPE_SCHEMA_URL: u8 = 9;
    /// First tag that this version does not know.
    pub(crate) const UNKNOWN: u8 = 10;
}

/// The attribute of the resource that names the component.
pub(crate) const SERVICE_NAME: &str = "service.name";

/// Source of records: shared by all records of an append.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// The resource; absent is not the same as empty.
    pub resource: Option<Resource>,
    /// Schema URL that goes with the resource.
    pub resource_schema_url: String,
    /// The scope; absent is not the same as empty.
    pub scope: Option<Scope>,
    /// Schema URL that goes with the scope and the records.
    pub scope_schema_url: String,
    /// Fields under tags that this version does not know, as they came, tags ascending.
    pub unknown: Vec<UnknownField>,
}

/// Entity that produced the records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resource {
    /// Attributes in their order, with duplicates.
    pub attributes: Vec<KeyValue>,
    /// Number of attributes that were dropped before this.
    pub dropped_attributes_count: u32,
    /// Entities that take part in it.
    pub entity_refs: Vec<EntityRef>,
}

/// A reference to an entity, by the keys of the resource's attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntityRef {
    /// Schema URL of the entity.
    pub schema_url: String,
    /// Its type.
    pub entity_type: String,
    /// Keys that identify it.
    pub id_keys: Vec<String>,
    /// Keys that describe it.
    pub description_keys: Vec<String>,
}

/// The part of a program that made the records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Attributes in their order, with duplicates.
    pub attributes: Vec<KeyValue>,
    /// Number of attributes that were dropped before this.
    pub dropped_attributes_count: u32,
}

impl Group {
    /// A group that names a component and nothing else.
    pub fn component_named(name: impl Into<String>) -> Self {
        let attributes = vec![KeyValue::new(SERVICE_NAME, AnyValue::String(name.into()))];
        Self { resource: Some(Resource { attributes, ..Resource::default() }), ..Self::default() }
    }

    /// The component: the first string attribute `service.name` of the resource.
    #[must_use]
    pub fn component(&self) -> Option<&str> {
        self.resource.iter().flat_map(|resource| &resource.attributes).find_map(|pair| match &pair.value {
            Some(AnyValue::String(name)) if pair.key == SERVICE_NAME => Some(name.as_str()),
            _ => None,
        })
    }
}
