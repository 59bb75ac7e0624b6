//! The daemon and `clactl` as an operator uses them.

mod bench;
mod checking;
mod damage;
mod export;
mod follow;
mod operator;
mod orders;
mod pages;
mod probe;
mod repair;
mod run;
mod signals;
mod there_and_back;
mod top;

use clad_client::AckLevel;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Json, Raw};

/// Calls `clactl` with the daemon's addresses, expects 0, and gives what it printed.
fn ok(daemon: &Daemon, arguments: &[&str]) -> Vec<u8> {
    let (server, admin) = (daemon.address("unix"), format!("unix://{}", daemon.setup().admin_socket().display()));
    let arguments = [&["--server", &server, "--admin", &admin], arguments].concat();
    clactl_ends(0, &arguments, b"").stdout
}

/// The same with `-o json`: its objects.
fn ok_json(daemon: &Daemon, arguments: &[&str]) -> Vec<Json> {
    let text = ok(daemon, &[arguments, &["-o", "json"]].concat());
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(clad_e2e::json).collect()
}

/// Appends numbered records one by one, `durable` each.
fn append_numbers(daemon: &Daemon, numbers: std::ops::Range<u64>) {
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for (sequence, number) in (0..).zip(numbers) {
        raw.append_acked(sequence, AckLevel::Durable, &[format!("number {number}").as_bytes()]);
    }
}

/// What `-o cat` prints for numbered records.
fn numbers(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(|number| format!("number {number}\n").into_bytes()).collect()
}
