//! A daemon, one call of `Append`, and what is said and read over them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clad_proto::ErrorInfo;
use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use clad_proto::grpc::{from_status, v1};
use common::any_value::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use v1::admin_client::AdminClient;
use v1::append_request::Message as Asked;
use v1::append_response::Message as Answer;
use v1::ingest_client::IngestClient;
use v1::log_client::LogClient;
use v1::read_response::Message as Given;

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const MIB: usize = 1024 * 1024;

/// A daemon of its own in a new folder.
pub(crate) struct Daemon {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) sets: Vec<String>,
    pub(crate) child: Child,
    pub(crate) grpc: String,
    pub(crate) highest: v1::AckLevel,
}

pub(crate) fn spawn(dir: &Path, sets: &[String]) -> Child {
    let file = dir.join("clad.toml");
    std::fs::write(&file, "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_clad"));
    command.arg("run").arg("--config").arg(file).env_clear().current_dir(dir);
    let fixed = ["ingest.tcp.listen=", "ingest.unix.path=", "metrics.listen=", "ingest.grpc.listen=127.0.0.1:0"];
    for set in fixed.map(str::to_owned).iter().chain(sets) {
        command.arg("--set").arg(set);
    }
    command.stdout(Stdio::null()).stderr(std::fs::File::create(dir.join("log")).unwrap()).spawn().unwrap()
}

pub(crate) async fn find(dir: &Path) -> v1::StatusResponse {
    find_when(dir, |status| status.ready).await
}

pub(crate) async fn find_when(dir: &Path, is_it: impl Fn(&v1::StatusResponse) -> bool) -> v1::StatusResponse {
    let socket: PathBuf = dir.join("clad-data/admin.sock");
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
    let begun = Instant::now();
    loop {
        if let Ok(channel) = endpoint.connect().await
            && let Ok(status) = AdminClient::new(channel).status(v1::StatusRequest {}).await
            && is_it(status.get_ref())
        {
            return status.into_inner();
        }
        let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        assert!(begun.elapsed() < TEST_TIMEOUT, "the daemon does not come up:\n{}", log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Daemon {
    pub(crate) async fn start(sets: &[&str]) -> Self {
        Self::start_when(sets, |status| status.ready).await
    }

    /// A daemon that is as it says, which may be one that takes no appends.
    pub(crate) async fn start_when(sets: &[&str], is_it: impl Fn(&v1::StatusResponse) -> bool) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        let child = spawn(dir.path(), &sets);
        let status = find_when(dir.path(), is_it).await;
        Self { child, sets, grpc: status.listeners["grpc"].clone(), highest: status.highest_ack(), dir }
    }

    /// TERM; gives how long the end took. It must be a clean one.
    pub(crate) fn stop(&mut self) -> Duration {
        let begun = Instant::now();
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        begun.elapsed()
    }

    pub(crate) async fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.start_again().await;
    }

    pub(crate) async fn restart(&mut self) {
        self.stop();
        self.start_again().await;
    }

    async fn start_again(&mut self) {
        self.child = spawn(self.dir.path(), &self.sets);
        self.grpc = find(self.dir.path()).await.listeners["grpc"].clone();
    }

    pub(crate) async fn status(&self) -> v1::StatusResponse {
        find(self.dir.path()).await
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::try_from(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn log(&self) -> LogClient<Channel> {
        LogClient::new(self.channel().await).max_decoding_message_size(64 * MIB)
    }

    pub(crate) async fn open(&self) -> Stream {
        Stream::open(self.channel().await).await
    }

    pub(crate) async fn producer(&self) -> Stream {
        let mut stream = self.open().await;
        stream.hello(v1::Hello { min_version: 1, max_version: 1, ..Default::default() }).await.unwrap();
        stream
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One call of `Append`.
pub(crate) struct Stream {
    pub(crate) ask: Option<mpsc::Sender<v1::AppendRequest>>,
    pub(crate) answers: Streaming<v1::AppendResponse>,
    pub(crate) welcome: v1::Welcome,
}

impl Stream {
    pub(crate) async fn open(channel: Channel) -> Self {
        let (ask, asked) = mpsc::channel(4);
        let answers = IngestClient::new(channel).append(ReceiverStream::new(asked)).await.unwrap().into_inner();
        Self { ask: Some(ask), answers, welcome: v1::Welcome::default() }
    }

    pub(crate) async fn ask(&self, message: Asked) {
        let request = v1::AppendRequest { message: Some(message) };
        timeout(TEST_TIMEOUT, self.ask.as_ref().unwrap().send(request)).await.unwrap().unwrap();
    }

    pub(crate) async fn hello(&mut self, hello: v1::Hello) -> Result<(), ErrorInfo> {
        self.ask(Asked::Hello(hello)).await;
        match self.answer().await.map_err(|status| from_status(&status).unwrap())? {
            Some(Answer::Welcome(welcome)) => self.welcome = welcome,
            other => panic!("no welcome: {other:?}"),
        }
        Ok(())
    }

    /// The next answer; nothing at a good end.
    pub(crate) async fn answer(&mut self) -> Result<Option<Answer>, Status> {
        let answer = timeout(TEST_TIMEOUT, self.answers.message()).await.expect("an answer in time")?;
        Ok(answer.map(|response| response.message.unwrap()))
    }

    pub(crate) async fn append(&self, first_seq: u64, level: v1::AckLevel, resource_logs: logs::ResourceLogs) {
        let level = level.into();
        self.ask(Asked::Append(v1::Append { first_seq, level, gap: false, resource_logs: Some(resource_logs) })).await;
    }

    pub(crate) async fn accepted(&mut self) -> v1::Accepted {
        match self.answer().await.unwrap() {
            Some(Answer::Accepted(accepted)) => accepted,
            other => panic!("not accepted: {other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self) -> (v1::Refused, ErrorInfo) {
        match self.answer().await.unwrap() {
            Some(Answer::Refused(refused)) => (refused.clone(), refused.error.unwrap().into()),
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Waits until a watermark of the level covers everything below `end`.
    pub(crate) async fn reached(&mut self, level: v1::AckLevel, end: u64) {
        loop {
            match self.answer().await.unwrap() {
                Some(Answer::Watermark(mark)) if mark.level() == level && mark.offset >= end => return,
                Some(Answer::Watermark(_)) => {}
                other => panic!("not a watermark: {other:?}"),
            }
        }
    }

    /// How the call ends, with what came before left out.
    pub(crate) async fn end(&mut self) -> Result<(), ErrorInfo> {
        loop {
            match self.answer().await {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(status) => return Err(from_status(&status).unwrap_or_else(|| panic!("{status:?}"))),
            }
        }
    }
}

pub(crate) fn text(body: &str) -> logs::LogRecord {
    let body = Some(common::AnyValue { value: Some(Value::StringValue(body.to_owned())) });
    logs::LogRecord { time_unix_nano: 1, severity_number: 9, body, ..Default::default() }
}

pub(crate) fn message(records: Vec<logs::LogRecord>) -> logs::ResourceLogs {
    let scope_logs = vec![logs::ScopeLogs { log_records: records, ..Default::default() }];
    logs::ResourceLogs { scope_logs, ..Default::default() }
}

pub(crate) fn lines(count: usize) -> logs::ResourceLogs {
    message((0..count).map(|n| text(&format!("line {n}"))).collect())
}

/// Everything of a read that ends.
pub(crate) async fn read(daemon: &Daemon, request: v1::ReadRequest) -> Vec<Given> {
    let mut given = daemon.log().await.read(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(response) = timeout(TEST_TIMEOUT, given.message()).await.unwrap().unwrap() {
        all.push(response.message.unwrap());
    }
    all
}

pub(crate) fn records(given: &[Given]) -> Vec<&v1::Records> {
    fn records(given: &Given) -> Option<&v1::Records> {
        if let Given::Records(records) = given { Some(records) } else { None }
    }
    given.iter().filter_map(records).collect()
}
