//! The kernel's answers about single paths, and the start of the walk.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use super::substrate::{Facts, Roots, Substrate};
use super::walk::Walk;

/// Id of this boot of the machine; `None` where `/proc` has none.
pub(crate) fn boot_id() -> Option<[u8; 16]> {
    boot_id_in(&Roots::default())
}

pub(super) fn boot_id_in(roots: &Roots) -> Option<[u8; 16]> {
    let text = fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id")).ok()?;
    let digits: Vec<u8> = text.trim().bytes().filter(|b| *b != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |b: u8| char::from(b).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(id)
}

/// Finds the base of a folder. A folder that does not exist yet is judged by the nearest one above it.
pub fn discover(dir: &Path) -> Substrate {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let existing = absolute.ancestors().find_map(|d| fs::canonicalize(d).ok());
    discover_in(&Roots::default(), &existing.unwrap_or(absolute), &look)
}

/// The same on an injected machine: `dir` is absolute and without links, and `look` answers for single paths, `None`
/// where a path cannot be seen.
pub(super) fn discover_in(roots: &Roots, dir: &Path, look: &dyn Fn(&Path) -> Option<Facts>) -> Substrate {
    Walk::new(roots, look).run(dir)
}

fn look(path: &Path) -> Option<Facts> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), mask).ok()?;
    let is_block = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
    let has_mount_id = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Some(Facts {
        dev: Some((stat.stx_dev_major, stat.stx_dev_minor)),
        block_dev: is_block.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)),
        mount_id: has_mount_id.then_some(stat.stx_mnt_id),
        magic: rustix::fs::statfs(path).ok().map(|s| s.f_type as u64 & 0xFFFF_FFFF),
        direct_align: if path.is_dir() { direct_align(path) } else { None },
    })
}

/// Alignment of a direct write. Only a plain file reports it, so this makes one without a name.
fn direct_align(dir: &Path) -> Option<u32> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)).ok()?;
    let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0).then_some(stat.stx_dio_offset_align)
}
