//! Read access on Unix sockets where there are no rules: for root, the daemon's own user, and the members of
//! `[access] read_group`.
//!
//! Invariants: the peer's uid and gid come from the kernel; a group that does not exist lets nobody in. A look-up of a
//! user's groups may ask a name service, which may hang. A runtime thread that may block asks it, once for each user at
//! a time. Only that user waits for it, as long as [`GROUP_LOOKUP_TIMEOUT`]; its answer is remembered for
//! [`GROUP_CACHE_TTL`].

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tokio::sync::watch;

const GROUP_CACHE_TTL: Duration = Duration::from_secs(60);
/// Time until which an answer must come; otherwise the peer may not read, on this connection.
const GROUP_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns true if a user with this primary gid is in a group.
type Lookup = fn(u32, u32, Gid) -> bool;

/// True if the user is in the group; `None` while the look-up is under way.
type Answer = watch::Receiver<Option<bool>>;

/// The answer to "may this user read".
pub(crate) struct ReadGroup {
    own: u32,
    group: Option<Gid>,
    lookup: Lookup,
    /// By uid and primary gid: start of the look-up, and the answer.
    known: Mutex<HashMap<(u32, u32), (Instant, Answer)>>,
}

impl ReadGroup {
    /// Looks the group up. A name that no group has is no error: then it lets nobody in.
    pub(crate) fn new(read_group: &str) -> Self {
        let group = Group::from_name(read_group).ok().flatten().map(|g| g.gid);
        Self { own: Uid::effective().as_raw(), group, lookup: is_member, known: Mutex::default() }
    }

    /// Returns true if a peer with this uid and primary gid may read. To be called within a runtime.
    pub(crate) async fn may_read(&self, uid: u32, gid: u32) -> bool {
        if uid == 0 || uid == self.own {
            return true;
        }
        let Some(group) = self.group else { return false };
        if gid == group.as_raw() {
            return true;
        }
        let mut answer = self.ask(uid, gid, group);
        match tokio::time::timeout(GROUP_LOOKUP_TIMEOUT, answer.wait_for(Option::is_some)).await {
            Ok(answer) => answer.is_ok_and(|answer| *answer == Some(true)),
            Err(_) => {
                tracing::warn!(
                    uid,
                    "the groups of a user are not known within {GROUP_LOOKUP_TIMEOUT:?} (does a name service hang?): this user may not read"
                );
                false
            }
        }
    }

    /// The same, for a command that may wait.
    pub(crate) fn has(&self, uid: u32, gid: u32) -> bool {
        let by_group = |group: Gid| gid == group.as_raw() || (self.lookup)(uid, gid, group);
        uid == 0 || uid == self.own || self.group.is_some_and(by_group)
    }

    /// The answer, when there is one.
    fn ask(&self, uid: u32, gid: u32, group: Gid) -> Answer {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // A pending look-up is not started a second time beside itself; one that nobody will answer is.
        known.retain(|_, (since, answer)| match answer.has_changed() {
            Ok(_) if answer.borrow().is_none() => true,
            _ => answer.borrow().is_some() && since.elapsed() < GROUP_CACHE_TTL,
        });
        let begin = || {
            let (sender, answer) = watch::channel(None);
            let lookup = self.lookup;
            tokio::task::spawn_blocking(move || sender.send_replace(Some(lookup(uid, gid, group))));
            (Instant::now(), answer)
        };
        known.entry((uid, gid)).or_insert_with(begin).1.clone()
    }
}

fn is_member(uid: u32, gid: u32, group: Gid) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return false };
    let Ok(name) = CString::new(user.name) else { return false };
    getgrouplist(&name, Gid::from_raw(gid)).is_ok_and(|groups| groups.contains(&group))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn root_and_the_own_user_may_and_strangers_may_not() {
        let access = ReadGroup::new("no-such-group-anywhere");
        assert!(access.may_read(0, 0).await);
        assert!(access.may_read(Uid::effective().as_raw(), 12345).await);
        assert!(!access.may_read(54321, 54321).await);
    }

    #[tokio::test]
    async fn the_primary_group_counts() {
        let root = Group::from_gid(Gid::from_raw(0)).unwrap().unwrap();
        let access = ReadGroup::new(&root.name);
        assert!(access.may_read(54321, 0).await);
        assert!(!access.may_read(54321, 54321).await);
    }

    /// A name service that does not answer for one user holds up that user alone, is asked once, and is believed when
    /// it answers.
    #[tokio::test]
    async fn a_name_service_that_hangs_holds_up_nobody_else() {
        const HANGS: u32 = 50_000;
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        static ANSWERS: AtomicBool = AtomicBool::new(false);
        let lookup: Lookup = |uid, _, _| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            let began = Instant::now();
            while uid == HANGS && !ANSWERS.load(Ordering::SeqCst) && began.elapsed() < GROUP_CACHE_TTL {
                std::thread::sleep(Duration::from_millis(1));
            }
            true
        };
        let access = ReadGroup { own: 1, group: Some(Gid::from_raw(77)), lookup, known: Mutex::default() };
        let waits = async { tokio::join!(access.may_read(HANGS, 1), access.may_read(HANGS, 1)) };
        let others = async {
            for uid in HANGS + 1..HANGS + 20 {
                assert!(access.may_read(uid, 1).await && access.may_read(uid, 1).await);
            }
        };
        let ((first, second), ()) = tokio::join!(waits, others);
        assert!(!first && !second, "no rule allows it");
        assert_eq!(ASKED.load(Ordering::SeqCst), 20, "once for each");
        ANSWERS.store(true, Ordering::SeqCst);
        let mut answer = access.ask(HANGS, 1, Gid::from_raw(77));
        answer.wait_for(Option::is_some).await.unwrap();
        assert!(access.may_read(HANGS, 1).await);
        assert_eq!(ASKED.load(Ordering::SeqCst), 20);
    }
}
