//! Slow cases, and facts that only the kernel reports: rings under the unit's limits, rings of shared memory in the
//! descriptor store, clients that wait for a daemon, a start that outlasts the service manager's timeout.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::booted::Booted;
use super::machine::until;

/// The service manager's timeout for a start, and how long this one takes: the daemon asks for more while it lasts.
const START_TIMEOUT_SECONDS: u64 = 3;
const SLOW_START_SECONDS: u64 = 20;

impl Booted {
    /// The unit's own lists of system calls and its limit of locked memory, tried by what needs them.
    pub(super) fn ring(&self) -> Result<()> {
        self.write("/etc/clad/ring.toml", "[journal]\nio_engine = \"uring\"\n")?;
        self.machine
            .sh("systemctl start clad@ring; echo through a ring | clactl --instance ring append --ack durable")?;
        let status = self.machine.sh("clactl --instance ring status -o json")?;
        ensure!(status.contains("\"io_engine\":\"uring\""), "no ring: {status}");
        ensure!(status.contains("\"io_fallbacks\":[]"), "not all of it is permitted: {status}");
        let found = self.machine.sh("clactl --instance ring query -o cat")?;
        ensure!(found == "through a ring\n", "{found}");
        self.gone("ring")
    }

    /// Client and daemon die, in this order, with records that nobody has drained: who runs next has them from the store.
    pub(super) fn posted_by_the_dead(&self) -> Result<()> {
        const UNIT: &str = "clad@dead.service";
        fs::copy(&self.ring_tests, self.machine.path("/srv/trial/ring-tests")).context("the client")?;
        self.write("/etc/clad/dead.toml", "")?;
        self.machine.sh("systemctl start clad@dead")?;
        let mut said = Vec::new();
        for round in 0..2 {
            let (unit, out) = (format!("poster-{round}"), format!("/srv/trial/poster-{round}.out"));
            self.machine.sh(&format!(
                "systemd-run --quiet --unit={unit} --setenv=CLAD_RINGS_SERVER='shm:///run/clad-dead/clad.sock {unit}' sh -c \
                 'exec /srv/trial/ring-tests death::the_client --exact --nocapture >{out}'"
            ))?;
            let posted = || {
                Ok::<_, anyhow::Error>(last_posted(&fs::read_to_string(self.machine.path(&out)).unwrap_or_default()))
            };
            until("a client that posts", || Ok((posted()? > 100).then_some(())))?;
            ensure!(self.stored(UNIT)? == 1, "{} descriptors of one ring are stored", self.stored(UNIT)?);
            let pid = self.main_pid(UNIT)?;
            self.machine.sh(&format!("kill -STOP {pid}"))?;
            let before = posted()?;
            until("more posts, to a daemon that stands still", || Ok((posted()? > before + 200).then_some(())))?;
            self.machine.sh(&format!("systemctl kill --signal=KILL --kill-who=all {unit}"))?;
            self.machine.wait_for(&format!("{unit}.service"), "ActiveState", |state| state != "active")?;
            said.push((unit, posted()?));
            let bad = round == 1;
            if bad {
                self.write("/etc/clad/dead.toml", "[limits]\nmax_connections = 0\n")?;
            }
            let tries = || Ok::<_, anyhow::Error>(self.machine.property(UNIT, "NRestarts")?.parse::<u32>()?);
            let before = tries()?;
            self.machine.sh(&format!("kill -KILL {pid}"))?;
            if bad {
                // A bad configuration is no end of it, for with the unit the store would go.
                until("three starts that fail", || Ok((tries()? >= before + 3).then_some(())))?;
                // While one of them runs there is no status yet.
                let status = || self.machine.property(UNIT, "ExecMainStatus");
                until("an exit code of 1", || Ok((status()? == "1").then_some(())))?;
                ensure!(self.stored(UNIT)? == 1, "{} descriptors are stored after that", self.stored(UNIT)?);
                self.write("/etc/clad/dead.toml", "")?;
            }
            self.machine.wait_for(UNIT, "MainPID", |now| now != pid && now != "0")?;
            self.machine.wait_for(UNIT, "ActiveState", |state| state == "active")?;
            until("an empty store", || Ok((self.stored(UNIT)? == 0).then_some(())))?;
        }
        let all = self
            .machine
            .sh("echo last | clactl --instance dead append --ack written; clactl --instance dead query -o cat")?;
        for (client, posted) in said {
            let found: Vec<&str> = all.lines().filter(|line| line.starts_with(&format!("{client}:"))).collect();
            ensure!(
                found.iter().zip(0..).all(|(line, n)| *line == format!("{client}:{n}")),
                "{client}: not once and in order"
            );
            ensure!(found.len() as u64 >= posted, "{client}: {posted} were posted, {} are there", found.len());
            println!(
                "          {posted} records posted by one that died before the daemon did, all there, once, in order"
            );
        }
        self.gone("dead")
    }

    /// Descriptors in the store of a unit.
    fn stored(&self, unit: &str) -> Result<u32> {
        Ok(self.machine.property(unit, "NFileDescriptorStore")?.parse()?)
    }

    /// A store with room for one ring, and then for none: a ring that is not stored serves every level but `posted`, which is
    /// refused with the reason.
    pub(super) fn store_is_full(&self) -> Result<()> {
        const UNIT: &str = "clad@narrow.service";
        const SHM: &str = "shm:///run/clad-narrow/clad.sock";
        self.write("/etc/clad/narrow.toml", "")?;
        for (room, rings) in [(2, 1), (1, 0), (0, 0)] {
            let text = format!("[Service]\nFileDescriptorStoreMax={room}\n");
            self.write("/etc/systemd/system/clad@narrow.service.d/store.conf", &text)?;
            self.machine.sh("rm -f /srv/trial/stop; systemctl daemon-reload; systemctl restart clad@narrow")?;
            self.machine
                .sh(&format!("systemd-run --quiet --unit=feed-narrow sh /srv/trial/feed.sh narrow {SHM} received"))?;
            let feeds =
                || self.machine.sh("clactl --instance narrow query -o cat --component feed-narrow | wc --lines");
            let before: u64 = feeds()?.trim().parse()?;
            until("a record of the first", || Ok((feeds()?.trim().parse::<u64>()? > before).then_some(())))?;
            ensure!(self.stored(UNIT)? == rings, "room for {room}: {} descriptors are stored", self.stored(UNIT)?);
            let refused =
                |n: usize| Ok::<_, anyhow::Error>(self.machine.said(UNIT)?.matches("its store is full").count() >= n);
            let (code, words) =
                self.machine.try_sh(&format!("echo second | clactl append --server {SHM} --ack durable"))?;
            ensure!(code == 0 && refused(1)?, "room for {room}: the second ended with {code}: {words}");
            let (code, words) =
                self.machine.try_sh(&format!("echo third | clactl append --server {SHM} --ack posted"))?;
            let is_refused = code == 1 && words.contains("`posted` needs a ring that is stored");
            ensure!(is_refused, "room for {room}: `posted` in a ring that is not stored: {code}: {words}");
            ensure!(self.stored(UNIT)? == rings, "room for {room}: what was not whole is still stored");
            self.write("/srv/trial/stop", "")?;
            self.machine.wait_for("feed-narrow.service", "ActiveState", |state| state != "active")?;
        }
        self.gone("narrow")
    }

    /// A client posts while the daemon is stopped in the middle, so that records lie in its ring alone; the daemon is
    /// killed, and who runs next has the ring from the service manager.
    pub(super) fn posted(&self) -> Result<()> {
        const UNIT: &str = "clad@posted.service";
        self.write("/etc/clad/posted.toml", "")?;
        self.machine
            .sh("rm -f /srv/trial/stop; systemctl start clad@posted; systemd-run --quiet --unit=feed-posted \
             sh /srv/trial/feed.sh posted shm:///run/clad-posted/clad.sock posted")?;
        let found = || self.machine.sh("clactl --instance posted query -o cat");
        let lines = || Ok::<_, anyhow::Error>(found()?.lines().count());
        for killed in 1..=2 {
            let before = lines()?;
            until("a drained record", || Ok((lines()? > before + 20).then_some(())))?;
            let stored = self.machine.property(UNIT, "NFileDescriptorStore")?;
            ensure!(stored.parse::<u32>()? > 0, "nothing lies in the descriptor store");
            let pid = self.main_pid(UNIT)?;
            self.machine.sh(&format!("kill -STOP {pid}; sleep 0.3; kill -KILL {pid}"))?;
            self.machine.wait_for(UNIT, "MainPID", |now| now != pid && now != "0")?;
            self.machine.wait_for(UNIT, "ActiveState", |state| state == "active")?;
            let said = self.machine.said(UNIT)?;
            let gone_on = said.matches("rings of an earlier daemon go on").count();
            ensure!(gone_on == killed, "after {killed} kills, rings went on {gone_on} times:\n{said}");
        }
        self.write("/srv/trial/stop", "")?;
        let file = |what| fs::read_to_string(self.machine.path(&format!("/srv/trial/feed-posted.{what}"))).ok();
        let code = until("the end of the client", || Ok(file("code")))?;
        ensure!(code.trim() == "0", "it ended with {code}: {}", file("out").unwrap_or_default());
        let count: u64 = file("count").context("a count")?.trim().parse()?;
        let wanted: String = (1..=count).map(|i| format!("posted {i}\n")).collect();
        let all = found()?;
        ensure!(all == wanted, "{} lines of {count}, or in another order", all.lines().count());
        println!("          {count} records posted over two kills, all there, once, in order");
        self.gone("posted")
    }

    /// The service is stopped, its socket is not: who connects starts it, and what was sent meanwhile is read.
    pub(super) fn waits_in_the_socket(&self) -> Result<()> {
        self.write("/etc/clad/waits.toml", "")?;
        self.machine.sh("systemctl start clad@waits.socket")?;
        ensure!(self.machine.property("clad@waits.service", "ActiveState")? == "inactive", "it runs already");
        // Three at once, before there ever was a daemon; and again behind one that was killed, in the second before the next.
        let three = "for n in 1 2 3; do echo $n | clactl --instance waits append --ack durable & done; wait";
        self.machine.sh(three)?;
        let pid = self.main_pid("clad@waits.service")?;
        self.machine.sh(&format!("kill -KILL {pid}; {three}"))?;
        ensure!(self.main_pid("clad@waits.service")? != pid, "it is the same process");
        let found = self.machine.sh("clactl --instance waits query -o cat | sort")?;
        ensure!(found == "1\n1\n2\n2\n3\n3\n", "{found}");
        self.gone("waits")
    }

    /// Somebody holds what a write of a dead process would hold: the start waits, for longer than systemd would.
    pub(super) fn long_start(&self) -> Result<()> {
        self.write("/etc/clad/long.toml", "")?;
        let drop_in = format!("[Service]\nTimeoutStartSec={START_TIMEOUT_SECONDS}\n");
        self.write("/etc/systemd/system/clad@long.service.d/timeout.conf", &drop_in)?;
        self.machine
            .sh("systemctl daemon-reload; systemctl start clad@long; echo one | clactl --instance long append")?;
        let pid = self.main_pid("clad@long.service")?;
        let lock = format!(
            "systemd-run --quiet --unit=holds flock --shared /var/lib/clad-long/00000000000000000000.clog sleep {SLOW_START_SECONDS}"
        );
        self.machine.sh(&format!("kill -KILL {pid}; {lock}"))?;
        self.machine.wait_for("clad@long.service", "StatusText", |text| text.contains("waiting for a dead process"))?;
        let starting = self.main_pid("clad@long.service")?;
        std::thread::sleep(Duration::from_secs(START_TIMEOUT_SECONDS + 2));
        ensure!(self.machine.property("clad@long.service", "ActiveState")? == "activating", "it does not wait");
        self.machine.wait_for("clad@long.service", "ActiveState", |state| state == "active")?;
        ensure!(self.main_pid("clad@long.service")? == starting, "the start was ended, and another tried");
        let text = self.machine.property("clad@long.service", "StatusText")?;
        ensure!(text.contains("unclean end"), "{text}");
        ensure!(self.machine.sh("clactl --instance long query -o cat")? == "one\n", "not all is there");
        self.gone("long")
    }
}

/// How many a client has said are posted.
fn last_posted(out: &str) -> u64 {
    let whole = out.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let last = whole.lines().rev().find_map(|line| line.strip_prefix("posted ")?.parse::<u64>().ok());
    last.map_or(0, |number| number + 1)
}
