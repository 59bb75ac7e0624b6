//! Every kind of sender while the daemon, clients and connections are killed under load: OTLP over gRPC and HTTP, syslog over
//! TCP and a Unix stream, RELP, `/upload`, and `clad-relay` from files and from the journal. All send to one daemon, so that
//! a death is one of each kind.
//!
//! Nothing that was answered is missing. With the resend window, and from a relay, nothing is there twice. Over RELP what was
//! sent again may be. Syslog over a stream has no answers: of each connection the log has what came first, whole and in order.
//! What a reader was given stays.
//!
//! `CLAD_SENDERS_KILLS` sets the deaths, `CLAD_SEED` the random choices (the scheduler still varies). The relays take part where
//! `CLAD_RELAY` and `CLAD_JOURNALD_PROGRAMS` name their programs: `cargo xtask ci relay`.

mod check;
mod follower;
mod otlp;
mod peers;
mod real_logs;
mod receiver;
mod relays;
mod run;
mod sender;
mod syslog;

use clad_e2e::seed;

use receiver::Clad;
use run::{Death, KINDS, Plan, Programs, Report, deaths};

/// Deaths where nothing else is said: as many as a test among others may take time for.
const KILLS_DEFAULT: u64 = 12;
/// Of so many or more there are some of each kind.
const KILLS_OF_EACH_KIND: u64 = 100;
/// Kills within which a wrong daemon is caught.
const KILLS_OF_A_WRONG_DAEMON: usize = 25;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn what_every_sender_was_answered_is_kept() {
    let kills = variable("CLAD_SENDERS_KILLS").map_or(KILLS_DEFAULT, |text| text.parse().expect("CLAD_SENDERS_KILLS"));
    let relays = variable("CLAD_RELAY").map(|relay| {
        let systemd = variable("CLAD_JOURNALD_PROGRAMS").expect("CLAD_JOURNALD_PROGRAMS");
        Programs { relay: relay.into(), systemd: systemd.into() }
    });
    let seed = seed();
    let plan = Plan { relays, ..Plan::of(&KINDS, seed, deaths(seed, kills)) };
    let report = plan.run(&mut Clad::start(&[]));
    println!("{report}\nkills: {} records were read before the end", report.followed);
    let faults = report.faults();
    assert!(faults.is_empty(), "{report}\n{}", faults.join("\n"));
    for (kind, verdict) in &report.verdicts {
        assert!(verdict.stored > 0, "nothing of {kind} is there");
    }
    assert!(report.followed > 0, "no reader was given anything");
    assert!(kills < KILLS_OF_EACH_KIND || report.deaths.len() == 6, "not every kind of death");
    println!("tally: kills={kills} acks={} lost=0", report.answered());
}

/// A daemon that is set up to break a promise.
fn of_a_wrong_daemon(sets: &[(&str, &str)], kinds: &[&'static str], level: Option<&'static str>) -> Report {
    let deaths = vec![Death::Receiver; KILLS_OF_A_WRONG_DAEMON];
    let plan = Plan { level, ..Plan::of(kinds, seed(), deaths) };
    plan.run(&mut Clad::start(sets))
}

/// An answer at `received` is before the write: a kill takes what was answered.
#[test]
fn an_answer_before_the_write_is_caught() {
    let report =
        of_a_wrong_daemon(&[("ingest.syslog.relp.ack", "received")], &["grpc", "http", "relp"], Some("received"));
    let lost: u64 = report.verdicts.values().map(|verdict| verdict.lost).sum();
    assert!(lost > 0, "{report}");
}

/// Without the window a request whose answer died with the daemon is stored again.
#[test]
fn a_daemon_that_forgets_what_it_has_is_caught() {
    let report = of_a_wrong_daemon(&[("ingest.otlp.resend_window", "0")], &["grpc", "http", "upload"], None);
    for (kind, verdict) in &report.verdicts {
        assert!(verdict.twice > 0 && verdict.lost == 0, "{kind}: {report}");
    }
}
