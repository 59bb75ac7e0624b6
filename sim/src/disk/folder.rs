//! Operations on names.

use std::io;

use clad_journal::io::{Entry, EntryKind, TakeOver, Witness};

use super::content::Content;
use super::fault::{Counters, Fault, OpKind};
use super::names::Node;
use super::state::{Disk, EEXIST, EISDIR, ENOENT, Inode, error};

impl Disk {
    pub(super) fn list(&mut self, dir: &str) -> io::Result<Vec<Entry>> {
        if !self.names.has_dir(dir) {
            return Err(error(ENOENT));
        }
        let entry = |(name, node): (&str, Node)| {
            let (len, kind) = match node {
                Node::File(inode) => (self.inodes[&inode].content.len(), EntryKind::File),
                Node::Dir => (0, EntryKind::Dir),
            };
            Entry { name: name.to_owned(), len, kind }
        };
        let mut entries: Vec<Entry> = self.names.list(dir).map(entry).collect();
        self.rng.shuffle(&mut entries); // in no particular order
        Ok(entries)
    }

    pub(super) fn file(&self, name: &str) -> io::Result<u64> {
        match self.names.get(name) {
            Some(Node::File(inode)) => Ok(inode),
            Some(Node::Dir) => Err(error(EISDIR)),
            None => Err(error(ENOENT)),
        }
    }

    fn needs_folder(&self, name: &str) -> io::Result<()> {
        let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
        if self.names.has_dir(dir) { Ok(()) } else { Err(error(ENOENT)) }
    }

    fn new_inode(&mut self, name: &str) -> u64 {
        let id = self.id();
        let inode = Inode {
            content: Content::default(),
            sealed: false,
            sealed_durable: false,
            shared: false,
            locks: Vec::new(),
            errors: 0,
            error_reported: true,
            counters: Counters::default(),
            name: name.to_owned(),
        };
        self.inodes.insert(id, inode);
        id
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<u64> {
        self.needs_folder(name)?;
        if self.names.get(name).is_some() {
            return Err(error(EEXIST));
        }
        let inode = self.new_inode(name);
        self.names.set(name, Node::File(inode));
        Ok(inode)
    }

    pub(super) fn create_dir(&mut self, name: &str) -> io::Result<()> {
        self.needs_folder(name)?;
        match self.names.get(name) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(error(EEXIST)),
            None => {
                self.names.set(name, Node::Dir);
                Ok(())
            }
        }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.file(from)?;
        self.needs_folder(to)?;
        if self.names.get(to) == Some(Node::Dir) {
            return Err(error(EISDIR));
        }
        if from != to {
            self.names.rename(from, to, Node::File(inode));
            self.inode(inode).name = to.to_owned();
            self.forget_unused();
        }
        Ok(())
    }

    /// A rename, if no open file leads to it and all of it is its own. A dead process's write that has not landed holds
    /// its file open.
    pub(super) fn take_over(&mut self, from: &str, to: &str) -> io::Result<TakeOver> {
        let id = self.file(from)?;
        if self.handles.values().any(|handle| handle.inode == id) {
            return Ok(TakeOver::Refused(Witness::Open));
        }
        let inode = self.inode(id);
        if inode.shared || !inode.content.is_in_place(inode.content.len()) {
            return Ok(TakeOver::Refused(Witness::Shared));
        }
        self.rename(from, to).map(|()| TakeOver::Done)
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?;
        self.names.delete(name);
        self.forget_unused();
        Ok(())
    }

    pub(super) fn set_mode(&mut self, name: &str, sealed: bool) -> io::Result<()> {
        let inode = self.file(name)?;
        self.inode(inode).sealed = sealed;
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, process: u64, dir: &str) -> io::Result<()> {
        let fault = self.enter(process, OpKind::SyncDir, dir, (0, 0))?;
        self.counters.dir_syncs += 1;
        self.simple_fault(process, fault)?;
        if !self.names.has_dir(dir) {
            return Err(error(ENOENT));
        }
        if fault != Some(Fault::FalseSync) {
            self.names.sync(dir);
            self.forget_unused();
        }
        Ok(())
    }

    pub(super) fn install(&mut self, name: &str, bytes: &[u8]) {
        if let Some((dir, _)) = name.rsplit_once('/') {
            self.names.install(dir, Node::Dir);
        }
        let id = self.new_inode(name);
        let seq = self.next_seq();
        let mut unbounded = u64::MAX;
        let content = &mut self.inode(id).content;
        content.take_space(0, bytes.len() as u64, &mut unbounded);
        content.write(seq, 0, bytes, false);
        content.settle(seq, true);
        self.names.install(name, Node::File(id));
    }
}
