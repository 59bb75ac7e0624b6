//! The files of a log, one at a time, as a start and every reader meet them.
//!
//! What must hold of any bytes: reading ends without a panic, with work bounded by the file's length; what is called
//! intact lies within the file and in order; what decodes, encoded again, is the same.

use clad_journal::format::batch::BatchHeader;
use clad_journal::format::chunk::chunks;
use clad_journal::format::footer::Footer;
use clad_journal::format::meta::Meta;
use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::{Access, Storage};
use clad_journal::recover::plan::{Said, Unsealed, plan};
use clad_journal::recover::scan::scan;
use clad_sim::SimDisk;

use crate::reseal;

const NAME: &str = "00000000000000000001.clog";

/// A segment file.
pub(crate) fn segment(data: &[u8]) {
    one_segment(data);
    let mut sealed = data.to_vec();
    reseal::segment(&mut sealed);
    one_segment(&sealed);
}

fn one_segment(data: &[u8]) {
    let header = match SegmentHeader::decode(data) {
        Ok(header) => header,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(SegmentHeader::decode(&header.encode()).as_ref(), Ok(&header));
    let disk = SimDisk::new(0);
    disk.install(NAME, data);
    let file = disk.open(NAME, Access::ReadDirect).expect("installed above");
    let found = match scan(file, &header) {
        Ok(found) => found,
        Err(error) => panic!("a scan fails for want of memory only: {error}"),
    };
    assert!(found.bytes_read <= 4 * data.len() as u64 + (1 << 20), "{} bytes read", found.bytes_read);
    let mut end = 0;
    for batch in &found.batches {
        assert!(end <= batch.pos && batch.pos < batch.end && batch.end <= data.len() as u64, "{batch:?}");
        end = batch.end;
        let body = &data[(batch.pos + u64::from(batch.header_len)) as usize..batch.end as usize];
        // A body whose checksum holds may still be made of nonsense.
        let records = chunks(body).map_while(Result::ok).map(|c| u64::from(c.header.count)).sum::<u64>();
        assert!(records <= u64::from(u32::MAX) * (body.len() as u64 / 32 + 1));
    }
    for pair in found.garbage.windows(2) {
        assert!(pair[0].0 < pair[0].1 && pair[0].1 <= pair[1].0, "{:?}", found.garbage);
    }
    for (same_boot, limit) in [(true, None), (false, None), (false, Some(1))] {
        let unsealed = Unsealed { scan: found.clone(), same_boot, limit, lost: [].into() };
        let planned = plan(0, Said::default(), &[&unsealed], false);
        for kept in &planned.kept {
            assert!(kept.first_offset <= kept.end_offset, "{kept:?}");
            assert!(kept.batches.iter().all(|at| *at < found.batches.len()), "{kept:?}");
        }
    }
}

/// A footer: the first 32 bytes say the seed and the place, what follows is the footer; and a whole file with one.
pub(crate) fn footer(data: &[u8]) {
    if let Some((head, rest)) = data.split_first_chunk::<32>() {
        let seed = clad_journal::format::checksum::Seed::new(
            u64::from_le_bytes(std::array::from_fn(|i| head[i])),
            &std::array::from_fn(|i| head[8 + i]),
            7,
        );
        let pos = u64::from(u32::from_le_bytes(std::array::from_fn(|i| head[24 + i]))) & !4095;
        one_footer(rest, &seed, pos);
        let mut sealed = rest.to_vec();
        reseal::seal_footer(&mut sealed, &seed, pos);
        one_footer(&sealed, &seed, pos);
    }
    let mut file = data.to_vec();
    reseal::segment(&mut file);
    let Ok(header) = SegmentHeader::decode(&file) else { return };
    let seed = header.seed();
    if let Some((pos, len)) = Footer::locate(&file, file.len() as u64, &seed) {
        assert_eq!(pos + u64::from(len), file.len() as u64);
        one_footer(&file[pos as usize..], &seed, pos);
    }
    for pos in (0..file.len()).step_by(512) {
        one_footer(&file[pos..], &seed, pos as u64);
        let _ = BatchHeader::decode(&file[pos..], &seed, pos as u64);
    }
}

fn one_footer(bytes: &[u8], seed: &clad_journal::format::checksum::Seed, pos: u64) {
    let Some((footer, _)) = Footer::decode(bytes, seed, pos) else { return };
    assert!(footer.index.len() * 32 <= bytes.len() && footer.producers.len() <= bytes.len());
    let (again, _) = footer.encode(seed, pos, 512);
    assert_eq!(Footer::decode(&again, seed, pos).map(|(f, _)| f), Some(footer));
}

/// `clad.meta`: one slot, and a file of two.
pub(crate) fn meta(data: &[u8]) {
    one_meta(data);
    let mut sealed = data.to_vec();
    reseal::meta(&mut sealed);
    one_meta(&sealed);
    if data.len() > 4096 {
        one_meta(&data[4096..]);
    }
}

fn one_meta(slot: &[u8]) {
    match Meta::decode(slot) {
        Ok(meta) => {
            assert_eq!(Meta::decode(&meta.encode()).as_ref(), Ok(&meta));
            assert_eq!(meta.epoch(), meta.epochs.last().map_or(0, |e| e.epoch));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
