//! `clad check`: what the daemon would do with this configuration on this host.
//!
//! What must hold: nothing is made, locked or bound, so that it can be asked while another daemon runs.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clad_journal::io::device::discover;
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, Group, access};

use crate::config::{Config, Durability, Loaded};
use crate::exit::Exit;
use crate::setup;
use crate::text::printable;

/// Outcome of a check: lines of (what, finding), and the exit code they amount to.
#[derive(Debug)]
pub struct Report {
    lines: Vec<(&'static str, String)>,
    /// Who has the data folder now: a start is for when that has ended.
    in_use_by: Option<String>,
    /// How the command ends.
    pub exit: Exit,
}

impl Report {
    /// Adds a finding.
    pub fn note(&mut self, what: &'static str, finding: String) {
        self.lines.push((what, finding));
    }

    /// Adds a finding that keeps the daemon from starting; the gravest exit code counts.
    pub fn fail(&mut self, what: &'static str, finding: String, exit: Exit) {
        self.note(what, format!("PROBLEM: {finding}"));
        if self.exit != Exit::Config {
            self.exit = exit;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
        for (what, finding) in &self.lines {
            writeln!(f, "{what:width$}  {}", printable(finding))?;
        }
        match (self.exit, &self.in_use_by) {
            (Exit::Done, None) => writeln!(f, "clad would start"),
            (Exit::Done, Some(holder)) => writeln!(f, "clad would start once {holder} has ended"),
            _ => writeln!(f, "clad would not start"),
        }
    }
}

/// Looks at everything that the configuration names.
#[must_use]
pub fn check(loaded: &Loaded) -> Report {
    let config = &loaded.config;
    let mut report = Report { lines: vec![("configuration", "ok".to_owned())], in_use_by: None, exit: Exit::Done };
    data_folder(config, &mut report);
    policy(config, &mut report);
    listeners(config, &mut report);
    sockets(config, &mut report);
    access_rule(config, &mut report);
    retention(config, &mut report);
    report
}

fn data_folder(config: &Config, report: &mut Report) {
    const WHAT: &str = "data folder";
    let dir = &config.journal.dir;
    let there = nearest_existing(dir);
    let shown = dir.display();
    if !there.is_dir() {
        report.fail(WHAT, format!("{} is not a folder", there.display()), Exit::Failed);
        return;
    }
    if let Err(error) = access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        let problem = format!("cannot write to {}: {}", there.display(), error.desc());
        report.fail(WHAT, problem, Exit::Failed);
        return;
    }
    let state = if there == dir { "is there" } else { "will be made" };
    match statvfs(there) {
        Ok(space) => {
            let free = space.blocks_available().saturating_mul(space.fragment_size());
            report.note(WHAT, format!("{shown} {state}, {} free", bytesize::ByteSize(free)));
            // One active segment and one prepared, above what is held back.
            let needed = (2 * config.journal.segment_bytes).saturating_add(config.journal.reserve_free);
            if there != dir && free < needed {
                let needed = bytesize::ByteSize(needed);
                report.note(WHAT, format!("a new log needs {needed} free: appends would be refused"));
            }
        }
        Err(error) => report.note(WHAT, format!("{shown} {state}; free space unknown: {}", error.desc())),
    }
    if let Some(holder) = holder(dir) {
        report.note(WHAT, format!("in use by {holder}"));
        report.in_use_by = Some(holder);
    }
}

/// Who has the log's lock, as the kernel lists it: taking the lock to find out could be in the way of a start. Nobody
/// where that cannot be known.
fn holder(dir: &Path) -> Option<String> {
    let lock = std::fs::metadata(dir.join("clad.lock")).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let file = (nix::sys::stat::major(lock.dev()), nix::sys::stat::minor(lock.dev()), lock.ino());
    locks.lines().find_map(|line| holder_in(line, file))
}

/// Of a line `1: FLOCK  ADVISORY  WRITE PID MAJOR:MINOR:INODE 0 EOF`, the numbers of the device in hexadecimal.
fn holder_in(line: &str, file: (u64, u64, u64)) -> Option<String> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == "FLOCK")?;
    let (pid, place) = (words.nth(2)?, words.next()?);
    let mut numbers = place.split(':');
    let mut device = || u64::from_str_radix(numbers.next()?, 16).ok();
    let (major, minor) = (device()?, device()?);
    let inode: u64 = numbers.next()?.parse().ok()?;
    ((major, minor, inode) == file).then(|| match pid.parse::<u32>() {
        Ok(pid) if pid > 0 => format!("pid {pid}"),
        _ => "another process".to_owned(), // in another namespace
    })
}

/// The path itself, or the nearest folder above it that exists.
fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|path| !path.as_os_str().is_empty() && path.exists()).unwrap_or(Path::new("."))
}

fn policy(config: &Config, report: &mut Report) {
    let journal = &config.journal;
    let substrate = discover(nearest_existing(&journal.dir));
    report.note("stands on", substrate.summary());
    let highest = match journal.durability {
        Durability::FireAndForget => "written".to_owned(),
        _ => substrate.reach(journal.power_loss_protected).to_string(),
    };
    report.note("policy", format!("{}, io engine {}, highest ack {highest}", journal.durability, journal.io_engine));
    match setup::grounds(config, &substrate) {
        Ok(grounds) if grounds.is_empty() => {}
        Ok(grounds) => report.note("policy", grounds),
        Err(refusal) => report.fail("policy", refusal.to_string(), Exit::Config),
    }
}

fn listeners(config: &Config, report: &mut Report) {
    let off = || "off".to_owned();
    for (what, listener) in [("tcp", &config.ingest.tcp), ("grpc", &config.ingest.grpc)] {
        let reading = if listener.allow_read { "append and read" } else { "append" };
        let finding = listener.listen.map_or_else(off, |address| format!("{address}, {reading}"));
        report.note(what, finding);
    }
    let finding = config.metrics.listen.map_or_else(off, |address| address.to_string());
    report.note("metrics", finding);
}

fn sockets(config: &Config, report: &mut Report) {
    for (what, path) in [("unix", &config.ingest.unix.path), ("admin", &config.admin.path)] {
        let Some(path) = path else {
            report.note(what, "off".to_owned());
            continue;
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        // The data folder is made at the start; every other folder must be there.
        if folder.as_os_str().is_empty() || folder == config.journal.dir || folder.is_dir() {
            report.note(what, path.display().to_string());
        } else {
            let problem = format!("the folder of {} is not there", path.display());
            report.fail(what, problem, Exit::Failed);
        }
    }
}

fn access_rule(config: &Config, report: &mut Report) {
    const WHAT: &str = "reading";
    let group = &config.access.read_group;
    let always = "root and the daemon's user";
    match group.as_str() {
        "" => report.note(WHAT, format!("{always} only")),
        name if group_exists(name) => report.note(WHAT, format!("{always}, and group {name}")),
        name => report.note(WHAT, format!("{always} only: there is no group {name} on this host")),
    }
    let group = &config.access.admin_group;
    if !group.is_empty() && !group_exists(group) {
        let problem = format!("there is no group {group} on this host");
        report.fail("admin", problem, Exit::Failed);
    }
}

fn group_exists(name: &str) -> bool {
    matches!(Group::from_name(name), Ok(Some(_)))
}

fn retention(config: &Config, report: &mut Report) {
    let rules = &config.retention;
    let off = rules.max_bytes == 0 && rules.max_age.is_zero() && rules.min_free == 0;
    let finding =
        if off { "off: nothing is ever removed" } else { "on: the oldest sealed segments are removed by rule" };
    report.note("retention", finding.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LoadArgs;

    fn report(base: &Path, sets: &[&str]) -> Report {
        let args = LoadArgs {
            config: None,
            instance: None,
            base: base.to_owned(),
            sets: sets.iter().map(|&set| set.to_owned()).collect(),
            env: Vec::new(),
        };
        check(&Config::load(&args).unwrap())
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_fine_and_stays_away() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("a/b");
        let report = report(base.path(), &[&format!("journal.dir={}", dir.display())]);
        let text = report.to_string();
        assert_eq!(report.exit, Exit::Done, "{text}");
        assert!(text.contains("will be made"), "{text}");
        assert!(text.contains("group_commit, io engine auto, highest ack "), "{text}");
        assert!(text.ends_with("clad would start\n"), "{text}");
        assert!(!base.path().join("a").exists());
    }

    #[test]
    fn the_highest_ack_is_what_the_folder_can_keep() {
        let Ok(base) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("NOT RUN the highest ack in memory: no /dev/shm");
            return;
        };
        let text = report(base.path(), &[&format!("journal.dir={}/log", base.path().display())]).to_string();
        assert!(text.contains("highest ack written, because tmpfs keeps its files in memory"), "{text}");
        assert!(text.contains("\nstands on "), "{text}");
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_a_failure() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        std::fs::write(&file, "").unwrap();
        let report = report(base.path(), &[&format!("journal.dir={}", file.display())]);
        let text = report.to_string();
        assert_eq!(report.exit, Exit::Failed);
        assert!(text.contains("file is not a folder"), "{text}");
        assert!(text.ends_with("clad would not start\n"), "{text}");
    }

    #[test]
    fn a_socket_in_no_folder_and_a_group_that_is_none_are_named() {
        let base = tempfile::tempdir().unwrap();
        let dir = format!("journal.dir={}", base.path().display());
        let socket = format!("ingest.unix.path={}/none/clad.sock", base.path().display());
        let sets = [&dir, &socket, "access.read_group=no-such-group", "access.admin_group=nor-this"];
        let report = report(base.path(), &sets);
        let text = report.to_string();
        assert_eq!(report.exit, Exit::Failed);
        assert!(text.contains("the folder of") && text.contains("is not there"), "{text}");
        assert!(text.contains("only: there is no group no-such-group"), "{text}");
        assert!(text.contains("PROBLEM: there is no group nor-this"), "{text}");
    }

    #[test]
    fn who_has_the_folder_is_read_from_the_kernels_list() {
        let file = (8, 0x1a, 12_345);
        let line = "7: FLOCK  ADVISORY  WRITE 4711 08:1a:12345 0 EOF";
        assert_eq!(holder_in(line, file).as_deref(), Some("pid 4711"));
        assert_eq!(holder_in(&line.replace("4711", "0"), file).as_deref(), Some("another process"));
        for other in
            [line.replace("12345", "12346"), line.replace("1a", "1b"), line.replace("FLOCK ", "POSIX "), "7:".into()]
        {
            assert_eq!(holder_in(&other, file), None, "{other}");
        }
    }

    #[test]
    fn what_is_off_is_said_to_be_off() {
        let base = tempfile::tempdir().unwrap();
        let dir = format!("journal.dir={}", base.path().display());
        let text = report(base.path(), &[&dir, "ingest.tcp.listen=", "admin.path="]).to_string();
        assert!(text.contains("tcp            off\n"), "{text}");
        assert!(text.contains("admin          off\n"), "{text}");
        assert!(text.contains("retention      off: nothing is ever removed\n"), "{text}");
    }
}
