//! The budget with one caller; `models/` has the rest, and compiles it without these.

use super::budget::Budget;

#[tokio::test]
async fn more_is_there_at_once_and_less_when_it_comes_back() {
    let budget = Budget::new(10);
    let used = budget.try_take(8).unwrap();
    budget.resize(20);
    assert_eq!((budget.total(), budget.available()), (20, 12));
    let waiting = tokio::spawn(budget.take(15));
    tokio::task::yield_now().await;
    budget.resize(5);
    assert_eq!(budget.share(15), 5);
    assert!(budget.try_take(1).is_none(), "it is owed");
    drop(used);
    // Queued under the larger total, served before the smaller one comes into force.
    drop(waiting.await.unwrap().unwrap());
    let all = budget.take(5).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(budget.available(), 0, "no more than the new total");
    drop(all);
}
