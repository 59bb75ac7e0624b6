//! What no C program can bring about, or see.

mod events;

use std::ffi::CStr;

use clad_client::{AppendError, DropReason, SendError, SubmitError};

use crate::error::{self, Failure, guard, guard_or};
use crate::local;
use crate::options::clad_call;
use crate::pointers;
use crate::status::clad_status::{self, *};

const SOURCES: [&str; 6] = [
    include_str!("error.rs"),
    include_str!("producer.rs"),
    include_str!("reader.rs"),
    include_str!("status.rs"),
    include_str!("stats.rs"),
    include_str!("ticket.rs"),
];

fn text() -> String {
    let text = error::clad_error_text();
    // SAFETY: it is never NULL, and no call fails meanwhile.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[test]
fn a_panic_ends_as_a_status() {
    std::panic::set_hook(Box::new(|_| {}));
    let status = guard(|| panic!("on purpose"));
    let value = guard_or(7, || panic!("on purpose"));
    drop(std::panic::take_hook());
    assert_eq!((status, value), (CLAD_ERR_INTERNAL, 7));
    assert!(text().contains("panicked"), "{}", text());
    assert!(error::clad_error_maybe_written());
}

/// Two that cannot panic give a constant.
#[test]
fn every_exported_function_is_guarded() {
    let mut count = 0;
    for function in SOURCES.iter().flat_map(|source| source.split("#[unsafe(no_mangle)]").skip(1)) {
        let function = function.split("\n}\n").next().unwrap_or_default();
        let name = function.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a name");
        let guarded = function.contains("\n    guard(|| ") || function.contains("\n    guard_or(");
        assert!(guarded || ["clad_status_name", "clad_version"].contains(&name), "{name} may unwind into C");
        count += 1;
    }
    assert!(count >= 20, "{count}");
}

#[test]
fn a_success_leaves_the_last_error_and_an_error_replaces_it() {
    assert_eq!(text(), "");
    assert_eq!(guard(|| Err(Failure::argument("one\0two"))), CLAD_ERR_ARGUMENT);
    assert_eq!(guard(|| Ok(CLAD_OK)), CLAD_OK);
    assert_eq!(text(), "one\u{fffd}two");
    let refused: Failure = SendError::Submit(SubmitError::Dropped(DropReason::NoRoom)).into();
    assert_eq!(guard(|| Err(refused)), CLAD_ERR_DROPPED);
    assert_eq!((error::clad_error_is_retryable(), error::clad_error_maybe_written()), (true, false));
}

#[test]
fn an_error_says_if_it_may_be_written() {
    for (error, status, maybe_written) in [
        (AppendError::Forgotten, CLAD_ERR_UNKNOWN, true),
        (AppendError::Lost, CLAD_ERR_LOST, false),
        (AppendError::Forked, CLAD_ERR_FORKED, true),
        (AppendError::Closed { maybe_written: true }, CLAD_ERR_CLOSED, true),
        (AppendError::Closed { maybe_written: false }, CLAD_ERR_CLOSED, false),
        (AppendError::TooLarge { len: 2, max: 1 }, CLAD_ERR_TOO_LARGE, false),
    ] {
        let failure = Failure::from(error);
        assert_eq!((failure.status, failure.maybe_written), (status, maybe_written));
    }
}

#[test]
fn a_struct_of_another_header_is_read_as_far_as_it_goes() {
    // As an older header has it: up to `overload`, and no more memory than that.
    let older: [u64; 2] = [16, 3];
    let call = pointers::sized("call", older.as_ptr().cast::<clad_call>()).expect("it is one").expect("not NULL");
    assert_eq!((call.size, call.level, call.overload, call.keep_severity, call.wait_ms), (16, 3, 0, 0, 0));
    // As a newer one has it, with a setting at its default, and then with one that is asked for.
    let mut newer = [48, 0, 0, 7, 0, 0_u64];
    let read =
        |of: &[u64; 6]| pointers::sized("call", of.as_ptr().cast::<clad_call>()).map(|call| call.map(|c| c.wait_ms));
    assert_eq!(read(&newer).expect("it is one"), Some(7));
    newer[5] = 1;
    assert_eq!(read(&newer).expect_err("it lacks that").status, CLAD_ERR_ARGUMENT);
    for size in [0, 7, 5000] {
        newer[0] = size;
        assert_eq!(read(&newer).expect_err("no size").status, CLAD_ERR_ARGUMENT, "{size}");
    }
}

#[test]
fn every_status_has_its_name() {
    let all = include_str!("status.rs").split("pub enum clad_status {").nth(1).expect("the enumeration");
    let all = all.split("\n}\n").next().expect("its end");
    let mut count = 0;
    for line in all.lines().filter_map(|line| line.trim().strip_suffix(',')) {
        let (name, number) = line.split_once(" = ").expect("a name and a number");
        let named = crate::status::clad_status_name(number.parse().expect("a number"));
        // SAFETY: it is never NULL.
        assert_eq!(unsafe { CStr::from_ptr(named) }.to_str(), Ok(name));
        count += 1;
    }
    assert_eq!(count, 19);
    let _: clad_status = CLAD_OK;
}

#[test]
fn a_batch_is_empty_after_a_panic_and_inside_another_call() {
    let address = clad_client::Address::unix("/nobody/clad.sock");
    let producer = clad_client::blocking::Producer::start(clad_client::Producer::builder(address)).expect("it starts");
    let fill = |batch: &mut clad_client::Batch| {
        assert!(batch.is_empty(), "a record of another call is in it");
        Ok(batch.push(&clad_client::Record::default())?)
    };
    std::panic::set_hook(Box::new(|_| {}));
    let status = guard(|| local::with_batch((1, &producer), fill, |_| panic!("on purpose")));
    drop(std::panic::take_hook());
    assert_eq!(status, CLAD_ERR_INTERNAL);
    // As the handler of a signal does it.
    let inner = || local::with_batch((1, &producer), fill, |batch| Ok(batch.count()));
    let counts = local::with_batch((1, &producer), fill, |batch| Ok((batch.count(), inner()?)));
    assert_eq!(counts.expect("both are made"), (1, 1));
}
