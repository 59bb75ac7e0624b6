//! clad as the syslog of a host, by the manual's commands: behind the journal, at `/dev/log`, at a port that only root has.
//!
//! Invariants: each message is there with its sender's pid, as the kernel or the journal says it. Afterwards the host is as it was.

use anyhow::{Context, Result, ensure};

use super::booted::Booted;
use super::machine::until;
use super::manual;

/// Messages of a program, each with the pid that sent it: what logger was called with, and what is stored.
fn arrives(booted: &Booted, tag: &str, logger: &str) -> Result<()> {
    let machine = &booted.machine;
    // It lives on for a while: the journal passes its own pid on for a sender that is gone.
    let script = format!("{{ echo 'a message of {tag}'; sleep 2; }} | sh -c 'echo $$; exec {logger} --tag {tag}'");
    let said = machine.sh(&script)?;
    let pid = said.trim();
    let mut last = String::new();
    until(&format!("a message of {tag}"), || {
        last = machine.sh(&format!("clactl query -o json --component {tag}"))?;
        Ok((!last.is_empty()).then_some(()))
    })?;
    ensure!(last.lines().count() == 1, "{last}");
    ensure!(last.contains(&format!("\"a message of {tag}\"")), "{last}");
    if logger == "logger" {
        ensure!(last.contains(&format!("\"pid\":{pid}")), "the sender was {pid}: {last}");
    }
    Ok(())
}

pub(super) fn behind_the_journal(booted: &Booted) -> Result<()> {
    booted.machine.sh(&manual::block(&booted.root, "syslog of the journal")?)?;
    arrives(booted, "journaled", "logger")?;
    let clean = "systemctl disable clad-syslog.socket && systemctl stop clad-syslog.socket clad.socket clad.service\n\
                 rm /etc/clad/clad.d/syslog.toml; systemctl start clad.socket clad.service";
    booted.machine.sh(clean).map(drop)
}

pub(super) fn at_dev_log(booted: &Booted) -> Result<()> {
    booted.machine.sh(&manual::block(&booted.root, "syslog at /dev/log")?)?;
    arrives(booted, "direct", "logger")?;
    // A restart loses nothing: systemd holds the socket meanwhile.
    booted.machine.sh("systemctl stop clad.service; logger --tag meanwhile early; systemctl start clad.service")?;
    until("what came while nobody ran", || {
        let said = booted.machine.sh("clactl query -o cat --component meanwhile")?;
        Ok((said == "early\n").then_some(()))
    })?;
    let machine = &booted.machine;
    machine.sh(&manual::block(&booted.root, "syslog back")?)?;
    machine.sh("logger --tag afterwards text")?;
    until("the journal's own message", || {
        Ok(machine.sh("journalctl --identifier=afterwards --output=cat")?.contains("text").then_some(()))
    })
    .context("the journal does not have /dev/log again")
}

pub(super) fn at_a_port_of_root(booted: &Booted) -> Result<()> {
    let config = "[ingest.syslog.udp]\nlisten = \"udp://127.0.0.1:514\"\n[ingest.syslog.tcp]\nlisten = \"tcp://127.0.0.1:514\"\n";
    booted.machine.sh("mkdir -p /etc/clad/clad.d")?;
    booted.write("/etc/clad/clad.d/port.toml", config)?;
    booted.machine.sh(&manual::block(&booted.root, "syslog ports")?)?;
    arrives(booted, "by-udp", "logger --udp --server 127.0.0.1 --port 514")?;
    arrives(booted, "by-tcp", "logger --tcp --server 127.0.0.1 --port 514")?;
    let clean = "rm /etc/clad/clad.d/port.toml /etc/systemd/system/clad.socket.d/syslog.conf; systemctl daemon-reload\n\
                 systemctl stop clad.socket clad.service; systemctl start clad.socket clad.service";
    booted.machine.sh(clean).map(drop)
}
