//! Dashboards and alerts on a real Prometheus that scrapes a real clad.
//!
//! Invariants: the rules are those of the mixin, with shorter times; each query gives data, each alert is
//! raised by its fault in earnest and ends after it; each case has a Prometheus and a clad of its own, on ports of the
//! loopback that they find themselves. The cases are the tests in `e2e/tests/prometheus`. Where Prometheus is not
//! installed, its package is unpacked below the build folder: installing it would start a service.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::disk::{EXT4, Kind, WRITE_BACK, built_tests, call, faketime, is_root, on, passes};
use super::{Run, apt, has, need, output, target};
use crate::mixin;

/// A case: what is shown, the test that shows it, and what that wants for itself.
struct Case {
    name: &'static str,
    test: &'static str,
    wants: Wants,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Nothing,
    /// A file system.
    Mount,
    /// A daemon whose clock can be set.
    Clock,
}

const fn plain(name: &'static str, test: &'static str) -> Case {
    Case { name, test, wants: Wants::Nothing }
}

const fn mounted(name: &'static str, test: &'static str) -> Case {
    Case { name, test, wants: Wants::Mount }
}

/// The longest first: they wait for Prometheus's windows most of the time, and so run side by side.
const CASES: [Case; 20] = [
    mounted("a disk that gets full", "disks::a_disk_that_gets_full"),
    mounted("a disk that hangs, and one that is slow", "disks::a_disk_that_hangs_and_one_that_is_slow"),
    plain("a daemon that is killed", "faults::a_daemon_that_is_killed"),
    plain("records that a start finds lost", "faults::records_that_a_start_finds_lost"),
    plain("rings that are cut off, and not stored", "rings::are_cut_off_and_not_stored"),
    plain("rings that wait for larger segments", "rings::wait_for_larger_segments"),
    plain(
        "a relay that is killed, waits, or has lost its file",
        "relay::a_relay_that_is_killed_waits_or_has_lost_its_file",
    ),
    plain("a journalctl that ends again and again", "relay::a_journalctl_that_ends_again_and_again"),
    plain(
        "a relay's destination that is away, and one that refuses",
        "relay::a_destination_that_is_away_and_one_that_refuses",
    ),
    plain("records of a relay that are refused", "relay::records_of_a_relay_that_are_refused"),
    Case {
        name: "a clock that jumps under retention by age",
        test: "clock::jumps_under_retention_by_age",
        wants: Wants::Clock,
    },
    plain("a device that gives errors", "disks::a_device_that_gives_errors"),
    plain("a cursor that stays behind", "faults::a_cursor_that_stays_behind"),
    plain("writes that fail", "faults::writes_that_fail"),
    plain("a byte that is flipped", "faults::a_byte_that_is_flipped"),
    plain("a configuration that is refused", "faults::a_configuration_that_is_refused"),
    plain("a certificate that ends, or is refused", "faults::a_certificate_that_ends_or_is_refused"),
    plain("memory that may not be locked", "faults::memory_that_may_not_be_locked"),
    plain("rotations that nobody can prepare for", "faults::rotations_that_nobody_can_prepare_for"),
    plain("every panel and every rule gives data, and nothing fires", "queries::every_panel_and_every_rule_gives_data"),
];
/// So many at a time.
const SIDE_BY_SIDE: usize = 7;

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.no_args()?;
    let root = run.root.clone();
    let programs = Programs::find(&root)?;
    let rules = tempfile::Builder::new().prefix("clad-mixin-").tempdir().context("no temporary folder")?;
    mixin::write_shorter(&root, rules.path())?;
    run.case("promtool takes the rules, as they are and with shorter times", || {
        for folder in [mixin::folder(&root), rules.path().to_owned()] {
            for name in mixin::RULES {
                output(Command::new(&programs.promtool).args(["check", "rules"]).arg(folder.join(name)))?;
            }
        }
        Ok(())
    });
    run.case("each alert waits, fires and ends, at the real pace", || {
        let tests = mixin::folder(&root).join("tests/alerts.yaml");
        output(Command::new(&programs.promtool).args(["test", "rules"]).arg(tests)).map(drop)
    });
    let faketime = faketime(&root)?;
    let tests = built_tests(&root, "prometheus")?;
    let relay = super::relay::built(&root)?;
    for program in ["prlimit", "setpriv"] {
        need(program, &["util-linux"])?;
    }
    need("fsfreeze", &["util-linux"])?;
    need("mkfs.ext4", &["e2fsprogs"])?;
    need("losetup", &["mount", "util-linux"])?;
    let one = |case: &Case| {
        let go = |point: Option<&Path>| {
            let mut command = call(&tests, case.test, point);
            if case.wants == Wants::Clock {
                faketime.over(&mut command);
            }
            command.env("CLAD_RELAY", &relay);
            passes(command.env("CLAD_PROMETHEUS", &programs.prometheus).env("CLAD_PROMETHEUS_RULES", rules.path()))
        };
        if case.wants != Wants::Mount {
            return go(None);
        }
        ensure!(is_root()?, "only root can mount");
        on(&Kind::Loop { make: EXT4, mebibytes: 32, sector: 512, cache: WRITE_BACK, options: "rw" }, |point| {
            go(Some(point))
        })
    };
    let next = AtomicUsize::new(0);
    let ended: Vec<OnceLock<Result<()>>> = CASES.iter().map(|_| OnceLock::new()).collect();
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some((case, slot)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    CASES.get(at).zip(ended.get(at))
                } {
                    let _ = slot.set(one(case));
                }
            });
        }
    });
    for (case, slot) in CASES.iter().zip(ended) {
        run.case(case.name, || slot.into_inner().context("it was not run")?);
    }
    Ok(())
}

/// Prometheus and its tool.
struct Programs {
    prometheus: PathBuf,
    promtool: PathBuf,
}

impl Programs {
    /// Those of the host, or those of Debian's package.
    fn find(root: &Path) -> Result<Self> {
        if has("prometheus") && has("promtool") {
            return Ok(Self { prometheus: "prometheus".into(), promtool: "promtool".into() });
        }
        let folder = target(root).join("ci/prometheus");
        let bin = folder.join("usr/bin");
        let found = Self { prometheus: bin.join("prometheus"), promtool: bin.join("promtool") };
        if !(found.prometheus.is_file() && found.promtool.is_file()) {
            println!("  prometheus is missing: unpacking Debian's package below the build folder");
            unpack(&folder)?;
        }
        // That they run here at all is better said once than by each case.
        for program in [&found.prometheus, &found.promtool] {
            output(Command::new(program).arg("--version"))?;
        }
        Ok(found)
    }
}

fn unpack(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let download = || output(apt().current_dir(folder).args(["download", "--quiet", "prometheus"]));
    if download().is_err() {
        // The lists of packages may be missing, or name a version that is gone.
        output(apt().args(["update", "--quiet"]))?;
        download()?;
    }
    let packages = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let package = packages.filter(|path| path.extension().is_some_and(|end| end == "deb")).max();
    let package = package.context("no package was downloaded")?;
    output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(folder))?;
    fs::remove_file(package)?;
    Ok(())
}
