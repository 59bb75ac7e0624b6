//! Writes and syncs: how they begin, what they leave when they end well, and what when they do not.

use std::io;

use clad_journal::io::{Access, Durability};

use super::SECTOR;
use super::fault::{Dead, Fault, OpKind};
use super::state::{Action, Disk, EBADF, EINVAL, EIO, ENOSPC, EROFS, Flight, error};

impl Disk {
    /// Begins a write or a sync; a crash that was meant for it comes while it is in flight.
    pub(super) fn begin(&mut self, id: u64, action: Action) -> io::Result<u64> {
        let (kind, at) = match &action {
            Action::Write { pos, bytes, durability: Durability::Written } => {
                (OpKind::Write, (*pos, bytes.len() as u64))
            }
            Action::Write { pos, bytes, .. } => (OpKind::SyncedWrite, (*pos, bytes.len() as u64)),
            Action::Sync { all: false, .. } => (OpKind::SyncData, (0, 0)),
            Action::Sync { .. } => (OpKind::SyncAll, (0, 0)),
            Action::Range { pos, len, .. } => (OpKind::SyncRange, (*pos, *len)),
        };
        let (process, inode, fault) = self.enter_file(id, kind, at)?;
        if let Action::Write { .. } = action {
            self.may_write(id)?;
            self.may_access(id, at.0, at.1)?;
            self.count(inode, |c| {
                c.writes += 1;
                c.synced_writes += u64::from(kind == OpKind::SyncedWrite);
                c.bytes_written += at.1;
            });
        } else if let Action::Range { .. } = action {
            self.count(inode, |c| c.range_syncs += 1);
        } else {
            self.count(inode, |c| c.syncs += 1);
        }
        let flight = self.id();
        self.flights.insert(flight, Flight { handle: id, inode, action, fault });
        self.handles.get_mut(&id).expect("checked above").flights += 1;
        match fault {
            Some(fault @ (Fault::PowerCut | Fault::Kill)) => Err(self.crash(process, fault)),
            _ => Ok(flight),
        }
    }

    pub(super) fn may_write(&self, id: u64) -> io::Result<()> {
        match self.handle(id)?.access {
            _ if self.read_only => Err(error(EROFS)),
            Access::ReadCached | Access::ReadDirect => Err(error(EBADF)),
            Access::WriteCached | Access::WriteDirect => Ok(()),
        }
    }

    pub(super) fn may_access(&self, id: u64, pos: u64, len: u64) -> io::Result<()> {
        let block = u64::from(self.options.block_size);
        if self.is_cached(id) || (pos.is_multiple_of(block) && len.is_multiple_of(block)) {
            Ok(())
        } else {
            Err(error(EINVAL))
        }
    }

    pub(super) fn finish(&mut self, flight: u64) -> io::Result<()> {
        let Some(Flight { handle, inode, action, fault }) = self.flights.remove(&flight) else {
            return Err(Dead.into());
        };
        let done = match action {
            Action::Write { pos, bytes, durability } => self.write(handle, inode, pos, &bytes, durability, fault),
            Action::Sync { upto, all } => self.sync(handle, inode, upto, all, fault),
            Action::Range { upto, pos, len } => self.sync_range(handle, inode, upto, (pos, len), fault),
        };
        // A crash in the second half of a short write has taken the handle along.
        if let Some(handle) = self.handles.get_mut(&handle) {
            handle.flights -= 1;
        }
        self.release_if_unused(handle);
        done
    }

    fn write(
        &mut self,
        handle: u64,
        inode: u64,
        pos: u64,
        bytes: &[u8],
        durability: Durability,
        fault: Option<Fault>,
    ) -> io::Result<()> {
        let cached = self.is_cached(handle);
        let mut free = self.free();
        let room = self.inode(inode).content.take_space(pos, bytes.len() as u64, &mut free) as usize;
        // The page cache takes it; the sync reports it then.
        let asks_the_device = !cached || durability == Durability::Synced;
        let fault = match self.inode(inode).content.is_ruined(pos, bytes.len()) {
            true if asks_the_device => Some(Fault::Io),
            _ => fault,
        };
        match fault {
            Some(Fault::WriteZero) => return Err(io::ErrorKind::WriteZero.into()),
            Some(Fault::Io | Fault::NoSpace) => {
                self.fail_write(inode, pos, &bytes[..room], cached, durability);
                return Err(error(if fault == Some(Fault::Io) { EIO } else { ENOSPC }));
            }
            Some(Fault::ShortWrite) if room == bytes.len() && bytes.len() > 1 => {
                return self.write_in_two(handle, inode, pos, bytes, durability);
            }
            _ => {}
        }
        self.land(inode, pos, &bytes[..room], cached);
        if room < bytes.len() {
            return Err(error(ENOSPC));
        }
        if durability == Durability::Synced && fault != Some(Fault::FalseSync) {
            // Reported here like by any other sync of this description.
            self.untold_error(handle, inode)?;
            self.inode(inode).content.settle_write(pos, bytes.len());
        } else if !cached && !self.options.volatile_cache {
            self.inode(inode).content.settle_overwrite(pos, bytes.len());
        }
        Ok(())
    }

    fn write_in_two(
        &mut self,
        handle: u64,
        inode: u64,
        pos: u64,
        bytes: &[u8],
        durability: Durability,
    ) -> io::Result<()> {
        let grain = if self.is_cached(handle) { 1 } else { SECTOR };
        let pieces = bytes.len() / grain;
        let at = (1 + self.rng.index(pieces.saturating_sub(1).max(1))) * grain;
        let at = at.min(bytes.len() - 1).next_multiple_of(grain).min(bytes.len());
        self.write(handle, inode, pos, &bytes[..at], durability, None)?;
        if at == bytes.len() {
            return Ok(());
        }
        let kind = if durability == Durability::Synced { OpKind::SyncedWrite } else { OpKind::Write };
        let rest = (pos + at as u64, (bytes.len() - at) as u64);
        let (process, _, fault) = self.enter_file(handle, kind, rest)?;
        if let Some(fault @ (Fault::PowerCut | Fault::Kill)) = fault {
            let cached = self.is_cached(handle);
            if self.rng.coin() {
                self.land(inode, rest.0, &bytes[at..], cached);
            }
            return Err(self.crash(process, fault));
        }
        self.write(handle, inode, rest.0, &bytes[at..], durability, fault)
    }

    /// Bytes of a completed write become visible, and stay unsynced.
    pub(super) fn land(&mut self, inode: u64, pos: u64, bytes: &[u8], cached: bool) {
        let seq = self.next_seq();
        let mut unbounded = u64::MAX; // a write that had to ask for room has done so
        let content = &mut self.inode(inode).content;
        content.take_space(pos, bytes.len() as u64, &mut unbounded);
        content.write(seq, pos, bytes, cached);
    }

    fn fail_write(&mut self, inode: u64, pos: u64, bytes: &[u8], cached: bool, durability: Durability) {
        if cached && durability == Durability::Synced {
            // The pages took it; writing them back failed.
            self.land(inode, pos, bytes, true);
            let Self { inodes, rng, .. } = self;
            let inode = inodes.get_mut(&inode).expect("it was just written");
            let lost = inode.content.fail_write(pos, bytes.len(), rng);
            inode.note_error(lost);
            return;
        }
        // Any sectors may have landed; through the page cache, any first part.
        if cached {
            let n = self.rng.index(bytes.len() + 1);
            return self.land(inode, pos, &bytes[..n], true);
        }
        for (i, sector) in bytes.chunks(SECTOR).enumerate() {
            if self.rng.coin() {
                self.land(inode, pos + (i * SECTOR) as u64, sector, false);
            }
        }
    }

    fn sync(&mut self, handle: u64, inode: u64, upto: u64, all: bool, fault: Option<Fault>) -> io::Result<()> {
        if self.read_only {
            return Err(error(EROFS));
        }
        let Self { inodes, rng, .. } = self;
        let of = inodes.get_mut(&inode).expect("a flight holds its file");
        let fault = if of.content.has_ruined_pending(upto) { Some(Fault::Io) } else { fault };
        match fault {
            Some(Fault::FalseSync) => return self.untold_error(handle, inode),
            Some(Fault::Io | Fault::NoSpace | Fault::WriteZero) => {
                let lost = of.content.fail_sync(upto, rng);
                of.note_error(lost);
                let _ = self.untold_error(handle, inode); // it is being reported just now
                return Err(error(if fault == Some(Fault::NoSpace) { ENOSPC } else { EIO }));
            }
            _ => {}
        }
        of.content.settle(upto, all);
        if all {
            of.sealed_durable = of.sealed;
        }
        self.untold_error(handle, inode)
    }

    /// Executes `sync_file_range`: the dirty pages of the range go to the device, which keeps them where it has no
    /// volatile cache and no metadata was needed. Nothing around the page cache is concerned.
    fn sync_range(
        &mut self,
        handle: u64,
        inode: u64,
        upto: u64,
        (pos, len): (u64, u64),
        fault: Option<Fault>,
    ) -> io::Result<()> {
        if self.read_only {
            return Err(error(EROFS));
        }
        let Self { inodes, rng, options, .. } = self;
        let of = inodes.get_mut(&inode).expect("a flight holds its file");
        let fault = if of.content.is_ruined(pos, len as usize) { Some(Fault::Io) } else { fault };
        match fault {
            Some(Fault::FalseSync) => return self.untold_error(handle, inode),
            Some(Fault::Io | Fault::NoSpace | Fault::WriteZero) => {
                let lost = of.content.fail_range(upto, pos, len, rng);
                of.note_error(lost);
                let _ = self.untold_error(handle, inode);
                return Err(error(if fault == Some(Fault::NoSpace) { ENOSPC } else { EIO }));
            }
            _ => {}
        }
        of.content.write_back(upto, pos, len, !options.volatile_cache);
        self.untold_error(handle, inode)
    }

    /// The error that is unreported to this description, reported now.
    pub(super) fn untold_error(&mut self, handle: u64, inode: u64) -> io::Result<()> {
        let Self { inodes, handles, .. } = self;
        let (Some(inode), Some(handle)) = (inodes.get_mut(&inode), handles.get_mut(&handle)) else { return Ok(()) };
        if handle.errors_seen == inode.errors {
            return Ok(());
        }
        handle.errors_seen = inode.errors;
        inode.error_reported = true;
        Err(error(EIO))
    }

    pub(super) fn fail_writeback(&mut self, name: &str) {
        let id = self.file(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let Self { inodes, rng, .. } = self;
        let inode = inodes.get_mut(&id).expect("it has a name");
        let lost = inode.content.fail_writeback(rng);
        inode.note_error(lost);
    }

    pub(super) fn destroy_in_writeback(&mut self, name: &str) -> bool {
        let inode = self.named(name);
        let hit = inode.content.destroy_in_writeback();
        inode.note_error(hit);
        hit
    }
}
