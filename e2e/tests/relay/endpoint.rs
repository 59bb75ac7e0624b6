//! An OTLP endpoint that is played: it takes what comes, and answers by a script.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use clad_proto::grpc::opentelemetry::proto::common::v1::{AnyValue, any_value::Value};
use clad_proto::grpc::opentelemetry::proto::logs::v1::LogRecord;
use prost::Message;

/// What it does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Takes it.
    Take,
    /// Takes it, and the answer is lost.
    TakeAndCut,
    /// Says it has taken all but so many.
    Partly(i64),
    /// Answers this status, with these headers.
    Say(u16, &'static str),
}

type Script = Arc<dyn Fn(&ExportLogsServiceRequest) -> Act + Send + Sync>;

/// The endpoint.
pub(crate) struct Endpoint {
    pub(crate) at: SocketAddr,
    taken: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    script: Arc<Mutex<Script>>,
    ended: Arc<AtomicBool>,
}

impl Endpoint {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let (taken, ended): (Arc<Mutex<Vec<_>>>, Arc<AtomicBool>) = Default::default();
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Arc::new(|_: &ExportLogsServiceRequest| Act::Take)));
        let (to, by, end) = (taken.clone(), script.clone(), ended.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let (to, by) = (to.clone(), by.clone());
                std::thread::spawn(move || serve(&stream, &to, &by));
            }
        });
        Self { at, taken, script, ended }
    }

    /// From now on it answers like this.
    pub(crate) fn answers(&self, script: impl Fn(&ExportLogsServiceRequest) -> Act + Send + Sync + 'static) {
        *self.script.lock().expect("whole") = Arc::new(script);
    }

    /// Everything that it has taken: the place of each record, and the record.
    pub(crate) fn records(&self) -> Vec<(u64, LogRecord)> {
        let taken = self.taken.lock().expect("whole");
        let logs = taken.iter().flat_map(|request| &request.resource_logs).flat_map(|logs| &logs.scope_logs);
        logs.flat_map(|logs| &logs.log_records).map(|record| (offset(record), record.clone())).collect()
    }

    /// Of how many offsets it has taken a record.
    pub(crate) fn offsets(&self) -> u64 {
        let taken = self.taken.lock().expect("whole");
        let logs = taken.iter().flat_map(|request| &request.resource_logs).flat_map(|logs| &logs.scope_logs);
        logs.flat_map(|logs| &logs.log_records).map(offset).collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    /// Waits until a record of each of these offsets was taken.
    pub(crate) fn wait_for(
        &self,
        what: &str,
        mut holds: impl FnMut(&[(u64, LogRecord)]) -> bool,
    ) -> Vec<(u64, LogRecord)> {
        let until = std::time::Instant::now() + clad_e2e::TEST_TIMEOUT;
        loop {
            let records = self.records();
            if holds(&records) {
                return records;
            }
            assert!(
                std::time::Instant::now() < until,
                "{what}: {} records, the last {:?}",
                records.len(),
                records.last()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.at);
    }
}

/// An attribute that is a number.
pub(crate) fn number(record: &LogRecord, key: &str) -> Option<i64> {
    let pair = record.attributes.iter().find(|pair| pair.key == key)?;
    match pair.value {
        Some(AnyValue { value: Some(Value::IntValue(value)) }) => Some(value),
        _ => None,
    }
}

fn offset(record: &LogRecord) -> u64 {
    u64::try_from(number(record, "clad.offset").expect("each record has its place")).expect("an offset")
}

pub(crate) fn body(record: &LogRecord) -> String {
    match &record.body {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text.clone(),
        other => panic!("the body is {other:?}"),
    }
}

fn serve(stream: &TcpStream, taken: &Mutex<Vec<ExportLogsServiceRequest>>, script: &Mutex<Script>) {
    let (mut input, mut output) = (BufReader::new(stream), stream);
    loop {
        let (mut length, mut zipped, mut line) = (0, false, String::new());
        while input.read_line(&mut line).is_ok_and(|read| read > 0) && line.trim() != "" {
            let head = line.to_ascii_lowercase();
            if let Some(value) = head.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            zipped |= head.starts_with("content-encoding: gzip");
            line.clear();
        }
        let mut bytes = vec![0; length];
        if length == 0 || input.read_exact(&mut bytes).is_err() {
            return;
        }
        if zipped {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).expect("gzip");
            bytes = plain;
        }
        let request = ExportLogsServiceRequest::decode(&bytes[..]).expect("a request");
        let script = script.lock().expect("whole").clone();
        let (status, headers, rejected) = match script(&request) {
            Act::Take => (200, "", 0),
            Act::Partly(rejected) => (200, "", rejected),
            Act::Say(status, headers) => (status, headers, 0),
            Act::TakeAndCut => {
                taken.lock().expect("whole").push(request);
                return;
            }
        };
        if status == 200 {
            taken.lock().expect("whole").push(request);
        }
        let partial = ExportLogsPartialSuccess { rejected_log_records: rejected, error_message: "no".to_owned() };
        let partial_success = (rejected > 0).then_some(partial);
        let answer = ExportLogsServiceResponse { partial_success }.encode_to_vec();
        let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", answer.len());
        if output.write_all(&[head.as_bytes(), &answer].concat()).is_err() {
            return;
        }
    }
}
