//! Open file descriptions: their life, their locks, and what they do besides writing.

use std::io;

use clad_journal::io::{Access, Lock};

use super::fault::{Counters, Dead, Fault, OpKind};
use super::state::{Disk, EDEADLK, EIO, ENOSPC, Handle, Inode, error};

impl Disk {
    pub(super) fn inode(&mut self, id: u64) -> &mut Inode {
        self.inodes.get_mut(&id).expect("an inode lives while a handle or a name leads to it")
    }

    pub(super) fn named(&mut self, name: &str) -> &mut Inode {
        let id = self.file(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        self.inode(id)
    }

    pub(super) fn open(&mut self, process: u64, inode: u64, access: Access) -> u64 {
        let id = self.id();
        let of = self.inode(inode);
        // An unreported error is reported to the newcomer.
        let errors_seen = if of.error_reported { of.errors } else { of.errors.saturating_sub(1) };
        let handle = Handle { process, address: 0, inode, access, errors_seen, flights: 0, closed: false };
        self.handles.insert(id, handle);
        id
    }

    pub(super) fn handle_at(&self, address: usize) -> io::Result<u64> {
        let open = |(_, h): &(&u64, &Handle)| h.address == address && !h.closed;
        self.handles.iter().find(open).map(|(id, _)| *id).ok_or_else(|| Dead.into())
    }

    pub(super) fn handle(&self, id: u64) -> io::Result<&Handle> {
        self.handles.get(&id).filter(|h| !h.closed && self.is_alive(h.process)).ok_or_else(|| Dead.into())
    }

    pub(super) fn is_cached(&self, handle: u64) -> bool {
        let direct = |h: &Handle| matches!(h.access, Access::ReadDirect | Access::WriteDirect);
        !(self.options.direct && self.handles.get(&handle).is_some_and(direct))
    }

    pub(super) fn close(&mut self, id: u64) {
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.closed = true;
            self.release_if_unused(id);
        }
    }

    /// A description ends with its last reference, and operations in flight are such.
    pub(super) fn release_if_unused(&mut self, id: u64) {
        if self.handles.get(&id).is_some_and(|h| h.closed && h.flights == 0) {
            let handle = self.handles.remove(&id).expect("it was just there");
            self.inode(handle.inode).locks.retain(|(holder, _)| *holder != id);
            self.forget_unused();
        }
    }

    pub(super) fn forget_unused(&mut self) {
        let Self { inodes, handles, names, .. } = self;
        inodes.retain(|id, _| names.mentions(*id) || handles.values().any(|h| h.inode == *id));
    }

    pub(super) fn free(&self) -> u64 {
        let counts = |id: &u64| self.names.shows(*id) || self.handles.values().any(|h| h.inode == *id);
        let used: u64 = self.inodes.iter().filter(|(id, _)| counts(id)).map(|(_, i)| i.content.allocated()).sum();
        self.options.capacity.saturating_sub(used)
    }

    pub(super) fn enter_file(
        &mut self,
        id: u64,
        kind: OpKind,
        at: (u64, u64),
    ) -> io::Result<(u64, u64, Option<Fault>)> {
        let Handle { process, inode, .. } = *self.handle(id)?;
        let name = self.inode(inode).name.clone();
        let fault = self.enter(process, kind, &name, at)?;
        self.inode(inode).counters.ops += 1;
        Ok((process, inode, fault))
    }

    pub(super) fn count(&mut self, inode: u64, add: impl Fn(&mut Counters)) {
        add(&mut self.counters);
        add(&mut self.inode(inode).counters);
    }

    pub(super) fn read(&mut self, id: u64, pos: u64, out: &mut [u8]) -> io::Result<usize> {
        let (process, inode, fault) = self.enter_file(id, OpKind::Read, (pos, out.len() as u64))?;
        self.simple_fault(process, fault)?;
        self.may_access(id, pos, out.len() as u64)?;
        let direct = !self.is_cached(id);
        let content = &self.inode(inode).content;
        let got = content.len().saturating_sub(pos).min(out.len() as u64) as usize;
        if content.is_bad(pos, got) {
            return Err(error(EIO));
        }
        content.read(pos, &mut out[..got], direct);
        self.count(inode, |c| {
            c.reads += 1;
            c.bytes_read += got as u64;
        });
        Ok(got)
    }

    pub(super) fn len(&mut self, id: u64) -> io::Result<u64> {
        let (process, inode, fault) = self.enter_file(id, OpKind::Len, (0, 0))?;
        self.simple_fault(process, fault)?;
        Ok(self.inode(inode).content.len())
    }

    pub(super) fn overwrites_in_place(&mut self, id: u64, len: u64) -> io::Result<bool> {
        let (process, inode, fault) = self.enter_file(id, OpKind::InPlace, (0, len))?;
        self.simple_fault(process, fault)?;
        let inode = self.inode(inode);
        Ok(!inode.shared && inode.content.is_in_place(len))
    }

    /// `set_len`, or `allocate`, which takes the space too and never cuts.
    pub(super) fn resize(&mut self, id: u64, len: u64, allocate: bool) -> io::Result<()> {
        let kind = if allocate { OpKind::Allocate } else { OpKind::SetLen };
        let (process, inode, fault) = self.enter_file(id, kind, (len, 0))?;
        let crash = fault.filter(|f| matches!(f, Fault::PowerCut | Fault::Kill));
        if crash.is_none() {
            self.simple_fault(process, fault)?;
        }
        self.may_write(id)?;
        let in_time = crash.is_none() || self.rng.coin();
        let done = if in_time { self.set_size(inode, len, allocate) } else { Ok(()) };
        match crash {
            Some(fault) => Err(self.crash(process, fault)),
            None => done,
        }
    }

    fn set_size(&mut self, inode: u64, len: u64, allocate: bool) -> io::Result<()> {
        let mut free = self.free();
        let seq = self.next_seq();
        let content = &mut self.inode(inode).content;
        if allocate && content.take_space(0, len, &mut free) < len {
            return Err(error(ENOSPC));
        }
        if !allocate || len > content.len() {
            content.resize(seq, len);
        }
        Ok(())
    }

    pub(super) fn try_lock(&mut self, id: u64, lock: Lock) -> io::Result<bool> {
        let (process, inode, fault) = self.enter_file(id, OpKind::Lock, (0, 0))?;
        self.simple_fault(process, fault)?;
        Ok(self.take_lock(id, inode, lock))
    }

    fn take_lock(&mut self, id: u64, inode: u64, lock: Lock) -> bool {
        let locks = &mut self.inode(inode).locks;
        if locks.contains(&(id, lock)) {
            return true;
        }
        // The old lock is given back before the new one is asked for.
        locks.retain(|(holder, _)| *holder != id);
        let free = locks.iter().all(|(_, held)| *held == Lock::Shared && lock == Lock::Shared);
        if free {
            locks.push((id, lock));
        }
        free
    }

    /// One round of waiting: `true` when the lock is taken. The writes of the dead land while one waits.
    pub(super) fn wait_for_lock(&mut self, id: u64, lock: Lock) -> io::Result<bool> {
        if self.try_lock(id, lock)? {
            return Ok(true);
        }
        let inode = self.handle(id)?.inode;
        self.land_late(Some(inode));
        if self.take_lock(id, inode, lock) {
            return Ok(true);
        }
        if self.options.threaded { Ok(false) } else { Err(error(EDEADLK)) }
    }
}
