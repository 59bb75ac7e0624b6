//! `clad.meta`: the few facts that must be durable before something else may happen.
//!
//! Two slots of [`SLOT`] bytes, written in turn, each with a checksum and a generation; the valid slot with the greater
//! generation counts. A slot:
//!
//! ```text
//!  0 magic "CLADMETA"   8 version u16   10 flags u16 (1 clean end, 2 a failure was latched, 4 a proof, 8 losses)
//! 12 length u32
//! 16 generation u64    24 log id       40 lowest segment kept u64   48 lowest offset kept u64
//! 56 highest segment put to use u64    64 created i64   72 epochs u32   76 least epoch to go on in u32
//! 80 epochs: (epoch u32, first offset u64) each, oldest first
//!    with flag 8: how many ranges u32, and each of them: from u64, to u64
//!    with flag 4: durable u64, written u64, boot id; then the CRC-32C of all before it
//! ```
//! The highest segment is `u64::MAX` while none was put to use.

use super::bytes::{get, i64_at, u16_at, u32_at, u64_at};
use super::checksum::plain;
use super::footer::Damage;

/// First bytes of a slot.
pub const MAGIC: [u8; 8] = *b"CLADMETA";
/// The newest version that this clad reads: of a slot with losses. A slot with a proof alone is written as version 2,
/// one with neither as version 1.
pub const VERSION: u16 = 3;
/// Bytes of a slot.
pub const SLOT: usize = 32 * 1024;
const HEAD: usize = 80;
const EPOCH: usize = 12;
const PROOF: usize = 32;
const RANGE: usize = 16;
/// Ranges of lost offsets in a slot; of more, the lowest are forgotten, because the footers name them.
pub const MAX_LOST: usize = 128;
/// Epochs in a slot; older ones are forgotten, and their cursors are then unknown. An earlier clad stored more: they
/// are read, and the oldest forgotten.
pub const MAX_EPOCHS: usize = (SLOT - HEAD - (4 + MAX_LOST * RANGE) - PROOF - 4) / EPOCH;
/// No segment was put to use yet.
pub const NONE: u64 = u64::MAX;

/// One history of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: u32,
    /// The first offset given in it.
    pub first_offset: u64,
}

/// Progress of the log: at its clean end, or as a start found it proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Everything below was durable.
    pub durable: u64,
    /// Everything below was written, under this boot.
    pub written: u64,
    /// Id of that boot.
    pub boot_id: [u8; 16],
}

/// Content of `clad.meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Rises with every write.
    pub generation: u64,
    /// Id of the log, made with it.
    pub log_id: [u8; 16],
    /// The log ended cleanly: everything acknowledged is below footers.
    pub clean: bool,
    /// A write or a sync failed, and the log was not recovered since then.
    pub latched: bool,
    /// Segments below this were removed by retention.
    pub lowest_segment: u64,
    /// Offsets below this were removed by retention.
    pub lowest_offset: u64,
    /// The greatest segment that may hold a batch, or [`NONE`].
    pub highest_segment: u64,
    /// Time when the log was made.
    pub created_ns: i64,
    /// The log must not resume in an epoch below this one; 0: any. A start that found lost records writes it before any
    /// change. If that start is cut, the next one then finds its sealed segments, and no damage. A `repair` writes it
    /// before it seals too: a start that finds it asks the footers for the abandoned offsets.
    pub least_epoch: u32,
    /// Place of a clean end; or the proof of the damage that a start has found. The start writes it before any change:
    /// the earlier proof may lie where the footer goes. If the start is cut, the next one must find the same damage.
    pub proof: Option<Proof>,
    /// Offsets that were reported as lost though their segment is there: in order, none touches another. In a segment
    /// without a footer they are not in the log, whatever the device returns for them later.
    pub lost: Vec<Damage>,
    /// All epochs that are remembered, oldest first; never empty.
    pub epochs: Vec<EpochStart>,
}

/// The reason why a slot cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Torn, damaged, or never written.
    #[error("the slot fails its checksum")]
    Damaged,
    /// Made by a newer clad.
    #[error("clad.meta has version {found}, this clad reads up to {VERSION}: use the newer clad that wrote it")]
    Newer {
        /// The version in the file.
        found: u16,
    },
}

impl Meta {
    /// Content for a log without segments, and without an epoch yet.
    pub(crate) fn new(log_id: [u8; 16], created_ns: i64) -> Self {
        Self {
            generation: 1,
            log_id,
            clean: false,
            latched: false,
            lowest_segment: 0,
            lowest_offset: 0,
            highest_segment: NONE,
            created_ns,
            least_epoch: 0,
            proof: None,
            lost: Vec::new(),
            epochs: Vec::new(),
        }
    }

    /// Number of the segment behind the highest that was put to use.
    pub fn next_segment(&self) -> u64 {
        if self.highest_segment == NONE { 0 } else { self.highest_segment + 1 }
    }

    /// The current epoch for appends.
    pub fn epoch(&self) -> u32 {
        self.epochs.last().map_or(0, |e| e.epoch)
    }

    /// Start of that epoch.
    pub fn epoch_start(&self) -> EpochStart {
        self.epochs.last().copied().unwrap_or(EpochStart { epoch: 0, first_offset: 0 })
    }

    /// Start of the first epoch after this one: from there on nothing that was given in it, or before, is in the log.
    pub fn end_of(&self, epoch: u32) -> Option<u64> {
        // Epoch 0 was never in force: it is in a header that was made again.
        self.epochs.iter().filter(|e| epoch > 0 && e.epoch > epoch).map(|e| e.first_offset).min()
    }

    /// Adds an epoch, forgetting the oldest where there is no room.
    pub fn push_epoch(&mut self, epoch: u32, first_offset: u64) {
        // Epochs in which nothing was given say nothing that the next one does not.
        self.epochs.retain(|e| e.first_offset < first_offset);
        if self.epochs.len() >= MAX_EPOCHS {
            self.epochs.remove(0);
        }
        self.epochs.push(EpochStart { epoch, first_offset });
    }

    /// Notes that these offsets were reported as lost.
    pub fn lose(&mut self, gone: Damage) {
        if gone.from >= gone.to {
            return;
        }
        let mut all = gone;
        self.lost.retain(|known| {
            let apart = known.to < all.from || all.to < known.from;
            if !apart {
                all = Damage { from: all.from.min(known.from), to: all.to.max(known.to) };
            }
            apart
        });
        let at = self.lost.partition_point(|known| known.from < all.from);
        self.lost.insert(at, all);
        let too_many = self.lost.len().saturating_sub(MAX_LOST);
        self.lost.drain(..too_many);
    }

    /// Returns true if these offsets are noted, or were and are forgotten.
    pub fn knows_lost(&self, gone: Damage) -> bool {
        let from = gone.from.max(self.lowest_offset);
        let forgotten = self.lost.len() >= MAX_LOST && self.lost.first().is_some_and(|lowest| gone.to < lowest.from);
        forgotten || from >= gone.to || self.lost.iter().any(|known| known.from <= from && gone.to <= known.to)
    }

    /// Where the records that a place of this epoch has read part from those of this log: the start of the first later
    /// epoch, if that lies below the place. Nothing where they are the same up to there.
    pub fn parting(&self, epoch: u32, offset: u64) -> Option<EpochStart> {
        // An epoch that gave no offset is not stored; it began where the next one did.
        self.epochs.iter().find(|e| e.epoch > epoch).filter(|next| offset > next.first_offset).copied()
    }

    /// Notes that retention has passed the segments and the offsets below.
    pub fn pass(&mut self, lowest_segment: u64, lowest_offset: u64) {
        (self.lowest_segment, self.lowest_offset) = (lowest_segment, lowest_offset);
        self.lost.retain(|lost| lost.to > lowest_offset);
    }

    /// The slot's bytes, padded to [`SLOT`].
    pub fn encode(&self) -> Vec<u8> {
        let proof = self.proof.map_or(0, |_| PROOF);
        let lost = if self.lost.is_empty() { 0 } else { 4 + self.lost.len() * RANGE };
        let len = HEAD + self.epochs.len() * EPOCH + lost + proof + 4;
        debug_assert!(len <= SLOT, "{len} bytes");
        let flags =
            u16::from(self.clean) | u16::from(self.latched) << 1 | u16::from(proof > 0) << 2 | u16::from(lost > 0) << 3;
        let version = match (lost > 0, proof > 0) {
            (true, _) => VERSION,
            (false, true) => 2,
            (false, false) => 1,
        };
        let mut b = Vec::with_capacity(SLOT);
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&version.to_le_bytes());
        b.extend_from_slice(&flags.to_le_bytes());
        b.extend_from_slice(&(len as u32).to_le_bytes());
        b.extend_from_slice(&self.generation.to_le_bytes());
        b.extend_from_slice(&self.log_id);
        b.extend_from_slice(&self.lowest_segment.to_le_bytes());
        b.extend_from_slice(&self.lowest_offset.to_le_bytes());
        b.extend_from_slice(&self.highest_segment.to_le_bytes());
        b.extend_from_slice(&self.created_ns.to_le_bytes());
        b.extend_from_slice(&(self.epochs.len() as u32).to_le_bytes());
        b.extend_from_slice(&self.least_epoch.to_le_bytes());
        for e in &self.epochs {
            b.extend_from_slice(&e.epoch.to_le_bytes());
            b.extend_from_slice(&e.first_offset.to_le_bytes());
        }
        if lost > 0 {
            b.extend_from_slice(&(self.lost.len() as u32).to_le_bytes());
            for range in &self.lost {
                b.extend_from_slice(&range.from.to_le_bytes());
                b.extend_from_slice(&range.to.to_le_bytes());
            }
        }
        if let Some(proof) = self.proof {
            b.extend_from_slice(&proof.durable.to_le_bytes());
            b.extend_from_slice(&proof.written.to_le_bytes());
            b.extend_from_slice(&proof.boot_id);
        }
        let crc = plain(&b);
        b.extend_from_slice(&crc.to_le_bytes());
        b.resize(SLOT, 0);
        b
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// [`MetaError`].
    pub fn decode(b: &[u8]) -> Result<Self, MetaError> {
        if b.len() < HEAD + 4 || b[..8] != MAGIC {
            return Err(MetaError::Damaged);
        }
        // Magic, version, length and the place of the checksum are the same in every version. So a flipped bit in the
        // version of one slot is damage of that slot, not a newer clad.
        let len = u32_at(b, 12) as usize;
        if !(HEAD + 4..=b.len()).contains(&len) || plain(&b[..len - 4]) != u32_at(b, len - 4) {
            return Err(MetaError::Damaged);
        }
        let found = u16_at(b, 8);
        if found > VERSION {
            return Err(MetaError::Newer { found });
        }
        let epochs = u32_at(b, 72) as usize;
        let flags = u16_at(b, 10);
        let proof = if flags & 4 != 0 { PROOF } else { 0 };
        // No more than fits into a slot: the length says that all of it is there.
        let lost_at = HEAD + epochs.min(SLOT) * EPOCH;
        let ranges = if flags & 8 == 0 || lost_at + 4 > len { 0 } else { u32_at(b, lost_at) as usize };
        let lost = if flags & 8 != 0 { 4 + ranges.min(SLOT) * RANGE } else { 0 };
        if epochs == 0 || len > SLOT || len != lost_at + lost + proof + 4 {
            return Err(MetaError::Damaged);
        }
        let proof_at = len - 4 - proof;
        Ok(Self {
            generation: u64_at(b, 16),
            log_id: get(b, 24),
            clean: flags & 1 != 0,
            latched: flags & 2 != 0,
            lowest_segment: u64_at(b, 40),
            lowest_offset: u64_at(b, 48),
            highest_segment: u64_at(b, 56),
            created_ns: i64_at(b, 64),
            least_epoch: u32_at(b, 76),
            proof: (proof > 0).then(|| Proof {
                durable: u64_at(b, proof_at),
                written: u64_at(b, proof_at + 8),
                boot_id: get(b, proof_at + 16),
            }),
            lost: b[(lost_at + 4).min(proof_at)..proof_at]
                .chunks_exact(RANGE)
                .map(|range| Damage { from: u64_at(range, 0), to: u64_at(range, 8) })
                .collect(),
            epochs: b[HEAD..lost_at]
                .chunks_exact(EPOCH)
                .skip(epochs.saturating_sub(MAX_EPOCHS))
                .map(|e| EpochStart { epoch: u32_at(e, 0), first_offset: u64_at(e, 4) })
                .collect(),
        })
    }
}

#[cfg(test)]
pub(crate) fn example() -> Meta {
    Meta {
        generation: 5,
        log_id: [1; 16],
        clean: true,
        latched: false,
        lowest_segment: 2,
        lowest_offset: 100,
        highest_segment: 9,
        created_ns: 77,
        least_epoch: 6,
        proof: Some(Proof { durable: 300, written: 310, boot_id: [9; 16] }),
        lost: vec![Damage { from: 120, to: 130 }, Damage { from: 140, to: 141 }],
        epochs: vec![EpochStart { epoch: 1, first_offset: 0 }, EpochStart { epoch: 4, first_offset: 200 }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_every_flipped_byte_is_refused() {
        let bytes = example().encode();
        assert_eq!(bytes.len(), SLOT);
        assert_eq!(Meta::decode(&bytes), Ok(example()));
        let len = HEAD + 2 * EPOCH + 4 + 2 * RANGE + PROOF + 4;
        for at in 0..len {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Meta::decode(&bad).is_err(), "byte {at}");
        }
        for cut in 0..len {
            assert!(Meta::decode(&bytes[..cut]).is_err());
        }
    }

    /// An older clad reads the versions that it knows, and refuses others by their number.
    #[test]
    fn a_slot_has_the_version_of_what_is_in_it() {
        let (proof, lost) = (example().proof, example().lost);
        for (proof, lost, version) in
            [(None, Vec::new(), 1), (proof, Vec::new(), 2), (None, lost.clone(), 3), (proof, lost, 3)]
        {
            let meta = Meta { proof, lost, ..example() };
            let bytes = meta.encode();
            assert_eq!((u16_at(&bytes, 8), Meta::decode(&bytes)), (version, Ok(meta)));
        }
    }

    #[test]
    fn what_was_lost_is_in_order_and_bounded() {
        let mut meta = Meta { lost: Vec::new(), ..example() };
        let lost = |meta: &Meta| meta.lost.iter().map(|d| (d.from, d.to)).collect::<Vec<_>>();
        for (from, to) in [(150, 160), (120, 125), (140, 145), (130, 130), (125, 126), (144, 151)] {
            meta.lose(Damage { from, to });
        }
        assert_eq!(lost(&meta), [(120, 126), (140, 160)]);
        meta.pass(3, 126);
        assert_eq!((meta.lowest_segment, meta.lowest_offset, lost(&meta)), (3, 126, vec![(140, 160)]));
        meta.pass(4, 150);
        assert_eq!(lost(&meta), [(140, 160)], "a part of it is kept");
        let known =
            |meta: &Meta, ranges: [(u64, u64); 5]| ranges.map(|(from, to)| meta.knows_lost(Damage { from, to }));
        let ranges = [(120, 126), (130, 152), (150, 160), (159, 161), (170, 171)];
        assert_eq!(known(&meta, ranges), [true, true, true, false, false]);
        for i in 0..MAX_LOST as u64 + 10 {
            meta.lose(Damage { from: 200 + 2 * i, to: 201 + 2 * i });
        }
        assert_eq!((meta.lost.len(), meta.lost[0].from), (MAX_LOST, 220));
        let ranges = [(150, 160), (210, 211), (220, 221), (220, 222), (221, 222)];
        assert_eq!(known(&meta, ranges), [true, true, true, false, false], "the lowest are forgotten");
        for i in 0..MAX_EPOCHS as u64 + 10 {
            meta.push_epoch(10 + i as u32, 300 + i);
        }
        assert_eq!(Meta::decode(&meta.encode()), Ok(meta), "the fullest slot of all");
    }

    /// As many as a slot held before it had any other content.
    #[test]
    fn more_epochs_of_an_earlier_version_are_read_and_the_oldest_forgotten() {
        for count in [MAX_EPOCHS + 1, 2721, 2723] {
            let mut bytes = Meta { proof: None, lost: Vec::new(), ..example() }.encode()[..HEAD].to_vec();
            for i in 0..count as u64 {
                bytes.extend_from_slice(&(i as u32 + 1).to_le_bytes());
                bytes.extend_from_slice(&(10 * i).to_le_bytes());
            }
            bytes[72..76].copy_from_slice(&(count as u32).to_le_bytes());
            let len = bytes.len() as u32 + 4;
            bytes[12..16].copy_from_slice(&len.to_le_bytes());
            let crc = plain(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            bytes.resize(SLOT, 0);
            let mut meta = Meta::decode(&bytes).expect("it holds");
            let last = EpochStart { epoch: count as u32, first_offset: 10 * (count as u64 - 1) };
            assert_eq!((meta.epochs.len(), meta.epoch_start()), (MAX_EPOCHS, last));
            meta.push_epoch(count as u32 + 1, 10 * count as u64);
            meta.proof = example().proof;
            assert_eq!(Meta::decode(&meta.encode()), Ok(meta));
        }
    }

    #[test]
    fn epochs_are_bounded_and_empty_ones_are_forgotten() {
        let mut meta = example();
        meta.push_epoch(5, 200);
        assert_eq!(meta.epochs.len(), 2, "epoch 4 gave no offset");
        assert_eq!([0, 1, 5, 6].map(|epoch| meta.end_of(epoch)), [None, Some(200), None, None]);
        let parting = |epoch, offset| meta.parting(epoch, offset).map(|next| (next.epoch, next.first_offset));
        assert_eq!(
            [(1, 200), (1, 201), (4, 200), (5, 900)].map(|(e, o)| parting(e, o)),
            [None, Some((5, 200)), None, None]
        );
        for i in 0..MAX_EPOCHS as u64 + 10 {
            meta.push_epoch(10 + i as u32, 300 + i);
        }
        assert_eq!(meta.epochs.len(), MAX_EPOCHS);
        assert_eq!(Meta::decode(&meta.encode()), Ok(meta));
    }
}
