//! Who may read, on Unix sockets: root, the daemon's own user, and the members of `[access] read_group`.
//!
//! What must hold: the peer's uid and gid come from the kernel; a group that does not exist lets nobody in; looking a
//! user's groups up may ask a name service, so it is done once for each user and remembered for [`REMEMBER`].

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};

const REMEMBER: Duration = Duration::from_secs(60);

/// The answer to "may this user read".
pub(crate) struct Access {
    own: u32,
    group: Option<Gid>,
    known: Mutex<HashMap<(u32, u32), (Instant, bool)>>,
}

impl Access {
    /// Looks the group up. A name that no group has is no error: then it lets nobody in.
    pub(crate) fn new(read_group: &str) -> Self {
        let group = Group::from_name(read_group).ok().flatten().map(|g| g.gid);
        Self { own: Uid::effective().as_raw(), group, known: Mutex::default() }
    }

    /// Whether a peer with this uid and primary gid may read.
    pub(crate) fn may_read(&self, uid: u32, gid: u32) -> bool {
        if uid == 0 || uid == self.own {
            return true;
        }
        let Some(group) = self.group else { return false };
        if gid == group.as_raw() {
            return true;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (since, _)| since.elapsed() < REMEMBER);
        known.entry((uid, gid)).or_insert_with(|| (Instant::now(), is_member(uid, gid, group))).1
    }
}

fn is_member(uid: u32, gid: u32, group: Gid) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return false };
    let Ok(name) = CString::new(user.name) else { return false };
    getgrouplist(&name, Gid::from_raw(gid)).is_ok_and(|groups| groups.contains(&group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_may_and_strangers_may_not() {
        let access = Access::new("no-such-group-anywhere");
        assert!(access.may_read(0, 0));
        assert!(access.may_read(Uid::effective().as_raw(), 12345));
        assert!(!access.may_read(54321, 54321));
    }

    #[test]
    fn the_primary_group_counts() {
        let root = Group::from_gid(Gid::from_raw(0)).unwrap().unwrap();
        let access = Access::new(&root.name);
        assert!(access.may_read(54321, 0));
        assert!(!access.may_read(54321, 54321));
    }
}
