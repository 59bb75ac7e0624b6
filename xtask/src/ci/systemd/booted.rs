//! The package on a booted Debian, tried as an operator would: from an empty tree to the first durable ack by the manual's
//! own commands; reload, rotation, crash, hang, replacement and restart under load; instances; and what goes wrong.
//!
//! Invariants: what was acknowledged through all of it is there afterwards, once and in order; no client is refused a
//! connection or ends with an error; each mistake is reported with its remedy, in the journal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::disk::{EXT4, Kind, Mount, built_tests};
use super::super::{Run, build, need, output, target};
use super::machine::{Machine, until};
use super::{manual, relay, syslog, tree};
use crate::package;

const FEED: &str = include_str!("feed.sh");
const PROBE: &str = include_str!("probe.pl");
/// What the clients of the load are called, and where they go.
const FEEDS: [(&str, &str); 3] =
    [("unix", "unix:///run/clad/clad.sock"), ("tcp", "tcp://127.0.0.1:7440"), ("grpc", "grpc://127.0.0.1:7441")];
/// The watchdog of the cases that wait for it.
const WATCHDOG: &str = "[Service]\nWatchdogSec=3\n";
/// A file system so small that it is soon full.
const SMALL: Kind = Kind::Loop { make: EXT4, mebibytes: 64, sector: 512, cache: "write back", options: "rw" };

pub(super) fn run(run: &mut Run) -> Result<()> {
    need("systemd-nspawn", &["systemd-container"])?;
    need("dpkg-deb", &["dpkg"])?;
    need("nsenter", &["util-linux"])?;
    need("mkfs.ext4", &["e2fsprogs"])?;
    let cache = target(&run.root).join("ci");
    let programs = [build(&run.root, "clad")?, build(&run.root, "clactl")?];
    let ring_tests = built_tests(&run.root, "rings")?;
    let debian = tree::debian(&cache)?;
    let place = tempfile::Builder::new().prefix("machine-").tempdir_in(&cache).context("no folder for the machine")?;
    let small = Mount::new(&SMALL)?;
    let root = place.path().join("root");
    tree::copy(&debian, &root)?;
    let trial = root.join("srv/trial");
    let package = package::deb(&run.root, &programs, &trial, "", "-Znone")?;
    let newer = package::deb(&run.root, &other_programs(&programs, place.path())?, &trial, "+1", "-Znone")?;
    let relay = package::relay_deb(&run.root, &super::super::relay::built(&run.root)?, &trial, "-Znone")?;
    let inside = |package: PathBuf| -> Result<PathBuf> {
        Ok(PathBuf::from("/srv/trial").join(package.file_name().context("a package has a name")?))
    };
    let mut booted = Booted {
        root: run.root.clone(),
        package: inside(package)?,
        newer: inside(newer)?,
        relay: inside(relay)?,
        machine: Machine::new(&root, vec![(small.point.clone(), PathBuf::from("/srv/small"))])?,
        small: small.point.clone(),
        ring_tests,
    };
    run.case("a Debian tree boots", || {
        booted.write("/etc/systemd/system.conf.d/word.conf", WORD)?;
        booted.machine.boot()
    });
    let b = &booted;
    run.case("from an empty tree to a durable ack and a scraped metric, by the manual's commands", || {
        b.by_the_manual()
    });
    run.case("it is started and enabled, and says what it is doing", || b.is_up());
    run.case("clients begin to write", || b.begin_load());
    run.case("a good configuration is reloaded, and reported when it is over", || b.reload_good());
    run.case("a bad one, or one that needs a restart, fails by name and changes nothing", || b.reload_bad());
    run.case("it rotates by signal and by command", || b.rotate());
    run.case("kill -9 under load: it is back by itself", || b.crash());
    run.case("a hang under load: the watchdog ends it, and it is back by itself", || b.hang());
    run.case("an upgrade under load replaces what runs", || b.upgrade());
    run.case("so does a downgrade", || b.downgrade());
    run.case("a restart under load", || b.restart());
    run.case("nothing acknowledged is lost, no client failed, no connection was refused", || b.end_load());
    run.case("what a client is, is seen through the sandbox", || b.sees_clients());
    run.case("io_uring works in the sandbox", || b.ring());
    run.case("what was posted to a ring outlives kill -9 of the daemon, in the descriptor store", || b.posted());
    run.case("so does what a client posted that died before the daemon did", || b.posted_by_the_dead());
    run.case("a ring for which the descriptor store has no room serves every level but posted", || b.store_is_full());
    run.case("what waits in a socket while nobody runs is served by who runs next", || b.waits_in_the_socket());
    run.case("a start that takes longer than systemd waits is not ended", || b.long_start());
    run.case("a disk that stands still is no hang", || b.frozen_disk());
    run.case("it is the host's syslog behind the journal, by the manual's commands", || syslog::behind_the_journal(b));
    run.case("so it is at /dev/log, and a restart loses nothing", || syslog::at_dev_log(b));
    run.case("it listens at port 514, which systemd holds", || syslog::at_a_port_of_root(b));
    run.case("a relay brings the journal, once over kills, by the manual's commands", || relay::from_the_journal(b));
    run.case("a relay brings files, which logrotate rotates, by the manual's commands", || relay::from_files(b));
    run.case("systemd-journal-upload brings the journal, by the manual's commands", || relay::by_upload(b));
    run.case("an instance beside it, with no network", || b.instance());
    run.case("it can be backed up while it runs, and restored elsewhere, by the manual's commands", || b.backup());
    run.case("a damaged configuration ends in 78, once", || b.damaged_config());
    run.case("a configuration that is not there ends in 78, once", || b.no_config());
    run.case("clients that wait do not start what cannot start over and over", || b.no_start_loop());
    run.case("a socket unit that does not fit the configuration is reported", || b.strange_socket());
    run.case("a folder that is not there", || b.missing_folder());
    run.case("a folder that belongs to somebody else", || b.wrong_owner());
    run.case("a full disk, and room again", || b.full_disk());
    run.case("stop, and a boot: what logs early waits for it", || booted.boot_order());
    drop(booted);
    drop(small);
    Ok(())
}

/// The same programs in other files: what runs differs from what was there before.
fn other_programs(programs: &[PathBuf], place: &Path) -> Result<Vec<PathBuf>> {
    let folder = place.join("newer");
    fs::create_dir(&folder)?;
    let other = |program: &PathBuf| -> Result<PathBuf> {
        let to = folder.join(program.file_name().context("a program has a name")?);
        fs::copy(program, &to)?;
        // Behind the sections of the file: nothing of it is loaded.
        fs::OpenOptions::new().append(true).open(&to)?.write_all(b"newer")?;
        Ok(to)
    };
    programs.iter().map(other).collect()
}

pub(super) struct Booted {
    pub(super) root: PathBuf,
    package: PathBuf,
    /// Another version of it.
    newer: PathBuf,
    /// The package of the relay.
    pub(super) relay: PathBuf,
    pub(super) machine: Machine,
    small: PathBuf,
    /// The tests of rings, of which one is a client that says what it has posted.
    pub(super) ring_tests: PathBuf,
}

/// The operator's word for `durable`: the tree lies wherever CI does, on a file system without a journal perhaps.
const WORD: &str = "[Manager]\nDefaultEnvironment=CLAD_JOURNAL__POWER_LOSS_PROTECTED=true\n";

impl Booted {
    pub(super) fn write(&self, inside: &str, text: &str) -> Result<()> {
        let path = self.machine.path(inside);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(&path, text).with_context(|| inside.to_owned())
    }

    fn metric(&self, name: &str) -> Result<f64> {
        let text = self.machine.sh("curl --silent --fail http://127.0.0.1:9744/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        line.trim().parse().with_context(|| format!("{name}: {line}"))
    }

    pub(super) fn main_pid(&self, unit: &str) -> Result<String> {
        let pid = self.machine.property(unit, "MainPID")?;
        ensure!(pid != "0", "{unit} does not run");
        Ok(pid)
    }

    /// How often the service manager has started it again.
    fn restarts(&self) -> Result<u32> {
        Ok(self.machine.property("clad.service", "NRestarts")?.parse()?)
    }

    /// The service is another process than before, and serves.
    fn another_than(&self, pid: &str) -> Result<()> {
        let other = |now: &str| now != pid && now != "0";
        self.machine.wait_for("clad.service", "MainPID", other)?;
        self.machine.wait_for("clad.service", "ActiveState", |state| state == "active").map(drop)
    }

    fn records(&self) -> Result<u64> {
        let status = self.machine.sh("clactl status -o json")?;
        let (_, rest) = status.split_once("\"durable\":").context("no durable offset")?;
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    }

    /// The clients get on: more is durable than there was.
    fn gets_on(&self) -> Result<()> {
        let before = self.records()?;
        until("a further durable record", || Ok((self.records()? > before + 20).then_some(())))
    }

    fn by_the_manual(&self) -> Result<()> {
        ensure!(self.machine.try_sh("command -v clad || id clad")?.0 != 0, "the tree is not empty");
        let commands = ["install", "start", "first ack"].map(|name| manual::block(&self.root, name));
        let said = commands.into_iter().map(|block| self.machine.sh(&block?)).collect::<Result<Vec<_>>>()?;
        let (ack, all) = (said.last().context("three blocks")?, said.join("\n"));
        ensure!(ack.contains("durable"), "no word of the level:\n{all}");
        ensure!(ack.contains("the first record"), "it is not read back:\n{all}");
        ensure!(ack.contains("clad_acked_records_total{level=\"durable\"} 1"), "no metric:\n{all}");
        self.machine
            .sh("cd /usr/share; test -s man/man8/clad.8 && test -s man/man1/clactl-append.1 && \
             test -s clad/mixin/rules/clad-alerts.yaml && bash -n bash-completion/completions/clactl")
            .map(drop)
    }

    fn is_up(&self) -> Result<()> {
        for unit in ["clad.service", "clad.socket"] {
            ensure!(self.machine.property(unit, "UnitFileState")? == "enabled", "{unit} is not enabled");
            ensure!(self.machine.property(unit, "ActiveState")? == "active", "{unit} is not active");
        }
        let text = self.machine.property("clad.service", "StatusText")?;
        ensure!(text.contains("group_commit to durable") && text.contains("| new log"), "{text}");
        // The line follows the log.
        self.machine.wait_for("clad.service", "StatusText", |text| text.contains("durable 1 |"))?;
        let files =
            self.machine.sh("stat --format '%U:%G %a' /var/lib/clad /run/clad/clad.sock /run/clad/admin.sock")?;
        ensure!(files == "clad:clad 750\nclad:clad 666\nclad:clad 660\n", "{files}");
        Ok(())
    }

    fn begin_load(&self) -> Result<()> {
        self.write("/srv/trial/feed.sh", FEED)?;
        self.write("/srv/trial/probe.pl", PROBE)?;
        for (name, address) in FEEDS {
            self.machine
                .sh(&format!("systemd-run --quiet --unit=feed-{name} sh /srv/trial/feed.sh {name} {address}"))?;
        }
        self.machine.sh("systemd-run --quiet --unit=probe perl /srv/trial/probe.pl")?;
        self.gets_on()
    }

    fn reload_good(&self) -> Result<()> {
        let pid = self.main_pid("clad.service")?;
        self.write("/etc/clad/clad.d/10-reload.toml", "[limits]\nmax_connections = 4000\n")?;
        self.machine.sh("systemctl reload clad")?;
        // No wait: the reload was over when the command ended.
        let said = self.machine.said("clad.service")?;
        ensure!(said.contains("HUP: changed") && said.contains("limits.max_connections"), "{said}");
        ensure!(self.metric("clad_config_last_reload_successful")? == 1.0, "the metric says no");
        ensure!(self.metric("clad_config_last_reload_success_timestamp_seconds")? > 1e9, "no timestamp");
        ensure!(self.main_pid("clad.service")? == pid, "it was restarted");
        self.gets_on()
    }

    fn reload_bad(&self) -> Result<()> {
        let pid = self.main_pid("clad.service")?;
        let reloaded_at = self.metric("clad_config_last_reload_success_timestamp_seconds")?;
        for (text, word) in [
            ("[limits]\nmax_conections = 5\n", "limits.max_connections"),
            ("[journal]\nsegment_bytes = \"32MiB\"\n[log]\nlevel = \"debug\"\n", "journal.segment_bytes"),
        ] {
            self.write("/etc/clad/clad.d/20-bad.toml", text)?;
            let (code, said) = self.machine.try_sh("systemctl reload clad")?;
            ensure!(code != 0, "systemctl reported success: {said}");
            let journal = self.machine.said("clad.service")?;
            ensure!(journal.contains("HUP: refused") && journal.contains(word), "no word of {word}:\n{journal}");
            ensure!(self.metric("clad_config_last_reload_successful")? == 0.0, "the metric says yes");
        }
        ensure!(!self.machine.said("clad.service")?.contains("log.level"), "part of a refused file was taken");
        ensure!(self.machine.property("clad.service", "ActiveState")? == "active", "it is not active");
        ensure!(self.main_pid("clad.service")? == pid, "it was restarted");
        self.machine.sh("rm /etc/clad/clad.d/20-bad.toml; systemctl reload clad")?;
        ensure!(self.metric("clad_config_last_reload_successful")? == 1.0, "the metric says no");
        ensure!(
            self.metric("clad_config_last_reload_success_timestamp_seconds")? > reloaded_at,
            "the timestamp stands still"
        );
        self.gets_on()
    }

    fn rotate(&self) -> Result<()> {
        let sealed = || self.metric("clad_segment_rotations_total{trigger=\"command\"}");
        let before = sealed()?;
        self.machine.sh("systemctl kill --signal=USR2 --kill-who=main clad")?;
        until("a sealed segment", || Ok((sealed()? > before).then_some(())))?;
        self.machine.sh("clactl rotate")?;
        ensure!(sealed()? >= before + 2.0, "nothing was sealed by command");
        self.gets_on()
    }

    fn crash(&self) -> Result<()> {
        let (pid, restarts) = (self.main_pid("clad.service")?, self.restarts()?);
        self.machine.sh(&format!("kill -KILL {pid}"))?;
        self.another_than(&pid)?;
        ensure!(self.restarts()? == restarts + 1, "restarted {} times", self.restarts()? - restarts);
        let text = self.machine.property("clad.service", "StatusText")?;
        ensure!(text.contains("| unclean end"), "{text}");
        self.gets_on()
    }

    fn hang(&self) -> Result<()> {
        self.write("/etc/systemd/system/clad.service.d/watchdog.conf", WATCHDOG)?;
        self.machine.sh("systemctl daemon-reload; systemctl restart clad")?;
        let (pid, restarts) = (self.main_pid("clad.service")?, self.restarts()?);
        self.machine.sh(&format!("kill -STOP {pid}"))?;
        self.another_than(&pid)?;
        self.machine.wait_said("clad.service", "Watchdog timeout")?;
        ensure!(self.restarts()? > restarts, "it was not restarted by itself");
        self.machine.sh("rm -r /etc/systemd/system/clad.service.d; systemctl daemon-reload")?;
        self.gets_on()
    }

    fn upgrade(&self) -> Result<()> {
        self.replace(&self.newer)
    }

    fn downgrade(&self) -> Result<()> {
        self.replace(&self.package)
    }

    /// Installs another version than the one that runs.
    fn replace(&self, package: &Path) -> Result<()> {
        let running = || {
            let version = self.machine.sh("dpkg-query --show --showformat '${Version}' clad")?;
            let exe = "/proc/$(systemctl show --value --property MainPID clad)/exe";
            let program = self.machine.sh(&format!("readlink {exe}; sha256sum <{exe}; sha256sum </usr/bin/clad"))?;
            Ok::<_, anyhow::Error>((version, program))
        };
        let (pid, before) = (self.main_pid("clad.service")?, running()?);
        self.machine.sh(&format!("dpkg --install {}", package.display()))?;
        self.another_than(&pid)?;
        let now = running()?;
        let lines: Vec<&str> = now.1.lines().collect();
        ensure!(lines.len() == 3 && lines[0] == "/usr/bin/clad" && lines[1] == lines[2], "it runs {now:?}");
        ensure!(before.0 != now.0 && before.1 != now.1, "it is what it was: {now:?}");
        self.gets_on()
    }

    fn restart(&self) -> Result<()> {
        for _ in 0..3 {
            let pid = self.main_pid("clad.service")?;
            self.machine.sh("systemctl restart clad")?;
            ensure!(self.main_pid("clad.service")? != pid, "it was not restarted");
            let text = self.machine.property("clad.service", "StatusText")?;
            ensure!(text.contains("| clean end"), "{text}");
        }
        self.gets_on()
    }

    fn end_load(&self) -> Result<()> {
        self.write("/srv/trial/stop", "")?;
        let read = |name: String| fs::read_to_string(self.machine.path(&name)).ok();
        for (name, _) in FEEDS {
            let file = |what| read(format!("/srv/trial/feed-{name}.{what}"));
            let code = until(&format!("the end of {name}"), || Ok(file("code")))?;
            ensure!(code.trim() == "0", "{name} ended with {code}: {}", file("out").unwrap_or_default());
            let count: u64 = file("count").context("a count")?.trim().parse()?;
            ensure!(count > 100, "{name} wrote {count} lines only");
            let wanted: String = (1..=count).map(|i| format!("{name} {i}\n")).collect();
            let found = self.machine.sh(&format!("clactl query -o cat --component feed-{name}"))?;
            ensure!(found == wanted, "{name}: {} lines of {count}, or in another order", found.lines().count());
            println!("          {name}: {count} records acknowledged as durable, all there, once, in order");
        }
        let probe = until("the end of the probe", || Ok(read("/srv/trial/probe.out".to_owned())))?;
        let mut parts = probe.splitn(3, ' ');
        let tries: u64 = parts.next().context("tries")?.parse()?;
        ensure!(parts.next() == Some("0"), "connections were refused: {probe}");
        println!("          {tries} connections begun meanwhile, none refused");
        let (code, said) = self.machine.try_sh("clactl verify /var/lib/clad")?;
        ensure!(code == 0, "{said}");
        Ok(())
    }

    fn sees_clients(&self) -> Result<()> {
        let user = "useradd --system --no-create-home caller 2>/dev/null || true";
        let script = format!(
            "{user}\nsetpriv --reuid=caller --regid=caller --clear-groups -- \
             sh -c 'echo who am I | clactl append --component caller'\n\
             id -u caller; clactl query -o json --component caller"
        );
        let said = self.machine.sh(&script)?;
        let uid = said.lines().find(|line| line.parse::<u32>().is_ok()).context("no uid")?;
        let record = said.lines().rev().find(|line| line.starts_with('{')).context("no record")?;
        ensure!(record.contains(&format!("\"uid\":{uid}")), "uid {uid} is not in the record: {record}");
        for key in ["\"pid\":", "start"] {
            ensure!(record.contains(key), "no {key}: {record}");
        }
        let calls = self.machine.property("clad.service", "SystemCallFilter")?;
        for call in ["io_uring_setup", "io_uring_enter", "io_uring_register"] {
            ensure!(calls.split(' ').any(|allowed| allowed == call), "{call} is not allowed: {calls}");
        }
        let limit = self.machine.property("clad.service", "LimitMEMLOCK")?;
        ensure!(limit.parse::<u64>()? >= 64 << 20, "LimitMEMLOCK={limit}");
        Ok(())
    }

    /// Makes an instance that logs on the small file system.
    pub(super) fn instance_on_small(&self, name: &str) -> Result<()> {
        self.write(
            &format!("/etc/clad/{name}.toml"),
            &format!(
                "[journal]\ndir = \"/srv/small/{name}\"\nsegment_bytes = \"1MiB\"\nreserve_free = \"1MiB\"\n\
             [limits]\nmax_append_bytes = \"512KiB\"\n"
            )
            .replace("[limits]", "max_record_bytes = \"256KiB\"\n[limits]"),
        )?;
        self.write(
            &format!("/etc/systemd/system/clad@{name}.service.d/place.conf"),
            "[Service]\nReadWritePaths=/srv/small\nWatchdogSec=3\n",
        )?;
        self.machine
            .sh(&format!("install --directory --owner=clad --group=clad /srv/small/{name}; systemctl daemon-reload"))
            .map(drop)
    }

    pub(super) fn gone(&self, name: &str) -> Result<()> {
        let script = format!(
            "systemctl stop clad@{name}.socket clad@{name}.service || true\n\
             systemctl reset-failed 'clad@{name}.*' || true\n\
             rm -rf /srv/small/{name} /var/lib/clad-{name} /etc/clad/{name}.toml /etc/systemd/system/clad@{name}.*.d\nsystemctl daemon-reload"
        );
        self.machine.sh(&script).map(drop)
    }

    fn frozen_disk(&self) -> Result<()> {
        self.instance_on_small("slow")?;
        self.machine.sh("systemctl start clad@slow; echo before | clactl --instance slow append")?;
        let pid = self.main_pid("clad@slow.service")?;
        output(Command::new("fsfreeze").arg("--freeze").arg(&self.small))?;
        let during = (|| {
            self.machine.sh("systemd-run --quiet --unit=waits sh -c 'echo during | clactl --instance slow append'")?;
            // Four times what the watchdog allows a daemon that does not get on.
            std::thread::sleep(std::time::Duration::from_secs(12));
            let page = self.machine.property("clad@slow.service", "StatusText")?;
            ensure!(page.contains("waiting for the disk"), "no word of it: {page}");
            ensure!(self.main_pid("clad@slow.service")? == pid, "it was killed for the disk's sake");
            ensure!(self.machine.property("waits.service", "ActiveState")? == "active", "the ack came before the disk");
            Ok(())
        })();
        output(Command::new("fsfreeze").arg("--unfreeze").arg(&self.small))?;
        during?;
        self.machine.wait_for("waits.service", "ActiveState", |state| state == "inactive")?;
        ensure!(self.machine.sh("clactl --instance slow query -o cat")? == "before\nduring\n", "not all is there");
        ensure!(self.machine.property("clad@slow.service", "NRestarts")? == "0", "it was restarted");
        self.gone("slow")
    }

    fn instance(&self) -> Result<()> {
        let said = self.machine.sh(&manual::block(&self.root, "instance")?)?;
        ensure!(said.contains("per_message"), "{said}");
        ensure!(said.contains("an audit record"), "{said}");
        let check = self.machine.sh("clad check --instance audit")?;
        for off in ["tcp ", "grpc ", "metrics "] {
            let line = check.lines().find(|line| line.starts_with(off)).context("a line for each listener")?;
            ensure!(line.ends_with("off"), "{check}");
        }
        let files = self.machine.sh("stat --format '%U:%G %a' /var/lib/clad-audit /run/clad-audit/clad.sock")?;
        ensure!(files == "clad:clad 750\nclad:clad 666\n", "{files}");
        ensure!(!self.machine.sh("clactl query -o cat")?.contains("an audit record"), "the logs are one");
        self.machine.sh("systemctl restart clad@audit; echo again | clactl --instance audit append --ack durable")?;
        ensure!(
            self.machine.sh("clactl --instance audit query -o cat")? == "an audit record\nagain\n",
            "not all is there"
        );
        Ok(())
    }

    fn backup(&self) -> Result<()> {
        self.machine.sh("rm -f /srv/trial/stop /srv/trial/feed-*; systemd-run --quiet --unit=feed-more sh /srv/trial/feed.sh unix unix:///run/clad/clad.sock")?;
        self.gets_on()?;
        let backed_up = manual::block(&self.root, "back up").and_then(|block| self.machine.sh(&block));
        let before = self.machine.sh("clactl query -o cat --component feed-unix | wc --lines");
        self.write("/srv/trial/stop", "")?;
        self.machine.wait_for("feed-more.service", "ActiveState", |state| state == "inactive")?;
        let (said, _) = (backed_up?, before?);
        ensure!(said.contains("no damage") || !said.contains("damage"), "{said}");
        // The copy is a prefix of the log: the same records with the same offsets.
        let prefix = self
            .machine
            .sh("clactl query --dir /srv/backup -o json >/srv/trial/copy; clactl query -o json >/srv/trial/all\n\
             n=$(wc --lines </srv/trial/copy); head --lines=$n /srv/trial/all | cmp - /srv/trial/copy; echo $n")?;
        let copied: u64 = prefix.trim().parse()?;
        ensure!(copied > 100, "{copied} records were backed up");
        let said = self.machine.sh(&manual::block(&self.root, "restore")?)?;
        ensure!(said.contains("restored"), "{said}");
        // The same log, further on in its epochs: what it gives again differs from what the original gave.
        let of = |which: &str| self.machine.sh(&format!("clactl {which} status -o json"));
        let field = |status: &str, name: &str| -> Result<String> {
            let (_, rest) = status.split_once(&format!("\"{name}\":")).with_context(|| format!("no {name}"))?;
            Ok(rest.trim_start().chars().take_while(|c| !",}".contains(*c)).collect())
        };
        let (original, restored) = (of("")?, of("--instance restored")?);
        ensure!(field(&original, "log_id")? == field(&restored, "log_id")?, "it is another log");
        let (before, now) = (field(&original, "epoch")?.parse::<u32>()?, field(&restored, "epoch")?.parse::<u32>()?);
        ensure!(now > before, "epoch {now} after {before}");
        ensure!(field(&restored, "durable")? == copied.to_string(), "not all of the copy is served: {restored}");
        println!("          {copied} records backed up while it ran, and served again elsewhere");
        self.machine.sh("systemctl stop clad@restored.socket clad@restored.service").map(drop)
    }

    fn boot_order(&mut self) -> Result<()> {
        self.machine.sh("systemctl stop clad.socket clad.service")?;
        let said = self.machine.said("clad.service")?;
        ensure!(said.contains("clean end"), "{said}");
        // A service that logs at once, and says nothing of clad in its unit.
        self.write(
            "/etc/systemd/system/early.service",
            "[Service]\nType=oneshot\nExecStart=sh -c 'echo early words | clactl append --component early --ack durable'\n\
             [Install]\nWantedBy=multi-user.target\n",
        )?;
        self.machine.sh("systemctl enable --quiet early")?;
        self.machine.power_off()?;
        self.machine.boot()?;
        ensure!(
            self.machine.property("early.service", "Result")? == "success",
            "{}",
            self.machine.said("early.service")?
        );
        ensure!(self.machine.sh("clactl query -o cat --component early")? == "early words\n", "it is not there");
        let failed = self.machine.sh("systemctl list-units --state=failed --plain --no-legend --all 'clad*'")?;
        ensure!(failed.trim().is_empty(), "{failed}");
        let text = self.machine.property("clad.service", "StatusText")?;
        ensure!(text.contains("| clean end"), "{text}");
        // Removing it stops it and leaves the log.
        self.machine.sh(
            "dpkg --remove clad; test -e /var/lib/clad/clad.meta; ! systemctl is-active clad.service clad.socket",
        )?;
        self.machine.power_off()
    }
}
