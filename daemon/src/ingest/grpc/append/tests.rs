//! Streams whose appends wait for room: the memory that they hold meanwhile, and the room that they keep from others.

use std::sync::Arc;

use clad_journal::{Journal, JournalConfig, Policy};
use clad_proto::DurabilityPolicy;
use clad_proto::grpc::opentelemetry::proto::logs::v1 as logs;
use clad_proto::limits::MAX_VERSION;
use prost::Message as _;
use tokio::time::timeout;
use v1::append_request::Message as Request;

use super::*;
use crate::ingest::quota::{Owner, Quota};
use crate::ingest::rings::Rings;
use crate::ingest::{Admission, PeerTimeouts};
use crate::read::Reads;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Room for appends, in bytes.
const INFLIGHT_BYTES_MAX: usize = 4 << 20;

/// A log that syncs when it is asked to, and a stream.
struct Harness {
    service: FramedService,
    ask: mpsc::Sender<Result<Bytes, Infallible>>,
    answers: axum::body::BodyDataStream,
    /// Came and was not looked at yet.
    got: Vec<u8>,
    _stop: watch::Sender<bool>,
    _dir: tempfile::TempDir,
}

impl Harness {
    /// A stream that has been welcomed; its answers are taken by the tests, or not.
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let policy = Policy::FireAndForget { sync_interval: Duration::ZERO };
        let config = JournalConfig { policy, reserve_free: 0, segment_bytes: 16 << 20, ..JournalConfig::default() };
        let journal = Arc::new(Journal::open_dir(dir.path(), config, Arc::new(|_| {})).expect("a log"));
        let (stop, stopped) = watch::channel(false);
        let admission = Admission {
            journal: journal.clone(),
            policy: DurabilityPolicy::FireAndForget,
            highest: AckLevel::Durable,
            flush_reach: AckLevel::Durable,
            max_append: 1 << 20,
            max_record: 1 << 20,
            max_connection_bytes: INFLIGHT_BYTES_MAX,
            window: 256,
            budget: Quota::new(INFLIGHT_BYTES_MAX),
            access: crate::access::Access::open(),
        };
        let service = FramedService {
            admission: Arc::new(admission),
            reads: Reads::new(journal, AckLevel::Durable),
            rings: Rings::default(),
            assembly: Quota::new(16 << 20),
            buffers: Quota::new(32 << 20),
            handshake_timeout: TEST_TIMEOUT,
            idle_timeout: Duration::ZERO,
            peer_timeouts: PeerTimeouts::default(),
            stop: stopped,
        };
        let (calls, waiters) = (Calls::default(), Waiters::default());
        let ingest =
            Ingest { live_settings: LiveSettings::new(service.clone(), 20 << 20), may_read: false, calls, waiters };
        let (ask, asked) = mpsc::channel(100);
        let body = tonic::body::Body::new(axum::body::Body::from_stream(ReceiverStream::new(asked)));
        let answers = axum::body::Body::new(ingest.append(http::Request::new(body)).expect("served").into_body())
            .into_data_stream();
        let harness = Self { service, ask, answers, got: Vec::new(), _stop: stop, _dir: dir };
        harness
            .ask(Request::Hello(v1::Hello { min_version: 1, max_version: MAX_VERSION.into(), ..v1::Hello::default() }))
            .await;
        harness
    }

    async fn ask(&self, message: Request) {
        let message = v1::AppendRequest { message: Some(message) }.encode_to_vec();
        let framed = [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat();
        self.ask.send(Ok(framed.into())).await.expect("it is taken");
    }

    /// An append of one record, of so many bytes and a few.
    async fn append(&self, first_seq: u64, level: v1::AckLevel, bytes: usize) {
        let record = logs::LogRecord { event_name: "x".repeat(bytes), ..Default::default() };
        let scope_logs = logs::ScopeLogs { log_records: vec![record], ..Default::default() };
        let resource_logs = Some(logs::ResourceLogs { scope_logs: vec![scope_logs], ..Default::default() });
        self.ask(Request::Append(v1::Append { first_seq, level: level.into(), gap: false, resource_logs })).await;
    }

    /// The next answer.
    async fn answer(&mut self) -> Reply {
        loop {
            if let Some((&[_, a, b, c, d], rest)) = self.got.split_first_chunk()
                && let Some(message) = rest.get(..u32::from_be_bytes([a, b, c, d]) as usize)
            {
                let answer = v1::AppendResponse::decode(message).expect("an answer");
                self.got.drain(..5 + message.len());
                return answer.message.expect("it says something");
            }
            self.got.extend(
                timeout(TEST_TIMEOUT, self.answers.next()).await.expect("in time").expect("an answer").expect("no end"),
            );
        }
    }

    /// Lets the stream run, on this thread, until that is so.
    async fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !so() {
            assert!(began.elapsed() < TEST_TIMEOUT, "{what}");
            tokio::task::yield_now().await;
        }
    }

    /// Lets the stream run as far as it can by itself.
    async fn rests(&self) {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }

    fn count(&self) -> usize {
        self.service.admission.journal.watermarks().received as usize
    }
}

/// It is in memory, so it is counted; also beside answers that are taken.
#[tokio::test]
async fn a_large_append_that_waits_for_room_keeps_its_share() {
    let mut harness = Harness::new().await;
    assert!(matches!(harness.answer().await, Reply::Welcome(_)));
    let service = harness.service.clone();
    let all = service.admission.budget.handle(Owner::Uid(0)).try_take(INFLIGHT_BYTES_MAX).expect("nobody has any");
    harness.append(0, v1::AckLevel::Received, 200_000).await;
    harness.until("it comes", || service.assembly.in_use() > 0).await;
    harness.rests().await;
    assert!((400_000..410_000).contains(&service.assembly.in_use()), "{} bytes", service.assembly.in_use());
    assert_eq!(harness.count(), 0);
    drop(all);
    let answer = harness.answer().await;
    assert!(matches!(answer, Reply::Accepted(v1::Accepted { first_seq: 0, count: 1, .. })), "{answer:?}");
    assert_eq!((service.assembly.in_use(), harness.count()), (0, 1));
}

/// Room that becomes free while its answers are not read goes to others; it has its turn again when they are read.
#[tokio::test]
async fn who_does_not_read_keeps_no_room_from_others() {
    let mut harness = Harness::new().await;
    // With the welcome, as many answers as wait for a peer; and the last of them is not the last of its append.
    for first_seq in 0..QUEUED_ANSWERS_MAX as u64 - 1 {
        let last = first_seq == QUEUED_ANSWERS_MAX as u64 - 2;
        let level = if last { v1::AckLevel::Durable } else { v1::AckLevel::Received };
        harness.append(first_seq, level, 10).await;
    }
    let service = harness.service.clone();
    harness.until("all are taken", || harness.count() == QUEUED_ANSWERS_MAX - 1).await;
    harness.until("they are written", || service.admission.budget.in_use() == 0).await;
    let all = service.admission.budget.handle(Owner::Uid(0)).try_take(INFLIGHT_BYTES_MAX).expect("nobody has any");
    harness.append(QUEUED_ANSWERS_MAX as u64 - 1, v1::AckLevel::Received, 10).await;
    harness.rests().await;
    service.admission.journal.request_sync();
    let is_synced = || service.admission.journal.watermarks().durable as usize == QUEUED_ANSWERS_MAX - 1;
    harness.until("what was before is durable", is_synced).await;
    harness.rests().await;
    drop(all);
    harness.until("room is kept for who does not read", || service.admission.budget.in_use() == 0).await;

    assert!(matches!(harness.answer().await, Reply::Welcome(_)));
    for seq in 0..QUEUED_ANSWERS_MAX as u64 - 1 {
        let answer = harness.answer().await;
        assert!(matches!(answer, Reply::Accepted(v1::Accepted { first_seq, .. }) if first_seq == seq), "{answer:?}");
    }
    // Their order is that of the watermarks, which another thread moves.
    let (mut watermarks, mut accepted) = (0, 0);
    while watermarks + accepted < 2 {
        match harness.answer().await {
            Reply::Watermark(_) => watermarks += 1,
            Reply::Accepted(v1::Accepted { first_seq: 63, count: 1, .. }) => accepted += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((watermarks, accepted, harness.count()), (1, 1, QUEUED_ANSWERS_MAX));
}
