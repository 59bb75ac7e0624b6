//! Rights of peers: by the rules of `[access]`, and without any by group and listener.
//!
//! Invariants:
//! - The first rule that fits a peer decides. Who fits none may do nothing. A peer that nobody has judged may do nothing.
//! - A peer is what the kernel, its certificate or its token says: never what it says itself.
//! - Rules and tokens are replaced together and whole, or not at all. They are for connections and requests to come; an open
//!   connection of a peer whose rights have changed is closed.
//! - Each refusal is an error of its own kind, one count, and one line of the log in a while.
//! - Nothing here waits for a name service: names in rules become numbers when the rules are read.

mod explain;
mod rate;
mod read_group;
mod refusals;
mod rights;
mod rules;
mod subject;
mod tokens;

use std::sync::Arc;

use tokio::sync::watch;

use crate::config;
pub(crate) use explain::{Asked, explain};
pub(crate) use rate::Rate;
pub(crate) use read_group::ReadGroup;
pub(crate) use refusals::refused;
pub(crate) use rights::Rights;
pub(crate) use rules::RuleSet;
pub(crate) use subject::Subject;

/// The rules in force. Clones are the same.
#[derive(Clone)]
pub(crate) struct Access(Arc<Shared>);

struct Shared {
    read_group: ReadGroup,
    in_force: watch::Sender<Arc<RuleSet>>,
}

impl Access {
    /// With rules that were read.
    pub(crate) fn new(settings: &config::Access, rules: RuleSet) -> Self {
        let in_force = watch::Sender::new(Arc::new(rules));
        Self(Arc::new(Shared { read_group: ReadGroup::new(&settings.read_group), in_force }))
    }

    /// Without rules, for tests.
    #[cfg(test)]
    pub(crate) fn open() -> Self {
        Self::new(&config::Config::default().access, RuleSet::default())
    }

    /// Puts others in force.
    pub(crate) fn set(&self, rules: RuleSet) {
        self.0.in_force.send_replace(Arc::new(rules));
    }

    /// The rules now.
    pub(crate) fn rules(&self) -> Arc<RuleSet> {
        self.0.in_force.borrow().clone()
    }

    /// The rules now, and each time that others are put in force.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<RuleSet>> {
        self.0.in_force.subscribe()
    }

    /// Members of the group that may read, where there are no rules.
    pub(crate) fn read_group(&self) -> &ReadGroup {
        &self.0.read_group
    }
}
