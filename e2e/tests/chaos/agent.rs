//! An agent as a process, and what it has said.
//!
//! A line that a kill has cut says nothing. Everything else that an agent writes counts, also what was still in the pipe
//! when it died.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clad_client::ProducerId;
use clad_e2e::TEST_TIMEOUT;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Faults of an agent that are remembered by their texts.
const FAULTS_MAX: usize = 20;

/// The thread and the number of a record.
pub(crate) type Key = (u64, u64);

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Keeps,
    Drops(&'static str),
    /// Levels that a kill can take, too.
    Mixed,
    /// Reads what is durable.
    Follows,
}

impl Mode {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Keeps => "keeps",
            Self::Drops(word) => word,
            Self::Mixed => "mixed",
            Self::Follows => "follows",
        }
    }
}

/// Everything that an agent has said, over all its lives.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Records with a receipt that a kill cannot take, and its offset; nothing where a daemon died with it.
    pub(crate) receipts: Vec<(Key, Option<u64>)>,
    pub(crate) never: HashSet<Key>,
    /// Logged, acknowledged, dropped, refused.
    pub(crate) stats: Option<[u64; 4]>,
    /// Of a follower: the offset after the last record.
    pub(crate) followed: u64,
    pub(crate) faults: Vec<String>,
}

/// An agent that runs, or has ended.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) id: Option<ProducerId>,
    command: String,
    fault: Option<&'static str>,
    address: String,
    epoch: u32,
    life: Option<Life>,
    said: Arc<Mutex<Said>>,
}

#[derive(Debug)]
struct Life {
    process: Child,
    stdin: Option<ChildStdin>,
    reader: JoinHandle<()>,
}

/// The first path of an agent's command that is no file: without it each life of each agent would be a fault of its own.
pub(crate) fn missing_file(command: &str) -> Option<&str> {
    let mut paths = command.split_whitespace().filter(|word| word.contains('/') && !word.contains('='));
    paths.find(|path| !Path::new(path).is_file())
}

impl Agent {
    /// Starts it. `fault` makes a wrong agent of the harness's own.
    pub(crate) fn start(command: &str, fault: Option<&'static str>, mode: Mode, address: &str, number: u8) -> Self {
        let transport = address.split_once("://").map_or("", |(transport, _)| transport);
        let mut agent = Self {
            name: format!("{}-{transport}", mode.word()),
            mode,
            id: (mode == Mode::Keeps).then(|| ProducerId::from_bytes([number; 16])),
            command: command.to_owned(),
            fault,
            address: address.to_owned(),
            epoch: 0,
            life: None,
            said: Arc::default(),
        };
        agent.begin();
        agent
    }

    fn begin(&mut self) {
        let id = self.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        self.epoch += u32::from(self.id.is_some());
        let mut words = self.command.split_whitespace();
        let mut command = Command::new(words.next().expect("CLAD_AGENT has a program"));
        command.args(words).args([&self.address, &id, &self.name, &self.epoch.to_string(), self.mode.word()]);
        command.env_remove("CLAD_AGENT_FAULT").envs(self.fault.map(|fault| ("CLAD_AGENT_FAULT", fault)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        let said = self.said.clone();
        let reader = thread::spawn(move || listen(stdout, &said));
        self.life = Some(Life { process, stdin, reader });
    }

    /// True if a receipt may come without its offset.
    pub(crate) fn has_ring(&self) -> bool {
        self.address.starts_with("shm://")
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills it and starts it again, with a higher epoch.
    pub(crate) fn die(&mut self) {
        self.end(|life| {
            let by_itself = life.process.try_wait().ok().flatten();
            drop(life.process.kill());
            by_itself.map(|status| format!("ended by itself: {status}"))
        });
        self.begin();
    }

    /// Closes its stdin, and waits until it has ended well.
    pub(crate) fn finish(&mut self) {
        self.end(|life| {
            life.stdin = None;
            let until = Instant::now() + TEST_TIMEOUT;
            let status = loop {
                match life.process.try_wait() {
                    Ok(Some(status)) => break status,
                    Ok(None) if Instant::now() < until => thread::sleep(POLL_INTERVAL),
                    other => {
                        drop(life.process.kill());
                        return Some(format!("does not end: {other:?}"));
                    }
                }
            };
            (!status.success()).then(|| format!("ends with {status}"))
        });
    }

    fn end(&mut self, end: impl FnOnce(&mut Life) -> Option<String>) {
        let Some(mut life) = self.life.take() else { return };
        let fault = end(&mut life);
        life.process.wait().expect("a child");
        life.reader.join().expect("its lines are read");
        self.said().faults.extend(fault);
    }

    /// Waits until it has said enough, or has ended.
    pub(crate) fn wait_until(&mut self, what: &str, enough: impl Fn(&Said) -> bool) {
        let until = Instant::now() + TEST_TIMEOUT;
        while !enough(&self.said()) {
            let has_ended = self.life.as_mut().is_none_or(|life| !matches!(life.process.try_wait(), Ok(None)));
            if has_ended || Instant::now() > until {
                return self.said().faults.push(format!("never came to {what}"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(life) = &mut self.life {
            let _ = (life.process.kill(), life.process.wait());
        }
    }
}

fn listen(stdout: ChildStdout, said: &Mutex<Said>) {
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|length| length > 0) && line.ends_with('\n') {
        said.lock().unwrap_or_else(PoisonError::into_inner).hear(line.trim_end());
        line.clear();
    }
}

impl Said {
    fn hear(&mut self, line: &str) {
        if self.understand(line).is_none() && self.faults.len() < FAULTS_MAX {
            self.faults.push(format!("says {line:?}"));
        }
    }

    fn understand(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["receipt", which, "-"] => self.receipts.push((key(which, ':')?, None)),
            ["receipt", which, offset] => self.receipts.push((key(which, ':')?, Some(offset.parse().ok()?))),
            // Once only.
            ["never", which] => return self.never.insert(key(which, ':')?).then_some(()),
            ["sent", which] => drop(key(which, ':')?),
            ["records", first, count] if first.parse() == Ok(self.followed) => {
                self.followed += count.parse::<u64>().ok()?;
            }
            ["stats", logged, acked, dropped, refused] if self.stats.is_none() => {
                let [logged, acked, dropped, refused] = [logged, acked, dropped, refused].map(|n| n.parse().ok());
                self.stats = Some([logged?, acked?, dropped?, refused?]);
            }
            _ => return None,
        }
        Some(())
    }
}

/// `THREAD:NUMBER`, or the number alone.
pub(crate) fn key(text: &str, between: char) -> Option<Key> {
    match text.split_once(between) {
        Some((thread, number)) => Some((thread.parse().ok()?, number.parse().ok()?)),
        None => Some((0, text.parse().ok()?)),
    }
}
