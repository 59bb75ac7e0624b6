//! Rights of one peer.

use std::sync::{Arc, LazyLock};

use clad_proto::{AckLevel, LogId};

use super::rate::Rate;
use crate::config::{Pattern, Right};

/// Rights of a peer.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    pub(super) may: Vec<Right>,
    /// The components whose records it may append; `None` is all.
    pub(crate) component: Option<Pattern>,
    /// The highest level that it may ask for; `None` is any.
    pub(crate) max_level: Option<AckLevel>,
    pub(crate) rate: Option<Arc<Rate>>,
    /// Name by which it owns producers, in place of its own.
    pub(crate) owner: Option<Arc<str>>,
    /// The logs whose appends it may forward; `None` is all.
    pub(super) logs: Option<Arc<[LogId]>>,
    pub(super) decided: Decided,
}

/// Origin of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Decided {
    /// Nothing yet.
    #[default]
    Nothing,
    /// There are no rules.
    NoRules,
    /// No rule fits.
    NoneFits,
    /// The rule of this number, from 1.
    Rule(usize),
}

impl Rights {
    /// Of a peer that nobody has judged: none.
    pub(crate) fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<Rights>> = LazyLock::new(Arc::default);
        NONE.clone()
    }

    /// Where there are no rules: everybody who reaches a listener may append.
    /// Local readers may hold what they have not read. Root and the daemon's own user may forward.
    pub(crate) fn without_rules(may_read: bool, is_local: bool, may_forward: bool) -> Arc<Self> {
        static ALL: LazyLock<[Arc<Rights>; 8]> = LazyLock::new(|| {
            std::array::from_fn(|bits| {
                let all = [
                    (Right::Append, true),
                    (Right::Read, bits & 1 > 0),
                    (Right::Hold, bits & 2 > 0),
                    (Right::Forward, bits & 4 > 0),
                ];
                let may = all.into_iter().filter(|(_, may)| *may).map(|(right, _)| right).collect();
                Arc::new(Rights { may, decided: Decided::NoRules, ..Rights::default() })
            })
        });
        let bits = [may_read, may_read && is_local, may_forward].into_iter().zip([1, 2, 4]);
        ALL[bits.map(|(is_set, bit)| if is_set { bit } else { 0 }).sum::<usize>()].clone()
    }

    /// Returns true if it may forward appends of this log.
    pub(crate) fn may_forward(&self, log: LogId) -> bool {
        self.may(Right::Forward) && self.logs.as_ref().is_none_or(|logs| logs.contains(&log))
    }

    pub(crate) fn may(&self, right: Right) -> bool {
        self.may.contains(&right)
    }

    /// Returns true if its appends have no limit of their own.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.component.is_none() && self.max_level.is_none() && self.rate.is_none()
    }

    /// The highest level that it may ask for, of those up to this.
    pub(crate) fn cap(&self, level: AckLevel) -> AckLevel {
        self.max_level.map_or(level, |most| most.min(level))
    }

    /// Origin of the rights, for use within a sentence.
    pub(crate) fn because(&self) -> String {
        match self.decided {
            Decided::Nothing => "it was not judged".to_owned(),
            Decided::NoRules => "[access] read_group and allow_read decide".to_owned(),
            Decided::NoneFits => "no access.rule fits it".to_owned(),
            Decided::Rule(number) => format!("access.rule {number} decides"),
        }
    }

    /// Returns true if a connection with these rights is one with those.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if self.logs != other.logs {
            return false;
        }
        let rate = |rights: &Self| rights.rate.as_ref().map(|rate| rate.bytes_per_second());
        let of = |rights: &Self| (rights.may.clone(), rights.component.clone(), rights.max_level, rights.owner.clone());
        of(self) == of(other) && rate(self) == rate(other)
    }
}
