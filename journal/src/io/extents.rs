//! Blocks of a file, as far as the file system reports them (FIEMAP).
//!
//! Invariant: [`overwrites_in_place`] returns `true` only where the file system reports it of every block. An overwrite
//! of such blocks changes no metadata, so a write-back of its pages is sufficient.
#![allow(unsafe_code)] // an ioctl that no wrapper has

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::IFlags;

/// `FS_IOC_FIEMAP`, `_IOWR('f', 11, struct fiemap)`
const FS_IOC_FIEMAP: u32 = 0xC020_660B;
/// Dirty pages are written back first, so that every page has a place.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// Extents asked for in one call.
const EXTENTS_PER_CALL_MAX: usize = 64;
/// `FIEMAP_EXTENT_*`: UNKNOWN, DELALLOC, ENCODED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL, UNWRITTEN, SHARED.
const NOT_IN_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400 | 0x800 | 0x2000;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved32: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS_PER_CALL_MAX],
}

const _: () = assert!(size_of::<Extent>() == 56 && size_of::<Fiemap>() == 32 + 56 * EXTENTS_PER_CALL_MAX);

/// Returns true if every block of the first `len` bytes is written and the file's own, and its data is not journaled.
pub(super) fn overwrites_in_place(fd: &OwnedFd, len: u64) -> io::Result<bool> {
    // ext4 can journal the data of single files (`chattr +j`); xfs has no such flag.
    if rustix::fs::ioctl_getflags(fd.as_fd()).is_ok_and(|flags| flags.contains(IFlags::JOURNALING)) {
        return Ok(false);
    }
    let mut covered = 0;
    while covered < len {
        let Some((extents, mapped)) = ask(fd, covered, len - covered)? else { return Ok(false) };
        let before = covered;
        for extent in &extents[..mapped] {
            if extent.logical > covered || extent.flags & NOT_IN_PLACE != 0 {
                return Ok(false);
            }
            covered = covered.max(extent.logical + extent.length);
        }
        if covered == before {
            return Ok(false); // a gap to the end
        }
    }
    Ok(true)
}

/// The extents from `start` on; `None` where the file system reports none.
fn ask(fd: &OwnedFd, start: u64, length: u64) -> io::Result<Option<([Extent; EXTENTS_PER_CALL_MAX], usize)>> {
    let mut map = Fiemap {
        start,
        length,
        flags: FIEMAP_FLAG_SYNC,
        mapped: 0,
        count: EXTENTS_PER_CALL_MAX as u32,
        reserved: 0,
        extents: [Extent::default(); EXTENTS_PER_CALL_MAX],
    };
    // SAFETY: `map` has the layout of `struct fiemap` with room for `count` extents (asserted above), it lives and is
    // ours alone for the call, and the kernel writes no more than that; the descriptor is open.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) };
    if done == 0 {
        return Ok(Some((map.extents, (map.mapped as usize).min(EXTENTS_PER_CALL_MAX))));
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::EBADR) => Ok(None),
        _ => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Needs the file system that the journal itself needs here: one that reports its extents.
    #[test]
    fn written_blocks_are_in_place_and_reserved_missing_or_sparse_ones_are_not() {
        let dir = crate::io::real_folder();
        let file = |name: &str| {
            File::options().read(true).write(true).create(true).truncate(true).open(dir.path().join(name)).unwrap()
        };
        let asked = |file: &File, len| overwrites_in_place(&file.try_clone().unwrap().into(), len).unwrap();
        let written = file("written");
        written.write_all_at(&vec![0; 1 << 20], 0).unwrap();
        assert!(asked(&written, 1 << 20), "zeroes that were written are written");
        assert!(!asked(&written, (1 << 20) + 4096), "beyond its end there is nothing");
        written.set_len(2 << 20).unwrap();
        assert!(!asked(&written, 2 << 20), "a size is no space");
        assert!(asked(&written, 1 << 20));

        let reserved = file("reserved");
        rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert!(!asked(&reserved, 1 << 20), "reserved space is not written");
        reserved.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        assert!(asked(&reserved, 1 << 20), "it is now");

        let gaps = file("gaps");
        for at in (0..40).filter(|at| *at != 20) {
            gaps.write_all_at(&[1; 4096], at * 8192).unwrap();
            gaps.write_all_at(&[1; 4096], at * 8192 + 4096).unwrap();
        }
        assert!(asked(&gaps, 20 * 8192) && !asked(&gaps, 21 * 8192), "one gap is enough");
        let pieces = file("pieces");
        (0..300).rev().for_each(|at| pieces.write_all_at(&[1; 4096], at * 4096).unwrap());
        pieces.sync_all().unwrap();
        assert!(asked(&pieces, 300 * 4096));
    }
}
