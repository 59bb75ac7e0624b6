//! Pairs that are encoded once and copied into many records.

use super::{sink::Sink, value::KvWriter};
use crate::{fault::EncodeError, limits::MAX_NESTING_DEPTH};

/// Pairs of keys and simple values, encoded. They go into many records as they are
/// ([`KvWriter::encoded`](crate::KvWriter::encoded)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedPairs(Box<[u8]>);

impl EncodedPairs {
    /// The pairs as they lie in a record.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Encodes pairs.
    ///
    /// # Errors
    /// [`EncodeError::TooDeep`] when a value is a list: nobody knows how deep it will lie.
    pub fn new(content: impl FnOnce(&mut KvWriter<'_>)) -> Result<Self, EncodeError> {
        let mut sink = Sink::default();
        content(&mut KvWriter { sink: &mut sink, depth: MAX_NESTING_DEPTH });
        sink.fault.map_or_else(|| Ok(Self(Box::from(&*sink.buf))), Err)
    }
}

impl KvWriter<'_> {
    /// Pairs that were encoded before.
    #[inline]
    pub fn encoded(&mut self, pairs: &EncodedPairs) {
        self.sink.put_slice(&pairs.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnyValue, Body, Group, PayloadBuilder, PayloadView, RecordHead};

    #[test]
    fn what_is_encoded_once_is_as_if_it_were_written() {
        let write = |pairs: &mut KvWriter<'_>| {
            pairs.entry("a").int(-7);
            pairs.entry("b").text("two");
            pairs.entry("c").double(f64::NAN);
        };
        let encoded = EncodedPairs::new(write).expect("simple values");
        let payload = |once: bool| {
            let mut builder = PayloadBuilder::new(&Group::default()).expect("a group");
            let mut record = builder.record(RecordHead::default(), Body::Absent);
            record.attributes(|pairs| {
                if once {
                    pairs.encoded(&encoded)
                } else {
                    write(pairs)
                }
                pairs.entry("list").array(|array| {
                    array.item().kv_list(|pairs| if once { pairs.encoded(&encoded) } else { write(pairs) });
                });
            });
            record.commit().expect("room");
            builder.finish()
        };
        assert_eq!(payload(true), payload(false));
        assert!(PayloadView::parse(&payload(true).bytes, 1).is_ok());
        assert_eq!(EncodedPairs::new(|_| {}), Ok(EncodedPairs::default()));
        let list = AnyValue::Array(Vec::new());
        assert_eq!(EncodedPairs::new(|pairs| pairs.entry("a").any(&list)), Err(EncodeError::TooDeep));
    }
}
