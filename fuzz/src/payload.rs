//! The payload of an append: a group and its records, as every reader of the log meets it.
//!
//! What must hold of any bytes: the check of the daemon (`scan`) and the check of a reader (`PayloadView`) agree; what
//! passes reads to the end, turns into owned records, and these encode to a payload that reads as the same records.

use clad_proto::limits::MAX_RECORD_BYTES;
use clad_proto::{PayloadBuilder, PayloadView, Record, parse_group, scan};

/// The first byte is the count of records, the rest the payload; and the whole as a payload of 1, as golden files are.
pub(crate) fn record(data: &[u8]) {
    if let Some((count, payload)) = data.split_first() {
        check(payload, u32::from(*count));
    }
    for count in [1, 2, 3, u32::MAX] {
        check(data, count);
    }
}

fn check(payload: &[u8], count: u32) {
    let _ = parse_group(payload);
    let scanned = scan(payload, count, MAX_RECORD_BYTES);
    let parsed = PayloadView::parse(payload, count);
    assert_eq!(scanned.is_ok(), parsed.is_ok(), "the daemon's check and a reader's differ: {scanned:?}, {parsed:?}");
    let Ok(view) = parsed else { return };
    assert_eq!(view.records().count(), count as usize);
    let group = view.group().to_owned();
    let records: Vec<Record> = view.records().map(|r| r.to_owned()).collect();
    let mut builder = match PayloadBuilder::with_limits(&group, u32::MAX, u32::MAX) {
        Ok(builder) => builder,
        Err(error) => panic!("a group that was read cannot be written: {error}"),
    };
    for record in &records {
        if let Err(error) = builder.push(record) {
            panic!("a record that was read cannot be written: {error}");
        }
    }
    let made = builder.finish();
    let view = match PayloadView::parse(&made.bytes, made.count) {
        Ok(view) => view,
        Err(error) => panic!("what was written cannot be read: {error}"),
    };
    assert_eq!(view.group().to_owned(), group);
    assert_eq!(view.records().map(|r| r.to_owned()).collect::<Vec<_>>(), records);
}
