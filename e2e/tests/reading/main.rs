//! Readers of the client library against real daemons: places to start, cursors that survive, filters.

mod cursors;
mod filters;
mod follow;
mod hostile_filters;
mod named;
mod senders;
mod tailer;

use std::time::Duration;

use clad_client::{Address, Cursor, Event, Gap, ReadError, Reader, ReaderBuilder};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT};
use clad_proto::{AckLevel, Payload};

/// Segments of 1 MiB.
fn small() -> Setup {
    Setup::new()
        .set("ingest.grpc.allow_read", "true")
        .set("journal.segment_bytes", "1MiB")
        .set("limits.max_append_bytes", "256KiB")
        .set("journal.max_record_bytes", "128KiB")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn address(daemon: &Daemon, transport: &str) -> Address {
    daemon.address(transport).parse().expect("an address")
}

/// A producer that appends one by one.
struct Appender {
    raw: Raw,
    next: u64,
}

impl Appender {
    fn new(daemon: &Daemon) -> Self {
        Self { raw: Raw::producer(&daemon.socket()).0, next: 0 }
    }

    /// Appends a record with this body, durable.
    fn text(&mut self, body: impl AsRef<[u8]>) {
        self.raw.append_acked(self.next, AckLevel::Durable, &[body.as_ref()]);
        self.next += 1;
    }

    /// Hands over an append, and waits until it is written.
    fn payload(&mut self, payload: &Payload) {
        self.raw.append_payload(self.next, AckLevel::Written, false, payload);
        self.next += u64::from(payload.count);
        let accepted = self.raw.accepted();
        self.raw.wait_watermark(AckLevel::Written, accepted.epoch, accepted.first_offset);
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("it hangs")
}

fn quick(builder: ReaderBuilder) -> ReaderBuilder {
    builder.backoff(Duration::from_millis(5), Duration::from_millis(50))
}

/// A record as it is read: its offset, and its body as text.
type Got = (u64, String);

/// What a reader gave until its end, or until so many records.
#[derive(Debug, Default)]
struct All {
    records: Vec<Got>,
    gaps: Vec<Gap>,
    progress: u32,
    cursor: Option<Cursor>,
}

async fn read_all(mut reader: Reader, records_max: usize) -> Result<All, ReadError> {
    let mut all = All::default();
    while all.records.len() < records_max
        && let Some(event) = soon(reader.next()).await?
    {
        match event {
            Event::Records(chunk) => all.records.extend(chunk.records().map(|(offset, record)| {
                (offset, String::from_utf8_lossy(record.body_bytes().unwrap_or_default()).into_owned())
            })),
            Event::Gap(gap) => all.gaps.push(gap),
            Event::Progress { .. } => all.progress += 1,
            _ => {}
        }
    }
    all.cursor = reader.cursor();
    Ok(all)
}

fn numbers(offsets: std::ops::Range<u64>) -> Vec<Got> {
    offsets.map(|offset| (offset, format!("number {offset}"))).collect()
}
