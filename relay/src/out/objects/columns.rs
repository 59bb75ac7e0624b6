//! Rows of an archive, column by column, until they are a row group.
//!
//! Invariants:
//! - The names are those of the table that OpenTelemetry's collector writes to ClickHouse; what only clad knows comes after them.
//! - A row group is cut at [`ROW_GROUP_ROWS`], or at [`ROW_GROUP_BYTES`] of what is in memory, whichever comes first.
//! - What is not there is null and never made up: a time, an id, a body.

use std::io::Write;
use std::mem::take;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use clad_client::Chunk;
use clad_proto::{GroupView, KvsRef, RecordView, ValueRef};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FixedLenByteArrayType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use crate::out::value;

/// DuckDB's own size: a reader takes a group as one piece of work.
pub(super) const ROW_GROUP_ROWS: usize = 122_880;
pub(super) const ROW_GROUP_BYTES: usize = 16 << 20;
/// zstd's own default.
const ZSTD_LEVEL: i32 = 3;
/// Distinct values up to which a bloom filter is sized; it is folded to what is there.
const BLOOM_VALUES_MAX: u64 = ROW_GROUP_ROWS as u64;
/// Levels that are handed over at once.
const BATCH_LEVELS: usize = 4096;
const NANOS_A_DAY: u64 = 86_400_000_000_000;

const SCHEMA: &str = "message clad {
    optional int64 Timestamp (TIMESTAMP(NANOS,true));
    optional int64 ObservedTimestamp (TIMESTAMP(NANOS,true));
    optional fixed_len_byte_array(16) TraceId;
    optional fixed_len_byte_array(8) SpanId;
    required int32 TraceFlags (INTEGER(32,false));
    required binary SeverityText (STRING);
    required int32 SeverityNumber (INTEGER(32,true));
    required binary ServiceName (STRING);
    optional binary Body (STRING);
    optional binary BodyBytes;
    required binary ResourceSchemaUrl (STRING);
    required group ResourceAttributes (MAP) {
        repeated group key_value { required binary key (STRING); optional binary value (STRING); }
    }
    required binary ScopeSchemaUrl (STRING);
    required binary ScopeName (STRING);
    required binary ScopeVersion (STRING);
    required group ScopeAttributes (MAP) {
        repeated group key_value { required binary key (STRING); optional binary value (STRING); }
    }
    required group LogAttributes (MAP) {
        repeated group key_value { required binary key (STRING); optional binary value (STRING); }
    }
    required binary EventName (STRING);
    required int64 Offset (INTEGER(64,false));
    required int32 Epoch (INTEGER(32,false));
    required int64 AppendTime (TIMESTAMP(NANOS,true));
    required int32 Date (DATE);
    required fixed_len_byte_array(16) ProducerId;
    required int64 ProducerSeq (INTEGER(64,false));
    optional int32 PeerPid (INTEGER(32,false));
    optional int32 PeerUid (INTEGER(32,false));
    optional binary Host (STRING);
}";

pub(super) static COLUMNS: LazyLock<TypePtr> =
    LazyLock::new(|| Arc::new(parse_message_type(SCHEMA).expect("a schema, by a test")));
static PROPERTIES: LazyLock<Arc<WriterProperties>> = LazyLock::new(|| Arc::new(properties()));

fn properties() -> WriterProperties {
    let level = ZstdLevel::try_new(ZSTD_LEVEL).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("clad-relay version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_sorting_columns(Some(vec![SortingColumn {
            column_idx: offset_column(),
            descending: false,
            nulls_first: false,
        }]));
    for name in ["Timestamp", "ObservedTimestamp", "AppendTime", "Offset", "ProducerSeq"] {
        properties = encoded(properties, &[name], Encoding::DELTA_BINARY_PACKED);
    }
    for name in ["TraceId", "SpanId"] {
        properties = encoded(properties, &[name], Encoding::PLAIN);
    }
    for name in ["Body", "BodyBytes"] {
        properties = encoded(properties, &[name], Encoding::DELTA_LENGTH_BYTE_ARRAY);
        // Its least and its greatest text help nobody, and cost a comparison a record.
        properties = properties.set_column_statistics_enabled(name.into(), EnabledStatistics::None);
    }
    for map in ["ResourceAttributes", "ScopeAttributes", "LogAttributes"] {
        for part in ["key", "value"] {
            let path = column(&[map, "key_value", part]);
            // Where the dictionary grows too large.
            properties = properties.set_column_encoding(path.clone(), Encoding::DELTA_LENGTH_BYTE_ARRAY);
            properties = properties.set_column_statistics_enabled(path, EnabledStatistics::None);
        }
    }
    for name in ["TraceId", "ServiceName"] {
        properties = properties.set_column_bloom_filter_enabled(name.into(), true);
        properties = properties.set_column_bloom_filter_max_ndv(name.into(), BLOOM_VALUES_MAX);
    }
    properties.build()
}

fn encoded(properties: WriterPropertiesBuilder, path: &[&str], encoding: Encoding) -> WriterPropertiesBuilder {
    properties.set_column_dictionary_enabled(column(path), false).set_column_encoding(column(path), encoding)
}

fn column(path: &[&str]) -> ColumnPath {
    ColumnPath::new(path.iter().map(|part| (*part).to_owned()).collect())
}

/// The place of `Offset` among the leaves.
fn offset_column() -> i32 {
    let leaves = parquet::schema::types::SchemaDescriptor::new(COLUMNS.clone());
    let at = leaves.columns().iter().position(|leaf| leaf.name() == "Offset").unwrap_or_default();
    i32::try_from(at).unwrap_or_default()
}

/// A Parquet file that begins.
pub(super) fn file<W: Write + Send>(to: W) -> Result<SerializedFileWriter<W>> {
    SerializedFileWriter::new(to, COLUMNS.clone(), PROPERTIES.clone())
}

/// Numbers of a column; `levels` says of an optional one where there are none.
struct Numbers<T> {
    values: Vec<T>,
    levels: Vec<i16>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { values: Vec::new(), levels: Vec::new() }
    }
}

impl<T> Numbers<T> {
    fn push(&mut self, value: T) {
        self.values.push(value);
    }

    fn push_if(&mut self, value: Option<T>) {
        self.levels.push(value.is_some().into());
        self.values.extend(value);
    }

    const fn bytes(&self) -> usize {
        self.values.len() * size_of::<T>() + self.levels.len() * 2
    }

    fn clear(&mut self) {
        self.values.clear();
        self.levels.clear();
    }
}

/// Texts of a column, each by its place; one that is equal to its neighbour lies there once.
#[derive(Default)]
struct Texts {
    content: Vec<u8>,
    places: Vec<(u32, u32)>,
    levels: Vec<i16>,
}

impl Texts {
    /// Adds a text. `neighbour` is the place of one that it may be equal to.
    fn push_beside(&mut self, text: &[u8], neighbour: Option<usize>) {
        if text.is_empty() {
            return self.places.push((0, 0));
        }
        let beside = neighbour.and_then(|at| self.places.get(at)).copied();
        let place = beside.filter(|&place| self.at(place) == text);
        let place = place.unwrap_or_else(|| {
            let begin = self.content.len();
            self.content.extend_from_slice(text);
            (narrow(begin), narrow(text.len()))
        });
        self.places.push(place);
    }

    fn push(&mut self, text: &[u8]) {
        self.push_beside(text, self.places.len().checked_sub(1));
    }

    fn push_if(&mut self, text: Option<&[u8]>) {
        self.levels.push(text.is_some().into());
        if let Some(text) = text {
            self.push(text);
        }
    }

    fn at(&self, (begin, len): (u32, u32)) -> &[u8] {
        self.content.get(begin as usize..).and_then(|from| from.get(..len as usize)).unwrap_or_default()
    }

    const fn bytes(&self) -> usize {
        self.content.len() + self.places.len() * 8 + self.levels.len() * 2
    }

    fn clear(&mut self) {
        self.content.clear();
        self.places.clear();
        self.levels.clear();
    }
}

/// Below [`ROW_GROUP_BYTES`] and one append: it fits.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Pairs of a column that is a map.
#[derive(Default)]
struct Pairs {
    keys: Texts,
    values: Texts,
    /// Where a row has no pair: 0; a pair without a value: 1; else 2.
    definition: Vec<i16>,
    /// 0 begins a row.
    repetition: Vec<i16>,
    /// Where the last row begins: its keys, its values, its levels.
    last: (usize, usize, usize),
}

impl Pairs {
    fn push(&mut self, pairs: KvsRef<'_>, text: &mut Vec<u8>) {
        let before = std::mem::replace(
            &mut self.last,
            (self.keys.places.len(), self.values.places.len(), self.definition.len()),
        );
        for (at, pair) in pairs.iter().enumerate() {
            self.repetition.push((at > 0).into());
            // Rows have the same keys in the same order, mostly.
            self.keys.push_beside(pair.key.as_bytes(), Some(before.0 + at));
            self.definition.push(1 + i16::from(pair.value.is_some()));
            if let Some(of) = pair.value {
                text.clear();
                value::text(text, of);
                self.values.push_beside(text, Some(before.1 + at));
            }
        }
        if pairs.is_empty() {
            self.repetition.push(0);
            self.definition.push(0);
        }
    }

    /// Adds the row before once more.
    fn repeat(&mut self) {
        let (key, value, level) = self.last;
        self.last = (self.keys.places.len(), self.values.places.len(), self.definition.len());
        self.keys.places.extend_from_within(key..);
        self.values.places.extend_from_within(value..);
        self.definition.extend_from_within(level..);
        self.repetition.extend_from_within(level..);
    }

    const fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes() + self.definition.len() * 4
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Rows that are not encoded yet.
#[derive(Default)]
pub(super) struct Rows {
    count: usize,
    timestamp: Numbers<i64>,
    observed: Numbers<i64>,
    trace_id: Texts,
    span_id: Texts,
    flags: Numbers<i32>,
    severity_text: Texts,
    severity: Numbers<i32>,
    service: Texts,
    body: Texts,
    body_bytes: Texts,
    resource_url: Texts,
    resource: Pairs,
    scope_url: Texts,
    scope_name: Texts,
    scope_version: Texts,
    scope: Pairs,
    attributes: Pairs,
    event_name: Texts,
    offset: Numbers<i64>,
    epoch: Numbers<i32>,
    append_time: Numbers<i64>,
    date: Numbers<i32>,
    producer_id: Texts,
    producer_seq: Numbers<i64>,
    pid: Numbers<i32>,
    uid: Numbers<i32>,
    host: Texts,
    text: Vec<u8>,
}

/// What the records of an append share.
pub(super) struct Shared<'a> {
    chunk: &'a Chunk,
    group: Option<GroupView<'a>>,
    host: Option<&'a str>,
    /// The row before is of the same append, and in the same row group.
    is_begun: bool,
}

impl<'a> Shared<'a> {
    pub(super) fn of(chunk: &'a Chunk) -> Self {
        let group = chunk.group();
        let host = group.and_then(|group| group.resource()?.attributes().get("host.name"));
        let host = match host {
            Some(ValueRef::String(name)) => Some(name),
            _ => None,
        };
        Self { chunk, group, host, is_begun: false }
    }
}

/// A time that Parquet can say: to the year 2262, and not 0, which is none.
fn time(nanos: u64) -> Option<i64> {
    i64::try_from(nanos).ok().filter(|&nanos| nanos != 0)
}

impl Rows {
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Bytes that they take.
    pub(super) const fn bytes(&self) -> usize {
        let numbers = self.timestamp.bytes() + self.observed.bytes() + self.flags.bytes() + self.severity.bytes();
        let numbers = numbers + self.offset.bytes() + self.epoch.bytes() + self.append_time.bytes() + self.date.bytes();
        let numbers = numbers + self.producer_seq.bytes() + self.pid.bytes() + self.uid.bytes();
        let texts = self.trace_id.bytes() + self.span_id.bytes() + self.severity_text.bytes() + self.service.bytes();
        let texts =
            texts + self.body.bytes() + self.body_bytes.bytes() + self.resource_url.bytes() + self.scope_url.bytes();
        let texts = texts + self.scope_name.bytes() + self.scope_version.bytes() + self.event_name.bytes();
        let texts = texts + self.producer_id.bytes() + self.host.bytes();
        numbers + texts + self.resource.bytes() + self.scope.bytes() + self.attributes.bytes()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.count >= ROW_GROUP_ROWS || self.bytes() >= ROW_GROUP_BYTES
    }

    /// Adds a record.
    pub(super) fn push(&mut self, of: &mut Shared<'_>, offset: u64, record: &RecordView<'_>) {
        self.count += 1;
        self.timestamp.push_if(time(record.time_unix_nano()));
        self.observed.push_if(time(record.observed_time_unix_nano()));
        self.trace_id.push_if(Some(record.trace_id()).filter(|id| id.len() == 16));
        self.span_id.push_if(Some(record.span_id()).filter(|id| id.len() == 8));
        self.flags.push(record.flags().cast_signed());
        self.severity_text.push(record.severity_text().as_bytes());
        self.severity.push(record.severity_number());
        self.event_name.push(record.event_name().as_bytes());
        self.attributes.push(record.attributes(), &mut self.text);
        self.push_body(record);
        self.push_group(of);
        let chunk = of.chunk;
        self.offset.push(offset.cast_signed());
        self.epoch.push(chunk.epoch().cast_signed());
        self.append_time.push(chunk.append_time().cast_signed());
        self.date.push(i32::try_from(chunk.append_time() / NANOS_A_DAY).unwrap_or(i32::MAX));
        self.producer_id.push(chunk.producer_id().as_bytes());
        self.producer_seq.push(chunk.first_sequence().wrapping_add(offset - chunk.first_offset()).cast_signed());
        self.pid.push_if(chunk.peer_meta().pid.map(u32::cast_signed));
        self.uid.push_if(chunk.peer_meta().uid.map(u32::cast_signed));
        self.host.push_if(of.host.map(str::as_bytes));
        of.is_begun = true;
    }

    fn push_body(&mut self, record: &RecordView<'_>) {
        let (mut text, mut bytes) = (None, None);
        match (record.body_bytes(), record.body()) {
            // What is text is text, also where it came as bytes.
            (Some(content), _) if std::str::from_utf8(content).is_ok() => text = Some(content),
            (Some(content), _) => bytes = Some(content),
            (None, None) => {}
            (None, Some(of)) => {
                self.text.clear();
                value::text(&mut self.text, of);
                text = Some(&self.text[..]);
            }
        }
        self.body.push_if(text);
        self.body_bytes.push_if(bytes);
    }

    fn push_group(&mut self, of: &Shared<'_>) {
        let service = of.group.and_then(|group| group.component()).unwrap_or_default();
        let scope = of.group.and_then(|group| group.scope());
        let (resource_url, scope_url) =
            of.group.map_or(("", ""), |group| (group.resource_schema_url(), group.scope_schema_url()));
        self.service.push(service.as_bytes());
        self.resource_url.push(resource_url.as_bytes());
        self.scope_url.push(scope_url.as_bytes());
        self.scope_name.push(scope.map_or("", |scope| scope.name()).as_bytes());
        self.scope_version.push(scope.map_or("", |scope| scope.version()).as_bytes());
        if of.is_begun && self.count > 1 {
            self.resource.repeat();
            self.scope.repeat();
        } else {
            let resource = of.group.and_then(|group| group.resource()).map(|resource| resource.attributes());
            self.resource.push(resource.unwrap_or_default(), &mut self.text);
            self.scope.push(scope.map(|scope| scope.attributes()).unwrap_or_default(), &mut self.text);
        }
    }

    /// Writes them as a row group, and begins again without any.
    pub(super) fn write<W: Write + Send>(&mut self, file: &mut SerializedFileWriter<W>) -> Result<()> {
        let mut group = file.next_row_group()?;
        let to = &mut group;
        longs(to, &mut self.timestamp)?;
        longs(to, &mut self.observed)?;
        texts::<_, FixedLenByteArrayType>(to, &mut self.trace_id)?;
        texts::<_, FixedLenByteArrayType>(to, &mut self.span_id)?;
        ints(to, &mut self.flags)?;
        texts::<_, ByteArrayType>(to, &mut self.severity_text)?;
        ints(to, &mut self.severity)?;
        for column in [&mut self.service, &mut self.body, &mut self.body_bytes, &mut self.resource_url] {
            texts::<_, ByteArrayType>(to, column)?;
        }
        pairs(to, &mut self.resource)?;
        for column in [&mut self.scope_url, &mut self.scope_name, &mut self.scope_version] {
            texts::<_, ByteArrayType>(to, column)?;
        }
        pairs(to, &mut self.scope)?;
        pairs(to, &mut self.attributes)?;
        texts::<_, ByteArrayType>(to, &mut self.event_name)?;
        longs(to, &mut self.offset)?;
        ints(to, &mut self.epoch)?;
        longs(to, &mut self.append_time)?;
        ints(to, &mut self.date)?;
        texts::<_, FixedLenByteArrayType>(to, &mut self.producer_id)?;
        longs(to, &mut self.producer_seq)?;
        ints(to, &mut self.pid)?;
        ints(to, &mut self.uid)?;
        texts::<_, ByteArrayType>(to, &mut self.host)?;
        group.close()?;
        self.count = 0;
        Ok(())
    }
}

/// Levels of a column, where it has any.
fn levels(levels: &[i16]) -> Option<&[i16]> {
    (!levels.is_empty()).then_some(levels)
}

fn longs<W: Write + Send>(to: &mut SerializedRowGroupWriter<'_, W>, numbers: &mut Numbers<i64>) -> Result<()> {
    let Some(mut column) = to.next_column()? else { return Ok(()) };
    column.typed::<Int64Type>().write_batch(&numbers.values, levels(&numbers.levels), None)?;
    numbers.clear();
    column.close()
}

fn ints<W: Write + Send>(to: &mut SerializedRowGroupWriter<'_, W>, numbers: &mut Numbers<i32>) -> Result<()> {
    let Some(mut column) = to.next_column()? else { return Ok(()) };
    column.typed::<Int32Type>().write_batch(&numbers.values, levels(&numbers.levels), None)?;
    numbers.clear();
    column.close()
}

fn texts<W: Write + Send, T: DataType>(to: &mut SerializedRowGroupWriter<'_, W>, texts: &mut Texts) -> Result<()>
where
    T::T: From<ByteArray>,
{
    let definition = take(&mut texts.levels);
    write_texts::<W, T>(to, texts, &definition, &[], 1)
}

fn pairs<W: Write + Send>(to: &mut SerializedRowGroupWriter<'_, W>, pairs: &mut Pairs) -> Result<()> {
    let of_keys: Vec<i16> = pairs.definition.iter().map(|&level| level.min(1)).collect();
    write_texts::<W, ByteArrayType>(to, &mut pairs.keys, &of_keys, &pairs.repetition, 1)?;
    write_texts::<W, ByteArrayType>(to, &mut pairs.values, &pairs.definition, &pairs.repetition, 2)?;
    pairs.clear();
    Ok(())
}

/// Writes a column in parts, so that never all of its values are there a second time. A part begins with a row.
/// `there` is the level at which there is a value.
fn write_texts<W: Write + Send, T: DataType>(
    to: &mut SerializedRowGroupWriter<'_, W>,
    texts: &mut Texts,
    definition: &[i16],
    repetition: &[i16],
    there: i16,
) -> Result<()>
where
    T::T: From<ByteArray>,
{
    let Some(mut column) = to.next_column()? else { return Ok(()) };
    // Behind the last text: so an empty one lies where memory is. A library in C compares texts of no length too, and AMD's
    // processors take 0.1 µs for that where nothing is mapped (AVX-512 with a mask): four times what all else takes.
    texts.content.reserve_exact(1);
    texts.content.push(0);
    let content = ByteArray::from(Bytes::from(take(&mut texts.content)));
    let mut places = texts.places.iter();
    let mut values: Vec<T::T> = Vec::with_capacity(BATCH_LEVELS);
    // A required column has no levels: its places are its rows.
    let all = if definition.is_empty() { texts.places.len() } else { definition.len() };
    let mut from = 0;
    while from < all {
        let mut end = (from + BATCH_LEVELS).min(all);
        while repetition.get(end).is_some_and(|&level| level > 0) {
            end += 1;
        }
        let part = definition.get(from..end).unwrap_or_default();
        let count = if part.is_empty() { end - from } else { part.iter().filter(|&&level| level == there).count() };
        values.clear();
        let wanted = places.by_ref().take(count);
        values.extend(wanted.map(|&(begin, len)| content.slice(begin as usize, len as usize).into()));
        column.typed::<T>().write_batch(
            &values,
            levels(part),
            levels(repetition.get(from..end).unwrap_or_default()),
        )?;
        from = end;
    }
    texts.clear();
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader finds columns by these names and types: a change of one breaks its queries.
    #[test]
    fn the_schema_is_what_readers_know() {
        let leaves = parquet::schema::types::SchemaDescriptor::new(COLUMNS.clone());
        let names: Vec<_> = leaves.columns().iter().map(|leaf| leaf.path().string()).collect();
        assert_eq!(names.len(), 30, "{names:?}");
        let first =
            ["Timestamp", "ObservedTimestamp", "TraceId", "SpanId", "TraceFlags", "SeverityText", "SeverityNumber"];
        assert_eq!(names[..7], first);
        for name in
            ["ServiceName", "Body", "LogAttributes.key_value.value", "EventName", "Offset", "Epoch", "Date", "Host"]
        {
            assert!(names.iter().any(|found| found == name), "no {name}");
        }
        assert_eq!(leaves.column(usize::try_from(offset_column()).expect("a place")).name(), "Offset");
    }

    #[test]
    fn encodings_are_those_that_make_it_small() {
        let properties = properties();
        let encoding = |name: &str| properties.encoding(&name.into());
        for name in ["Timestamp", "ObservedTimestamp", "AppendTime", "Offset"] {
            assert_eq!(encoding(name), Some(Encoding::DELTA_BINARY_PACKED), "{name}");
        }
        assert_eq!(encoding("Body"), Some(Encoding::DELTA_LENGTH_BYTE_ARRAY));
        for name in ["SeverityText", "SeverityNumber", "ServiceName"] {
            assert!(properties.dictionary_enabled(&name.into()), "{name}");
        }
        for name in ["TraceId", "ServiceName"] {
            assert!(properties.bloom_filter_properties(&name.into()).is_some(), "{name}");
        }
    }

    #[test]
    fn a_group_is_cut_by_rows_and_by_bytes() {
        let mut rows = Rows { count: ROW_GROUP_ROWS - 1, ..Rows::default() };
        assert!(!rows.is_full());
        rows.count += 1;
        assert!(rows.is_full());
        let mut rows = Rows { count: 1, ..Rows::default() };
        rows.body.push(&vec![0; ROW_GROUP_BYTES - 100]);
        assert!(!rows.is_full(), "{}", rows.bytes());
        rows.body.push(&[1; 100]);
        assert!(rows.is_full());
        // What is equal to its neighbour takes no room.
        let before = rows.bytes();
        rows.body.push(&[1; 100]);
        assert_eq!(rows.bytes(), before + 8);
    }

    #[test]
    fn a_time_that_parquet_has_not_is_none() {
        assert_eq!((time(0), time(1), time(u64::MAX)), (None, Some(1), None));
    }
}
