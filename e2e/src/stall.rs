//! A wait that takes long says so while it lasts: for what, and what the processes do meanwhile.
//!
//! Invariants: it is heard though the test has not failed (a test that is killed from outside never says what it has
//! captured), once for each wait; it changes nothing of how long is waited.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// From then on a wait is reported. A shorter one is due to the machine.
const STALL_REPORT_AFTER: Duration = Duration::from_secs(20);

/// A wait.
#[derive(Debug)]
pub struct Stall {
    began: Instant,
    said: bool,
}

impl Default for Stall {
    fn default() -> Self {
        Self { began: Instant::now(), said: false }
    }
}

impl Stall {
    /// Looks at the clock; says what is waited for where that has taken long.
    pub fn look(&mut self, what: impl FnOnce() -> String) {
        if self.said || self.began.elapsed() < STALL_REPORT_AFTER {
            return;
        }
        self.said = true;
        // Not by a macro, whose output the test runner keeps to itself.
        let _ = std::io::stderr().write_all(report(STALL_REPORT_AFTER, &what()).as_bytes());
    }
}

fn report(waited: Duration, what: &str) -> String {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    format!("STALLED: {test} has waited for {waited:?}: {what}\n{}", processes(std::process::id()))
}

/// This process's descendants: the state of each of their threads, and where in the kernel it is.
fn processes(of: u32) -> String {
    let all: Vec<(u32, u32)> = numbers("/proc").filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut ours = vec![of];
    let mut at = 0;
    while let Some(pid) = ours.get(at).copied() {
        ours.extend(all.iter().filter(|(_, parent)| *parent == pid).map(|(pid, _)| *pid));
        at += 1;
    }
    ours.retain(|pid| *pid != of);
    let mut table = String::new();
    for pid in ours {
        let _ = writeln!(table, "  process {pid}: {}", words(pid).join(" "));
        for thread in numbers(&format!("/proc/{pid}/task")) {
            let folder = format!("/proc/{pid}/task/{thread}");
            let read = |file: &str| fs::read_to_string(format!("{folder}/{file}")).unwrap_or_default();
            let status = read("status");
            let state = line(&status, "State:").unwrap_or("gone");
            let _ = writeln!(table, "    {thread} {}: {state} in {}", read("comm").trim(), read("wchan"));
        }
    }
    table
}

fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    line(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "PPid:")?.parse().ok()
}

fn line<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;

    use super::*;

    /// A child that is stopped, and a child of that.
    #[test]
    fn a_stall_names_what_is_waited_for_and_the_state_of_each_process() {
        let mut child = Command::new("sh").args(["-c", "sleep 61 & wait"]).spawn().expect("a shell");
        let pid = Pid::from_raw(child.id() as i32);
        let sleeps = || numbers("/proc").find(|pid| parent(*pid) == Some(child.id()));
        let sleeper = std::iter::repeat_with(sleeps).find_map(|found| found).expect("no end");
        kill(pid, Signal::SIGSTOP).expect("it is there");
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it is stopped");
        let said = report(Duration::from_secs(7), "its words");
        kill(Pid::from_raw(sleeper as i32), Signal::SIGKILL).expect("it is there");
        child.kill().expect("it is there");
        child.wait().expect("it ends");
        assert!(said.contains("a_stall_names") && said.contains("has waited for 7s: its words"), "{said}");
        assert!(said.contains(&format!("process {pid}: sh")) && said.contains("sh: T (stopped)"), "{said}");
        assert!(said.contains(&format!("process {sleeper}: ")), "{said}");
    }

    #[test]
    fn what_takes_no_time_says_nothing() {
        let mut stall = Stall::default();
        stall.look(|| panic!("it is not long"));
        stall.began = Instant::now().checked_sub(STALL_REPORT_AFTER).expect("the machine is up for longer");
        let mut said = 0;
        for _ in 0..2 {
            stall.look(|| {
                said += 1;
                "the test of what says it, which is no stall".to_owned()
            });
        }
        assert_eq!(said, 1);
    }
}
