//! Slots of connections, over all listeners and transports.
//!
//! Invariants: each is a slot of its owner ([`super::slots`]). A connection that releases its slot is first answered
//! all pending appends, and notified. Until it is gone its descriptor counts among [`LEAVING_CONNECTIONS_MAX`]; with as
//! many of them no other makes room. Root has [`ROOT_RESERVED_CONNECTIONS`] of its own: an administrator can always
//! connect.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clad_proto::{ErrorCode, ErrorInfo};

use super::quota::{Owner, QuotaUsage};
use super::slots::{Slot, SlotState, Slots};
use crate::access::RuleSet;
use crate::ops::metrics::{self, Label};

/// Connections that have released their slot and are not gone yet. They are among the daemon's own descriptors.
pub(crate) const LEAVING_CONNECTIONS_MAX: usize = 32;
/// Connections of root beyond `[limits] max_connections`.
pub(crate) const ROOT_RESERVED_CONNECTIONS: usize = 16;

/// Number of connections over all listeners, and its maximum.
pub(crate) struct ConnectionSlots {
    slots: Arc<Slots>,
    by_transport: [AtomicU64; metrics::Transport::ALL.len()],
}

/// A connection's place among them, given back when it is dropped.
pub(crate) struct ConnectionSlot {
    connection_slots: Arc<ConnectionSlots>,
    transport: metrics::Transport,
    slot: Slot,
}

/// Error for a connection that leaves.
pub(crate) fn leaves(slot_state: &SlotState) -> ErrorInfo {
    if slot_state.is_revoked() {
        let text = "the rules of [access] have changed for this peer: connect again, and the new ones decide";
        return ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(100);
    }
    makes_room()
}

/// Error for a connection that ends because it makes room.
fn makes_room() -> ErrorInfo {
    let text = "this user (or the network) has more connections than others, who want a place ([limits] max_connections): \
                the one that was silent for longest makes room";
    ErrorInfo::new(ErrorCode::TooManyConnections, text).retry_after_ms(1000)
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Slots::new(max, ROOT_RESERVED_CONNECTIONS, LEAVING_CONNECTIONS_MAX),
            by_transport: Default::default(),
        })
    }

    pub(crate) fn set_max(&self, max: usize) {
        self.slots.set_max(max);
    }

    pub(crate) fn open(&self) -> usize {
        self.slots.open()
    }

    /// Has connections leave whose peers have other rights by these rules: how many there are.
    pub(crate) fn recheck(&self, rules: &RuleSet) -> usize {
        self.slots.recheck(rules)
    }

    /// Connections of each owner.
    pub(crate) fn quota_usage(&self) -> QuotaUsage {
        self.slots.quota_usage()
    }

    /// Number of connections on one transport.
    pub(crate) fn open_on(&self, transport: metrics::Transport) -> usize {
        self.by_transport[transport.index()].load(Ordering::Relaxed) as usize
    }

    /// Number of connections on each transport.
    pub(crate) fn by_transport(&self) -> HashMap<String, u64> {
        let open = |transport: &metrics::Transport| self.by_transport[transport.index()].load(Ordering::Relaxed);
        metrics::Transport::ALL.iter().map(|transport| (transport.as_str().to_owned(), open(transport))).collect()
    }

    /// A slot for one more connection, while its owner may have one, or another connection makes room.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner, transport: metrics::Transport) -> Option<ConnectionSlot> {
        let slot = self.slots.take(owner)?;
        self.by_transport[transport.index()].fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot { connection_slots: self.clone(), transport, slot })
    }
}

/// Reason why there is no slot for this owner.
pub(crate) fn no_place(quota_usage: &QuotaUsage, owner: Owner) -> ErrorInfo {
    let QuotaUsage { total, by_owner } = quota_usage;
    let in_use: usize = by_owner.iter().map(|(_, count)| count).sum();
    let his = by_owner.iter().find(|(holder, _)| *holder == owner).map_or(0, |(_, count)| *count);
    let text = match in_use < *total {
        true => format!(
            "the share that {} has of [limits] max_connections is used up: {his} of {total}, and the rest is for others. \
             Close connections, or raise the limit",
            owner.in_words()
        ),
        false => "as many connections as [limits] max_connections allows are open".to_owned(),
    };
    ErrorInfo::new(ErrorCode::TooManyConnections, text).retry_after_ms(1000)
}

impl ConnectionSlot {
    pub(crate) fn slot_state(&self) -> &Arc<SlotState> {
        self.slot.slot_state()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let before = self.connection_slots.by_transport[self.transport.index()].fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "more connections end than began: the count of open ones is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_their_transport() {
        let connection_slots = ConnectionSlots::new(8);
        let open =
            || metrics::Transport::ALL.iter().map(|transport| connection_slots.open_on(*transport)).collect::<Vec<_>>();
        let none = open();
        let unix = connection_slots.take(Owner::Uid(1000), metrics::Transport::Unix).unwrap();
        let grpc = connection_slots.take(Owner::Network, metrics::Transport::Grpc).unwrap();
        assert_eq!(connection_slots.open_on(metrics::Transport::Unix), 1);
        assert_eq!(connection_slots.by_transport()[metrics::Transport::Grpc.as_str()], 1);
        assert_eq!((open().iter().sum::<usize>(), connection_slots.open()), (2, 2));
        drop((unix, grpc));
        assert_eq!((open(), connection_slots.open()), (none, 0));
    }

    #[test]
    fn who_has_used_up_his_share_is_not_sent_after_the_limit() {
        let connection_slots = ConnectionSlots::new(4);
        let place = |uid| connection_slots.take(Owner::Uid(uid), metrics::Transport::Unix);
        let mine = [place(7).unwrap(), place(7).unwrap()];
        assert!(place(7).is_none());
        let error = no_place(&connection_slots.quota_usage(), Owner::Uid(7));
        assert_eq!((error.code, error.retryable), (ErrorCode::TooManyConnections, true));
        assert!(
            error.text.starts_with("the share that uid 7 has of [limits] max_connections is used up: 2 of 4"),
            "{error}"
        );
        let _others = [place(8).unwrap(), place(9).unwrap()];
        let text = no_place(&connection_slots.quota_usage(), Owner::Network).text;
        assert_eq!(text, "as many connections as [limits] max_connections allows are open");
        drop(mine);
    }

    #[test]
    fn a_user_is_one_owner_on_all_transports_and_root_can_always_connect() {
        let connection_slots = ConnectionSlots::new(4);
        let take = |owner, transport| connection_slots.take(owner, transport);
        let mine = [
            take(Owner::Uid(7), metrics::Transport::Unix).unwrap(),
            take(Owner::Uid(7), metrics::Transport::Tcp).unwrap(),
        ];
        assert!(take(Owner::Uid(7), metrics::Transport::Grpc).is_none(), "half of them, however he comes");
        let root: Vec<_> = std::iter::from_fn(|| take(Owner::Uid(0), metrics::Transport::Unix)).collect();
        assert_eq!(root.len(), 2 + ROOT_RESERVED_CONNECTIONS);
        assert_eq!(
            connection_slots.quota_usage().by_owner,
            [(Owner::Uid(0), 2 + ROOT_RESERVED_CONNECTIONS), (Owner::Uid(7), 2)]
        );
        drop(mine);
    }
}
