//! Errors: returned, typed, with their place, once and for ever; and what was written before them is there.

use std::fs;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::process::Command;

use clad_journal::bulk::{Engine, Error, Op, Options};

use crate::{every_way, file, folder, pattern};

fn typed(error: &std::io::Error) -> &Error {
    error.get_ref().and_then(|inner| inner.downcast_ref()).unwrap_or_else(|| panic!("not typed: {error}"))
}

#[test]
fn a_full_device_is_reported_at_the_sync_and_stays() {
    for engine in [Engine::Ring, Engine::Threads] {
        let mut writer = Options::new().engine(engine).buffer_bytes(4096).open("/dev/full").expect("a writer");
        // It fits the buffer: nothing has happened yet.
        writer.write_all(b"abc").expect("buffered");
        let error = writer.sync().expect_err("full");
        assert_eq!((error.op, error.position, error.length), (Op::Write, 0, 3), "{error}");
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert_eq!(
            error.to_string(),
            "a write of 3 bytes at byte 0 of /dev/full: No space left on device (os error 28)"
        );
        // From now on everything says the same.
        for again in [
            writer.write(b"x").map(drop),
            writer.write(b"").map(drop),
            writer.flush(),
            writer.seek(SeekFrom::Start(0)).map(drop),
            writer.sync().map_err(Into::into),
            writer.truncate(0).map_err(Into::into),
            writer.finish().map(drop).map_err(Into::into),
        ] {
            assert_eq!(typed(&again.expect_err("sticky")).position, 0);
        }
    }
}

#[test]
fn an_error_in_flight_meets_the_writer_before_long() {
    for engine in [Engine::Ring, Engine::Threads] {
        let options = Options::new().engine(engine).buffers(2).buffer_bytes(4096);
        let mut writer = options.open("/dev/full").expect("a writer");
        let block = [0; 4096];
        let error = (0..4).find_map(|_| writer.write_all(&block).err()).expect("two buffers hold two blocks");
        assert_eq!(
            (typed(&error).position, typed(&error).kind()),
            (0, ErrorKind::StorageFull),
            "the first in the file"
        );
        assert_eq!(writer.stats().free_buffers, 2, "every buffer came back");
    }
}

#[test]
fn a_sync_that_fails_stays() {
    // A device that takes everything and knows no sync.
    let mut writer = Options::new().open("/dev/null").expect("a writer");
    assert!(writer.stats().fallbacks.iter().any(|why| why.contains("no plain file")), "{:?}", writer.stats());
    writer.write_all(b"abc").expect("taken");
    writer.flush().expect("taken");
    let error = writer.sync().expect_err("no sync");
    assert_eq!((error.op, error.kind()), (Op::Sync, ErrorKind::InvalidInput), "{error}");
    assert!(writer.write_all(b"x").is_err());
}

/// The file is as long as this process may make one (`RLIMIT_FSIZE`): at a place that no block ends at, and at one where
/// a block ends and a buffer does not.
#[test]
fn what_fits_is_there_when_the_rest_does_not() {
    let Some(limit) = std::env::var_os("BULK_LIMIT") else {
        for limit in ["50000", "57344"] {
            // In a process of its own: the limit is the whole process's.
            let test = Command::new("sh")
                .args(["-c", "trap '' XFSZ; exec prlimit --fsize=$BULK_LIMIT \"$0\" \"$@\""])
                .arg(std::env::current_exe().expect("this program"))
                .args(["--exact", "failing::what_fits_is_there_when_the_rest_does_not", "--nocapture"])
                .env("BULK_LIMIT", limit)
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&test.stdout).into_owned() + &String::from_utf8_lossy(&test.stderr);
            assert!(test.status.success() && said.contains("1 passed"), "{said}");
        }
        return;
    };
    let limit: u64 = limit.to_str().and_then(|text| text.parse().ok()).expect("a number");
    for options in every_way() {
        let folder = folder();
        let path = file(folder.path());
        let mut writer = options.create(&path).expect("a writer");
        // As far as it goes, nothing is wrong.
        writer.write_all(&pattern(0, 49_000)).expect("written");
        writer.sync().expect("synced");
        let error = match writer.write_all(&pattern(49_000, 100_000)) {
            Err(error) => typed(&error).clone(),
            Ok(()) => writer.sync().expect_err("beyond the limit"),
        };
        assert_eq!((error.op, error.kind(), error.position), (Op::Write, ErrorKind::FileTooLarge, limit), "{error}");
        let stats = writer.stats();
        assert_eq!(stats.regular_bytes + stats.direct_bytes, limit, "{stats:?}");
        assert!(stats.short_writes >= 1, "{stats:?}");
        drop(writer);
        let there = fs::read(&path).expect("the file");
        assert!(there == pattern(0, limit as usize), "everything that fits is there: {}", there.len());
    }
}

#[test]
fn dropped_without_a_sync_it_hands_over_what_it_holds() {
    for options in every_way() {
        let folder = folder();
        let path = file(folder.path());
        let mut writer = options.create(&path).expect("a writer");
        writer.write_all(&pattern(0, 12_345)).expect("written");
        drop(writer);
        assert!(fs::read(&path).expect("the file") == pattern(0, 12_345));
    }
}

#[test]
fn an_unreported_error_is_logged_when_the_writer_is_dropped() {
    let said = |reported: bool| {
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            let mut writer = Options::new().open("/dev/full").expect("a writer");
            writer.write_all(b"abc").expect("buffered");
            assert!(!reported || writer.flush().is_err());
        });
        let events = log.0.lock().expect("unpoisoned");
        events.clone()
    };
    let untold = said(false);
    assert!(untold.len() == 1 && untold[0].contains("at byte 0 of /dev/full"), "{untold:?}");
    assert!(said(true).is_empty(), "it was returned");
}

/// Keeps the messages of errors.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{value:?}"));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("unpoisoned").push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
