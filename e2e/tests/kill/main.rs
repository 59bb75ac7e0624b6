//! The main job under `kill -9`: clients on every transport at every level, the daemon killed again and again after a
//! seeded number of acks, and in the end every acknowledged record looked for.
//!
//! Invariants: what was acknowledged `written` or `durable` is there once, at the offset of its receipt, in its
//! producer's order, byte for byte; so is what went by a ring of shared memory and was acknowledged at all, `posted`
//! included; what else was acknowledged `received`, or never, is there once or not at all; offsets are dense. And the test must have been able to see the opposite: it fails where any transport × level never had an ack in
//! flight when the daemon was killed.
//!
//! `CLAD_KILL_ROUNDS` is how often it is killed, `CLAD_SEED` repeats a run as far as the scheduler lets it.

mod check;
mod clients;
mod world;

use std::sync::Arc;

use clad_client::AckLevel;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Rng, Setup, readback, seed};

use clients::{Client, LEVELS, TRANSPORTS};
use world::World;

/// Kills where nothing else is said: as many as a test among others may take time for.
const KILLS_DEFAULT: u64 = 12;
/// So many times as many are made at most, while a transport × level was not hit yet: an answer at `received` is hardly ever
/// on its way.
const ROUNDS_MAX_FACTOR: u64 = 12;
/// Acks of all clients together between two kills, at least and at most.
const ACKS: (u64, u64) = (30, 1500);
/// Starts of a storm.
const STORM_STARTS: u64 = 20;
/// Each so many starts, one is killed before it is over.
const EARLY_KILL_EVERY: u64 = 5;

#[test]
fn what_was_acknowledged_survives() {
    survives("group_commit", &LEVELS, 1);
}

#[test]
fn what_was_acknowledged_survives_per_message() {
    survives("per_message", &LEVELS, 3);
}

#[test]
fn what_was_acknowledged_survives_fire_and_forget() {
    survives("fire_and_forget", &LEVELS[..2], 3);
}

#[test]
fn what_was_acknowledged_survives_sync_file_range() {
    let scratch = clad_e2e::Scratch::new();
    match clad_journal::io::device::discover(scratch.data()).range_sync(true) {
        Ok(_) => survives("sync_file_range", &LEVELS, 3),
        Err(refusal) => clad_e2e::not_run("sync_file_range under kill -9", &refusal.to_string()),
    }
}

/// Starts that follow each other so fast that hardly one ends its recovery, or serves: clients resend all the while.
#[test]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn a_storm_of_restarts() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let setup = Setup::new().with_fd_store().fixed_ports().set("journal.segment_bytes", "1MiB");
    let mut daemon = setup.set("limits.max_append_bytes", "256KiB").set("journal.max_record_bytes", "128KiB").start();
    let world = Arc::new(World::new(seed));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let clients = Client::all(&LEVELS, |transport| daemon.address(transport));
    let running: Vec<_> = clients.iter().map(|client| runtime.spawn(client.clone().run(world.clone()))).collect();
    world.wait_acked(ACKS.0);
    daemon.kill9();
    let mut served = 0;
    for _ in 0..STORM_STARTS {
        if rng.chance(1, 2) {
            daemon.start_and_kill9();
        } else {
            daemon.restart();
            served += 1;
            daemon.kill9();
        }
    }
    daemon.restart();
    world.wait_acked(world.acked() + ACKS.1);
    world.stop();
    for client in running {
        runtime.block_on(client).expect("no client fails");
    }
    let resent: u64 = clients.iter().map(|client| client.resent()).sum();
    assert!(resent > 0, "nothing was sent again: nothing was shown");
    let acks = world.acks();
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let counts = check::all(&world, &acks, &all, true);
    ends_clean(&mut daemon, &all);
    println!("tally: kills={STORM_STARTS} acks={} lost=0", acks.len());
    println!(
        "storm, seed {seed}: {STORM_STARTS} starts killed, {served} of them when they served, {} appends acked ({counts}), \
         {resent} records resent, {} appends given up as forgotten, {} records read back",
        acks.len(),
        world.forgotten(),
        all.len()
    );
}

#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn survives(policy: &str, levels: &[AckLevel], part: u64) {
    let rounds =
        std::env::var("CLAD_KILL_ROUNDS").map_or(KILLS_DEFAULT, |text| text.parse().expect("CLAD_KILL_ROUNDS"));
    let rounds = rounds.div_ceil(part);
    let seed = seed();
    let mut rng = Rng::new(seed);
    let setup = Setup::new()
        .with_fd_store()
        .fixed_ports()
        .set("journal.segment_bytes", "1MiB")
        .set("journal.durability", policy);
    // A kill leaves the page cache, whatever the disk says of its own.
    let setup = setup.set("journal.power_loss_protected", "true");
    let mut daemon = setup.set("limits.max_append_bytes", "256KiB").set("journal.max_record_bytes", "128KiB").start();
    let world = Arc::new(World::new(seed));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let clients = Client::all(levels, |transport| daemon.address(transport));
    let running: Vec<_> = clients.iter().map(|client| runtime.spawn(client.clone().run(world.clone()))).collect();

    let mut hit = vec![0_u64; TRANSPORTS.len() * levels.len()];
    let mut round = 0;
    while round < rounds || (hit.contains(&0) && round < rounds * ROUNDS_MAX_FACTOR) {
        let leaving_client =
            Client::leaver(round, levels, &daemon.address(TRANSPORTS[round as usize % TRANSPORTS.len()]));
        let leaver = runtime.spawn(leaving_client.run_and_leave(world.clone()));
        let target = world.acked() + ACKS.0 + rng.below(ACKS.1 - ACKS.0);
        world.wait_acked(target);
        let sent: Vec<u64> = clients.iter().map(|client| client.sent()).collect();
        daemon.kill9();
        for (client, sent) in clients.iter().zip(sent) {
            if let Some(cell) = client.cell() {
                hit[cell] += u64::from(sent > client.settled());
            }
        }
        leaver.abort();
        if round % EARLY_KILL_EVERY == EARLY_KILL_EVERY - 1 {
            daemon.start_and_kill9();
        }
        daemon.restart();
        let recovery = daemon.status().recovery.expect("what happened");
        assert!(!recovery.clean && !recovery.summary.contains("DAMAGE"), "{recovery:?}");
        if round == rounds / 2 {
            // In the middle of it, with the load going on.
            let acks = world.acks();
            check::all(&world, &acks, &runtime.block_on(readback::served(&daemon.address("unix"))), false);
        }
        round += 1;
    }
    world.stop();
    for client in running {
        runtime.block_on(client).expect("no client fails");
    }
    let acks = world.acks();
    let served = runtime.block_on(readback::served(&daemon.address("unix")));
    let counts = check::all(&world, &acks, &served, true);
    ends_clean(&mut daemon, &served);
    for (cell, hits) in hit.iter().enumerate() {
        let name = (TRANSPORTS[cell / levels.len()], levels[cell % levels.len()]);
        assert!(*hits > 0, "{name:?} never had an ack in flight in {round} kills: nothing was shown of it ({hit:?})");
    }
    let resent: u64 = clients.iter().map(|client| client.resent()).sum();
    println!("tally: kills={round} acks={} lost=0", acks.len());
    println!(
        "kill: {policy}, seed {seed}: {round} kills, {} appends acked ({counts}), {resent} records resent, {} appends \
         given up as forgotten, {} records read back once and in order; kills with acks in flight by transport × level {hit:?}",
        acks.len(),
        world.forgotten(),
        served.len()
    );
}

/// After a clean end the files hold the same, and nothing is damaged.
fn ends_clean(daemon: &mut Daemon, served: &[readback::Stored]) {
    let log_id = daemon.status().log_id;
    assert_eq!(daemon.term(), Some(0), "{}", daemon.said());
    assert!(readback::files(daemon.dir()) == served, "the files hold something else than what the daemon gave out");
    let output = clactl_ends(0, &["verify", &daemon.dir().display().to_string(), "-o", "json"], b"");
    let report = clad_e2e::json(&output.stdout);
    assert_eq!((&report["damaged"], &report["records"]), (&false.into(), &served.len().into()), "{report}");
    let id: String = log_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(report["log_id"], id);
}
