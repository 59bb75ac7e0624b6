//! Producer and reader over gRPC against a small daemon in this process: it stores, forgets connections, and gives back.

use clad_client::*;
use clad_proto::{
    PayloadView,
    grpc::{
        to_status,
        v1::{
            self,
            append_request::Message as Request,
            append_response::Message as Response,
            ingest_server::{Ingest, IngestServer},
            log_server::{Log, LogServer},
            read_request::From,
            read_response::Message,
        },
    },
    otlp,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Status, Streaming, transport::Server};

const LOG: [u8; 16] = [5; 16];

#[derive(Default)]
struct State {
    /// Appends in the order of their offsets.
    log: Vec<v1::Append>,
    end: u64,
    connections: u32,
    /// What the next Flush is refused with.
    refuses: Option<ErrorInfo>,
}

#[derive(Clone, Default)]
struct Daemon(Arc<Mutex<State>>);

type Answers<T> = ReceiverStream<Result<T, Status>>;

fn count(append: &v1::Append) -> u32 {
    append.resource_logs.as_ref().map_or(0, |logs| logs.scope_logs[0].log_records.len() as u32)
}

fn cursor(offset: u64) -> v1::Cursor {
    v1::Cursor { log_id: LOG.to_vec().into(), epoch: 1, offset }
}

impl Daemon {
    fn welcome(&self, hello: &v1::Hello) -> v1::Welcome {
        let mut state = self.0.lock().expect("whole");
        state.connections += 1;
        let last = state.log.last().map(|append| append.first_seq + u64::from(count(append)) - 1);
        v1::Welcome {
            version: 1,
            policy: v1::DurabilityPolicy::GroupCommit.into(),
            highest_ack: v1::AckLevel::Durable.into(),
            log_id: LOG.to_vec().into(),
            epoch: 1,
            producer_id: hello.producer_id.clone(),
            last: last.map(|sequence| v1::LastStored {
                sequence,
                offset: state.end - 1,
                level: v1::AckLevel::Durable.into(),
            }),
            window: 100,
            max_append_bytes: 8 << 20,
            max_record_bytes: 2 << 20,
            offsets: Some(v1::Offsets { received: state.end, written: state.end, durable: state.end }),
            ..v1::Welcome::default()
        }
    }

    /// Stores once; the answer to a resend is the first one.
    fn store(&self, append: v1::Append) -> [Response; 2] {
        let mut state = self.0.lock().expect("whole");
        let (first_seq, count) = (append.first_seq, count(&append));
        let next = state.log.iter().map(self::count).map(u64::from).sum::<u64>();
        let duplicate = first_seq < next;
        if !duplicate {
            assert_eq!(first_seq, next);
            state.end += u64::from(count);
            state.log.push(append);
        }
        let accepted = v1::Accepted { first_seq, first_offset: first_seq, count, epoch: 1, duplicate };
        let level = v1::AckLevel::Durable.into();
        let watermark = v1::Watermark { epoch: 1, epoch_first_offset: 0, level, offset: state.end, flush_id: 0 };
        [Response::Accepted(accepted), Response::Watermark(watermark)]
    }
}

#[tonic::async_trait]
impl Ingest for Daemon {
    type AppendStream = Answers<v1::AppendResponse>;

    async fn append(
        &self,
        request: tonic::Request<Streaming<v1::AppendRequest>>,
    ) -> Result<tonic::Response<Self::AppendStream>, Status> {
        let (daemon, mut requests) = (self.clone(), request.into_inner());
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(async move {
            let mut left = 25; // then the stream breaks, with answers that are never given
            while let Ok(Some(request)) = requests.message().await {
                let answers = match request.message.expect("a message") {
                    Request::Hello(hello) => vec![Response::Welcome(daemon.welcome(&hello))],
                    Request::Append(append) if left == 0 => {
                        daemon.store(append);
                        let error = ErrorInfo::new(ErrorCode::ShuttingDown, "");
                        return drop(sender.send(Err(to_status(&error))).await);
                    }
                    Request::Append(append) => daemon.store(append).to_vec(),
                    Request::Flush(flush) => {
                        let (offset, refuses) = {
                            let mut state = daemon.0.lock().expect("whole");
                            (state.end, state.refuses.take())
                        };
                        let (level, flush_id) = (flush.level, flush.id);
                        if let Some(error) = refuses {
                            let error = Some(error.into());
                            let refused = Response::FlushRefused(v1::FlushRefused { flush_id, error });
                            let _ = sender.send(Ok(v1::AppendResponse { message: Some(refused) })).await;
                            continue;
                        }
                        vec![Response::Watermark(v1::Watermark {
                            epoch: 1,
                            level,
                            offset,
                            flush_id,
                            ..Default::default()
                        })]
                    }
                    Request::Bye(_) => return,
                };
                left -= 1;
                for message in answers {
                    let _ = sender.send(Ok(v1::AppendResponse { message: Some(message) })).await;
                }
            }
        });
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl Log for Daemon {
    type ReadStream = Answers<v1::ReadResponse>;

    async fn commit_cursor(
        &self,
        _: tonic::Request<v1::CommitCursorRequest>,
    ) -> Result<tonic::Response<v1::CursorResponse>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn get_cursor(
        &self,
        _: tonic::Request<v1::GetCursorRequest>,
    ) -> Result<tonic::Response<v1::CursorResponse>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn read(
        &self,
        request: tonic::Request<v1::ReadRequest>,
    ) -> Result<tonic::Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let (log, end) = {
            let state = self.0.lock().expect("whole");
            (state.log.clone(), state.end)
        };
        let from = match request.from {
            Some(From::Tail(records)) => end - records,
            Some(From::Offset(offset)) => offset,
            Some(From::Cursor(at)) if at.epoch == 9 => {
                let error =
                    ErrorInfo::new(ErrorCode::CursorAbandoned, "").parting_at(cursor(3).cursor().expect("whole"));
                return Err(to_status(&error));
            }
            Some(From::Cursor(at)) => at.offset,
            None => 0,
        };
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(async move {
            for append in log.into_iter().filter(|append| append.first_seq >= from) {
                let records = v1::Records {
                    epoch: 1,
                    first_offset: append.first_seq,
                    first_seq: append.first_seq,
                    producer_id: vec![1; 16].into(),
                    peer_meta: Some(v1::PeerMeta { transport: Some(3), ..Default::default() }),
                    resource_logs: append.resource_logs,
                    ..Default::default()
                };
                let _ = sender.send(Ok(v1::ReadResponse { message: Some(Message::Records(records)) })).await;
            }
            let end = v1::ReadEnd { cursor: Some(cursor(end)), reason: v1::ReadEndReason::End.into() };
            let _ = sender.send(Ok(v1::ReadResponse { message: Some(Message::End(end)) })).await;
        });
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

async fn start() -> (Address, Daemon) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let daemon = Daemon::default();
    let server =
        Server::builder().add_service(IngestServer::new(daemon.clone())).add_service(LogServer::new(daemon.clone()));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (Address::grpc("127.0.0.1", port), daemon)
}

#[tokio::test]
async fn the_same_rules_as_framed() {
    let (address, daemon) = start().await;
    let ms = Duration::from_millis;
    let builder = Producer::builder(address.clone()).component("over http").backoff(ms(1), ms(10));
    let producer = builder.connect().await.expect("connected");
    let mut tickets = Vec::new();
    for n in 0..100u64 {
        let records = [Record::text(n + 1, 9, format!("{n}a")), Record::text(n + 1, 9, format!("{n}b"))];
        tickets.push(producer.reserve(200).await.expect("room").submit_many(&records).expect("handed over"));
    }
    for (n, ticket) in (0..).zip(tickets) {
        let receipt = tokio::time::timeout(ms(60_000), ticket).await.expect("no hang").expect("durable");
        assert_eq!((receipt.first_offset, receipt.count, receipt.level), (Some(2 * n), 2, AckLevel::Durable));
    }
    producer.send(&Record::text(1, 9, "forgotten")).await.expect("handed over");
    let summary = producer.close().await.expect("all home");
    assert_eq!((summary.stats.sent, summary.stats.acked), (201, 201));
    assert!(summary.stats.reconnects >= 3, "{summary:?}");
    assert!(daemon.0.lock().expect("whole").connections > 3);

    let mut reader = Reader::builder(address.clone()).open().await.expect("opened");
    let (mut offset, mut bodies) = (0, Vec::new());
    while let Some(event) = reader.next().await.expect("good") {
        let Event::Records(chunk) = event else { panic!("{event:?}") };
        assert_eq!((chunk.first_offset(), chunk.component()), (offset, Some("over http")));
        assert_eq!(chunk.peer_meta().transport, Some(Transport::Grpc));
        offset = chunk.end_offset();
        assert_eq!(reader.cursor(), Some(Cursor { log_id: LogId::from_bytes(LOG), epoch: 1, offset }));
        bodies.extend(
            chunk
                .records()
                .map(|(_, record)| String::from_utf8(record.body_bytes().expect("text").into()).expect("text")),
        );
    }
    let mut expected: Vec<String> = (0..100).flat_map(|n| [format!("{n}a"), format!("{n}b")]).collect();
    expected.push("forgotten".to_owned());
    assert_eq!(bodies, expected);

    let at = Cursor { log_id: LogId::from_bytes(LOG), epoch: 9, offset: 7 };
    let error = Reader::builder(address).from(Start::Cursor(at)).open().await.expect_err("abandoned");
    assert!(
        matches!(error, ReadError::CursorAbandoned { cursor, parting: Some(to) } if cursor == at && to.offset == 3)
    );
}

/// What the daemon says of one flush is for who asked, and the producer goes on, also where asking again would not help.
#[tokio::test]
async fn a_flush_that_is_refused_is_no_end_of_the_producer() {
    let (address, daemon) = start().await;
    let producer = Producer::builder(address).connect().await.expect("connected");
    let mut lost = ErrorInfo::new(ErrorCode::JournalFailed, "some of what was sent before may be lost");
    (lost.retryable, lost.maybe_written) = (false, true);
    for refuses in [lost, ErrorInfo::new(ErrorCode::Busy, "not now").retry_after_ms(1)] {
        let retryable = refuses.retryable;
        producer.send(&Record::text(1, 9, "forgotten")).await.expect("handed over");
        daemon.0.lock().expect("whole").refuses = Some(refuses);
        match producer.flush(AckLevel::Durable).await {
            Ok(()) => assert!(retryable, "the loss is not reported"),
            Err(AppendError::Refused { error, .. }) => assert_eq!(error.code, ErrorCode::JournalFailed),
            Err(other) => panic!("{other}"),
        }
        producer.append(&[Record::text(1, 9, "and on")]).await.expect("durable");
    }
    producer.flush(AckLevel::Durable).await.expect("it speaks of the rest");
    assert_eq!(daemon.0.lock().expect("whole").connections, 1, "the call ended");
}

#[tokio::test]
async fn every_construct_of_a_record_comes_back_equal() {
    let (address, daemon) = start().await;
    let producer = Producer::builder(address.clone()).connect().await.expect("connected");
    let list = AnyValue::Array(vec![AnyValue::Empty, AnyValue::Double(-0.0), AnyValue::Bytes(vec![0, 255])]);
    let record = Record {
        body: Some(AnyValue::KvList(vec![KeyValue::new("nested", list)])),
        attributes: vec![
            KeyValue::new("k", 1),
            KeyValue::new("k", true),
            KeyValue { key: "absent".into(), ..KeyValue::default() },
        ],
        severity_number: -3,
        severity_text: "odd".into(),
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        event_name: "event".into(),
        dropped_attributes_count: 4,
        flags: 0x101,
        ..Record::text(1, 1, "")
    };
    producer.append(std::slice::from_ref(&record)).await.expect("durable");
    let mut reader = Reader::builder(address).open().await.expect("opened");
    let Some(Event::Records(chunk)) = reader.next().await.expect("good") else { panic!("records") };
    assert_eq!(chunk.records().next().expect("one").1.to_owned(), record);
    let stored = daemon.0.lock().expect("whole").log[0].resource_logs.clone().expect("logs");
    let payload = otlp::encode(&stored, 1 << 20, 1 << 20).expect("an append");
    let stored = PayloadView::parse(&payload.bytes, payload.count).expect("parses");
    assert_eq!(stored.records().map(|record| record.to_owned()).collect::<Vec<_>>(), [record]);
}

#[tokio::test]
async fn nobody_there_says_so() {
    let error = Producer::builder(Address::grpc("127.0.0.1", 1)).connect().await.expect_err("nobody");
    assert!(
        matches!(&error, ConnectError::Io { error, .. } if error.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error:?}"
    );
    assert!(error.is_retryable());
}
