//! A client made from RINGS.md alone: no constant and no function of the crate's client end.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use clad_shm::{Answer, Drain, Level, Peek, Shape, clock};

/// One thread, no other client: plain reads and writes of the file do for atomics.
struct Stranger {
    ring: File,
    completion_page: File,
    data: u64,
    slots: u64,
}

impl Stranger {
    fn new(ring: OwnedFd, completion_page: OwnedFd) -> Self {
        let (ring, completion_page) = (File::from(ring), File::from(completion_page));
        let mut magic = [0; 8];
        ring.read_exact_at(&mut magic, 0).expect("a header");
        assert_eq!(&magic, b"CLADRING");
        completion_page.read_exact_at(&mut magic, 0).expect("a header");
        assert_eq!(&magic, b"CLADBORD");
        let (data, slots) = (word(&ring, 16), word(&ring, 24));
        assert_eq!((word(&ring, 8), word(&completion_page, 8), word(&completion_page, 16)), (2, 2, slots));
        Self { ring, completion_page, data, slots }
    }

    fn set(&self, at: u64, value: u64) {
        self.ring.write_all_at(&value.to_le_bytes(), at).expect("written");
    }

    /// `None`: full.
    fn push(&self, payload: &[u8], records: u32) -> Option<u64> {
        let time = clock::now();
        let (head, tail, near) = (word(&self.ring, 64), word(&self.ring, 192), word(&self.ring, 200));
        assert_eq!(head >> 63, 0, "closed");
        let append = near + ((head >> 32).wrapping_sub(near) & 0x7FFF_FFFF);
        if append - near >= self.slots {
            return None;
        }
        let (units, need) = (self.data / 8, (24 + payload.len() as u64).div_ceil(8));
        let mut place = head & 0xFFFF_FFFF;
        if place % units + need > units {
            place += units - place % units;
        }
        if place + need - (tail & 0xFFFF_FFFF) > units {
            return None;
        }
        self.set(64, (append + 1) << 32 | (place + need));
        let mut header = Vec::new();
        header.extend((payload.len() as u32).to_le_bytes());
        header.extend(records.to_le_bytes());
        header.extend(time.to_le_bytes());
        header.extend((append as u32).to_le_bytes());
        let sum = crc_fast::crc32_iscsi(&[payload, &header].concat());
        header.extend(sum.to_le_bytes());
        let area = (4096 + self.slots * 8).next_multiple_of(4096);
        let at = area + place % units * 8;
        self.ring.write_all_at(&[header.as_slice(), payload].concat(), at).expect("written");
        self.set(4096 + append % self.slots * 8, 1 << 62 | append << 32 | place);
        Some(append)
    }

    fn is_daemon_asleep(&self) -> bool {
        word(&self.ring, 216) % 2 == 1
    }

    /// First offset, epoch, code.
    fn answer(&self, append: u64) -> Option<(u64, u32, u32)> {
        let at = 4096 + append % self.slots * 32;
        let tag = word(&self.completion_page, at);
        let both = word(&self.completion_page, at + 16);
        (tag & ((1 << 56) - 1) == append + 1).then_some((
            word(&self.completion_page, at + 8),
            both as u32,
            (both >> 32) as u32,
        ))
    }
}

fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).expect("inside the file");
    u64::from_le_bytes(bytes)
}

#[test]
fn a_client_made_from_the_manual_is_understood() {
    let mut drain = Drain::create(Shape::new(4096, 16).expect("a shape"), 1, *b"0123456789abcdef", 3).expect("a ring");
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.as_fd().try_clone_to_owned().expect("a descriptor");
    let stranger = Stranger::new(own(drain.client_fds().ring), own(drain.client_fds().completion_page));
    let mut pushed = Vec::new();
    for n in 0..200_u64 {
        let payload = vec![n as u8; 1 + (n * 31 % 700) as usize];
        let append = loop {
            if let Some(append) = stranger.push(&payload, 2) {
                break append;
            }
            assert!(!pushed.is_empty(), "full, and nothing is in it");
            let before = clock::now();
            for (expected, bytes) in pushed.drain(..) {
                assert!(matches!(drain.peek(before), Ok(Peek::Ready)));
                let mut taken = Vec::new();
                let entry = drain.take(&mut taken).expect("a sound ring").expect("seen");
                assert_eq!((entry.append, entry.sequence, taken), (expected, 1 + 2 * expected, bytes));
            }
            drain.release(drain.next());
        };
        assert_eq!(append, n);
        pushed.push((append, payload));
    }
    assert_eq!(stranger.answer(7), None);
    drain.answer(7, Answer { first_offset: 14, epoch: 3, code: 0, detail: 0 });
    drain.raise(Level::Received, 8);
    assert_eq!(stranger.answer(7), Some((14, 3, 0)));
    assert_eq!((word(&stranger.completion_page, 128), word(&stranger.completion_page, 136)), (8, 0));
    assert_eq!(
        (word(&stranger.completion_page, 64).to_le_bytes(), word(&stranger.completion_page, 80)),
        (*b"01234567", 3)
    );
    assert!(!stranger.is_daemon_asleep());
    let _ = drain.sleep();
    assert!(stranger.is_daemon_asleep());
    drain.cut_off(9);
    assert_eq!((word(&stranger.completion_page, 88), word(&stranger.ring, 64) >> 63), (9, 1));
}
