//! The producer of a program's log: the first, or in a child of `fork` the one that it began with.
//!
//! Invariant: one that has a successor belongs to a parent of this process; it is never used again, and never dropped.

use std::sync::{Arc, OnceLock};

use clad_client::Producer;

/// Shared by layer, logger, panic hook and guard.
#[derive(Debug, Clone)]
pub(crate) struct Current(Arc<Link>);

#[derive(Debug)]
struct Link {
    producer: Producer,
    next: OnceLock<Box<Self>>,
}

impl Link {
    const fn new(producer: Producer) -> Self {
        Self { producer, next: OnceLock::new() }
    }

    fn last(&self) -> &Self {
        let mut link = self;
        while let Some(next) = link.next.get() {
            link = next;
        }
        link
    }
}

impl Current {
    pub(crate) fn new(producer: &Producer) -> Self {
        Self(Arc::new(Link::new(producer.clone())))
    }

    pub(crate) fn producer(&self) -> &Producer {
        &self.0.last().producer
    }

    /// From now on it is this one, in this process and in its children.
    pub(crate) fn follow_with(&self, producer: &Producer) {
        let mut link = Box::new(Link::new(producer.clone()));
        // Another thread may do the same.
        while let Err(again) = self.0.last().next.set(link) {
            link = again;
        }
    }
}
