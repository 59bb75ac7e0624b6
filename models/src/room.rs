//! A client with a socket and room for two appends: one caller drops what is old, one waits for room; its task; a daemon.
//!
//! What must hold in every order, with no time passing:
//! - **Who waits is answered**: for room, for a ticket, also of what another caller dropped, for a flush, for the close.
//! - **All is counted once**: what was submitted was stored, or dropped.
//! - What was sent is never dropped for others, so the daemon has as many records as were acked.

use clad_client::models::socket_client;
use clad_client::{AckLevel, Address, AppendError, Call, Overload, Producer, Record, Severity};
use shuttle::future::block_on;
use shuttle::thread;

/// Records of each caller.
const RECORDS: u64 = 3;
/// Room for two appends of one record, with what each takes besides its payload.
const ROOM_BYTES: usize = 700;
/// What a caller reserves for one record.
const RESERVED_BYTES: usize = 64;

/// Beside the one who waits for room: one who drops whatever is oldest.
pub fn oldest() {
    model(Call::new().on_overload(Overload::DropOldest));
}

/// One who drops what is below its severity.
pub fn below() {
    let wait = std::time::Duration::ZERO;
    model(Call::new().on_overload(Overload::DropBelow { severity: Severity::WARN, wait }));
}

/// One who drops its own.
pub fn newest() {
    model(Call::new().on_overload(Overload::DropNewest));
}

fn model(call: Call) {
    let builder = Producer::builder(Address::unix("clad.sock")).max_buffered_bytes(ROOM_BYTES).max_append_records(1);
    let (producer, task) = socket_client(builder).expect("a small group");
    let served = thread::spawn(move || block_on(task.run()));
    let drops = {
        let producer = producer.clone();
        thread::spawn(move || drops(&producer, &call))
    };
    let waits = {
        let producer = producer.clone();
        thread::spawn(move || waits(&producer))
    };
    drops.join().expect("it ends");
    waits.join().expect("it ends");
    // A drop that nobody heard of is an error of the last flush.
    let _ = block_on(producer.flush(AckLevel::Durable));
    let stats = producer.stats();
    assert_eq!(stats.submitted - stats.drop_reports, 2 * RECORDS, "{stats:?}");
    block_on(producer.close()).expect("all that was not dropped is durable");
    let stored = served.join().expect("it ends");
    assert!(stored <= 2 * RECORDS + 2 && stored + stats.dropped >= 2 * RECORDS, "{stored} stored, {stats:?}");
}

/// Posts without tickets, warnings, then flushes.
fn drops(producer: &Producer, call: &Call) {
    let mut batch = producer.batch();
    for _ in 0..RECORDS {
        batch.push(&Record::text(1, 13, "posted")).expect("it fits");
        let _ = producer.post_batch(&mut batch, call); // where there is no room, it is counted
    }
    let _ = block_on(producer.flush(AckLevel::Durable));
}

/// Waits for room, then for the ticket.
fn waits(producer: &Producer) {
    for _ in 0..RECORDS {
        let room = block_on(producer.reserve(RESERVED_BYTES)).expect("there is room at last");
        let ticket = room.submit(&Record::text(1, 9, "awaited")).expect("it fits");
        match block_on(ticket) {
            Ok(_) | Err(AppendError::Dropped { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
