//! JSON of OTLP into its protobuf: the same message, in the form that everything behind reads.
//!
//! Invariants:
//! - The rules are those of the OTLP specification over proto3's: names in lowerCamelCase alone, unknown names ignored
//!   with all that is in them, null is absent, 64-bit numbers as number or text, enums as numbers, ids in hex of either
//!   case, other bytes in base64 of either alphabet. Of a name that is there twice the last counts, lists are joined: as
//!   protobuf has it.
//! - The output is at most [`longest`]: the shortest element of a list is `{},` or `"",`, and two bytes. An element of a
//!   list of texts may be a byte longer than its text from 16 KiB on.
//! - Nesting is bounded by [`DEPTH_MAX`], also in what is ignored, and with it the stack. Bytes that are moved to make
//!   room for lengths are bounded by [`MOVES_MAX`] times the input.
//! - Nothing is kept beside the output.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

/// Objects and lists within each other: what a value needs that is nested as deep as clad stores it, and some more.
const DEPTH_MAX: usize = 160;
/// A resource with its records is moved four times.
const MOVES_MAX: usize = 32;
/// Up to it each whole number is a double.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
/// The longest text that an error repeats.
const SHOWN_BYTES_MAX: usize = 40;
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Content of a field.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Base64,
    Hex,
    Bool,
    Int64,
    Int32,
    Uint32,
    Fixed64,
    Fixed32,
    Double,
    Message(&'static [Field]),
}

/// A field of a message.
struct Field {
    name: &'static str,
    number: u8,
    kind: Kind,
    is_list: bool,
}

const fn one(name: &'static str, number: u8, kind: Kind) -> Field {
    Field { name, number, kind, is_list: false }
}

const fn list(name: &'static str, number: u8, kind: Kind) -> Field {
    Field { name, number, kind, is_list: true }
}

static REQUEST: [Field; 1] = [list("resourceLogs", 1, Kind::Message(&RESOURCE_LOGS))];
static RESOURCE_LOGS: [Field; 3] = [
    one("resource", 1, Kind::Message(&RESOURCE)),
    list("scopeLogs", 2, Kind::Message(&SCOPE_LOGS)),
    one("schemaUrl", 3, Kind::Text),
];
static RESOURCE: [Field; 3] = [
    list("attributes", 1, Kind::Message(&KEY_VALUE)),
    one("droppedAttributesCount", 2, Kind::Uint32),
    list("entityRefs", 3, Kind::Message(&ENTITY_REF)),
];
static ENTITY_REF: [Field; 4] = [
    one("schemaUrl", 1, Kind::Text),
    one("type", 2, Kind::Text),
    list("idKeys", 3, Kind::Text),
    list("descriptionKeys", 4, Kind::Text),
];
static SCOPE_LOGS: [Field; 3] = [
    one("scope", 1, Kind::Message(&SCOPE)),
    list("logRecords", 2, Kind::Message(&LOG_RECORD)),
    one("schemaUrl", 3, Kind::Text),
];
static SCOPE: [Field; 4] = [
    one("name", 1, Kind::Text),
    one("version", 2, Kind::Text),
    list("attributes", 3, Kind::Message(&KEY_VALUE)),
    one("droppedAttributesCount", 4, Kind::Uint32),
];
static LOG_RECORD: [Field; 11] = [
    one("timeUnixNano", 1, Kind::Fixed64),
    one("observedTimeUnixNano", 11, Kind::Fixed64),
    one("severityNumber", 2, Kind::Int32),
    one("severityText", 3, Kind::Text),
    one("body", 5, Kind::Message(&ANY_VALUE)),
    list("attributes", 6, Kind::Message(&KEY_VALUE)),
    one("droppedAttributesCount", 7, Kind::Uint32),
    one("flags", 8, Kind::Fixed32),
    one("traceId", 9, Kind::Hex),
    one("spanId", 10, Kind::Hex),
    one("eventName", 12, Kind::Text),
];
static KEY_VALUE: [Field; 3] =
    [one("key", 1, Kind::Text), one("value", 2, Kind::Message(&ANY_VALUE)), one("keyStrindex", 3, Kind::Int32)];
static ANY_VALUE: [Field; 8] = [
    one("stringValue", 1, Kind::Text),
    one("boolValue", 2, Kind::Bool),
    one("intValue", 3, Kind::Int64),
    one("doubleValue", 4, Kind::Double),
    one("arrayValue", 5, Kind::Message(&ARRAY)),
    one("kvlistValue", 6, Kind::Message(&KV_LIST)),
    one("bytesValue", 7, Kind::Base64),
    one("stringValueStrindex", 8, Kind::Int32),
];
static ARRAY: [Field; 1] = [list("values", 1, Kind::Message(&ANY_VALUE))];
static KV_LIST: [Field; 1] = [list("values", 1, Kind::Message(&KEY_VALUE))];

/// Length of the longest protobuf of so much JSON.
const fn longest(json: usize) -> usize {
    json + json / (16 << 10)
}

/// The protobuf of an `ExportLogsServiceRequest`.
///
/// # Errors
/// Names what is not as it should be, with line and column.
pub fn to_protobuf(json: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut out =
        Out { bytes: Vec::with_capacity(longest(json.len())), moves_left: MOVES_MAX.saturating_mul(json.len()) };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.disable_recursion_limit(); // it is below what clad stores; `depth` bounds it here
    Message { fields: &REQUEST, out: &mut out, depth: 0 }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(out.bytes)
}

/// The message so far.
struct Out {
    bytes: Vec<u8>,
    moves_left: usize,
}

impl Out {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn key(&mut self, field: &Field, wire_type: u8) {
        self.bytes.push(field.number << 3 | wire_type); // all numbers are below 16
    }

    fn delimited(&mut self, field: &Field, content: &[u8]) {
        self.key(field, 2);
        self.varint(content.len() as u64);
        self.bytes.extend_from_slice(content);
    }

    /// Puts the length of what was written since `start` there, where one byte is free for it.
    fn close<E: Error>(&mut self, start: usize) -> Result<(), E> {
        let len = self.bytes.len() - start - 1;
        let mut varint = Self { bytes: Vec::new(), moves_left: 0 };
        varint.varint(len as u64);
        if varint.bytes.len() > 1 {
            let too_many = || E::custom("so much is nested so deep that it takes too long");
            self.moves_left = self.moves_left.checked_sub(len).ok_or_else(too_many)?;
        }
        self.bytes.splice(start..=start, varint.bytes);
        Ok(())
    }
}

fn deeper<E: Error>(depth: usize) -> Result<usize, E> {
    if depth < DEPTH_MAX { Ok(depth + 1) } else { Err(E::custom(format!("nested more than {DEPTH_MAX} deep"))) }
}

/// A message, into the output without a length.
struct Message<'a> {
    fields: &'static [Field],
    out: &'a mut Out,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Message<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Message<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { fields, out, depth } = self;
        let depth = deeper(depth)?;
        while let Some(field) = map.next_key_seed(Name(fields))? {
            match field {
                Some(field) => map.next_value_seed(Content { field, in_list: false, out: &mut *out, depth })?,
                None => map.next_value_seed(Ignored { depth })?,
            }
        }
        Ok(())
    }
}

/// The name of a field; nothing where there is none of that name.
struct Name(&'static [Field]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<&'static Field>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<&'static Field>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|field| field.name == name))
    }
}

/// The value of a field, or an element of it.
struct Content<'a> {
    field: &'static Field,
    in_list: bool,
    out: &'a mut Out,
    depth: usize,
}

impl Content<'_> {
    fn wrong<E: Error>(&self, found: Unexpected<'_>) -> E {
        E::invalid_type(found, self)
    }

    /// True if an element may stand here.
    fn is_element(&self) -> bool {
        self.in_list || !self.field.is_list
    }

    /// A whole number, as it is stored in that kind of field.
    fn whole<E: Error>(self, number: i128, found: Unexpected<'_>) -> Result<(), E> {
        let (field, is_element) = (self.field, self.is_element());
        let out = &mut *self.out;
        let within = |min: i128, max: i128| is_element && (min..=max).contains(&number);
        match field.kind {
            Kind::Int64 if within(i64::MIN.into(), i64::MAX.into()) => {
                out.key(field, 0);
                out.varint(number as i64 as u64);
            }
            Kind::Int32 if within(i32::MIN.into(), i32::MAX.into()) => {
                out.key(field, 0);
                out.varint(number as i64 as u64);
            }
            Kind::Uint32 if within(0, u32::MAX.into()) => {
                out.key(field, 0);
                out.varint(number as u64);
            }
            Kind::Fixed64 if within(0, u64::MAX.into()) => {
                out.key(field, 1);
                out.bytes.extend_from_slice(&(number as u64).to_le_bytes());
            }
            Kind::Fixed32 if within(0, u32::MAX.into()) => {
                out.key(field, 5);
                out.bytes.extend_from_slice(&(number as u32).to_le_bytes());
            }
            Kind::Double if is_element => return self.double(number as f64),
            _ => return Err(self.wrong(found)),
        }
        Ok(())
    }

    fn double<E: Error>(self, number: f64) -> Result<(), E> {
        self.out.key(self.field, 1);
        self.out.bytes.extend_from_slice(&number.to_bits().to_le_bytes());
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Content<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Content<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.field.kind {
            _ if !self.is_element() => "a list",
            Kind::Text => "text",
            Kind::Base64 => "base64",
            Kind::Hex => "an even number of hex digits",
            Kind::Bool => "true or false",
            Kind::Int64 | Kind::Int32 => "a whole number",
            Kind::Uint32 | Kind::Fixed64 | Kind::Fixed32 => "a whole number from 0",
            Kind::Double => "a number",
            Kind::Message(_) => "an object",
        };
        write!(f, "`{}`: {kind}", self.field.name)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.in_list { Err(self.wrong(Unexpected::Unit)) } else { Ok(()) }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        if !matches!(self.field.kind, Kind::Bool) {
            return Err(self.wrong(Unexpected::Bool(value)));
        }
        self.out.key(self.field, 0);
        self.out.varint(value.into());
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.whole(value.into(), Unexpected::Unsigned(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.whole(value.into(), Unexpected::Signed(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        match self.field.kind {
            Kind::Double if self.is_element() => self.double(value),
            // 1.0 and 1e3 are whole. A larger one may not be the number that was written.
            _ if value.fract() == 0.0 && value.abs() <= WHOLE_MAX => {
                self.whole(value as i128, Unexpected::Float(value))
            }
            _ => Err(self.wrong(Unexpected::Float(value))),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let found =
            if text.len() <= SHOWN_BYTES_MAX { Unexpected::Str(text) } else { Unexpected::Other("another text") };
        let wrong = |it: &Self| it.wrong(found);
        if !self.is_element() {
            return Err(wrong(&self));
        }
        match self.field.kind {
            Kind::Text => self.out.delimited(self.field, text.as_bytes()),
            Kind::Hex => {
                let bytes = of_hex(text).ok_or_else(|| wrong(&self))?;
                self.out.delimited(self.field, &bytes);
            }
            Kind::Base64 => {
                let bytes = BASE64.decode(text.replace('-', "+").replace('_', "/")).map_err(|_| wrong(&self))?;
                self.out.delimited(self.field, &bytes);
            }
            Kind::Double => {
                let number = of_text(text).ok_or_else(|| wrong(&self))?;
                return self.double(number);
            }
            Kind::Bool | Kind::Message(_) => return Err(wrong(&self)),
            _ => {
                let number = text.parse().map_err(|_| wrong(&self))?;
                return self.whole(number, found);
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.is_element() {
            return Err(self.wrong(Unexpected::Seq));
        }
        let Self { field, out, depth, .. } = self;
        let depth = deeper(depth)?;
        while list.next_element_seed(Content { field, in_list: true, out: &mut *out, depth })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let Kind::Message(fields) = self.field.kind else { return Err(self.wrong(Unexpected::Map)) };
        if !self.is_element() {
            return Err(self.wrong(Unexpected::Map));
        }
        let Self { field, out, depth, .. } = self;
        out.key(field, 2);
        let start = out.bytes.len();
        out.bytes.push(0);
        Message { fields, out: &mut *out, depth }.visit_map(map)?;
        out.close(start)
    }
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?));
    rest.is_empty().then(|| bytes.collect()).flatten()
}

/// A double in text. JSON has no other form of those that are no numbers.
fn of_text(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => serde_json::from_str(text).ok(),
    }
}

/// Anything, to be passed over.
struct Ignored {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Ignored {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Ignored {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let depth = deeper(self.depth)?;
        while list.next_element_seed(Self { depth })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let depth = deeper(self.depth)?;
        while map.next_key_seed(Name(&[]))?.is_some() {
            map.next_value_seed(Self { depth })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
