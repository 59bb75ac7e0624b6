//! A booted Debian: systemd as process 1 of its own namespaces, under `systemd-nspawn`.
//!
//! Invariants: it has no network but its loopback; whatever happens, its processes, cgroups and mounts are gone when
//! it is dropped; everything that waits has a bound.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::super::output;

/// Longest boot, shutdown, or wait for anything within.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A machine that runs, or ran.
pub(super) struct Machine {
    root: PathBuf,
    binds: Vec<(PathBuf, PathBuf)>,
    cgroups: Vec<PathBuf>,
    process: Option<Child>,
    leader: Option<u32>,
    boots: u32,
}

impl Machine {
    /// One on this tree. `binds` are folders of the host with their places inside.
    pub(super) fn new(root: &Path, binds: Vec<(PathBuf, PathBuf)>) -> Result<Self> {
        let cgroups = own_cgroups()?;
        Ok(Self { root: root.to_owned(), binds, cgroups, process: None, leader: None, boots: 0 })
    }

    /// Boots, and waits until everything that starts at boot has been started.
    pub(super) fn boot(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "it runs");
        self.boots += 1;
        let console = fs::File::create(self.root.with_extension(format!("console-{}", self.boots)))?;
        // The manager gets cgroups of its own, so that two such machines on a host do not meet.
        let mut enter = String::new();
        for folder in &self.cgroups {
            enter.push_str(&format!("echo $$ > '{}/cgroup.procs' && ", folder.display()));
        }
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{enter} exec \"$@\"")).arg("sh").arg("systemd-nspawn");
        command.args(["--quiet", "--register=no", "--keep-unit", "--private-network", "--boot", "--console=pipe"]);
        command.arg("--machine=clad-ci").arg("--directory").arg(&self.root);
        for (outside, inside) in &self.binds {
            command.arg(format!("--bind={}:{}", outside.display(), inside.display()));
        }
        command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        let process = command.spawn().context("systemd-nspawn")?;
        let pid = process.id();
        self.process = Some(process);
        let leader = until("a process 1", || Ok(child_of(pid)))?;
        self.leader = Some(leader);
        // Its manager answers once its own socket is there; `degraded` is for the cases to look at.
        let booted = || {
            let said = self.ask(&["systemctl", "is-system-running"])?;
            let state = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            Ok(["running", "degraded"].contains(&state.as_str()).then_some(state))
        };
        until("a booted system", booted).map(drop)
    }

    /// Shuts it down in good order.
    pub(super) fn power_off(&mut self) -> Result<()> {
        let _ = self.ask(&["systemctl", "poweroff"]);
        let Some(process) = &mut self.process else { return Ok(()) };
        until("the end of the machine", || Ok(process.try_wait()?))?;
        self.process = None;
        self.leader = None;
        Ok(())
    }

    /// Runs a program inside and answers how it went.
    pub(super) fn ask(&self, words: &[&str]) -> Result<Output> {
        self.command(words)?.output().with_context(|| words.join(" "))
    }

    /// A program inside, to be started; 1 where it takes longer than is bearable.
    pub(super) fn command(&self, words: &[&str]) -> Result<Command> {
        let leader = self.leader.context("it does not run")?;
        let mut command = Command::new("timeout");
        command.arg(MACHINE_TIMEOUT.as_secs().to_string()).arg("nsenter").arg(format!("--target={leader}"));
        command.args(["--all", "--root", "--", "env", "-i", "-C", "/srv/trial", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.args(["HOME=/srv/trial", "TERM=dumb", "LC_ALL=C.UTF-8"]).args(words).stdin(Stdio::null());
        Ok(command)
    }

    /// A shell script inside that must end well; what it said is the answer.
    pub(super) fn sh(&self, script: &str) -> Result<String> {
        output(&mut self.command(&["sh", "-ec", script])?).map_err(|error| match self.said("clad*") {
            Ok(journal) => error.context(format!("the journal's last words:\n{}", last_lines(&journal, 15))),
            Err(_) => error,
        })
    }

    /// How a script ended, and what it said.
    pub(super) fn try_sh(&self, script: &str) -> Result<(i32, String)> {
        let said = self.ask(&["sh", "-c", script])?;
        let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        Ok((said.status.code().unwrap_or(-1), text))
    }

    /// Messages of units of this boot.
    pub(super) fn said(&self, units: &str) -> Result<String> {
        let said = self.ask(&["journalctl", "--boot", "--output=cat", "--no-pager", "--unit", units])?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// A property of a unit.
    pub(super) fn property(&self, unit: &str, property: &str) -> Result<String> {
        let said = self.ask(&["systemctl", "show", "--value", "--property", property, unit])?;
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    }

    /// Waits until a property of a unit has a value.
    pub(super) fn wait_for(&self, unit: &str, property: &str, holds: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = String::new();
        let found = until(&format!("{property} of {unit}"), || {
            last = self.property(unit, property)?;
            Ok(holds(&last).then(|| last.clone()))
        });
        found.with_context(|| format!("it is {last:?}\n{}", last_lines(&self.said(unit).unwrap_or_default(), 15)))
    }

    /// Waits until a unit has said something.
    pub(super) fn wait_said(&self, unit: &str, text: &str) -> Result<()> {
        let mut last = String::new();
        let found = until(&format!("{text:?}"), || {
            last = self.said(unit)?;
            Ok(last.contains(text).then_some(()))
        });
        found.with_context(|| format!("it said:\n{}", last_lines(&last, 15)))
    }

    /// A file's path as the host sees it.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside.trim_start_matches('/'))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(leader) = self.leader.take() {
            // With its process 1 a PID namespace ends, and everybody in it.
            let _ = Command::new("kill").args(["-KILL", &leader.to_string()]).status();
        }
        if let Some(mut process) = self.process.take() {
            let until = Instant::now() + Duration::from_secs(10);
            while matches!(process.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(POLL_INTERVAL);
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        for folder in &self.cgroups {
            remove_cgroup(folder);
        }
    }
}

/// Waits until something is there; it is looked at again and again, but not for ever.
pub(super) fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if began.elapsed() > MACHINE_TIMEOUT {
            bail!("{what} never came");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    // Helpers come and go; the manager is the one that runs as process 1 of a namespace.
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let own = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        own.is_some_and(|pids| pids.split_whitespace().last() == Some("1"))
            && fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "systemd")
    })
}

/// A cgroup below this process's own in each hierarchy that a manager uses (`name=systemd`, and the unified one).
fn own_cgroups() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut made = Vec::new();
    for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(name), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let mount = mounts.lines().find_map(|mount| {
            let (left, right) = mount.split_once(" - ")?;
            let fits = match name {
                "" => right.starts_with("cgroup2 "),
                "name=systemd" => right.starts_with("cgroup ") && right.contains("name=systemd"),
                _ => false,
            };
            fits.then(|| left.split(' ').nth(4).map(str::to_owned))?
        });
        let Some(mount) = mount else { continue };
        let folder = PathBuf::from(format!("{mount}{path}")).join(format!("clad-ci-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        made.push(folder);
    }
    ensure!(!made.is_empty(), "no cgroup that a manager could use is mounted");
    Ok(made)
}

/// From the leaves up; what is busy for a moment longer is tried again.
fn remove_cgroup(folder: &Path) {
    for _ in 0..100 {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_inner(&entry.path());
            }
        }
        if fs::remove_dir(folder).is_ok() || !folder.exists() {
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
    println!("          left behind: {}", folder.display());
}

fn remove_inner(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_inner(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
