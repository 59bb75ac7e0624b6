//! What the journal of a booted host has, and its files, through the relay and through `systemd-journal-upload`, by the
//! manual's commands.
//!
//! In a unit's sandbox on this machine /proc says another boot than the journal does: a relay that followed the running boot
//! alone would get nothing, and on a host lose what came last before a boot.
//!
//! Invariants: each message is there once, whoever was killed. Afterwards the host is as it was.

use anyhow::{Context, Result, ensure};

use super::booted::Booted;
use super::machine::until;
use super::manual;

/// Messages of this program are there, so many and each once.
fn arrive(booted: &Booted, component: &str, count: usize) -> Result<()> {
    let mut last = String::new();
    until(&format!("{count} messages of {component}"), || {
        last = booted.machine.sh(&format!("clactl query -o cat --component {component}"))?;
        Ok((last.lines().count() >= count).then_some(()))
    })
    .with_context(|| {
        let said = "{ systemctl --no-pager status 'clad-relay@*'; journalctl --no-pager -n 2 -o export; } 2>&1 || true";
        format!("{last}{}", booted.machine.sh(said).unwrap_or_default())
    })?;
    let mut lines: Vec<&str> = last.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    let whole = || booted.machine.sh(&format!("clactl query -o json --component {component} | tail -30"));
    ensure!(lines.len() == count && last.lines().count() == count, "{last}{}", whole()?);
    Ok(())
}

/// A relay has said that it stands somewhere.
fn begins(booted: &Booted, unit: &str, words: &str) -> Result<()> {
    let begun = || Ok(booted.machine.sh("clactl query -o cat --component clad-relay")?.contains(words).then_some(()));
    until("a record of the relay's own", begun)
        .with_context(|| booted.machine.sh(&format!("journalctl --unit={unit} | tail -20")).unwrap_or_default())
}

/// Says so many messages to the journal as this program.
fn say(booted: &Booted, component: &str, numbers: &str) -> Result<()> {
    let script = format!("for n in $(seq {numbers}); do logger --tag {component} \"message $n\"; done");
    booted.machine.sh(&script).map(drop)
}

pub(super) fn from_the_journal(booted: &Booted) -> Result<()> {
    let machine = &booted.machine;
    machine.sh(&format!("dpkg --install {}", booted.relay.display()))?;
    machine.sh(&manual::block(&booted.root, "relay from the journal")?)?;
    begins(booted, "clad-relay@journal", "from here on")?;
    say(booted, "journaled-once", "1 20")?;
    arrive(booted, "journaled-once", 20)?;
    for (round, victim) in
        ["clad-relay@journal.service", "clad.service", "clad-relay@journal.service"].iter().enumerate()
    {
        machine.sh(&format!("systemctl kill --signal=KILL {victim}"))?;
        say(booted, "journaled-once", &format!("{} {}", 21 + 20 * round, 40 + 20 * round))?;
        arrive(booted, "journaled-once", 40 + 20 * round)?;
    }
    let said = machine.sh("clactl query -o json --component journaled-once | head -1")?;
    ensure!(said.contains("clad.source.cursor") && said.contains("journald._BOOT_ID"), "{said}");
    machine.sh("systemctl disable --now clad-relay@journal.service").map(drop)
}

pub(super) fn from_files(booted: &Booted) -> Result<()> {
    let machine = &booted.machine;
    machine.sh("mkdir -p /var/log/app && chgrp adm /var/log/app && chmod 750 /var/log/app")?;
    machine.sh(&manual::block(&booted.root, "relay from files")?)?;
    begins(booted, "clad-relay@app", "places of")?;
    machine.sh("umask 027; seq -f 'line %g' 1 100 > /var/log/app/a.log; chgrp adm /var/log/app/a.log")?;
    arrive(booted, "app", 100)?;
    machine.sh(
        "cd /var/log/app && mv a.log a.log.1 && umask 027 && seq -f 'line %g' 101 200 > a.log && chgrp adm a.log",
    )?;
    machine.sh("systemctl kill --signal=KILL clad-relay@app.service")?;
    arrive(booted, "app", 200)?;
    machine.sh("systemctl disable --now clad-relay@app.service && rm -r /var/log/app").map(drop)
}

pub(super) fn by_upload(booted: &Booted) -> Result<()> {
    let machine = &booted.machine;
    say(booted, "uploaded-once", "1 20")?;
    machine.sh(&manual::block(&booted.root, "journal upload")?)?;
    arrive(booted, "uploaded-once", 20)?;
    // Its state is gone: it sends all of the journal again.
    machine.sh("systemctl stop systemd-journal-upload.service; rm -f /var/lib/systemd/journal-upload/state")?;
    machine.sh("systemctl start systemd-journal-upload.service")?;
    say(booted, "uploaded-once", "21 30")?;
    arrive(booted, "uploaded-once", 30)?;
    machine
        .sh("systemctl disable --now systemd-journal-upload.service; rm /etc/systemd/journal-upload.conf.d/clad.conf")
        .map(drop)
}
