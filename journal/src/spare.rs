//! Memory of batches that are gone, for those to come: to ask the allocator for as much each time costs more than to fill it,
//! because each page of it comes from the kernel, by a fault.
//!
//! What must hold: what is kept is bounded ([`MOST`], [`MOST_BYTES`]), and nothing large is kept by a log that is idle; no batch is
//! given more than twice what is asked for, because whoever
//! keeps batches counts their bytes, and what was touched once is not free.

/// So many pieces are kept at most.
pub(crate) const MOST: usize = 16;
/// And so many bytes: what a fast device is behind with while it syncs. All of it goes back at once when it is done.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// Pieces of this size are kept by an idle log as well.
const SMALL: usize = 64 << 10;

/// Empty pieces of memory, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pieces: Vec<Vec<u8>>,
    bytes: usize,
    /// How often the allocator was asked.
    #[cfg(test)]
    asked: usize,
}

impl Spare {
    /// Room for a batch of about this size.
    pub(crate) fn take(&mut self, expected: usize) -> Vec<u8> {
        let fits = |piece: &Vec<u8>| (expected..=expected * 2).contains(&piece.capacity());
        // The largest: growing copies what is there already.
        let found =
            (0..self.pieces.len()).filter(|at| fits(&self.pieces[*at])).max_by_key(|at| self.pieces[*at].capacity());
        match found {
            Some(at) => self.remove(at),
            None => {
                #[cfg(test)]
                {
                    self.asked += 1;
                }
                Vec::with_capacity(expected)
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// Makes room for so many more bytes in a piece that turned out too small: twice as much, and as batches grow no further than
    /// to `most`, no more than that where it is enough.
    pub(crate) fn grow(&mut self, piece: &mut Vec<u8>, more: usize, most: usize) {
        let (len, capacity) = (piece.len(), piece.capacity());
        if capacity - len >= more {
            return;
        }
        let mut larger = self.take((2 * capacity).min(most).max(len + more));
        larger.extend_from_slice(piece);
        self.give(std::mem::replace(piece, larger));
    }

    /// Keeps it, instead of the oldest where there are enough.
    pub(crate) fn give(&mut self, mut piece: Vec<u8>) {
        if piece.capacity() == 0 || piece.capacity() > MOST_BYTES {
            return;
        }
        while self.pieces.len() >= MOST || self.bytes + piece.capacity() > MOST_BYTES {
            drop(self.remove(0));
        }
        piece.clear();
        self.bytes += piece.capacity();
        self.pieces.push(piece);
    }

    /// Nobody has appended anything for a while.
    pub(crate) fn idle(&mut self) {
        self.pieces.retain(|piece| piece.capacity() <= SMALL);
        self.bytes = self.pieces.iter().map(Vec::capacity).sum();
    }

    fn remove(&mut self, at: usize) -> Vec<u8> {
        let piece = self.pieces.remove(at);
        self.bytes -= piece.capacity();
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> Vec<u8> {
        Vec::with_capacity(bytes)
    }

    #[test]
    fn what_is_given_is_used_again_where_it_is_about_as_large_as_wanted() {
        let mut spare = Spare::default();
        [1000, 1500, 2000, 2001].into_iter().for_each(|bytes| spare.give(of(bytes)));
        assert_eq!(
            [spare.take(1000), spare.take(1000)].map(|piece| piece.capacity()),
            [2000, 1500],
            "the largest first"
        );
        assert_eq!((spare.take(1001).capacity(), spare.asked()), (2001, 0));
        assert_eq!((spare.take(501).capacity(), spare.take(400).capacity()), (1000, 400));
        assert_eq!((spare.asked(), spare.bytes, spare.pieces.len()), (1, 0, 0));
        spare.give(b"what was there".to_vec());
        assert_eq!(spare.take(10), b"", "it is empty");
    }

    #[test]
    fn a_piece_that_grows_goes_on_in_another_and_is_kept_itself() {
        let mut spare = Spare::default();
        [3000, 5000].into_iter().for_each(|bytes| spare.give(of(bytes)));
        let mut piece = of(1000);
        piece.resize(900, 7);
        spare.grow(&mut piece, 100, 1 << 20);
        assert_eq!(piece.capacity(), 1000, "there is room");
        spare.grow(&mut piece, 101, 1 << 20);
        assert_eq!((piece.len(), piece.capacity(), spare.asked()), (900, 3000, 0), "twice as much or more");
        assert!(piece.iter().all(|byte| *byte == 7) && spare.pieces.iter().map(Vec::capacity).eq([5000, 1000]));
        spare.grow(&mut piece, 4000, 4500);
        assert_eq!((piece.len(), piece.capacity()), (900, 5000), "as much as is needed");
        spare.grow(&mut piece, 4200, 6000);
        assert_eq!((piece.capacity(), spare.asked()), (6000, 1), "no more than the most");
        spare.grow(&mut piece, 8000, 6000);
        assert_eq!((piece.len(), piece.capacity()), (900, 8900), "but what is needed");
    }

    #[test]
    fn what_is_kept_is_bounded_and_nothing_large_is_kept_by_an_idle_log() {
        let mut spare = Spare::default();
        (1..=3 * MOST).for_each(|bytes| spare.give(of(bytes)));
        assert_eq!(spare.pieces.len(), MOST);
        assert_eq!(
            (spare.pieces[0].capacity(), spare.pieces[MOST - 1].capacity()),
            (2 * MOST + 1, 3 * MOST),
            "the newest"
        );
        spare.give(of(SMALL));
        for _ in 0..20 {
            spare.give(of(1 << 20));
            assert!(spare.bytes <= MOST_BYTES && spare.bytes == spare.pieces.iter().map(Vec::capacity).sum::<usize>());
        }
        assert_eq!(spare.bytes, MOST_BYTES, "as much as may be");
        spare.give(of(MOST_BYTES + 1));
        assert_eq!(spare.bytes, MOST_BYTES, "nothing went for what is too large itself");
        spare.give(of(SMALL));
        spare.idle();
        assert_eq!((spare.pieces.len(), spare.bytes), (1, SMALL));
    }
}
