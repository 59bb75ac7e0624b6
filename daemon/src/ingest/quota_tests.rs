//! The quota with one caller at a time; `models/` has the rest, and compiles it without these.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::quota::{Owner, Quota, QuotaGuard, QuotaHandle, Taking};

const ROOT: Owner = Owner::Uid(0);
const A: Owner = Owner::Uid(1);
const B: Owner = Owner::Uid(2);

/// The guard, if the request was served.
fn served(taking: &mut Taking) -> Option<QuotaGuard> {
    match Pin::new(taking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(guard) => Some(guard.expect("it was not asked before")),
        Poll::Pending => None,
    }
}

/// As much as an owner gets, in steps.
fn all_of(handle: &QuotaHandle, step: usize) -> Vec<QuotaGuard> {
    std::iter::from_fn(|| handle.try_take(step)).collect()
}

fn held(quota: &Arc<Quota>) -> Vec<(Owner, usize)> {
    quota.quota_usage().by_owner
}

#[test]
fn root_alone_takes_all_that_is_free() {
    let taken = |owner| {
        let handle = Quota::new(1000).handle(owner);
        let _guards = all_of(&handle, 100);
        handle.used()
    };
    assert_eq!((taken(ROOT), taken(A), taken(Owner::Network)), (1000, 500, 500));
}

#[test]
fn an_owner_grows_while_as_much_is_left_for_others_and_who_has_nothing_takes_what_is_free() {
    let quota = Quota::new(1000);
    let (one, other) = (quota.handle(A), quota.handle(Owner::Network));
    let a = all_of(&one, 100);
    assert_eq!((one.used(), quota.in_use()), (500, 500), "half of it beside nobody");
    let n = all_of(&other, 50);
    assert_eq!(other.used(), 250, "half of what is left");
    let all = quota.handle(B).try_take(250).expect("who has nothing takes all that is free");
    assert!(quota.handle(Owner::Uid(3)).try_take(1).is_none());
    assert_eq!(held(&quota), [(A, 500), (B, 250), (Owner::Network, 250)]);
    drop((a, n, all));
    assert_eq!((quota.in_use(), held(&quota)), (0, vec![]));
}

#[test]
fn of_many_owners_each_finds_something() {
    let quota = Quota::new(1 << 20);
    let mut guards = Vec::new();
    for uid in 1..=16 {
        let mine = all_of(&quota.handle(Owner::Uid(uid)), 1);
        assert!(!mine.is_empty(), "uid {uid} finds nothing");
        guards.extend(mine);
    }
    let held = held(&quota);
    assert!(held.windows(2).all(|pair| pair[0].1 >= pair[1].1), "who has most first: {held:?}");
    drop(guards);
    assert_eq!(quota.in_use(), 0);
}

#[test]
fn root_gets_in_where_others_may_not_grow_and_has_a_reserve() {
    let quota = Quota::with_reserve(10, 2);
    let root = quota.handle(ROOT);
    let mut guards: Vec<_> = (1..=5).flat_map(|uid| all_of(&quota.handle(Owner::Uid(uid)), 1)).collect();
    assert_eq!(quota.in_use(), 10);
    assert!(quota.handle(Owner::Uid(9)).try_take(1).is_none());
    guards.extend(all_of(&root, 1));
    assert_eq!((root.used(), quota.in_use()), (2, 12));
    drop(guards);
    let all = all_of(&root, 1);
    assert_eq!(all.len(), 12, "the rule of growth is not for root");
}

#[test]
fn root_is_served_first() {
    let quota = Quota::new(10);
    let all = quota.handle(Owner::Network).try_take(10).unwrap();
    let mut others = [quota.handle(A).take(8), quota.handle(B).take(8)];
    let mut root = quota.handle(ROOT).take(8);
    drop(all);
    let roots = served(&mut root).expect("it comes first");
    assert!(others.iter_mut().all(|other| served(other).is_none()));
    drop(roots);
    assert!(served(&mut others[0]).is_some(), "then who came first");
}

#[test]
fn a_queue_of_one_owner_holds_up_no_other() {
    let quota = Quota::new(1000);
    let (one, other) = (quota.handle(A), quota.handle(B));
    let first = all_of(&one, 100);
    let mut queue: Vec<_> = (0..50).map(|_| one.take(100)).collect();
    let theirs = other.try_take(100).expect("there is room, and it is not A's turn");
    let mut grows = other.take(100);
    let grown = served(&mut grows).expect("nobody waits who has nothing");
    assert!(one.try_take(1).is_none(), "behind its own");
    drop(theirs);
    assert!(queue.iter_mut().all(|taking| served(taking).is_none()));
    drop(first);
    let got: Vec<_> = queue.iter_mut().map_while(served).collect();
    assert_eq!(got.len(), 4, "up to its bound beside the other's 100: in their order");
    drop((got, grown));
    assert_eq!(queue.iter_mut().skip(4).map_while(served).count(), 46, "each served, and given back at once");
    assert_eq!(quota.in_use(), 0);
}

#[test]
fn who_has_nothing_and_wants_much_does_not_starve_behind_who_takes_little() {
    let quota = Quota::new(10);
    let mut small = vec![quota.handle(A).try_take(2).unwrap(), quota.handle(A).try_take(2).unwrap()];
    let mut large = quota.handle(B).take(9);
    assert!(served(&mut large).is_none());
    small.pop();
    assert!(quota.handle(A).try_take(1).is_none(), "A has something, and B waits with nothing");
    let third = quota.handle(Owner::Network).try_take(1).expect("who has nothing takes what is free");
    small.clear();
    assert!(served(&mut large).is_some_and(|guard| guard.num_permits() == 9));
    drop(third);
    assert_eq!(quota.in_use(), 0);
}

#[test]
fn who_no_longer_waits_holds_up_nobody_and_leaves_nothing() {
    let quota = Quota::new(10);
    let held = quota.handle(A).try_take(4).unwrap();
    let large = quota.handle(B).take(10);
    let mut behind = quota.handle(B).take(1);
    assert!(served(&mut behind).is_none() && quota.handle(A).try_take(1).is_none());
    drop(large);
    assert!(served(&mut behind).is_some());
    assert!(quota.handle(A).try_take(1).is_some());
    let unseen = quota.handle(B).take(10);
    drop(held); // served, and nobody has looked
    assert_eq!(quota.in_use(), 10);
    drop(unseen);
    assert_eq!((quota.in_use(), quota.handle(B).used()), (0, 0));
}

#[test]
fn nobody_waits_for_more_than_there_will_be() {
    let quota = Quota::new(10);
    let root = quota.handle(ROOT);
    let held = root.try_take(8).unwrap();
    let mut waiting = quota.handle(A).take(10);
    quota.resize(5);
    assert!(
        served(&mut waiting).is_none() && quota.handle(B).try_take(1).is_none(),
        "what is in use is not taken back"
    );
    drop(held);
    assert_eq!(served(&mut waiting).map(|guard| guard.num_permits()), Some(5), "all that there is now");
    let half = root.try_take(3).unwrap();
    let mut more = quota.handle(A).take(4);
    assert!(served(&mut more).is_none());
    quota.resize(20);
    assert!(served(&mut more).is_some(), "a larger total serves who waits");
    drop(half);
    assert_eq!((quota.in_use(), quota.total()), (0, 20));
}

#[test]
fn an_account_lasts_as_long_as_something_is_of_it() {
    let quota = Quota::new(10);
    let guard = quota.handle(A).try_take(4).unwrap();
    assert_eq!(quota.handle(A).used(), 4, "what is held keeps it");
    drop(guard);
    let queued = quota.handle(A).take(3);
    assert_eq!(quota.handle(A).used(), 3);
    drop(quota.handle(B));
    assert_eq!(held(&quota), [(A, 3)], "nothing is kept of who is gone");
    drop(queued);
}

#[tokio::test]
async fn a_waiter_is_woken() {
    let quota = Quota::new(10);
    let all = quota.handle(A).try_take(10).unwrap();
    let waits = tokio::spawn(quota.handle(B).take(7));
    tokio::task::yield_now().await;
    drop(all);
    assert_eq!(waits.await.unwrap().unwrap().num_permits(), 7);
}
