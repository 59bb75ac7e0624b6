//! Producers that say goodbye, over ends of the journal: what is forgotten stays so, and costs nobody else anything.

use clad_journal::{Append, AppendError, Journal, JournalConfig, Level, Policy};

use crate::{TEST_TIMEOUT, append, config, open, wait};

const OWNER: u64 = 1000;
const POLICIES: [Policy; 3] =
    [Policy::PerMessage, GROUP_COMMIT, Policy::FireAndForget { sync_interval: std::time::Duration::ZERO }];
const GROUP_COMMIT: Policy =
    Policy::GroupCommit { max_delay: std::time::Duration::from_millis(1), max_bytes: 64 << 10, in_flight: 2 };

fn id(number: u32) -> [u8; 16] {
    let mut id = [9; 16];
    id[..4].copy_from_slice(&number.to_le_bytes());
    id
}

/// HELLO, one append that nobody waits for, and BYE.
fn comes_and_goes(journal: &Journal, id: [u8; 16], owner: u64) -> Result<(), AppendError> {
    journal.connect(&id, owner, 1, owner)?;
    let taken = Append { producer: id, owner, ..append(0, b"short", Level::Received) }.submit(journal);
    journal.disconnect(&id, true);
    taken.map(|_| ())
}

fn forgotten(journal: &Journal, id: &[u8; 16]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let waited = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, journal.forgotten(id)).await });
    waited.expect("the log says so in time");
}

/// Records that wait for the disk while their producer says goodbye do not bring it back; nobody who stays is pushed out.
#[test]
fn who_said_goodbye_is_forgotten_and_nobody_else() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let config = JournalConfig { max_producers: 64, ..config(policy) };
        let (journal, _) = open(dir.path(), config);
        append(0, b"stays", Level::Received).submit(&journal).unwrap();
        for number in 0..1_200 {
            comes_and_goes(&journal, id(number), OWNER + 1).unwrap_or_else(|e| panic!("{number}: {e}"));
            assert_eq!(journal.status().producers, 1, "{number}");
        }
        assert!(journal.close(TEST_TIMEOUT));
        drop(journal);
        for file in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            assert!(file.metadata().unwrap().len() <= config.segment_bytes, "{:?} has outgrown its room", file.path());
        }
        let (journal, _) = open(dir.path(), config);
        assert_eq!(journal.status().producers, 1);
        let stays = journal.producer(&[7; 16], OWNER).unwrap().and_then(|state| state.last);
        assert_eq!(stays, Some((0, 0)), "{policy:?}");
        assert_eq!(journal.producer(&id(5), OWNER + 1), Ok(None));
        comes_and_goes(&journal, id(5), OWNER + 2).expect("it is nobody's");
        assert!(journal.close(TEST_TIMEOUT));
    }
}

/// An id that comes back is unknown only once the log says so; then its first record is a new one, whatever happens between.
#[test]
fn an_id_comes_back_when_the_log_has_forgotten_it() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), config(policy));
        for life in 0..4 {
            forgotten(&journal, &id(1));
            journal.connect(&id(1), OWNER, 1, OWNER).unwrap();
            let copy = copied(dir.path());
            let (crashed, _) = open(copy.path(), config(policy));
            assert_eq!(crashed.producer(&id(1), OWNER), Ok(None), "{policy:?}, life {life}: as after a kill right now");
            drop(crashed);
            let first = Append { producer: id(1), ..append(0, b"again", Level::Written) };
            let accepted = first.submit(&journal).unwrap();
            assert!(!accepted.duplicate, "life {life}");
            wait(&journal, Level::Written, accepted.first_offset + 1);
            journal.disconnect(&id(1), true);
            assert_eq!(journal.connect(&id(1), OWNER, 1, OWNER), Err(AppendError::Forgetting), "not yet");
            let without_session = Append { producer: id(1), ..append(0, b"again", Level::Written) };
            assert_eq!(without_session.submit(&journal).err(), Some(AppendError::Forgetting), "nor an append");
        }
        assert!(journal.close(TEST_TIMEOUT));
    }
}

/// What a start would find if the process were gone. A daemon's own lock is on another file.
fn copied(from: &std::path::Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap).filter(|f| f.file_type().unwrap().is_file()) {
        std::fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
    to
}

/// Nobody says anything any more: what was forgotten is in the log all the same, after a tenth of a second.
#[test]
fn a_log_at_rest_says_who_was_forgotten() {
    for policy in POLICIES {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), config(policy));
        comes_and_goes(&journal, id(1), OWNER).unwrap();
        let began = std::time::Instant::now();
        loop {
            let copy = copied(dir.path());
            let (crashed, _) = open(copy.path(), config(policy));
            let (known, next) = (crashed.producer(&id(1), OWNER).unwrap(), crashed.watermarks().received);
            drop(crashed);
            if (known, next) == (None, 1) {
                break;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{policy:?}: {known:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(journal.close(TEST_TIMEOUT));
    }
}
