//! The agent of a language.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use clad_e2e::TEST_TIMEOUT;

use crate::given;

/// The longest an agent takes to its end: each export has 10 s, and there may be some.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// How an agent is called.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    words: Vec<String>,
    pub(crate) language: String,
    pub(crate) transport: String,
}

impl Agent {
    /// The one that the suite has named.
    pub(crate) fn given() -> Self {
        let words = given("CLAD_OTLP_AGENT").split(' ').map(str::to_owned).collect();
        Self { words, language: given("CLAD_OTLP_LANGUAGE"), transport: given("CLAD_OTLP_TRANSPORT") }
    }

    /// The program that runs it.
    pub(crate) fn program(&self) -> &str {
        &self.words[0]
    }

    /// One that is a line of the shell, and sends nothing.
    pub(crate) fn of_a_shell(line: &str) -> Self {
        Self { words: ["sh", "-c", line].map(str::to_owned).to_vec(), language: "sh".into(), transport: "none".into() }
    }

    /// The call. Endpoint, compression and level go by the variables of the SDKs: a user changes no code.
    pub(crate) fn command(&self, endpoint: &str, mode: &str, count: u64, gzip: bool, level: Option<&str>) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args([&self.transport, mode, &count.to_string()]);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OTEL_")) {
            command.env_remove(name);
        }
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        if gzip {
            command.env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
        }
        if let Some(level) = level {
            command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("clad-ack={level}"));
        }
        command
    }
}

/// The address of a listener, as the SDKs take it.
pub(crate) fn endpoint(address: SocketAddr) -> String {
    format!("http://{address}")
}

#[derive(Debug, Default)]
struct Heard {
    numbers: Vec<u64>,
    is_over: bool,
}

/// An agent at work.
#[derive(Debug)]
pub(crate) struct Working {
    process: Child,
    stdin: Option<ChildStdin>,
    heard: Arc<(Mutex<Heard>, Condvar)>,
}

impl Working {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        let heard = Arc::new((Mutex::new(Heard::default()), Condvar::new()));
        let shared = heard.clone();
        thread::spawn(move || {
            for line in io::BufRead::lines(io::BufReader::new(stdout)).map_while(Result::ok) {
                let number = line.parse().unwrap_or_else(|_| panic!("the agent says {line:?}"));
                shared.0.lock().unwrap_or_else(PoisonError::into_inner).numbers.push(number);
                shared.1.notify_all();
            }
            shared.0.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
            shared.1.notify_all();
        });
        Self { process, stdin, heard }
    }

    /// How many successes were reported.
    pub(crate) fn successes(&self) -> usize {
        self.heard.0.lock().unwrap_or_else(PoisonError::into_inner).numbers.len()
    }

    /// Waits for so many successes.
    pub(crate) fn wait_successes(&self, count: usize) {
        let heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wants = |heard: &mut Heard| heard.numbers.len() < count && !heard.is_over;
        let (heard, _) =
            self.heard.1.wait_timeout_while(heard, TEST_TIMEOUT, wants).unwrap_or_else(PoisonError::into_inner);
        assert!(heard.numbers.len() >= count, "{count} successes were waited for, and {} came", heard.numbers.len());
    }

    /// Closes its stdin and waits for its end, which must be a good one; the numbers whose export was a success.
    pub(crate) fn end(mut self) -> BTreeSet<u64> {
        self.stdin = None;
        let until = Instant::now() + END_TIMEOUT;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("its end") {
                break status;
            }
            assert!(Instant::now() < until, "the agent does not end");
            thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "the agent ends with {status}");
        let heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = self.heard.1.wait_while(heard, |heard| !heard.is_over).unwrap_or_else(PoisonError::into_inner);
        let numbers: BTreeSet<u64> = heard.numbers.iter().copied().collect();
        assert_eq!(numbers.len(), heard.numbers.len(), "the agent says a number twice");
        numbers
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
