//! A cursor in its text form, over everything that happens to a log.

use clad_client::{Cursor, GapReason, ReadError, Reader, Start};
use clad_e2e::{Daemon, Raw};
use clad_proto::AckLevel;

use crate::{Appender, address, numbers, read_all, runtime, small};

/// Reads the first records; where it stopped, as a program stores it.
fn stored_cursor(daemon: &Daemon, records: u64) -> String {
    runtime().block_on(async {
        let reader = Reader::builder(address(daemon, "unix")).limit(records).open().await.expect("opened");
        let all = read_all(reader, usize::MAX).await.expect("read");
        assert_eq!(all.records, numbers(0..records));
        all.cursor.expect("a place").to_string()
    })
}

fn from(daemon: &Daemon, transport: &str, cursor: &str) -> Result<crate::All, ReadError> {
    let cursor: Cursor = cursor.parse().expect("a cursor");
    runtime().block_on(async {
        let reader = Reader::builder(address(daemon, transport)).from(Start::Cursor(cursor)).open().await?;
        read_all(reader, usize::MAX).await
    })
}

#[test]
fn survives_restarts_rotation_and_retention() {
    let mut daemon = small().start();
    let mut appender = Appender::new(&daemon);
    (0..30).for_each(|number| appender.text(format!("number {number}")));
    let cursor = stored_cursor(&daemon, 20);
    daemon.admin().rotate().expect("rotated");
    daemon.kill9();
    daemon.restart();
    let mut appender = Appender::new(&daemon);
    (30..40).for_each(|number| appender.text(format!("number {number}")));
    for transport in ["unix", "grpc"] {
        let all = from(&daemon, transport, &cursor).expect("read");
        assert_eq!((all.records, all.gaps.len()), (numbers(20..40), 0), "{transport}");
    }
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("retention.max_bytes", "4MiB");
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let body = vec![b'x'; 100 << 10];
    for sequence in 0..100 {
        raw.append_acked(sequence, AckLevel::Durable, &[&body]);
    }
    daemon.wait_until("retention has passed the cursor", |status| status.lowest_offset > 20);
    for transport in ["unix", "grpc"] {
        let all = from(&daemon, transport, &cursor).expect("read");
        let [gap] = all.gaps.as_slice() else { panic!("{:?}", all.gaps) };
        assert_eq!((gap.from, gap.reason), (20, GapReason::Retention), "{transport}");
        let offsets: Vec<u64> = all.records.iter().map(|(offset, _)| *offset).collect();
        assert!(offsets.iter().copied().eq(gap.to..140), "{transport}: {offsets:?} after {gap:?}");
    }
}

/// In the place of a log there is another one, or an older copy: nothing is read in its stead.
#[test]
fn of_another_log_or_of_what_is_lost_it_is_refused() {
    let daemon = small().start();
    let mut appender = Appender::new(&daemon);
    (0..5).for_each(|number| appender.text(format!("number {number}")));
    let cursor = stored_cursor(&daemon, 3);
    let other = small().start();
    let mut appender = Appender::new(&other);
    (0..5).for_each(|number| appender.text(format!("number {number}")));
    for transport in ["unix", "grpc"] {
        let error = from(&other, transport, &cursor).expect_err("another log");
        assert!(matches!(error, ReadError::CursorUnknown { .. }) && !error.is_retryable(), "{transport}: {error}");
        let beyond = Cursor { offset: 6, ..cursor.parse().expect("a cursor") }.to_string();
        let error = from(&daemon, transport, &beyond).expect_err("it was never there");
        assert!(matches!(error, ReadError::CursorUnknown { .. }), "{transport}: {error}");
        assert_eq!(from(&daemon, transport, &cursor).expect("its own").records, numbers(3..5));
    }
}
