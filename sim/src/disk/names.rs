//! Which name means which file: what the folders say now, what they say on the media, and the changes in between.
//!
//! A change is durable once its folder is synced. In a power cut each unsynced change survives or not on its own, but
//! for what any file system keeps. Changes that touch the same name survive in their order. A rename within a folder is
//! whole. A rename across folders never loses the file (it may be found under both names).

use std::collections::BTreeMap;

use crate::Rng;

/// Meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Dir,
}

#[derive(Clone)]
enum Effect {
    Set(String, Node),
    Delete(String),
    Move { from: String, to: String, node: Node },
}

#[derive(Clone)]
struct Change {
    id: u64,
    dir: String,
    effect: Effect,
    /// Another change without which this one would lose a file.
    needs: Option<u64>,
    /// The folder that must be there for the same reason.
    within: String,
}

/// All names of the simulated folder, as paths relative to it.
#[derive(Clone, Default)]
pub(super) struct Names {
    durable: BTreeMap<String, Node>,
    now: BTreeMap<String, Node>,
    changes: Vec<Change>,
    next_id: u64,
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<Node> {
        self.now.get(name).copied()
    }

    /// Names in a folder, without the folder.
    pub(super) fn list<'a>(&'a self, dir: &'a str) -> impl Iterator<Item = (&'a str, Node)> {
        self.now.iter().filter(move |(name, _)| folder(name) == dir).map(|(name, node)| (leaf(name), *node))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&str, Node)> {
        self.now.iter().map(|(name, node)| (name.as_str(), *node))
    }

    /// True if a folder is there.
    pub(super) fn has_dir(&self, dir: &str) -> bool {
        dir.is_empty() || self.get(dir) == Some(Node::Dir)
    }

    /// True if any name may mean this file, now or after a power cut.
    pub(super) fn mentions(&self, inode: u64) -> bool {
        let file = Node::File(inode);
        self.now.values().chain(self.durable.values()).any(|node| *node == file)
            || self
                .changes
                .iter()
                .any(|c| matches!(c.effect, Effect::Set(_, n) | Effect::Move { node: n, .. } if n == file))
    }

    /// True if a name means this file now.
    pub(super) fn shows(&self, inode: u64) -> bool {
        self.now.values().any(|node| *node == Node::File(inode))
    }

    pub(super) fn set(&mut self, name: &str, node: Node) {
        self.change(folder(name), Effect::Set(name.to_owned(), node), None, folder(name));
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.change(folder(name), Effect::Delete(name.to_owned()), None, folder(name));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, node: Node) {
        if folder(from) == folder(to) {
            let effect = Effect::Move { from: from.to_owned(), to: to.to_owned(), node };
            self.change(folder(from), effect, None, folder(to));
        } else {
            let made = self.change(folder(to), Effect::Set(to.to_owned(), node), None, folder(to));
            self.change(folder(from), Effect::Delete(from.to_owned()), Some(made), folder(to));
        }
    }

    /// Puts a name on the media at once.
    pub(super) fn install(&mut self, name: &str, node: Node) {
        self.durable.insert(name.to_owned(), node);
        self.now.insert(name.to_owned(), node);
    }

    fn change(&mut self, dir: &str, effect: Effect, needs: Option<u64>, within: &str) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        effect.apply(&mut self.now);
        self.changes.push(Change { id, dir: dir.to_owned(), effect, needs, within: within.to_owned() });
        id
    }

    /// The changes in a folder are durable now.
    pub(super) fn sync(&mut self, dir: &str) {
        self.settle(dir, u64::MAX);
    }

    fn settle(&mut self, dir: &str, upto: u64) {
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.changes).into_iter().partition(|c| c.dir == dir && c.id <= upto);
        self.changes = later;
        for change in now {
            let needed = self.changes.iter().find(|c| Some(c.id) == change.needs).map(|c| (c.dir.clone(), c.id));
            if let Some((other, id)) = needed {
                self.settle(&other, id);
            }
            change.effect.apply(&mut self.durable);
        }
    }

    /// The power is gone. `share` of 4 is the chance of each unsynced change.
    pub(super) fn cut_power(&mut self, share: u64, rng: &mut Rng) {
        let changes = std::mem::take(&mut self.changes);
        let mut lost: Vec<usize> = Vec::new();
        for (i, change) in changes.iter().enumerate() {
            let blocked = lost.iter().any(|l| {
                let before = &changes[*l];
                let made = matches!(&before.effect, Effect::Set(name, Node::Dir) if *name == change.within);
                made || Some(before.id) == change.needs || change.effect.touches(&before.effect)
            });
            if rng.chance(share, 4) && !blocked {
                change.effect.apply(&mut self.durable);
            } else {
                lost.push(i);
            }
        }
        let dirs: Vec<String> =
            self.durable.iter().filter(|(_, node)| **node == Node::Dir).map(|(name, _)| name.clone()).collect();
        // A folder that did not survive takes along what was in it.
        self.durable.retain(|name, _| folder(name).is_empty() || dirs.iter().any(|dir| dir == folder(name)));
        self.now = self.durable.clone();
    }
}

impl Effect {
    fn apply(&self, names: &mut BTreeMap<String, Node>) {
        match self {
            Self::Set(name, node) => {
                names.insert(name.clone(), *node);
            }
            Self::Delete(name) => {
                names.remove(name);
            }
            Self::Move { from, to, node } => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }

    fn names(&self) -> [&str; 2] {
        match self {
            Self::Set(name, _) | Self::Delete(name) => [name, name],
            Self::Move { from, to, .. } => [from, to],
        }
    }

    fn touches(&self, other: &Self) -> bool {
        self.names().iter().any(|name| other.names().contains(name))
    }
}

fn folder(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn leaf(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, leaf)| leaf)
}
