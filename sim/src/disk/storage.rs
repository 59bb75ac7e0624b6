//! The simulated machine as the journal sees it.

use std::io;
use std::sync::Arc;

use clad_journal::io::{Access, Entry, File, Space, Storage, TakeOver};

use super::fault::OpKind;
use super::file::SimFile;
use super::names::Node;
use super::state::{Disk, EISDIR, ENOENT, EROFS, error};
use super::{SimDisk, address};

impl SimDisk {
    fn opened(&self, disk: &mut Disk, inode: u64, access: Access) -> Arc<dyn File> {
        let handle = disk.open(self.process, inode, access);
        let file: Arc<dyn File> = Arc::new(SimFile::new(self.shared.clone(), handle));
        disk.handles.get_mut(&handle).expect("just opened").address = address(&file);
        file
    }
}

impl Storage for SimDisk {
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        let mut disk = self.shared.lock();
        disk.plain(self.process, OpKind::List, dir)?;
        disk.list(dir)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        let mut disk = self.shared.lock();
        disk.plain(self.process, OpKind::Open, name)?;
        if disk.read_only && matches!(access, Access::WriteDirect | Access::WriteCached) {
            return Err(error(EROFS));
        }
        match disk.names.get(name) {
            Some(Node::File(inode)) => Ok(self.opened(&mut disk, inode, access)),
            Some(Node::Dir) => Err(error(EISDIR)),
            None => Err(error(ENOENT)),
        }
    }

    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        let mut disk = self.shared.lock();
        let inode = disk.change(self.process, OpKind::Create, name, |disk| disk.create(name))?;
        Ok(self.opened(&mut disk, inode, access))
    }

    fn create_dir(&self, name: &str) -> io::Result<()> {
        self.shared.lock().change(self.process, OpKind::CreateDir, name, |disk| disk.create_dir(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.shared.lock().change(self.process, OpKind::Rename, from, |disk| disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.shared.lock().change(self.process, OpKind::Remove, name, |disk| disk.remove(name))
    }

    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver> {
        self.shared.lock().change(self.process, OpKind::TakeOver, from, |disk| disk.take_over(from, to))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.shared.lock().sync_dir(self.process, dir)
    }

    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()> {
        self.shared.lock().change(self.process, OpKind::Mode, name, |disk| disk.set_mode(name, sealed))
    }

    fn space(&self) -> io::Result<Space> {
        let mut disk = self.shared.lock();
        disk.plain(self.process, OpKind::Space, "")?;
        Ok(Space { free: disk.free(), total: disk.options.capacity, files: u64::MAX })
    }

    fn block_size(&self) -> u32 {
        self.shared.lock().options.block_size
    }

    fn is_direct(&self) -> bool {
        self.shared.lock().options.direct
    }

    fn zeroing_pays(&self) -> bool {
        self.shared.lock().options.zeroing_pays
    }
}
