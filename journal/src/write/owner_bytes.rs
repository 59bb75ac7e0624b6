//! Bytes in the stored log, by owner: the flood of one user must not remove the history of another.
//!
//! An append counts as it lies in the file, with the journal's own data around it; the header of a batch counts for
//! the owner of its first append. A flood of empty records is bounded like one of long ones. Bytes without an owner
//! are not counted: headers and footers of segments, commit markers, fill to the next block.
//!
//! An owner is a user id; the whole network is one. Each footer contains the bytes of each owner in its segment. The
//! sum over the stored log is in memory: appends add to it, retention subtracts the values of a footer. Segments that
//! a start found sealed are counted in the background once a quota is set, oldest first, because a start reads no
//! footers. Until then, and for segments whose footers lack the values (older footers), the count is too low: a quota
//! errs on that side.
//!
//! Invariant: an append that would take its owner above the quota is refused before it has an offset; root never is.
//! The tables are bounded: [`OWNERS_MAX`] in memory and [`FOOTER_OWNERS_MAX`] in a footer, and the rest is one owner.

use crate::format::batch;
use crate::format::chunk::{ChunkHeader, chunks};
use crate::format::footer::FOOTER_OWNERS_MAX;

/// Owners of which a table in memory says how much they hold.
pub(crate) const OWNERS_MAX: usize = 4096;
/// All of the network, as one owner: it has no user id.
pub const NETWORK: u64 = 1 << 63;
/// All owners that found no place in a table, as one.
pub const OTHERS: u64 = u64::MAX;
/// The owner that no quota binds.
const ROOT: u64 = 0;

/// Bytes by owner, in the order of the owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerBytes(Vec<(u64, u64)>);

impl OwnerBytes {
    /// Adds to an owner's bytes.
    pub(crate) fn add(&mut self, owner: u64, bytes: u64) {
        let owner = one_owner(owner);
        match self.0.binary_search_by_key(&owner, |entry| entry.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(bytes),
            Err(at) if self.0.len() < OWNERS_MAX || owner == OTHERS => self.0.insert(at, (owner, bytes)),
            Err(_) => self.add(OTHERS, bytes),
        }
    }

    /// Adds a batch, by its body: each chunk to its owner, the header to that of the first chunk.
    pub(crate) fn add_body(&mut self, body: &[u8]) {
        let mut header = batch::LEN;
        for chunk in chunks(body).flatten() {
            let bytes =
                std::mem::take(&mut header) + ChunkHeader::encoded_len(chunk.peer_meta.len(), chunk.payload.len());
            self.add(chunk.header.owner, bytes as u64);
        }
    }

    /// Adds all of another table.
    pub(crate) fn add_all(&mut self, other: impl IntoIterator<Item = (u64, u64)>) {
        other.into_iter().for_each(|(owner, bytes)| self.add(owner, bytes));
    }

    /// Subtracts the bytes of a removed segment. An owner without a place here is counted among the others.
    pub(crate) fn take_all(&mut self, other: impl IntoIterator<Item = (u64, u64)>) {
        for (owner, bytes) in other {
            let find = |owner: u64| self.0.binary_search_by_key(&owner, |entry| entry.0);
            if let Ok(at) = find(one_owner(owner)).or_else(|_| find(OTHERS)) {
                self.0[at].1 = self.0[at].1.saturating_sub(bytes);
            }
        }
        self.0.retain(|entry| entry.1 > 0);
    }

    /// Bytes of an owner.
    pub(crate) fn of(&self, owner: u64) -> u64 {
        let owner = one_owner(owner);
        let of = |owner: u64| self.0.binary_search_by_key(&owner, |entry| entry.0).map_or(0, |at| self.0[at].1);
        match of(owner) {
            0 if self.0.len() >= OWNERS_MAX => of(OTHERS),
            bytes => bytes,
        }
    }

    /// Owners in it.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The `most` that have most, largest first.
    pub(crate) fn largest(&self, most: usize) -> Vec<(u64, u64)> {
        let mut all = self.0.clone();
        all.sort_by_key(|(owner, bytes)| (std::cmp::Reverse(*bytes), *owner));
        all.truncate(most);
        all
    }

    /// For a footer: the largest by themselves, all the rest as one, in the order of the owners.
    pub(crate) fn for_footer(&self) -> Vec<(u64, u64)> {
        let mut named = self.largest(FOOTER_OWNERS_MAX);
        if self.0.len() > named.len() {
            named.retain(|entry| entry.0 != OTHERS);
            let sum = |entries: &[(u64, u64)]| entries.iter().map(|entry| entry.1).sum::<u64>();
            named.push((OTHERS, sum(&self.0).saturating_sub(sum(&named))));
        }
        named.sort_unstable();
        named
    }
}

/// Bytes of each owner in the log, and the quota.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    pub(crate) held: OwnerBytes,
    /// 0: no bound.
    pub(crate) most: u64,
}

impl Quota {
    /// Notes that a segment is sealed: owners that its footer does not name count as in the footer, because retention
    /// subtracts that.
    pub(crate) fn sealed(&mut self, held: &OwnerBytes, footer: &[(u64, u64)]) {
        if held.0 != footer {
            self.held.take_all(held.0.iter().copied());
            self.held.add_all(footer.iter().copied());
        }
    }

    /// Checks that an append of so many bytes stays within its owner's quota; else returns the quota.
    pub(crate) fn check(&self, owner: u64, bytes: usize) -> Result<(), u64> {
        let free = self.most == 0 || owner == ROOT;
        match free || self.held.of(owner).saturating_add(bytes as u64) <= self.most {
            true => Ok(()),
            false => Err(self.most),
        }
    }
}

/// The network has an owner for each secret; it is one here.
fn one_owner(owner: u64) -> u64 {
    if owner & NETWORK != 0 && owner != OTHERS { NETWORK } else { owner }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_there_until_it_is_taken_away() {
        let mut held = OwnerBytes::default();
        held.add_all([(1000, 5), (7, 1), (1000, 5), (NETWORK | 3, 2), (NETWORK | 9, 2)]);
        assert_eq!((held.of(1000), held.of(7), held.of(NETWORK | 77), held.of(8)), (10, 1, 4, 0));
        assert_eq!(held.for_footer(), [(7, 1), (1000, 10), (NETWORK, 4)]);
        assert_eq!(held.largest(2), [(1000, 10), (NETWORK, 4)]);
        held.take_all([(1000, 9), (7, 100), (55, 1), (NETWORK | 1, 4)]);
        assert_eq!(held.for_footer(), [(1000, 1)]);
    }

    #[test]
    fn the_tables_are_bounded_and_lose_no_byte() {
        let mut held = OwnerBytes::default();
        let owners = OWNERS_MAX as u64 + 500;
        (1..=owners).for_each(|owner| held.add(owner, owner));
        assert_eq!(held.0.len(), OWNERS_MAX + 1);
        let sum = |entries: &[(u64, u64)]| entries.iter().map(|entry| entry.1).sum::<u64>();
        let footer = held.for_footer();
        assert!(footer.len() <= FOOTER_OWNERS_MAX + 1 && footer.is_sorted(), "{}", footer.len());
        assert_eq!((sum(&footer), sum(&held.0)), (owners * (owners + 1) / 2, owners * (owners + 1) / 2));
        assert_eq!(held.of(owners), held.of(OTHERS), "who has no place has what the others have");
        held.take_all(footer);
        assert!(sum(&held.0) < owners * owners / 2);
    }

    #[test]
    fn a_quota_binds_each_owner_but_root() {
        let mut quota = Quota { most: 10, ..Quota::default() };
        for owner in [1000, ROOT, NETWORK | 1] {
            quota.held.add(owner, 8);
        }
        assert_eq!((quota.check(1000, 2), quota.check(1000, 3), quota.check(1001, 10)), (Ok(()), Err(10), Ok(())));
        assert_eq!((quota.check(NETWORK | 2, 3), quota.check(ROOT, 100)), (Err(10), Ok(())));
        quota.most = 0;
        assert_eq!(quota.check(1000, 100), Ok(()));
    }
}
