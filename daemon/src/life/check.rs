//! `clad check`: what the daemon would do with this configuration on this host.
//!
//! Invariants: nothing is made, written, locked or bound, so that it can be asked while another daemon runs. A start
//! does what the check says, and the check names what it could not look at.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use clad_journal::OpenError;
use clad_journal::io::device::discover;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, Group, Uid, access};

use self::taken::{Listening, Owner};
use crate::access::{Asked, RuleSet, Subject, explain};
use crate::config::{Config, Durability, Loaded, SyslogAddress, show_duration, show_size};
use crate::exit::Exit;
use crate::life::lock_holder::{LockHolder, lock_holder};
use crate::life::{advice, setup};
use crate::text::printable;
use crate::tls::Material;

mod taken;

/// Longest name of a file.
const NAME_MAX: usize = 255;
/// Bit of the capability to take ports below 1024.
const CAP_NET_BIND_SERVICE: u32 = 10;

/// The unit's folders come by its environment, which a shell does not have.
const NOT_THE_SERVICE: &str = "not as the service reads it: $STATE_DIRECTORY is not set here, so the folders are those of a start by hand; for the service run `STATE_DIRECTORY=/var/lib/clad \
                               RUNTIME_DIRECTORY=/run/clad clad check`";

/// Outcome of a check: lines of (what, finding), and the exit code they amount to.
#[derive(Debug)]
pub struct Report {
    lines: Vec<(&'static str, String)>,
    /// Process that has the data folder now: a start must wait until that has ended.
    in_use_by: Option<LockHolder>,
    /// Something may be in the way, and cannot be seen from here.
    unsure: bool,
    /// Exit code of the command.
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
            (Exit::Done, None) if self.unsure => writeln!(f, "clad would start unless an UNSURE line is a problem"),
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
    let lines = vec![("configuration", "ok".to_owned())];
    let mut report = Report { lines, in_use_by: None, unsure: false, exit: Exit::Done };
    if loaded.is_of_the_host && !loaded.provenance.has("journal.dir") {
        report.note("configuration", NOT_THE_SERVICE.to_owned());
    }
    data_folder(config, &mut report);
    policy(config, &mut report);
    listeners(config, &mut report);
    certificates(config, &mut report);
    sockets(config, &mut report);
    access_rule(config, &mut report);
    retention(config, &mut report);
    not_checked(&mut report);
    report
}

/// Decision about a peer and an action, and its reason: for `clad check --as`.
#[must_use]
pub(crate) fn check_as(config: &Config, who: &[String], asked: &Asked) -> (String, Exit) {
    let mut subject = Subject::default();
    if let Some(error) = who.iter().find_map(|part| subject.add(part).err()) {
        return (format!("clad: --as: {error}"), Exit::Usage);
    }
    let rules = match RuleSet::read(&config.access) {
        Ok(rules) => rules,
        Err(error) => return (format!("clad: {error}"), Exit::Config),
    };
    let (is_allowed, reason) = explain(config, &rules, &subject, asked);
    let (word, exit) = if is_allowed { ("allowed", Exit::Done) } else { ("refused", Exit::Failed) };
    (format!("{word}: {reason}"), exit)
}

/// Notes the facts that cannot be known without a start.
fn not_checked(report: &mut Report) {
    const WHAT: &str = "not checked";
    report.note(
        WHAT,
        "the content of the segments (`clactl verify`); ports and space that others take until a start".to_owned(),
    );
    if Uid::effective().is_root() {
        let text =
            "root was asked: whether a daemon of another user may do all this (`runuser --user clad -- clad check`)";
        report.note(WHAT, text.to_owned());
    }
}

fn data_folder(config: &Config, report: &mut Report) {
    const WHAT: &str = "data folder";
    let dir = &config.journal.dir;
    let there = nearest_existing(dir);
    let shown = dir.display();
    if let Err(problem) = can_be_made(dir, there) {
        report.fail(WHAT, problem, Exit::Failed);
        return;
    }
    if advice::missing_above(dir).is_some() {
        let error = Errno::ENOENT.into();
        report.fail(WHAT, format!("{shown} cannot be made: {error}{}", advice::on(dir, &error)), Exit::Failed);
        return;
    }
    let state = if there == dir { "is there" } else { "will be made" };
    let found = if there == dir { takes_a_log(dir) } else { Ok(false) };
    match statvfs(there) {
        Ok(space) => {
            let free = space.blocks_available().saturating_mul(space.fragment_size());
            report.note(WHAT, format!("{shown} {state}, {} free", bytesize::ByteSize(free)));
            if let Ok(is_log) = found {
                room(config, is_log, free, report);
            }
        }
        Err(error) => report.note(WHAT, format!("{shown} {state}; free space unknown: {}", error.desc())),
    }
    if let Err(problem) = found {
        report.fail(WHAT, problem, Exit::Failed);
    }
    if let Some(holder) = lock_holder(dir) {
        report.note(WHAT, format!("in use by {holder}"));
        report.in_use_by = Some(holder);
    }
}

/// Checks for room for what a start makes: for a new log an active segment and a prepared one, else the next one.
fn room(config: &Config, is_log: bool, free: u64, report: &mut Report) {
    const WHAT: &str = "room";
    let (segment, reserve) = (config.journal.segment_bytes, config.journal.reserve_free);
    let needed = segment.saturating_mul(if is_log { 1 } else { 2 }).saturating_add(reserve);
    if free >= needed {
        return;
    }
    let size = bytesize::ByteSize;
    let wants = format!("{} of journal.segment_bytes, {} of journal.reserve_free", size(segment), size(reserve));
    let needed = size(needed);
    report.note(
        WHAT,
        match is_log {
            true => format!("another segment needs {needed} ({wants}): without it appends are refused when the prepared segment is full"),
            false => format!("a new log needs {needed} (2 × {wants}): appends would be refused until there is space"),
        },
    );
}

/// Checks that this folder can be written to, or made below the nearest one that is there.
fn can_be_made(dir: &Path, there: &Path) -> Result<(), String> {
    // A link without a target is in the way of a folder, and does not seem to be there.
    if let Some(link) = dir.ancestors().take_while(|path| *path != there).find(|path| path.is_symlink()) {
        return Err(format!("{} is a link to something that does not exist", link.display()));
    }
    if !there.is_dir() {
        return Err(format!("{} is not a folder{}", there.display(), advice::on(dir, &Errno::ENOTDIR.into())));
    }
    let too_long = |path: &&Path| path.file_name().is_some_and(|name| name.len() > NAME_MAX);
    if let Some(path) = dir.ancestors().find(too_long) {
        return Err(format!("a name in {} is longer than {NAME_MAX} bytes", path.display()));
    }
    access(there, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| {
        format!("cannot write to {}: {}{}", there.display(), errno.desc(), advice::on(dir, &errno.into()))
    })
}

/// Returns true if a start would take what lies in this folder: its names, their owners, and `clad.meta`. False: a new
/// log would be made there.
fn takes_a_log(dir: &Path) -> Result<bool, String> {
    let failed = |what: &Path, error: &std::io::Error| format!("{}: {error}{}", what.display(), advice::on(dir, error));
    for entry in std::fs::read_dir(dir).map_err(|e| failed(dir, &e))?.flatten() {
        // A start makes a socket again.
        if entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir()) {
            access(&entry.path(), AccessFlags::R_OK | AccessFlags::W_OK)
                .map_err(|e| failed(&entry.path(), &e.into()))?;
        }
    }
    match clad_journal::look(dir) {
        Ok(log) => Ok(log.is_some()),
        Err(OpenError::Io { what, source }) => Err(format!("{what}: {source}{}", advice::on(dir, &source))),
        Err(error) => Err(error.to_string()),
    }
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
        _ => {
            let reach = substrate.durability_class(journal.power_loss_protected);
            format!("{reach}{}", advice::on_class(&reach))
        }
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
    for (what, key, listener) in
        [("tcp", "ingest.tcp.listen", &config.ingest.tcp), ("grpc", "ingest.grpc.listen", &config.ingest.grpc)]
    {
        let reading = if listener.allow_read { "append and read" } else { "append" };
        let finding = listener.listen.map_or_else(off, |address| format!("{address}, {reading}"));
        report.note(what, finding);
        listens(what, key, listener.listen, report);
    }
    for address in &config.ingest.otlp.listen {
        report.note("otlp", address.to_string());
        listens("otlp", "ingest.otlp.listen", Some(*address), report);
    }
    for (name, syslog) in &config.ingest.syslog {
        let Some(listen) = &syslog.listen else { continue };
        let key = format!("ingest.syslog.{name}.listen");
        report.note("syslog", format!("{name}: {listen}"));
        match listen {
            // Whose a socket for datagrams is the tables of listeners do not say.
            SyslogAddress::Udp(address) => drop(may_listen("syslog", &key, *address, report)),
            SyslogAddress::Tcp(address)
            | SyslogAddress::Tls(address)
            | SyslogAddress::Relp(address)
            | SyslogAddress::Relps(address) => {
                listens("syslog", &key, Some(*address), report);
            }
            SyslogAddress::UnixStream(path) | SyslogAddress::UnixDatagram(path) => {
                socket("syslog", &key, path, config, report);
            }
        }
    }
    let finding = config.metrics.listen.map_or_else(off, |address| address.to_string());
    report.note("metrics", finding);
    listens("metrics", "metrics.listen", config.metrics.listen, report);
}

/// Checks the files of TLS, where there are any.
fn certificates(config: &Config, report: &mut Report) {
    const WHAT: &str = "tls";
    if config.tls.cert.is_none() {
        return;
    }
    match Material::read(&config.tls) {
        Ok(material) => {
            let ends = material.expires().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let left = ends.saturating_sub(setup::unix_time()).as_secs() / (24 * 3600);
            let clients = match (&config.tls.client_ca, config.tls.require_client_cert) {
                (None, _) => "clients show no certificate",
                (Some(_), false) => "clients may show a certificate",
                (Some(_), true) => "clients must show a certificate",
            };
            report.note(WHAT, format!("certificate and key fit, {left} days left; {clients}"));
        }
        Err(error) => report.fail(WHAT, error.to_string(), Exit::Config),
    }
}

/// Checks that an address is one of this host's that this user may listen on, and free.
fn listens(what: &'static str, key: &str, address: Option<SocketAddr>, report: &mut Report) {
    let Some(address) = address else { return };
    if !may_listen(what, key, address, report) {
        return;
    }
    if let Some(listening) = taken::tcp(address) {
        is_taken(what, &address.to_string(), &listening, key, report);
    }
}

/// Checks that an address is one of this host's that this user may listen on.
fn may_listen(what: &'static str, key: &str, address: SocketAddr, report: &mut Report) -> bool {
    // A datagram socket on any port: it takes no port that others need.
    let own = UdpSocket::bind((address.ip(), 0));
    let refused = own.err().filter(|e| e.raw_os_error() == Some(Errno::EADDRNOTAVAIL as i32)).or_else(|| {
        let reserved = address.port() != 0 && address.port() < first_open_port() && !may_take_any_port();
        reserved.then(|| Errno::EACCES.into())
    });
    if let Some(error) = refused {
        report.fail(what, format!("{address}: {error}{}", advice::on_address(key, &error)), Exit::Failed);
        return false;
    }
    true
}

/// Ports below it are for processes with `CAP_NET_BIND_SERVICE`.
fn first_open_port() -> u16 {
    let first_port = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    first_port.and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

fn may_take_any_port() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).is_ok_and(|set| set & (1 << CAP_NET_BIND_SERVICE) != 0)
}

/// A process listens there: the daemon that has the log, the service manager for it, or a process that is in the way.
fn is_taken(what: &'static str, place: &str, Listening { owner }: &Listening, key: &str, report: &mut Report) {
    let holder = report.in_use_by;
    match owner {
        Owner::Process { pid, .. } if holder.is_some_and(|holder| holder.pid == Some(*pid)) => {}
        Owner::ServiceManager => {
            report.note(what, format!("{owner} holds {place}: for clad, if a socket unit names it"))
        }
        Owner::NotKnown if holder.is_some() => report.note(what, format!("{place} is taken, by {owner}")),
        Owner::NotKnown => {
            report.unsure = true;
            report
                .note(what, format!("UNSURE: {place} is taken, by {owner}: a socket unit for clad, or somebody else"));
        }
        Owner::Process { .. } | Owner::OtherUser(_) => {
            let error = std::io::Error::from(Errno::EADDRINUSE);
            report.fail(what, format!("{place} is taken, by {owner}{}", advice::on_address(key, &error)), Exit::Failed);
        }
    }
}

fn sockets(config: &Config, report: &mut Report) {
    let otlp = ("otlp", "ingest.otlp.path", &config.ingest.otlp.path);
    let always = [("unix", "ingest.unix.path", &config.ingest.unix.path), ("admin", "admin.path", &config.admin.path)];
    for (what, key, path) in always.into_iter().chain(otlp.2.is_some().then_some(otlp)) {
        let Some(path) = path else {
            report.note(what, "off".to_owned());
            continue;
        };
        report.note(what, path.display().to_string());
        socket(what, key, path, config, report);
    }
}

/// Checks that a socket can be made.
fn socket(what: &'static str, key: &str, path: &Path, config: &Config, report: &mut Report) {
    let folder = path.parent().unwrap_or(Path::new(""));
    // A problem of the data folder was reported already.
    if folder != config.journal.dir
        && let Err(problem) = can_be_made(folder, nearest_existing(folder))
    {
        report.fail(what, problem, Exit::Failed);
    } else if path.metadata().is_ok_and(|found| !found.file_type().is_socket()) {
        report.fail(what, format!("{} is there and is no socket", path.display()), Exit::Failed);
    } else if let Some(listening) = taken::unix(path) {
        is_taken(what, &path.display().to_string(), &listening, key, report);
    }
}

fn access_rule(config: &Config, report: &mut Report) {
    const WHAT: &str = "reading";
    const RULES: &str = "access";
    match RuleSet::read(&config.access) {
        Err(error) => report.fail(RULES, error.to_string(), Exit::Config),
        Ok(rules) if !rules.is_empty() => {
            let count = config.access.rule.len();
            let whose = if count == 1 { "1 rule decides" } else { &format!("{count} rules decide") };
            report.note(RULES, format!("{whose}; read_group and allow_read have no effect"));
            if !rules.has_users() {
                let text = "no rule is for users (uid, gid or \"*\"): no program of this host may append";
                report.note(RULES, text.to_owned());
            }
            return admin_group(config, report);
        }
        Ok(_) => {}
    }
    let group = &config.access.read_group;
    let always = "root and the daemon's user";
    match group.as_str() {
        "" => report.note(WHAT, format!("{always} only")),
        name if group_exists(name) => report.note(WHAT, format!("{always}, and group {name}")),
        name => report.note(WHAT, format!("{always} only: there is no group {name} on this host")),
    }
    admin_group(config, report);
}

fn admin_group(config: &Config, report: &mut Report) {
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
    let size = |key, bytes| (bytes > 0).then(|| format!("{key} = {}", show_size(bytes)));
    let age = (!rules.max_age.is_zero()).then(|| format!("max_age = {}", show_duration(rules.max_age)));
    let removing = [size("max_bytes", rules.max_bytes), age, size("min_free", rules.min_free)];
    let beside = [
        size("keep_bytes", rules.keep_bytes),
        size("per_owner_bytes", rules.per_owner_bytes),
        size("max_held_bytes", rules.max_held_bytes),
    ];
    let beside: String = beside.into_iter().flatten().map(|rule| format!("; {rule}")).collect();
    let removing: Vec<_> = removing.into_iter().flatten().collect();
    let finding = match removing.is_empty() {
        true => "off: nothing is ever removed".to_owned(),
        false => format!("on: the oldest sealed segments are removed by {}{}", removing.join(", "), beside),
    };
    report.note("retention", finding);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LoadArgs;

    fn report(base: &Path, sets: &[&str]) -> Report {
        // A daemon may have the usual ports.
        let free = ["ingest.tcp", "ingest.grpc", "metrics"].map(|listener| format!("{listener}.listen=127.0.0.1:0"));
        let args = LoadArgs {
            config: None,
            instance: None,
            base: base.to_owned(),
            sets: free.into_iter().chain(sets.iter().map(|&set| set.to_owned())).collect(),
            env: Vec::new(),
        };
        check(&Config::load(&args).unwrap())
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_fine_and_stays_away() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("a");
        let report = report(base.path(), &[&format!("journal.dir={}", dir.display())]);
        let text = report.to_string();
        assert_eq!(report.exit, Exit::Done, "{text}");
        assert!(text.contains("will be made"), "{text}");
        assert!(text.contains("group_commit, io engine auto, highest ack "), "{text}");
        assert!(text.ends_with("clad would start\n"), "{text}");
        assert!(!base.path().join("a").exists());
    }

    #[test]
    fn the_hosts_files_without_the_services_folders_are_distinguished() {
        let base = tempfile::tempdir().unwrap();
        let dir = format!("journal.dir={}", base.path().join("log").display());
        let says = |sets: &[&str]| report(base.path(), sets).to_string().contains("STATE_DIRECTORY=/var/lib/clad");
        assert!(!says(&[]), "no file: a developer in the current folder");
        std::fs::write(base.path().join("clad.toml"), "").unwrap();
        assert!(says(&[]) && !says(&[&dir]));
    }

    #[test]
    fn a_disk_without_room_is_said() {
        let base = tempfile::tempdir().unwrap();
        let there = base.path().join("there");
        std::fs::create_dir(&there).unwrap();
        for dir in [there.clone(), base.path().join("none")] {
            let dir = format!("journal.dir={}", dir.display());
            let said = |reserve: &str| report(base.path(), &[&dir, reserve]).to_string();
            assert!(!said("journal.reserve_free=0").contains("a new log needs"), "{dir}");
            let text = said("journal.reserve_free=1048576TiB");
            assert!(text.contains("a new log needs") && text.contains("appends would be refused"), "{text}");
        }
        let config = Config::default();
        let journal = clad_journal::JournalConfig {
            segment_bytes: 1 << 20,
            max_append_bytes: 1 << 18,
            reserve_free: 0,
            ..Default::default()
        };
        drop(clad_journal::Journal::open_dir(&there, journal, std::sync::Arc::new(|_| {})).unwrap());
        assert_eq!(takes_a_log(&there), Ok(true));
        let mut report = Report { lines: Vec::new(), in_use_by: None, unsure: false, exit: Exit::Done };
        room(&config, true, 127 << 20, &mut report);
        assert!(report.to_string().contains("another segment needs 128.0 MiB"), "{report}");
        let mut report = Report { lines: Vec::new(), in_use_by: None, unsure: false, exit: Exit::Done };
        room(&config, true, 128 << 20, &mut report);
        assert_eq!(report.lines, []);
    }

    #[test]
    fn the_highest_ack_is_what_the_folder_can_keep() {
        let Ok(base) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("NOT RUN the highest ack in memory: no /dev/shm");
            return;
        };
        let text = report(base.path(), &[&format!("journal.dir={}/log", base.path().display())]).to_string();
        assert!(
            text.contains("highest ack written, because tmpfs keeps its files in memory; set journal.dir"),
            "{text}"
        );
        assert!(text.contains("journal.power_loss_protected = true does not help"), "{text}");
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
    fn a_group_that_is_none_is_named() {
        let base = tempfile::tempdir().unwrap();
        let dir = format!("journal.dir={}", base.path().display());
        let sets = [&dir, "access.read_group=no-such-group", "access.admin_group=nor-this"];
        let report = report(base.path(), &sets);
        let text = report.to_string();
        assert_eq!(report.exit, Exit::Failed);
        assert!(text.contains("only: there is no group no-such-group"), "{text}");
        assert!(text.contains("PROBLEM: there is no group nor-this"), "{text}");
    }

    /// A place that this process may not see is neither free nor a problem.
    #[test]
    fn whose_place_it_is_decides() {
        let judged = |owner: Owner, holder: Option<u32>| {
            let in_use_by = holder.map(|pid| LockHolder { pid: Some(pid) });
            let mut report = Report { lines: Vec::new(), in_use_by, unsure: false, exit: Exit::Done };
            is_taken("tcp", "127.0.0.1:7440", &Listening { owner }, "ingest.tcp.listen", &mut report);
            (report.exit, report.unsure, report.to_string())
        };
        let other = || Owner::Process { pid: 7, name: "nginx".to_owned() };
        let (exit, _, text) = judged(other(), None);
        assert_eq!(exit, Exit::Failed);
        assert!(
            text.contains("taken, by pid 7 (nginx); another program") && text.contains("set ingest.tcp.listen"),
            "{text}"
        );
        assert_eq!(judged(other(), Some(8)).0, Exit::Failed);
        assert_eq!(judged(other(), Some(7)).2, "clad would start once pid 7 has ended\n");
        assert_eq!(judged(Owner::OtherUser(33), None).0, Exit::Failed);
        let (exit, unsure, text) = judged(Owner::ServiceManager, None);
        assert!((exit, unsure) == (Exit::Done, false) && text.ends_with("clad would start\n"), "{text}");
        let (exit, unsure, text) = judged(Owner::NotKnown, None);
        assert!((exit, unsure) == (Exit::Done, true) && text.ends_with("is a problem\n"), "{text}");
        assert!(!judged(Owner::NotKnown, Some(7)).1);
    }

    #[test]
    fn the_rules_of_retention_are_said_with_their_values() {
        let base = tempfile::tempdir().unwrap();
        let dir = format!("journal.dir={}", base.path().display());
        let rules = ["retention.max_bytes=1GiB", "retention.max_age=14d", "retention.keep_bytes=512MiB"];
        let text = report(base.path(), &[&[&*dir], &rules[..]].concat()).to_string();
        let says = "retention      on: the oldest sealed segments are removed by max_bytes = 1GiB, max_age = 14d; keep_bytes = 512MiB\n";
        assert!(text.contains(says), "{text}");
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
