//! Entries of systemd's journal: `POST /upload` by hand, and by `systemd-journal-upload` itself.

mod stock;
mod upload;

use std::collections::BTreeMap;

use clad_e2e::Daemon;
use clad_e2e::readback::Stored;

/// An entry in the export format, whose message is its number: each fifth is of bytes.
fn entry(number: u64) -> Vec<u8> {
    let time = 1_700_000_000_000_000 + number;
    let mut entry = format!(
        "__CURSOR=s=00;i={number:x};b=01;m={number:x};t={time:x};x={number:x}\n__REALTIME_TIMESTAMP={time}\n\
         __MONOTONIC_TIMESTAMP={number}\n_BOOT_ID=000102030405060708090a0b0c0d0e0f\nPRIORITY=6\n\
         SYSLOG_IDENTIFIER=app{}\n_PID={number}\n_HOSTNAME=host\n",
        number % 3
    )
    .into_bytes();
    let message = message(number);
    if number.is_multiple_of(5) {
        entry.extend_from_slice(b"MESSAGE\n");
        entry.extend_from_slice(&(message.len() as u64).to_le_bytes());
    } else {
        entry.extend_from_slice(b"MESSAGE=");
    }
    entry.extend_from_slice(&message);
    entry.extend_from_slice(b"\n\n");
    entry
}

fn message(number: u64) -> Vec<u8> {
    let mut message = number.to_string().into_bytes();
    if number.is_multiple_of(5) {
        message.extend_from_slice(b"\n\xFF");
    }
    message
}

/// How often each number is there.
fn counts(stored: &[Stored]) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for record in stored {
        let digits = record.body.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&record.body[..digits]).expect("digits").parse().expect("a number");
        assert_eq!(record.body, message(number), "the bytes of a message");
        *counts.entry(number).or_default() += 1;
    }
    counts
}

/// What a killed daemon has in its files.
fn left_behind(daemon: &mut Daemon) -> BTreeMap<u64, usize> {
    daemon.kill9();
    counts(&clad_e2e::readback::files(daemon.dir()))
}
