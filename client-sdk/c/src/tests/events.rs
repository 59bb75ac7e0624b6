//! Events that no program in C brings about: gaps, and values that are lists. The daemon is played by hand.

#[path = "../../../tests/support/mod.rs"]
mod frames;

use std::ffi::{CStr, CString, c_char, c_void};

use clad_client::{AnyValue, Cursor, KeyValue, Record};
use clad_proto::frame::{Frame, GapReason, PeerMeta, ReadEnd, ReadEndReason, Records, RecordsHead};
use clad_proto::{Group, PayloadBuilder};

use super::super::reader::*;
use super::super::reader_event::{clad_event, clad_event_kind::*, clad_gap::*};
use super::super::record::clad_attribute;
use super::super::status::{clad_status::*, clad_type::*};

const WAIT_MS: u64 = 60_000;

fn list(elements: Vec<AnyValue>) -> AnyValue {
    AnyValue::Array(elements)
}

fn records(request_id: u32, first_offset: u64, records: &[Record]) -> Frame {
    let mut builder = PayloadBuilder::new(&Group::component_named("lists")).expect("fits");
    records.iter().for_each(|record| builder.push(record).expect("fits"));
    let payload = builder.finish();
    let (payload_crc, take) = (payload.checksum(), payload.count);
    let head = RecordsHead { epoch: 1, count: take, take, first_offset, payload_crc, ..RecordsHead::default() };
    let peer_meta = PeerMeta::default().to_bytes().into();
    Frame::Records(Records { request_id, head, peer_meta, payload: payload.bytes })
}

/// Answers one READ with a gap, two records and another gap.
async fn play(fake: &frames::Fake, lists: &[Record]) {
    let mut peer = fake.accept().await;
    let Frame::Read(read) = peer.next().await else { panic!("READ comes") };
    let request_id = read.request_id;
    let gap = |from, to, reason| Frame::Gap(clad_proto::frame::Gap { request_id, from, to, epoch: 1, reason });
    peer.send(gap(0, 7, GapReason::Retention)).await;
    peer.send(records(request_id, 7, lists)).await;
    peer.send(gap(9, 12, GapReason::Damage)).await;
    let cursor = Cursor { log_id: frames::LOG, epoch: 1, offset: 12 };
    peer.send(Frame::ReadEnd(ReadEnd { request_id, cursor, reason: ReadEndReason::End })).await;
    while peer.try_next().await.is_some() {}
}

/// A reader of C, from its end.
struct Read(*mut clad_reader);

impl Read {
    fn next(&self) -> Option<clad_event> {
        // SAFETY: zeroes are NULL and 0, as CLAD_EVENT_INIT has them.
        let mut event: clad_event = unsafe { std::mem::zeroed() };
        event.size = size_of::<clad_event>();
        match clad_reader_next(self.0, WAIT_MS, &raw mut event) {
            CLAD_OK => Some(event),
            status => {
                assert_eq!(status, CLAD_END, "{}", super::text());
                None
            }
        }
    }

    fn cursor(&self) -> String {
        let mut text = [0 as c_char; 80];
        assert_eq!(clad_reader_cursor(self.0, text.as_mut_ptr(), text.len()), CLAD_OK);
        // SAFETY: it was written with its NUL.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().expect("ASCII").to_owned()
    }
}

fn attributes(event: &clad_event) -> &[clad_attribute] {
    // SAFETY: so many are there until the next call with the reader.
    unsafe { std::slice::from_raw_parts(event.attributes, event.attributes_count) }
}

fn bytes(at: *const c_void, len: usize) -> Vec<u8> {
    // SAFETY: so many are there until the next call with the reader.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()
}

#[test]
fn gaps_are_events_and_lists_are_named_as_other_values() {
    let pairs = AnyValue::KvList(vec![KeyValue::new("inner", AnyValue::Int(1))]);
    let mut first = Record::text(5, 9, "");
    first.body = Some(list(vec![AnyValue::Int(1), AnyValue::String("a".into())]));
    first.attributes = vec![
        KeyValue::new("list", list(Vec::new())),
        KeyValue::new("map", pairs.clone()),
        KeyValue::new("text", AnyValue::String("behind".into())),
    ];
    let mut second = Record::text(6, 9, "");
    second.body = Some(pairs);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let fake = runtime.block_on(async { frames::Fake::new() });
    let address = CString::new(fake.address.to_string()).expect("no NUL");
    let daemon = runtime.spawn(async move { play(&fake, &[first, second]).await });

    // SAFETY: zeroes are NULL and 0, as CLAD_READER_OPTIONS_INIT has them.
    let mut options: clad_reader_options = unsafe { std::mem::zeroed() };
    (options.size, options.address) = (size_of::<clad_reader_options>(), address.as_ptr());
    let mut reader = std::ptr::null_mut();
    assert_eq!(clad_reader_open(&raw const options, &raw mut reader), CLAD_OK, "{}", super::text());
    let read = Read(reader);

    let gap = read.next().expect("a gap");
    assert_eq!((gap.kind, gap.gap), (CLAD_EVENT_GAP as u32, CLAD_GAP_RETENTION as u32));
    assert_eq!((gap.offset, gap.end_offset, gap.attributes_count), (0, 7, 0));
    assert!(read.cursor().ends_with(":1:7"), "{}", read.cursor());

    let event = read.next().expect("a record");
    assert_eq!((event.kind, event.offset, event.gap), (CLAD_EVENT_RECORD as u32, 7, 0));
    assert_eq!((event.body.value_type, event.body.data_len), (CLAD_TYPE_OTHER as u32, 0));
    let attributes = attributes(&event);
    assert_eq!(
        attributes.iter().map(|one| one.value_type).collect::<Vec<_>>(),
        [CLAD_TYPE_OTHER as u32, CLAD_TYPE_OTHER as u32, CLAD_TYPE_STRING as u32]
    );
    let keys: Vec<_> = attributes.iter().map(|one| bytes(one.key.cast(), one.key_len)).collect();
    assert_eq!(keys, [b"list".to_vec(), b"map".to_vec(), b"text".to_vec()]);
    assert!(attributes[..2].iter().all(|one| one.data.is_null() && one.data_len == 0));
    assert_eq!(bytes(attributes[2].data, attributes[2].data_len), b"behind");
    let event = read.next().expect("a record");
    assert_eq!((event.offset, event.body.value_type), (8, CLAD_TYPE_OTHER as u32));

    let gap = read.next().expect("a gap");
    assert_eq!((gap.kind, gap.gap), (CLAD_EVENT_GAP as u32, CLAD_GAP_DAMAGE as u32));
    assert_eq!((gap.offset, gap.end_offset), (9, 12));
    assert!(read.next().is_none());
    assert!(read.cursor().ends_with(":1:12"), "{}", read.cursor());
    assert_eq!(clad_reader_free(read.0), CLAD_OK);
    runtime.block_on(daemon).expect("played to its end");
}
