//! The resend key: who sent an append, and what it was, for senders whose protocol has no sequence.
//!
//! It is the field with tag 34 of an append's peer metadata: `u8 34, LEB128 24, identity u64, digest 16 bytes`.
//! Invariant: bytes that are no such field, wherever they come from, are no key; nothing panics on them.

use super::bytes::{get, u64_at};
use super::peer_meta::find_field;

/// Tag of a resend key in the peer metadata.
const TAG: u8 = 34;
/// Bytes of a key: identity and digest.
const KEY_BYTES: usize = 24;

/// Sender and content of an append, as the daemon computes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResendKey {
    /// The sender.
    pub identity: u64,
    /// Digest of the append: its content, and its number among equal ones.
    pub digest: [u8; 16],
}

/// An append that is remembered by its key, as a footer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResendEntry {
    /// Its key.
    pub key: ResendKey,
    /// Offset of its first record.
    pub first_offset: u64,
    /// Records.
    pub count: u32,
}

impl ResendKey {
    /// Appends the key to peer metadata, as its field. The tags before it must be lower.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[TAG, KEY_BYTES as u8]);
        self.put(out);
    }

    /// Appends identity and digest alone.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.identity.to_le_bytes());
        out.extend_from_slice(&self.digest);
    }

    /// Reads identity and digest at the start of 24 bytes or more.
    pub(crate) fn get(bytes: &[u8]) -> Self {
        Self { identity: u64_at(bytes, 0), digest: get(bytes, 8) }
    }

    /// Finds the key in peer metadata. Malformed metadata has none.
    pub fn find(peer_meta: &[u8]) -> Option<Self> {
        find_field(peer_meta, TAG).filter(|field| field.len() == KEY_BYTES).map(Self::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: ResendKey = ResendKey { identity: 0x0102_0304_0506_0708, digest: [9; 16] };

    fn with(before: &[u8], behind: &[u8]) -> Vec<u8> {
        let mut meta = before.to_vec();
        KEY.encode(&mut meta);
        meta.extend_from_slice(behind);
        meta
    }

    #[test]
    fn a_key_is_found_again_among_other_fields() {
        let before = [1, 5, 2, 0xE7, 0x24, 32, 6, 127, 0, 0, 1, 0x9D, 0x78];
        for meta in [with(&[], &[]), with(&before, &[]), with(&before, &[64, 2, 0, 0]), with(&[], &[64, 200])] {
            assert_eq!(ResendKey::find(&meta), Some(KEY), "{meta:?}");
        }
        assert_eq!(with(&[], &[])[..10], [34, 24, 8, 7, 6, 5, 4, 3, 2, 1], "as docs/FORMAT.md says");
        assert_eq!(ResendKey::find(&before), None);
        assert_eq!(ResendKey::find(&[]), None);
    }

    #[test]
    fn malformed_metadata_has_no_key() {
        let whole = with(&[1, 5], &[]);
        for cut in 0..whole.len() {
            assert_eq!(ResendKey::find(&whole[..cut]), None, "cut at {cut}");
        }
        let other_length = |len: u8| [&[34, len][..], &vec![7; len.into()]].concat();
        for len in [0, 23, 25, 127] {
            assert_eq!(ResendKey::find(&other_length(len)), None, "{len} bytes");
        }
        let endless = [&[1][..], &[0x80; 30], &with(&[], &[])].concat();
        assert_eq!(ResendKey::find(&endless), None, "a number without an end");
        let too_long = [&[33, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1][..], &with(&[], &[])].concat();
        assert_eq!(ResendKey::find(&too_long), None, "a length beyond all bytes");
        let too_large = [&[1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2][..], &with(&[], &[])].concat();
        assert_eq!(ResendKey::find(&too_large), None, "more than 64 bits");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ResendKey::find(&bytes);
            let _ = ResendKey::find(&[&[34][..], &bytes].concat());
        }
    }
}
