//! Preparation of a segment before it is needed, so that a rotation touches no folder.
//!
//! Invariant: when a segment is handed over, its name, its folder entry, its size and (where that pays) its zeroes are
//! durable, and so is its header, which is written last: a file whose header holds was finished. The zeroes are written
//! by the file writer ([`crate::bulk`]), over a file of the storage.
//!
//! Zero-written blocks serve the syncing policies on ext4 and xfs only; `ftruncate` or `fallocate` space costs an
//! extent conversion, and so a journal commit, at each first durable write.
//!
//! Where zeroes would be written, the file of a segment that retention has removed can replace them: its blocks are
//! written. Old and new content are distinguished by the salt, the number and the place that every checksum starts
//! from. No other process may see it change.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use crate::bulk::{Engine, Options};
use crate::env::Env;
use crate::format::batch::BatchHeader;
use crate::format::segment::{self, Former, SegmentHeader};
use crate::format::segment_name;
use crate::io::{Access, Durability, File, IoBuf, TakeOver, Witness, if_there, is_bad_place, read_once};
use crate::sync::atomic::Ordering;
use crate::write::segment_file;

const CHUNK: usize = 1 << 20;

/// Method that makes a segment's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Written with zeroes, where that pays.
    Zeroed,
    /// Reserved only: a rotation waits for it.
    Reserved,
}

/// Number of segments that fit beyond the operator's reserve, as the file system reports: bytes and inodes.
pub(crate) fn free_segment_count(env: &Env) -> io::Result<u64> {
    room(env).map(|(free_segments, _)| free_segments)
}

/// As above, with true if only inodes are missing.
pub(crate) fn room(env: &Env) -> io::Result<(u64, bool)> {
    let space = env.storage.space()?;
    let bytes = in_bytes(env, space);
    Ok((bytes.min(space.files), bytes > 0 && space.files == 0))
}

pub(crate) fn no_inode(number: u64) -> String {
    format!("make segment {number}: the file system has no inode left (`df -i`)")
}

fn in_bytes(env: &Env, space: crate::io::Space) -> u64 {
    space.free.saturating_sub(env.config.reserve_free) / env.config.segment_bytes
}

/// Missing resource of a file system that has bytes for a segment: inodes; or an unknown one, where it has refused a
/// segment for want of room.
pub(crate) fn lacks(env: &Env, number: u64, refused: bool) -> Option<String> {
    let space = env.storage.space().ok().filter(|space| in_bytes(env, *space) > 0)?;
    match space.files {
        0 => Some(no_inode(number)),
        _ => refused.then(|| {
            let free = space.free >> 20;
            format!(
                "make segment {number}: the file system refuses it for want of room, with {free} MiB free (a quota, perhaps)"
            )
        }),
    }
}

fn open_alone(env: &Env, number: u64, access: Access) -> io::Result<Arc<dyn File>> {
    segment_file::open_alone(env.storage.as_ref(), number, access, &env.observer)
}

fn write_access(env: &Env) -> Access {
    if env.config.policy.is_cached() { Access::WriteCached } else { Access::WriteDirect }
}

/// A fresh header for a segment that holds nothing, or nothing but what its file was before.
///
/// Of the same bytes at the same place, a checksum under one seed differs from that under another exactly when the
/// seeds' own sums differ. So a salt is drawn under which nothing that the file held can pass for a batch.
pub(crate) fn new_header(env: &Env, number: u64, epoch: u32, former: Option<Former>) -> io::Result<SegmentHeader> {
    loop {
        let header = draw_header(env, number, epoch, former)?;
        if header.former_seed() != Some(header.seed()) {
            return Ok(header);
        }
    }
}

fn draw_header(env: &Env, number: u64, epoch: u32, former: Option<Former>) -> io::Result<SegmentHeader> {
    let mut salt = [0; 8];
    env.clock.fill_random(&mut salt)?;
    Ok(SegmentHeader {
        log_id: env.meta.get().log_id,
        number,
        epoch,
        block_size: env.storage.block_size(),
        salt: u64::from_le_bytes(salt),
        boot_id: env.clock.boot_id(),
        created_ns: env.clock.real_ns(),
        capacity: env.config.segment_bytes,
        former,
        ..SegmentHeader::default()
    })
}

pub(crate) fn write_header(file: &dyn File, header: &SegmentHeader) -> io::Result<()> {
    let mut block = IoBuf::copy_of(&header.encode());
    block.pad_to(header.block_size as usize);
    file.write_at(block, 0, Durability::Synced).1
}

/// Makes segment `number`. `throttle` is called after each MiB of zeroes with the bytes done, and returns `false` to
/// stop.
///
/// # Errors
/// Error of the kernel (`StorageFull` where there is no room); a partial file is removed again.
pub(crate) fn make(
    env: &Env,
    number: u64,
    epoch: u32,
    space: Space,
    throttle: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Option<SegmentHeader>> {
    let name = segment_name(number);
    env.meta.settle()?;
    if_there(env.storage.remove(&name))?;
    let file = segment_file::create(env.storage.as_ref(), &name, Access::WriteDirect)?;
    let made = fill(env, &file, number, epoch, space, throttle);
    if !matches!(made, Ok(Some(_))) {
        // Half a segment is useless, and it takes the space that appends wait for.
        let _ = env.storage.remove(&name);
    }
    made
}

fn fill(
    env: &Env,
    file: &Arc<dyn File>,
    number: u64,
    epoch: u32,
    space: Space,
    throttle: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Option<SegmentHeader>> {
    file.allocate(env.config.segment_bytes)?;
    env.took(env.config.segment_bytes);
    if space == Space::Reserved || !zeroes_ahead(env) {
        file.sync_all()?;
    } else if !write_zeroes(env, file, number, 0, throttle)? {
        return Ok(None);
    }
    finish(env, file.as_ref(), number, epoch, None).map(Some)
}

/// True if zeroes are written ahead of the batches.
fn zeroes_ahead(env: &Env) -> bool {
    env.storage.zeroing_pays() && env.config.policy.syncs()
}

/// From `done` to the capacity, and durable with the file's length; `false` when `throttle` says stop. One write of a
/// MiB is under way at a time, and none while `throttle` waits: so the syncs of the foreground never queue behind more
/// than that.
fn write_zeroes(
    env: &Env,
    file: &Arc<dyn File>,
    number: u64,
    mut done: u64,
    throttle: &mut dyn FnMut(u64) -> bool,
) -> io::Result<bool> {
    let capacity = env.config.segment_bytes;
    let options = Options::new().engine(Engine::Caller).buffers(1).buffer_bytes(CHUNK.min(capacity as usize));
    let mut writer = options.over(file.clone(), segment_name(number), env.storage.block_size())?;
    writer.seek(SeekFrom::Start(done))?;
    while done < capacity {
        let n = (capacity - done).min(CHUNK as u64);
        io::copy(&mut io::repeat(0).take(n), &mut writer)?;
        writer.flush()?;
        done += n;
        if !throttle(done) {
            return Ok(false);
        }
    }
    writer.finish()?;
    Ok(true)
}

/// The space is there, durably: now the header, then the name.
fn finish(env: &Env, file: &dyn File, number: u64, epoch: u32, former: Option<Former>) -> io::Result<SegmentHeader> {
    let header = new_header(env, number, epoch, former)?;
    write_header(file, &header)?;
    file.sync_all()?;
    sync_folder(env)?;
    Ok(header)
}

// ---- a file that is used again ------------------------------------------------------------------------------------

/// Reason why a file is not used again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReused {
    /// It would not pay, or is switched off: nothing worth a word.
    #[error("it does not pay")]
    Pointless,
    #[error("{0}")]
    Seen(Witness),
    #[error("it is not whole")]
    Damaged,
    #[error("the journal needed the space at once")]
    Hurried,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// True if a file of so many bytes is worth it: it saves at least half of the zeroes, which nothing else writes.
pub(crate) fn reuse_pays(env: &Env, bytes: u64) -> bool {
    let capacity = env.config.segment_bytes;
    env.config.recycle && zeroes_ahead(env) && bytes <= capacity && bytes >= capacity / 2
}

/// Makes segment `number` of the file of `from`, which `clad.meta` has durably passed and whose length is `bytes`.
///
/// Cut at any step, the next start finds the file under its old number, which is passed, or under the new one without
/// a header that fits, above everything put to use: it removes either. When this fails, the file has one of the names.
pub(crate) fn reuse(
    env: &Env,
    from: u64,
    bytes: u64,
    (number, epoch): (u64, u32),
    throttle: &mut dyn FnMut(u64) -> bool,
) -> Result<SegmentHeader, NotReused> {
    let (old, new) = (segment_name(from), segment_name(number));
    let missing = env.config.segment_bytes.saturating_sub(bytes);
    if env.storage.space()?.free < missing + env.config.reserve_free {
        return Err(NotReused::Pointless);
    }
    let former = former_of(env, from, bytes)?;
    env.meta.settle()?;
    // From here on no other process can open it again; then the check looks for existing users.
    env.storage.set_sealed_mode(&old, false)?;
    if let TakeOver::Refused(witness) = env.storage.take_over(&old, &new)? {
        return Err(NotReused::Seen(witness));
    }
    match refill(env, &new, bytes, (number, epoch), former, throttle) {
        Ok(Some(header)) => Ok(header),
        other => {
            let _ = env.storage.remove(&new);
            Err(other.map_or_else(NotReused::Io, |_| NotReused::Hurried))
        }
    }
}

/// Content of its header, which must be a header of that very segment in the current format.
fn former_of(env: &Env, from: u64, bytes: u64) -> Result<Former, NotReused> {
    let block = env.storage.block_size();
    let file = env.storage.open(&segment_name(from), Access::ReadDirect)?;
    let first = read_once(file.as_ref(), 0, block as usize)?;
    let header = SegmentHeader::decode(&first).map_err(|_| NotReused::Damaged)?;
    let ours = header.number == from && header.log_id == env.meta.get().log_id && header.block_size == block;
    match ours && bytes.is_multiple_of(u64::from(block)) && file.len()? == bytes {
        true => Ok(Former { number: from, salt: header.salt }),
        false => Err(NotReused::Damaged),
    }
}

/// Zeroes behind what is there, up to the capacity; then as any segment.
fn refill(
    env: &Env,
    name: &str,
    bytes: u64,
    (number, epoch): (u64, u32),
    former: Former,
    throttle: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Option<SegmentHeader>> {
    let file = segment_file::open(env.storage.as_ref(), name, Access::WriteDirect)?;
    file.allocate(env.config.segment_bytes)?;
    env.took(env.config.segment_bytes.saturating_sub(bytes));
    if !write_zeroes(env, &file, number, bytes, throttle)? {
        return Ok(None);
    }
    finish(env, file.as_ref(), number, epoch, Some(former)).map(Some)
}

/// Makes the segment's name durable.
fn sync_folder(env: &Env) -> io::Result<()> {
    env.storage.sync_dir("")
}

/// Opens a prepared segment for writing: one file description for each write in flight and one for syncs, each with
/// its own shared lock. A header of an earlier epoch is replaced first.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn open(env: &Env, prepared: &SegmentHeader, epoch: u32) -> io::Result<(SegmentHeader, Vec<Arc<dyn File>>)> {
    let mut header = prepared.clone();
    let name = segment_name(header.number);
    if header.epoch != epoch {
        header = new_header(env, header.number, epoch, header.former)?;
        // The preparing process may be dead. Then its header may still be on the way to the disk, its size and name
        // not durable, and its mode that of a segment about to be sealed.
        let file = open_alone(env, header.number, Access::WriteDirect)?;
        env.storage.set_sealed_mode(&name, false)?;
        write_header(file.as_ref(), &header)?;
        file.sync_all()?;
        sync_folder(env)?;
    }
    let files = open_all(env, header.number)?;
    Ok((header, files))
}

/// The descriptions through which a segment is written.
pub(crate) fn open_all(env: &Env, number: u64) -> io::Result<Vec<Arc<dyn File>>> {
    let open_one = |_| segment_file::open(env.storage.as_ref(), &segment_name(number), write_access(env));
    (0..=env.in_flight.load(Ordering::Relaxed)).map(open_one).collect()
}

/// The prepared segment that an earlier run left above everything put to use, if it was finished and still fits. That
/// run may be dead with its zeroes still on the way: they are waited for.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn find_left_over(env: &Env, number: u64) -> io::Result<Option<SegmentHeader>> {
    let Some(file) = if_there(open_alone(env, number, Access::ReadDirect))? else { return Ok(None) };
    let block = env.storage.block_size();
    let first = match read_once(file.as_ref(), 0, block as usize) {
        // It was never put to use, so it holds nothing: another is made.
        Err(e) if is_bad_place(&e) => return Ok(None),
        first => first?,
    };
    let Ok(header) = SegmentHeader::decode(&first) else { return Ok(None) };
    let fits = header.capacity == env.config.segment_bytes
        && file.len()? == header.capacity
        && header.block_size == block
        && header.number == number
        && header.log_id == env.meta.get().log_id
        && is_untouched(file.as_ref(), &header);
    // Epoch 0 is never in force: the header is replaced before use, with a new salt, whichever process prepared it.
    Ok(fits.then_some(SegmentHeader { epoch: 0, ..header }))
}

/// True if the place of its first batch is as it was when it was prepared: then it never held one.
fn is_untouched(file: &dyn File, header: &SegmentHeader) -> bool {
    let pos = u64::from(header.block_size);
    let Ok(block) = read_once(file, pos, pos as usize) else { return false };
    let of_former = || header.former_seed().is_some_and(|seed| BatchHeader::decode(&block, &seed, pos).is_some());
    block.iter().all(|b| *b == 0) || of_former()
}

/// Bytes of the header block, which callers reserve.
pub(crate) const HEADER_BYTES: usize = segment::LEN;
