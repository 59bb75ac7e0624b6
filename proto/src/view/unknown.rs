//! Fields under tags that this version does not know.

use crate::{record::UnknownField, wire::Reader};

/// Iterates over the fields under tags that this version does not know.
#[derive(Debug, Clone)]
pub struct UnknownIter<'a> {
    reader: Reader<'a>,
    from: u8,
}

impl<'a> UnknownIter<'a> {
    pub(super) fn new(fields: &'a [u8], from: u8) -> Self {
        Self { reader: Reader(fields), from }
    }
}

impl Iterator for UnknownIter<'_> {
    type Item = UnknownField;

    fn next(&mut self) -> Option<UnknownField> {
        while let Ok(Some((tag, data))) = self.reader.field() {
            if tag >= self.from {
                return Some(UnknownField { tag, data: data.to_vec() });
            }
        }
        None
    }
}
