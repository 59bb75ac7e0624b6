//! Making a segment ready before it is needed, so that a rotation touches no folder.
//!
//! What must hold: when a segment is handed over, its name, its folder entry, its size and (where that pays) its
//! zeroes are durable, and so is its header, which is written last: a file whose header holds was finished.
//! Zero-written blocks serve the syncing policies on ext4 and xfs only; `ftruncate` or `fallocate` space costs an
//! extent conversion, and so a journal commit, at each first durable write.

use std::io;
use std::sync::Arc;

use crate::env::Env;
use crate::faults::Fault;
use crate::format::segment::{self, SegmentHeader};
use crate::format::{parse_segment_name, segment_name};
use crate::io::{Access, Durability, File, IoBuf, Lock, Storage};

const CHUNK: usize = 1 << 20;

/// A segment that waits to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) header: SegmentHeader,
}

/// How a segment's space comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Written with zeroes, where that pays.
    Zeroed,
    /// Reserved only: a rotation waits for it.
    Reserved,
}

/// Whether the file system has room for a segment beyond the operator's reserve.
pub(crate) fn has_space(env: &Env) -> io::Result<bool> {
    Ok(env.storage.space()?.free >= env.config.segment_bytes + env.config.reserve_free)
}

fn write_access(env: &Env) -> Access {
    if env.config.policy.syncs() { Access::WriteDirect } else { Access::WriteCached }
}

/// A fresh header for a segment that holds nothing.
pub(crate) fn new_header(env: &Env, number: u64, epoch: u32) -> io::Result<SegmentHeader> {
    let mut salt = [0; 8];
    if !env.config.faults.has(Fault::SaltNotUsed) {
        env.clock.fill_random(&mut salt)?;
    }
    Ok(SegmentHeader {
        compatible: 0,
        read_only_compatible: 0,
        incompatible: 0,
        log_id: env.meta.get().log_id,
        number,
        epoch,
        block_size: env.storage.block_size(),
        salt: u64::from_le_bytes(salt),
        boot_id: env.clock.boot_id(),
        created_ns: env.clock.real_ns(),
        capacity: env.config.segment_bytes,
    })
}

pub(crate) fn write_header(file: &dyn File, header: &SegmentHeader) -> io::Result<()> {
    let mut block = IoBuf::copy_of(&header.encode());
    block.pad_to(header.block_size as usize);
    file.write_at(block, 0, Durability::Synced).1
}

/// Makes segment `number`. `pace` is called after each MiB of zeroes with the bytes done, and returns `false` to stop.
///
/// # Errors
/// What the kernel says (`StorageFull` where there is no room); what was begun is removed again.
pub(crate) fn make(
    env: &Env,
    number: u64,
    epoch: u32,
    space: Space,
    pace: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Option<Prepared>> {
    let name = segment_name(number);
    match env.storage.remove(&name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = env.storage.create(&name, Access::WriteDirect)?;
    match fill(env, file.as_ref(), number, epoch, space, pace) {
        Ok(Some(header)) => Ok(Some(Prepared { header })),
        other => {
            // Half a segment is of no use, and it holds the space that somebody waits for.
            let _ = env.storage.remove(&name);
            other.map(|_| None)
        }
    }
}

fn fill(
    env: &Env,
    file: &dyn File,
    number: u64,
    epoch: u32,
    space: Space,
    pace: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Option<SegmentHeader>> {
    let capacity = env.config.segment_bytes;
    file.allocate(capacity)?;
    if space == Space::Zeroed && env.storage.zeroing_pays() && env.config.policy.syncs() {
        let mut zeroes = IoBuf::zeroed(CHUNK.min(capacity as usize));
        let mut done = 0;
        while done < capacity {
            let n = (capacity - done).min(CHUNK as u64);
            zeroes.set_len(n as usize);
            let (back, written) = file.write_at(zeroes, done, Durability::Written);
            written?;
            zeroes = back;
            done += n;
            if !pace(done) {
                return Ok(None);
            }
        }
    }
    file.sync_all()?;
    let header = new_header(env, number, epoch)?;
    write_header(file, &header)?;
    file.sync_all()?;
    sync_folder(env)?;
    Ok(Some(header))
}

/// Makes the segment's name durable.
fn sync_folder(env: &Env) -> io::Result<()> {
    if env.config.faults.has(Fault::FolderNeverSynced) { Ok(()) } else { env.storage.sync_dir("") }
}

/// Opens a prepared segment for writing: one file description for each write in flight and one for syncs, each with
/// its own shared lock. A header of an earlier epoch is replaced first.
///
/// # Errors
/// What the kernel says.
pub(crate) fn open(env: &Env, prepared: &Prepared, epoch: u32) -> io::Result<(SegmentHeader, Vec<Arc<dyn File>>)> {
    let mut header = prepared.header.clone();
    let name = segment_name(header.number);
    if header.epoch != epoch {
        header = new_header(env, header.number, epoch)?;
        let file = env.storage.open(&name, Access::WriteDirect)?;
        // Who made it may be dead: with its header still on the way to the disk, its size and its name not durable, and
        // the mode of a segment that it was about to seal.
        file.lock(Lock::Exclusive)?;
        env.storage.set_sealed_mode(&name, false)?;
        write_header(file.as_ref(), &header)?;
        file.sync_all()?;
        sync_folder(env)?;
    }
    let open_one = |_| {
        let file = env.storage.open(&name, write_access(env))?;
        file.lock(Lock::Shared)?;
        Ok(file)
    };
    let files = (0..=env.config.policy.in_flight()).map(open_one).collect::<io::Result<_>>()?;
    Ok((header, files))
}

/// The prepared segment that an earlier run left above everything put to use, if it was finished and still fits.
///
/// # Errors
/// What the kernel says.
pub(crate) fn find_left_over(env: &Env, number: u64) -> io::Result<Option<Prepared>> {
    let file = match env.storage.open(&segment_name(number), Access::ReadDirect) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let block = env.storage.block_size();
    let (buf, read) = file.read_at(IoBuf::with_capacity(block as usize), 0, block as usize);
    read?;
    let Ok(header) = SegmentHeader::decode(&buf) else { return Ok(None) };
    let fits = header.capacity == env.config.segment_bytes
        && file.len()? == header.capacity
        && header.block_size == block
        && header.number == number
        && header.log_id == env.meta.get().log_id;
    // Epoch 0 is never in force: the header is replaced before use, with a new salt, whoever prepared it.
    Ok(fits.then_some(Prepared { header: SegmentHeader { epoch: 0, ..header } }))
}

/// Removes the segments that were prepared and never put to use, but for `keep`.
pub(crate) fn remove_left_over(storage: &dyn Storage, above: u64, keep: Option<u64>) -> io::Result<()> {
    for entry in storage.list("")? {
        if let Some(number) = parse_segment_name(&entry.name)
            && number >= above
            && Some(number) != keep
        {
            storage.remove(&entry.name)?;
        }
    }
    Ok(())
}

/// Bytes of the header block, which callers reserve.
pub(crate) const HEADER_BYTES: usize = segment::LEN;
