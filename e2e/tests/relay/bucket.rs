//! A bucket of moto's, behind a proxy that forwards, refuses, or loses answers by a script.
//!
//! Invariants: what the proxy loses was done: the answer was read to its end. moto keeps its buckets in memory, and is never
//! restarted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_e2e::{Scratch, TEST_TIMEOUT};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What the proxy does with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Forward,
    /// The server acts, and its answer is lost.
    ForwardAndCut,
    /// Answers this status itself.
    Say(u16),
    /// The connection ends at once.
    Cut,
    /// A slow link of so many bytes a second: what takes longer than this is not forwarded.
    Slow(usize, Duration),
}

type Script = Box<dyn FnMut(&str) -> Act + Send>;

/// The bucket `archive`.
pub(crate) struct Bucket {
    moto: Child,
    server: SocketAddr,
    between: Between,
    scratch: Scratch,
}

/// What lies between the relay and a server of buckets.
pub(crate) struct Between {
    server: SocketAddr,
    proxy: SocketAddr,
    scheme: &'static str,
    script: Arc<Mutex<Script>>,
    ended: Arc<AtomicBool>,
}

pub(super) const BUCKET: &str = "archive";
/// moto wants a signature, and does not check it.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

fn python() -> String {
    std::env::var("CLAD_OBJECTS_PYTHON").expect("call `cargo xtask ci relay`")
}

impl Bucket {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// The relay comes to it within TLS.
    pub(crate) fn within_tls(settings: Arc<ServerConfig>) -> Self {
        Self::start_with(Some(settings))
    }

    fn start_with(tls: Option<Arc<ServerConfig>>) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let mut moto = Command::new(python());
        moto.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &server.port().to_string()]);
        let moto = moto.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("moto starts");
        let bucket = Self { moto, server, between: Between::start(server, tls), scratch: Scratch::new() };
        super::wait("moto", || TcpStream::connect(server).is_ok());
        bucket.make();
        bucket
    }

    pub(crate) fn make(&self) {
        assert_eq!(self.ask("PUT", "", b"").0, 200);
    }

    /// From now on the proxy does this; it is given method and path.
    pub(crate) fn acts(&self, script: impl FnMut(&str) -> Act + Send + 'static) {
        self.between.acts(script);
    }

    /// Lines of `[to.objects]`; keys lie in a folder.
    pub(crate) fn lines(&self, folder: &Path) -> String {
        self.between.lines(folder)
    }

    /// Asks moto itself: status and body.
    pub(crate) fn ask(&self, method: &str, key: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(self.server).expect("moto");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("set");
        let head = format!(
            "{method} /{BUCKET}/{key} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\nauthorization: {SIGNED}\r\nconnection: close\r\n\r\n",
            self.server,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("answered");
        let at = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let status = String::from_utf8_lossy(&answer[9..12]).parse().expect("a status");
        (status, answer.split_off(at + 4))
    }

    /// Keys of all objects, ascending.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.listed("Key")
    }

    /// Bytes of each object, by their keys.
    pub(super) fn sizes(&self) -> Vec<usize> {
        self.listed("Size").iter().map(|size| size.parse().expect("a number")).collect()
    }

    fn listed(&self, what: &str) -> Vec<String> {
        let listed = String::from_utf8(self.ask("GET", "?list-type=2", b"").1).expect("XML");
        let (begin, end) = (format!("<{what}>"), format!("</{what}>"));
        listed.split(&begin).skip(1).filter_map(|rest| rest.split(&end).next()).map(str::to_owned).collect()
    }

    /// Keys of the Parquet files.
    pub(crate) fn objects(&self) -> Vec<String> {
        self.keys().into_iter().filter(|key| key.ends_with(".parquet")).collect()
    }

    pub(crate) fn remove(&self, key: &str) {
        assert_eq!(self.ask("DELETE", key, b"").0, 204);
    }

    /// What each reader finds in the newest history.
    pub(crate) fn read(&self) -> Vec<serde_json::Value> {
        self.between.read(&self.copy())
    }

    /// What DuckDB finds of each log by a SQL file, in which `url` is where the logs are.
    pub(crate) fn fleet(&self, sql: &Path, url: &str) -> Vec<serde_json::Value> {
        let (folder, sql) = (self.copy(), sql.display().to_string());
        let url = &format!("'{url}/");
        let logs = format!("'{}/logs/", folder.display());
        let text = std::fs::read_to_string(&sql).expect("a file");
        assert!(text.contains(url), "{sql} has no {url}");
        let here = folder.with_extension("sql");
        std::fs::write(&here, text.replace(url, &logs)).expect("written");
        read("fleet.py", &folder, &[&format!("http://{}", self.server), BUCKET, &here.display().to_string()])
    }

    /// A folder for a copy.
    fn copy(&self) -> std::path::PathBuf {
        let folder = self.scratch.data().join(format!("copy-{}", self.keys().len()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }
}

impl Between {
    pub(super) fn start(server: SocketAddr, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = listener.local_addr().expect("bound");
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(|_: &str| Act::Forward)));
        let ended = Arc::new(AtomicBool::new(false));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (by, end) = (script.clone(), ended.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let (by, tls) = (by.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => drop(serve(stream, server, &by)),
                    Some(settings) => {
                        let session = ServerConnection::new(settings).expect("a session");
                        drop(serve(StreamOwned::new(session, stream), server, &by));
                    }
                });
            }
        });
        Self { server, proxy, scheme, script, ended }
    }

    pub(super) fn acts(&self, script: impl FnMut(&str) -> Act + Send + 'static) {
        *self.script.lock().expect("whole") = Box::new(script);
    }

    pub(super) fn lines(&self, folder: &Path) -> String {
        for (name, key) in [("access", "key\n"), ("secret", "secret")] {
            std::fs::write(folder.join(name), key).expect("written");
        }
        let folder = folder.display();
        format!(
            "[to.objects]\nurl = \"s3://{BUCKET}/logs\"\nendpoint = \"{}://{}\"\nregion = \"us-east-1\"\n\
             access_key_file = \"{folder}/access\"\nsecret_key_file = \"{folder}/secret\"\ntimeout = \"10s\"\n",
            self.scheme, self.proxy
        )
    }

    /// What each reader finds in the newest history, by way of a copy in a folder.
    pub(super) fn read(&self, copy: &Path) -> Vec<serde_json::Value> {
        read("read.py", copy, &[&format!("http://{}", self.server), BUCKET])
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.proxy);
    }
}

/// What a script finds in a folder.
fn read(script: &str, folder: &Path, more: &[&str]) -> Vec<serde_json::Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("objects").join(script);
    let done = Command::new(python()).arg("-B").arg(script).arg(folder).args(more).output().expect("python");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(clad_e2e::json).collect()
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.moto.kill();
        let _ = self.moto.wait();
    }
}

/// One request a connection: moto is asked to close behind its answer, which is then whole.
fn serve(stream: impl Read + Write, server: SocketAddr, script: &Mutex<Script>) -> std::io::Result<()> {
    let mut input = BufReader::new(stream);
    let (mut head, mut line, mut length) = (String::new(), String::new(), 0);
    while input.read_line(&mut line)? > 0 && line.trim() != "" {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
        line.clear();
    }
    if head.is_empty() {
        return Ok(());
    }
    let first = head.lines().next().unwrap_or_default().to_owned();
    let act = script.lock().expect("whole")(&first);
    let mut body = vec![0; length];
    match act {
        Act::Slow(bytes_per_second, longest) => {
            let began = Instant::now();
            for part in body.chunks_mut(bytes_per_second / 20) {
                input.read_exact(part)?;
                std::thread::sleep(Duration::from_millis(50));
            }
            if began.elapsed() > longest {
                return Ok(());
            }
        }
        _ => input.read_exact(&mut body)?,
    }
    match act {
        Act::Cut => return Ok(()),
        Act::Say(status) => {
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            return input.get_mut().write_all(answer.as_bytes());
        }
        Act::Forward | Act::ForwardAndCut | Act::Slow(..) => {}
    }
    let mut far = TcpStream::connect(server)?;
    far.write_all(&[head.as_bytes(), b"connection: close\r\n\r\n", &body].concat())?;
    let mut answer = Vec::new();
    far.read_to_end(&mut answer)?;
    if !matches!(act, Act::ForwardAndCut) {
        input.get_mut().write_all(&answer)?;
        input.get_mut().flush()?;
    }
    Ok(())
}
