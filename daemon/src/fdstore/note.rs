//! Facts needed to resume a ring that cannot be read from the ring: its client writes there.

use clad_proto::ProducerId;
use clad_proto::frame::RingId;

/// Owner of the ring, by peer metadata of the kernel and by the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) id: RingId,
    pub(crate) producer: ProducerId,
    pub(crate) producer_epoch: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// 0: not known.
    pub(crate) pid: u32,
    /// Clock ticks since boot; 0: not known.
    pub(crate) pid_start: u64,
    pub(crate) layout: Layout,
}

/// Version of the layout that a ring was made in; by default that of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout(u8);

impl Layout {
    /// That of a note that says nothing of it.
    const FIRST: u8 = 2;
    const OURS: u8 = clad_shm::VERSION as u8;

    #[cfg(test)]
    pub(crate) const OTHER: Self = Self(Self::OURS + 1);

    pub(crate) const fn version(self) -> u64 {
        self.0 as u64
    }
}

// The upper seven bits of a byte of the note; the lowest is 0.
const _: () = assert!(clad_shm::VERSION >= Layout::FIRST as u64 && clad_shm::VERSION <= Layout::FIRST as u64 + 0x7f);

impl Default for Layout {
    fn default() -> Self {
        Self(Self::OURS)
    }
}

impl Note {
    /// Its length.
    pub(crate) const BYTES: usize = 16 + 16 + 4 * 4 + 8 + 1;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(self.id.as_bytes());
        bytes[16..32].copy_from_slice(self.producer.as_bytes());
        let words = [self.producer_epoch, self.uid, self.gid, self.pid];
        for (place, word) in bytes[32..48].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[48..56].copy_from_slice(&self.pid_start.to_le_bytes());
        bytes[56] = (self.layout.0 - Layout::FIRST) << 1;
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            std::array::from_fn(|i| bytes[at + i])
        }
        let word = |at| u32::from_le_bytes(part(bytes, at));
        Self {
            id: RingId::from_bytes(part(bytes, 0)),
            producer: ProducerId::from_bytes(part(bytes, 16)),
            producer_epoch: word(32),
            uid: word(36),
            gid: word(40),
            pid: word(44),
            pid_start: u64::from_le_bytes(part(bytes, 48)),
            layout: Layout(Layout::FIRST + (bytes[56] >> 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_again() {
        let note = Note {
            id: RingId::from_bytes([1; 16]),
            producer: ProducerId::from_bytes([2; 16]),
            producer_epoch: 3,
            uid: 4,
            gid: 5,
            pid: 6,
            pid_start: u64::MAX - 7,
            layout: Layout::default(),
        };
        for layout in [Layout::default(), Layout::OTHER, Layout(Layout::FIRST + 0x7f)] {
            let note = Note { layout, ..note };
            assert_eq!(Note::decode(&note.encode()), note);
        }
        // As it was before there was a layout in it; the lowest bit is not read.
        assert_eq!(Note::default().encode()[56], 0);
    }
}
