//! Plain system calls: the yardsticks.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use clad_journal::io::{Durability, File as JournalFile, IoBuf};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

use super::{Contender, Places, Work};
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::writers;

pub(super) fn run(work: &Work, dir: &Path) -> Result<Outcome> {
    match work.by {
        Contender::AppendFdatasync => append(work, dir),
        Contender::Strict => strict(work, dir),
        _ => overwrite(work, dir),
    }
}

/// Writes zeroes over the first bytes of a file.
///
/// # Errors
/// What the kernel says.
pub fn fill_with_zeroes(file: &dyn JournalFile, len: u64) -> io::Result<()> {
    let mut zeroes = IoBuf::zeroed(1 << 20);
    let mut at = 0;
    while at < len {
        zeroes.set_len(zeroes.capacity().min((len - at) as usize));
        let (back, written) = file.write_at(zeroes, at, Durability::Written);
        written?;
        (at, zeroes) = (at + back.len() as u64, back);
    }
    Ok(())
}

/// A file of so many zeroes, written and synced, without pages in the cache; opened for writing, direct or not.
///
/// # Errors
/// What the kernel says.
pub fn zero_written(path: &Path, len: u64, direct: bool) -> io::Result<File> {
    let file = File::create_new(path)?;
    let zeroes = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let part = zeroes.len().min((len - at) as usize);
        file.write_all_at(&zeroes[..part], at)?;
        at += part as u64;
    }
    file.sync_all()?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    open(path, direct)
}

pub(super) fn open(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
}

/// One write with its own sync.
pub(super) fn write_synced(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)? {
        n if n == bytes.len() => Ok(()),
        n => Err(io::Error::new(io::ErrorKind::WriteZero, format!("{n} of {} bytes were written", bytes.len()))),
    }
}

pub(super) fn filled(pattern: &Pattern, size: usize) -> IoBuf {
    let mut buf = IoBuf::zeroed(size);
    pattern.fill(&mut buf, 0);
    buf
}

fn overwrite(work: &Work, dir: &Path) -> Result<Outcome> {
    let places = Places::new(work.file, work.writers, work.size);
    let file = zero_written(&dir.join("file"), places.len(), work.by == Contender::BareDirect);
    let file = Arc::new(file.context("prepare the file")?);
    let done = writers::run(work.writers, work.limit, |writer| {
        let (file, pattern) = (file.clone(), Pattern::new(writer, work.size));
        let mut buf = filled(&pattern, work.size);
        Ok(move |op| {
            pattern.tag(&mut buf, op);
            write_synced(&file, &buf, places.of(writer, op))
        })
    })?;
    let back = File::open(dir.join("file"))?;
    let verified = places.verify(&done.each, |at, block| back.read_exact_at(block, at))?;
    Ok(work.outcome(&done, verified, Vec::new()))
}

/// The place of an append is the next one, whoever comes.
fn append(work: &Work, dir: &Path) -> Result<Outcome> {
    let path = dir.join("file");
    let file = Arc::new(File::create_new(&path)?);
    let end = Arc::new(AtomicU64::new(0));
    let placed = Arc::new(std::sync::Mutex::new(vec![Vec::new(); work.writers as usize]));
    let done = writers::run(work.writers, work.limit, |writer| {
        let (file, end, placed) = (file.clone(), end.clone(), placed.clone());
        let pattern = Pattern::new(writer, work.size);
        let mut buf = filled(&pattern, work.size);
        Ok(move |op| {
            pattern.tag(&mut buf, op);
            let at = end.fetch_add(buf.len() as u64, Ordering::Relaxed);
            file.write_all_at(&buf, at)?;
            rustix::fs::fdatasync(&*file)?;
            placed.lock().expect("nobody panics with it")[writer as usize].push(at);
            Ok(())
        })
    })?;
    let back = File::open(&path)?;
    let mut block = vec![0; work.size];
    let mut verified = 0;
    for (writer, places) in placed.lock().expect("nobody panics with it").iter().enumerate() {
        let pattern = Pattern::new(writer as u32, work.size);
        for (op, at) in places.iter().enumerate() {
            back.read_exact_at(&mut block, *at)?;
            anyhow::ensure!(pattern.holds(&block, op as u64), "operation {op} of writer {writer} is not at {at}");
            verified += 1;
        }
    }
    Ok(work.outcome(&done, verified, Vec::new()))
}

fn strict(work: &Work, dir: &Path) -> Result<Outcome> {
    let places = Places::new(work.file, 1, work.size);
    // The files together are as long as the one of the others.
    let each = (places.len() / u64::from(work.writers) / work.size as u64).max(1);
    let path = |writer: u32| dir.join(format!("file-{writer}"));
    let done = writers::run(work.writers, work.limit, |writer| {
        let file = zero_written(&path(writer), each * work.size as u64, false).context("prepare a file")?;
        let pattern = Pattern::new(writer, work.size);
        let mut buf = filled(&pattern, work.size);
        Ok(move |op: u64| {
            pattern.tag(&mut buf, op);
            file.write_all_at(&buf, op % each * buf.len() as u64)?;
            Ok(rustix::fs::fdatasync(&file)?)
        })
    })?;
    let mut verified = 0;
    let mut block = vec![0; work.size];
    for (writer, ops) in done.each.iter().enumerate() {
        let (back, pattern) = (File::open(path(writer as u32))?, Pattern::new(writer as u32, work.size));
        for op in ops.saturating_sub(each)..*ops {
            back.read_exact_at(&mut block, op % each * work.size as u64)?;
            anyhow::ensure!(pattern.holds(&block, op), "operation {op} of writer {writer} is not in its file");
            verified += 1;
        }
    }
    Ok(work.outcome(&done, verified, Vec::new()))
}
