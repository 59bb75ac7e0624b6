//! What takes long, and what is only told by the kernel: rings under the unit's limits, rings of shared memory in the
//! descriptor store, clients that wait for a daemon, a start that outlasts the service manager's patience.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::booted::Booted;
use super::machine::until;

/// The service manager's patience with a start, and how long this one takes: the daemon asks for more while it lasts.
const PATIENCE: u64 = 3;
const TAKES: u64 = 9;

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
        let drop_in = format!("[Service]\nTimeoutStartSec={PATIENCE}\n");
        self.write("/etc/systemd/system/clad@long.service.d/patience.conf", &drop_in)?;
        self.machine
            .sh("systemctl daemon-reload; systemctl start clad@long; echo one | clactl --instance long append")?;
        let pid = self.main_pid("clad@long.service")?;
        let lock = format!(
            "systemd-run --quiet --unit=holds flock --shared /var/lib/clad-long/00000000000000000000.clog sleep {TAKES}"
        );
        self.machine.sh(&format!("kill -KILL {pid}; {lock}"))?;
        self.machine.wait_for("clad@long.service", "StatusText", |text| text.contains("waiting for a dead process"))?;
        let starting = self.main_pid("clad@long.service")?;
        std::thread::sleep(Duration::from_secs(PATIENCE + 2));
        ensure!(self.machine.property("clad@long.service", "ActiveState")? == "activating", "it does not wait");
        self.machine.wait_for("clad@long.service", "ActiveState", |state| state == "active")?;
        ensure!(self.main_pid("clad@long.service")? == starting, "the start was ended, and another tried");
        let text = self.machine.property("clad@long.service", "StatusText")?;
        ensure!(text.contains("unclean end"), "{text}");
        ensure!(self.machine.sh("clactl --instance long query -o cat")? == "one\n", "not all is there");
        self.gone("long")
    }
}
