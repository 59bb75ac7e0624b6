//! TLS by programs of other makes, and the page docs/TLS.md as an operator follows it.
//!
//! Invariants: rsyslog is unpacked below the build folder, and not installed. The cases are the tests in `e2e/tests/tls`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use super::disk::{built_tests, closing_words};
use super::{Run, need, otlp, output, unpacked};

const RELOADS_DEFAULT: u64 = 40;
/// Of `cargo xtask ci tls whole`.
const RELOADS_WHOLE: u64 = 1000;
/// rsyslog with its driver for TLS, and libraries of theirs that a plain Debian does not have.
const PACKAGES: [&str; 5] = ["rsyslog", "rsyslog-openssl", "libestr0", "libfastjson4", "liblognorm5"];

/// Variable of a program, and what installs it and answers its path.
type Program = (&'static str, fn(&Path) -> Result<String>);

/// Case, test, and a program of its own.
const CASES: [(&str, &str, Option<Program>); 7] = [
    ("the blocks of TLS.md, but for ports and paths", "real::the_blocks_of_the_page", None),
    (
        "the variables of TLS.md: Python's SDK by gRPC and HTTP",
        "real::the_exporter_of_the_page",
        Some(("CLAD_OTLP_PYTHON", otlp::python_with_sdk)),
    ),
    ("openssl: TLS 1.2 and 1.3, and nothing older", "real::openssl_speaks_what_is_spoken_and_nothing_older", None),
    ("curl: OTLP by HTTPS, HTTP/1.1 and HTTP/2", "real::curl_exports_over_https", None),
    ("RELP: answered within TLS", "real::relp_is_answered_within_tls", None),
    ("rsyslog: syslog over TLS, by its certificate", "real::rsyslog_forwards_over_tls", None),
    (
        "reloads under load refuse nobody and lose nothing",
        "renewal::reloads_under_load_refuse_nobody_and_lose_nothing",
        None,
    ),
];

/// The modules of these two are many: they are built by hand alone.
const WHOLE: [(&str, &str, Option<Program>); 2] = [
    (
        "the variables of TLS.md: Go's SDK by gRPC and HTTP",
        "real::the_exporter_of_the_page_in_go",
        Some(("CLAD_OTLP_GO", otlp::go_with_sdk)),
    ),
    (
        "grpcurl: OTLP, by its certificate alone",
        "real::grpcurl_exports_by_its_certificate_alone",
        Some(("CLAD_OTLP_GRPCURL", otlp::grpcurl)),
    ),
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    let (reloads, is_whole) = match run.args.as_slice() {
        [] => (RELOADS_DEFAULT, false),
        [word] if word == "whole" => (RELOADS_WHOLE, true),
        more => bail!("cargo xtask ci tls [whole], not {}", more.join(" ")),
    };
    need("openssl", &["openssl"])?;
    need("curl", &["curl"])?;
    let programs = unpacked(&run.root, "syslog-tls", &PACKAGES, &["usr/sbin/rsyslogd"])?;
    let tests = built_tests(&run.root, "tls")?;
    let root = run.root.clone();
    for (case, test, program) in CASES.into_iter().chain(is_whole.then_some(WHOLE).into_iter().flatten()) {
        run.case(case, || {
            let mut command = Command::new(&tests);
            command.args(["--include-ignored", "--exact", test]).env("RUST_BACKTRACE", "0");
            command.env("CLAD_SYSLOG_PROGRAMS", &programs).env("CLAD_TLS_RELOADS", reloads.to_string());
            if let Some((variable, path)) = program {
                command.env(variable, path(&root)?);
            }
            let said = output(command.arg("--nocapture"))?;
            ensure!(closing_words(&said), "the test did not run:\n{said}");
            for line in said.lines().filter_map(|line| line.find("reloads: ").map(|at| &line[at..])) {
                println!("          {line}");
            }
            Ok(())
        });
    }
    Ok(())
}
