//! Real senders of syslog and RELP, as they come, against a clad: logger, the C library, Python, rsyslog, syslog-ng. And kills
//! of the daemon under rsyslog, which lets go of nothing that it was not answered.
//!
//! Invariants: rsyslog and syslog-ng exclude each other on a host, and would be its log at once: their packages are unpacked
//! below the build folder, and not installed. The cases are the tests in `e2e/tests/syslog`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::disk::{built_tests, call, closing_words};
use super::{Run, build, need, output, unpacked};

const KILLS_DEFAULT: u64 = 20;
/// Senders, and libraries of theirs that a plain Debian does not have.
const PACKAGES: [&str; 12] = [
    "rsyslog",
    "rsyslog-relp",
    "librelp0",
    "libestr0",
    "libfastjson4",
    "liblognorm5",
    "syslog-ng-core",
    "libivykis0",
    "libnet1",
    "libwrap0",
    "libjson-c5",
    "libpcre3",
];

const CASES: [(&str, &str); 9] = [
    ("logger in every mode", "clients::logger_in_every_mode"),
    ("Python's SysLogHandler by UDP, TCP and Unix sockets", "clients::the_handler_of_python"),
    ("syslog(3) of the C library at /dev/log", "clients::the_c_library"),
    ("rsyslog: omfwd by UDP and TCP in both framings, omrelp", "clients::rsyslog_forwards"),
    ("syslog-ng: network, syslog and Unix sockets", "clients::syslog_ng_forwards"),
    ("the blocks of SENDERS.md, but for ports and paths", "clients::the_blocks_of_the_page"),
    ("the bench of senders sends and counts what it says", "clients::the_bench_sends_what_it_says"),
    (
        "RELP holds a message for 30 s and answers no error",
        "relp::a_message_that_there_is_no_room_for_is_never_answered_by_an_error",
    ),
    ("rsyslog over RELP loses nothing over kills", "clients::nothing_that_rsyslog_was_answered_is_lost_over_kills"),
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    const CALL: &str = "cargo xtask ci syslog [KILLS | losses [KILLS]]";
    if let Some((word, kills)) = run.args.split_first()
        && word == "losses"
    {
        let kills = kills.first().cloned();
        return losses(run, kills.as_deref());
    }
    let kills = match run.args.as_slice() {
        [] => KILLS_DEFAULT,
        [kills] => kills.parse().context(CALL)?,
        more => bail!("{CALL}, not {}", more.join(" ")),
    };
    need("cc", &["gcc", "libc6-dev"])?;
    need("python3", &["python3"])?;
    need("logger", &["bsdutils"])?;
    let programs = programs(&run.root)?;
    let bench = build(&run.root, "clad-benches")?;
    let tests = built_tests(&run.root, "syslog")?;
    for (case, test) in CASES {
        run.case(case, || {
            let mut command = call(&tests, test, None);
            command.env("CLAD_SYSLOG_PROGRAMS", &programs).env("CLAD_SYSLOG_KILLS", kills.to_string());
            command.env("CLAD_SYSLOG_BENCH", &bench);
            passes(&mut command)
        });
    }
    Ok(())
}

/// What rsyslog loses of what it answered over RELP, by the deaths under which clad loses nothing.
fn losses(run: &mut Run, kills: Option<&str>) -> Result<()> {
    let programs = programs(&run.root)?;
    let tests = built_tests(&run.root, "senders")?;
    run.case("the losses of rsyslog", || {
        let mut command = call(&tests, "peers::what_rsyslog_loses", None);
        passes(command.env("CLAD_SYSLOG_PROGRAMS", programs).envs(kills.map(|kills| ("CLAD_SENDERS_KILLS", kills))))
    });
    Ok(())
}

fn programs(root: &Path) -> Result<PathBuf> {
    unpacked(root, "syslog", &PACKAGES, &["usr/sbin/syslog-ng", "usr/sbin/rsyslogd"])
}

/// Runs one test, and shows its own lines of how it went.
fn passes(command: &mut Command) -> Result<()> {
    let said = output(command.arg("--nocapture"))?;
    ensure!(closing_words(&said), "the test did not run:\n{said}");
    for line in said.lines().filter_map(|line| line.find("kills: ").map(|at| &line[at..])) {
        println!("          {line}");
    }
    Ok(())
}
