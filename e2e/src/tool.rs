//! Programs that run beside the test: `clactl`, `clad`, any other.
//!
//! Invariants: both streams are read all the time, so that no program waits for us; whoever waits is woken by what
//! the program writes or by its end; a program that outlives its test is killed.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::setup::without_surroundings;
use crate::stall::Stall;
use crate::{TEST_TIMEOUT, binary};

/// The longest wait for the end of a program that was killed: one whose device does not answer may not end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often who waits looks at the clock.
const STALL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Its output.
    Stdout,
    /// Its messages.
    Stderr,
}

#[derive(Debug, Default)]
struct State {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    open: usize,
    status: Option<ExitStatus>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait(&self, what: &str, timeout: Duration, mut holds: impl FnMut(&State) -> bool) -> bool {
        let until = Instant::now() + timeout;
        let mut stall = Stall::default();
        let mut state = self.lock();
        while !holds(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            stall.look(|| format!("{what}; the last that was heard:\n{}", end(&state.stderr)));
            state = self
                .changed
                .wait_timeout(state, left.min(STALL_CHECK_INTERVAL))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    pid: u32,
    shared: Arc<Shared>,
}

impl Running {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let shared = Arc::new(Shared::default());
        shared.lock().open = 2;
        listen(child.stdout.take().expect("a pipe"), OutputStream::Stdout, shared.clone());
        listen(child.stderr.take().expect("a pipe"), OutputStream::Stderr, shared.clone());
        let pid = child.id();
        let waiter = shared.clone();
        thread::spawn(move || wait(child, &waiter));
        Self { pid, shared }
    }

    /// Its process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.lock().status.is_none()
    }

    /// Waits until a text is in a stream; false when the program ends first, or the time is over.
    #[must_use]
    pub fn wait_for(&self, stream: OutputStream, text: &str, timeout: Duration) -> bool {
        let has =
            |state: &State| contains(if stream == OutputStream::Stdout { &state.stdout } else { &state.stderr }, text);
        let gone = |state: &State| state.status.is_some() && state.open == 0;
        self.shared.wait(&format!("{text:?}"), timeout, |state| has(state) || gone(state)) && has(&self.shared.lock())
    }

    /// Waits until its output holds so many lines.
    #[must_use]
    pub fn wait_lines(&self, lines: usize, timeout: Duration) -> bool {
        let mut seen = (0, 0);
        self.shared.wait(&format!("{lines} lines"), timeout, |state| {
            seen.1 += state.stdout[seen.0..].iter().filter(|&&byte| byte == b'\n').count();
            seen.0 = state.stdout.len();
            seen.1 >= lines
        })
    }

    /// Waits until it has ended and everything that it wrote is here.
    #[must_use]
    pub fn wait_end(&self, timeout: Duration) -> Option<()> {
        self.shared.wait("its end", timeout, |state| state.status.is_some() && state.open == 0).then_some(())
    }

    /// Its exit code, once it has ended by itself.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.shared.lock().status.and_then(|status| status.code())
    }

    /// The signal that ended it.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.shared.lock().status.and_then(|status| status.signal())
    }

    /// What it has written to stderr.
    #[must_use]
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().stderr).into_owned()
    }

    /// What it has written to stdout.
    #[must_use]
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.output()).into_owned()
    }

    /// What it has written to stdout, byte for byte.
    #[must_use]
    pub fn output(&self) -> Vec<u8> {
        self.shared.lock().stdout.clone()
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Panics
    /// When it does not go.
    pub fn kill(&self) {
        self.send(Signal::SIGKILL);
        assert!(
            self.shared.wait("its end by SIGKILL", TEST_TIMEOUT, |state| state.status.is_some()),
            "it survives SIGKILL"
        );
    }

    /// Sends a signal, if it still runs.
    pub fn send(&self, signal: Signal) {
        // Under the lock: once it was waited for, its number may be another's.
        let state = self.shared.lock();
        if state.status.is_none() {
            let _ = kill(Pid::from_raw(self.pid as i32), signal);
        }
    }
}

impl Drop for Running {
    /// Kills it, and waits for its end: what it still writes would stay behind in a folder that is removed meanwhile.
    fn drop(&mut self) {
        self.send(Signal::SIGKILL);
        let _ = self.shared.wait("its end", KILL_TIMEOUT, |state| state.status.is_some());
    }
}

fn wait(mut child: Child, shared: &Shared) {
    // Ended is not reaped: `waitid` without reaping first, so that `send` never meets a number given again.
    let pid = Pid::from_raw(child.id() as i32);
    let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
    let _ = nix::sys::wait::waitid(nix::sys::wait::Id::Pid(pid), flags);
    let mut state = shared.lock();
    state.status = child.wait().ok();
    drop(state);
    shared.changed.notify_all();
}

fn listen(mut stream: impl Read + Send + 'static, which: OutputStream, shared: Arc<Shared>) {
    thread::spawn(move || {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = stream.read(&mut chunk) {
            let bytes = &chunk[..length];
            shared.change(|state| match which {
                OutputStream::Stdout => state.stdout.extend_from_slice(bytes),
                OutputStream::Stderr => state.stderr.extend_from_slice(bytes),
            });
        }
        shared.change(|state| state.open -= 1);
    });
}

fn end(said: &[u8]) -> String {
    String::from_utf8_lossy(&said[said.len().saturating_sub(4096)..]).into_owned()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Runs a command to its end, with this as its input.
///
/// # Panics
/// When it does not end.
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let shared = Arc::new(Shared::default());
    shared.lock().open = 2;
    listen(child.stdout.take().expect("a pipe"), OutputStream::Stdout, shared.clone());
    listen(child.stderr.take().expect("a pipe"), OutputStream::Stderr, shared.clone());
    let running = Running { pid: child.id(), shared: shared.clone() };
    thread::scope(|scope| {
        let waiter = shared.clone();
        scope.spawn(move || wait(child, &waiter));
        scope.spawn(move || {
            // A program that ends early closes its side: what it says then is what counts.
            let _ = stdin.write_all(input);
        });
        if running.wait_end(TEST_TIMEOUT).is_none() {
            running.kill();
            panic!("{command:?} did not end:\n{}", running.said());
        }
    });
    let mut state = shared.lock();
    let status = state.status.expect("it has ended");
    Output { status, stdout: std::mem::take(&mut state.stdout), stderr: std::mem::take(&mut state.stderr) }
}

/// Whether a program of that name is on the path.
#[must_use]
pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// `clactl`, not called yet.
#[must_use]
pub fn clactl(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("clactl"));
    command.args(arguments);
    without_surroundings(&mut command);
    command
}

/// Calls `clactl` and expects an exit code.
///
/// # Panics
/// When it ends otherwise.
pub fn clactl_ends(code: i32, arguments: &[&str], input: &[u8]) -> Output {
    let output = run(&mut clactl(arguments), input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "clactl {}:\n{said}", arguments.join(" "));
    output
}

/// The exit code of `clactl` where nobody reads its output.
///
/// # Panics
/// When it cannot be called, or is ended by a signal.
#[must_use]
pub fn clactl_unread(arguments: &[&str], input: &[u8]) -> i32 {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = clactl(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(writer).stderr(Stdio::null()).spawn().expect("clactl");
    drop(command); // with our end of the pipe
    let mut stdin = child.stdin.take().expect("it is piped");
    // It may end before it has read everything.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait().expect("clactl").code().expect("an exit code")
}

/// What a process holds in memory, in bytes, as the kernel counts it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// Its own memory.
    pub anonymous: u64,
    /// Memory that it shares with others.
    pub shared: u64,
}

/// Looks into `/proc/PID/status`.
///
/// # Panics
/// When the process is gone.
#[must_use]
pub fn resident(pid: u32) -> Resident {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line of its own");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    };
    Resident { anonymous: of("RssAnon:"), shared: of("RssShmem:") }
}
