//! Whatever is written, sought, flushed, synced, cut and opened again: the file is what a `Vec` is.

use std::fs;
use std::io::{Seek, SeekFrom, Write};

use clad_journal::bulk::{BulkWriter, Engine, Options};
use proptest::prelude::*;

use crate::{every_way, file, folder, pattern};

/// What a caller does next.
#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Seek(u64),
    Back(u64),
    Beyond(u64),
    Flush,
    Sync,
    Truncate(u64),
    /// Dropped without a word, and opened at its end.
    Append,
    /// Finished, and opened at its beginning.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..300).prop_map(Step::Write),
        3 => (0usize..40_000).prop_map(Step::Write),
        2 => prop::sample::select(vec![4095usize, 4096, 4097, 8191, 8192, 8193, 24_576]).prop_map(Step::Write),
        1 => (0u64..60_000).prop_map(Step::Seek),
        1 => (1u64..5_000).prop_map(Step::Back),
        1 => (0u64..20_000).prop_map(Step::Beyond),
        1 => Just(Step::Flush),
        1 => Just(Step::Sync),
        1 => (0u64..50_000).prop_map(Step::Truncate),
        1 => Just(Step::Append),
        1 => Just(Step::Reopen),
    ]
}

/// The file as a `Vec`.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    at: usize,
}

impl Model {
    fn write(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = self.at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }
}

fn run(options: &Options, steps: &[Step]) {
    let folder = folder();
    let path = file(folder.path());
    let mut model = Model::default();
    let mut writer = options.create(&path).expect("a writer");
    let same = |model: &Model| assert!(fs::read(&path).expect("the file") == model.bytes, "the file is another");
    let mut salt = 0;
    for step in steps {
        salt += 1;
        match *step {
            Step::Write(len) => {
                let bytes = pattern(salt * 31, len);
                writer.write_all(&bytes).expect("written");
                model.write(&bytes);
            }
            Step::Seek(to) => model.at = seek(&mut writer, SeekFrom::Start(to)),
            Step::Back(by) => {
                let by = by.min(model.at as u64) as i64;
                model.at = seek(&mut writer, SeekFrom::Current(-by));
            }
            Step::Beyond(by) => {
                model.at = seek(&mut writer, SeekFrom::End(by as i64));
                assert_eq!(model.at, model.bytes.len() + by as usize);
            }
            Step::Flush => {
                writer.flush().expect("flushed");
                same(&model);
            }
            Step::Sync => {
                writer.sync().expect("synced");
                same(&model);
            }
            Step::Truncate(len) => {
                writer.truncate(len).expect("cut");
                model.bytes.resize(len as usize, 0);
                model.at = len as usize;
            }
            Step::Append => {
                drop(writer);
                same(&model);
                writer = options.append(&path).expect("a writer");
                model.at = model.bytes.len();
            }
            Step::Reopen => {
                writer.finish().expect("finished");
                same(&model);
                writer = options.open(&path).expect("a writer");
                model.at = 0;
            }
        }
        assert_eq!((writer.position(), writer.len()), (model.at as u64, model.bytes.len() as u64), "{step:?}");
    }
    let stats = writer.finish().expect("finished");
    // A direct write that is not aligned would be refused and go the other way: seen only here.
    assert!(!stats.fallbacks.iter().any(|why| why.contains("refused")), "{stats:?}");
    same(&model);
}

fn seek(writer: &mut BulkWriter, to: SeekFrom) -> usize {
    let at = writer.seek(to).expect("sought");
    assert_eq!(writer.stream_position().expect("a position"), at);
    at as usize
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_file_is_what_a_vec_is(steps in prop::collection::vec(step(), 1..24)) {
        for options in every_way() {
            run(&options, &steps);
        }
    }
}

/// What each call costs, counted.
#[test]
fn writes_are_merged_and_nothing_is_written_twice() {
    for options in every_way() {
        let folder = folder();
        let path = file(folder.path());
        let mut writer = options.create_new(&path).expect("a writer");
        let direct = writer.stats().direct;
        // 100,000 bytes in chunks of 100: twelve whole buffers of 8192 and a rest of 1696.
        let all = pattern(0, 100_000);
        for chunk in all.chunks(100) {
            writer.write_all(chunk).expect("written");
        }
        let before = writer.stats();
        assert_eq!((before.bytes, before.syncs), (100_000, 0), "{before:?}");
        writer.flush().expect("flushed");
        let flushed = writer.stats();
        let (regular, whole) = if direct { (1, 12) } else { (13, 0) };
        assert_eq!((flushed.regular_writes, flushed.direct_writes), (regular, whole), "{flushed:?}");
        assert_eq!(flushed.direct_bytes + flushed.regular_bytes, 100_000, "{flushed:?}");
        assert_eq!((flushed.free_buffers, flushed.syncs, flushed.short_writes), (3, 0, 0), "{flushed:?}");
        // Nothing new: nothing is written again, and the file keeps its length.
        writer.flush().expect("flushed");
        assert_eq!(writer.stats(), flushed);
        assert_eq!(fs::metadata(&path).expect("the file").len(), 100_000);
        // The data and the new name; then nothing is left to sync.
        writer.sync().expect("synced");
        writer.sync().expect("synced");
        assert_eq!(writer.stats().syncs, 2);
        // On from an end that is not aligned: what fills the block goes the regular way, the rest of it direct.
        writer.write_all(&pattern(100_000, 20_000)).expect("written");
        let stats = writer.finish().expect("finished");
        assert_eq!(stats.direct_bytes + stats.regular_bytes, 120_000, "{stats:?}");
        assert_eq!(stats.syncs, 3, "{stats:?}");
        assert!(fs::read(&path).expect("the file") == pattern(0, 120_000));
    }
}

#[test]
fn a_writer_can_go_to_another_thread() {
    let folder = folder();
    let path = file(folder.path());
    let mut writer = Options::new().engine(Engine::Ring).buffer_bytes(4096).create(&path).expect("a writer");
    writer.write_all(&pattern(0, 50_000)).expect("written");
    let thread = std::thread::spawn(move || {
        writer.write_all(&pattern(50_000, 50_000)).expect("written");
        writer.finish().expect("finished")
    });
    assert_eq!(thread.join().expect("no panic").bytes, 100_000);
    assert!(fs::read(&path).expect("the file") == pattern(0, 100_000));
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = folder();
    let path = file(folder.path());
    let kind = |options: Options| options.create(&path).map(drop).expect_err("refused").kind();
    assert_eq!(kind(Options::new().buffers(0)), std::io::ErrorKind::InvalidInput);
    assert_eq!(kind(Options::new().buffers(257)), std::io::ErrorKind::InvalidInput);
    assert_eq!(kind(Options::new().buffer_bytes(0)), std::io::ErrorKind::InvalidInput);
    assert!(!path.exists(), "nothing is made");
    assert_eq!(Options::new().open(&path).map(drop).expect_err("absent").kind(), std::io::ErrorKind::NotFound);
    let mut writer = Options::new().create_new(&path).expect("a writer");
    assert_eq!(
        Options::new().create_new(&path).map(drop).expect_err("there").kind(),
        std::io::ErrorKind::AlreadyExists
    );
    assert!(writer.seek(SeekFrom::Current(-1)).is_err() && writer.seek(SeekFrom::Start(u64::MAX)).is_err());
    // That was the caller's mistake, and no failure of the file.
    writer.write_all(b"x").expect("written");
    assert!(writer.try_lock().expect("asked"));
    assert!(!Options::new().open(&path).expect("opened").try_lock().expect("asked"), "it is another's");
}
