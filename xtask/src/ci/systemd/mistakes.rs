//! Mistakes of operators, and the remedies that the journal names.
//!
//! Invariants: what cannot be mended by waiting ends in 78 and is not tried again; what can goes on by itself once it
//! was mended.

use anyhow::{Result, ensure};

use super::booted::Booted;

impl Booted {
    /// Starts an instance that must not start, and answers what its journal says.
    fn refused(&self, name: &str, code: &str) -> Result<String> {
        let unit = format!("clad@{name}.service");
        let (started, _) = self.machine.try_sh(&format!("systemctl start {unit}"))?;
        ensure!(started != 0, "it was started");
        let found = self.machine.property(&unit, "ExecMainStatus")?;
        ensure!(found == code, "it ended with {found}\n{}", self.machine.said(&unit)?);
        self.machine.said(&unit)
    }

    /// It stays down: nothing is tried again on 78.
    fn stays_down(&self, name: &str) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(2500)); // RestartSec= is 1 s
        let unit = format!("clad@{name}.service");
        ensure!(self.machine.property(&unit, "NRestarts")? == "0", "it was started again");
        ensure!(self.machine.property(&unit, "ActiveState")? == "failed", "it has not failed");
        self.gone(name)
    }

    pub(super) fn damaged_config(&self) -> Result<()> {
        self.write(
            "/etc/clad/damaged.toml",
            "[journal]\ndurabilty = \"group_commit\"\n[limits]\nmax_producers = \"many\"\n",
        )?;
        let said = self.refused("damaged", "78")?;
        for word in ["/etc/clad/damaged.toml:2", "nearest valid key: `journal.durability`", "limits.max_producers"] {
            ensure!(said.contains(word), "no word of {word}:\n{said}");
        }
        self.stays_down("damaged")
    }

    pub(super) fn no_config(&self) -> Result<()> {
        let said = self.refused("nobody", "78")?;
        ensure!(said.contains("cannot read /etc/clad/nobody.toml"), "{said}");
        self.stays_down("nobody")
    }

    pub(super) fn no_start_loop(&self) -> Result<()> {
        self.write("/etc/clad/waited.toml", "[journal]\ndurability = \"wishful\"\n")?;
        self.machine.sh("systemctl start clad@waited.socket")?;
        self.machine.try_sh("echo x | timeout 10 clactl --instance waited append")?;
        self.machine.wait_for("clad@waited.socket", "ActiveState", |state| state == "failed")?;
        let said = self.machine.said("clad@waited.service")?;
        let starts = said.matches("status=78/CONFIG").count();
        ensure!((1..=6).contains(&starts), "{starts} starts:\n{said}");
        self.gone("waited")
    }

    pub(super) fn strange_socket(&self) -> Result<()> {
        self.write("/etc/clad/strange.toml", "")?;
        self.write("/etc/systemd/system/clad@strange.socket.d/more.conf", "[Socket]\nListenStream=127.0.0.1:7999\n")?;
        self.machine.sh("systemctl daemon-reload")?;
        let said = self.refused("strange", "78")?;
        ensure!(said.contains("holds 127.0.0.1:7999") && said.contains("ListenStream="), "{said}");
        self.stays_down("strange")
    }

    pub(super) fn missing_folder(&self) -> Result<()> {
        self.write("/etc/clad/missing.toml", "[journal]\ndir = \"/srv/none/log\"\n")?;
        let said = self.refused("missing", "1")?;
        ensure!(said.contains("make the data folder /srv/none/log"), "{said}");
        ensure!(said.contains("ReadWritePaths=/srv/none/log"), "{said}");
        self.gone("missing")
    }

    pub(super) fn wrong_owner(&self) -> Result<()> {
        self.write("/etc/clad/owner.toml", "")?;
        // As after a restore, or a run by hand, as root.
        self.machine.sh("systemctl start clad@owner; systemctl stop clad@owner.socket clad@owner; chown root:root /var/lib/clad-owner/*")?;
        let said = self.refused("owner", "1")?;
        ensure!(said.contains("belongs to root:root") && said.contains("chown -R clad: /var/lib/clad-owner"), "{said}");
        self.machine.sh("chown -R clad: /var/lib/clad-owner")?;
        // It is tried again every second, and that is all that it needs.
        self.machine.wait_for("clad@owner.service", "ActiveState", |state| state == "active")?;
        self.gone("owner")
    }

    pub(super) fn full_disk(&self) -> Result<()> {
        self.instance_on_small("full")?;
        self.machine.sh("systemctl start clad@full; echo one | clactl --instance full append --ack durable")?;
        self.machine.try_sh("dd if=/dev/zero of=/srv/small/filler bs=64k 2>/dev/null; sync")?;
        // What the active segment holds is taken; then appends are refused, and it says so.
        self.machine.sh("systemd-run --quiet --unit=fills sh -c 'head --bytes=4M /dev/zero | tr \"\\000\" x | fold --width=1000 | clactl --instance full append'")?;
        self.machine.wait_said("clad@full.service", "no space for another segment")?;
        let said = self.machine.said("clad@full.service")?;
        ensure!(said.contains("Free space on the file system") && said.contains("[retention]"), "{said}");
        self.machine
            .wait_for("clad@full.service", "StatusText", |text| text.contains("no space for another segment"))?;
        ensure!(self.machine.property("clad@full.service", "NRestarts")? == "0", "it was restarted");
        // A log that does not even begin says so as well, and keeps trying.
        self.instance_on_small("fuller")?;
        self.machine.try_sh("dd if=/dev/zero of=/srv/small/filler2 bs=512 2>/dev/null; sync")?;
        self.machine.try_sh("systemctl start --no-block clad@fuller")?;
        self.machine.wait_said("clad@fuller.service", "free space on the file system of /srv/small/fuller")?;
        self.machine.sh("rm /srv/small/filler /srv/small/filler2")?;
        self.machine.wait_for("clad@fuller.service", "ActiveState", |state| state == "active")?;
        self.machine.wait_for("fills.service", "ActiveState", |state| state == "inactive")?;
        self.machine.sh("test $(clactl --instance full query -o cat | wc --bytes) -ge 4194304")?;
        self.gone("fuller")?;
        self.gone("full")
    }
}
