//! Entries of systemd's journal in its export format.
//!
//! What must hold of any bytes: the entries are the same however the stream is cut into reads; each becomes a record that a
//! reader takes, of at most twice the bytes that are kept of an entry.

use bytes::BytesMut;
use clad_proto::journald::{ExportEntries, ExportFault, JournalEntry};
use clad_proto::{PayloadBuilder, PayloadView};

/// Bytes that are kept of an entry here.
const ENTRY_BYTES_MAX: usize = 512;

pub(crate) fn export_format(data: &[u8]) {
    let whole = entries(data, data.len().max(1));
    for piece in [1, 3, 64] {
        assert_eq!(entries(data, piece), whole, "in pieces of {piece}");
    }
    for entry in whole.0 {
        let limit = u32::try_from(2 * ENTRY_BYTES_MAX).expect("a small number");
        let mut builder = PayloadBuilder::with_limits(&entry.group(), 1 << 20, limit).expect("a short name");
        entry.push_to(&mut builder).expect("it fits a record of twice its bytes");
        let payload = builder.finish();
        if let Err(error) = PayloadView::parse(&payload.bytes, payload.count) {
            panic!("a payload that no reader takes: {error}");
        }
    }
}

/// The entries of a stream that is read in pieces of so many bytes, and why it is none.
fn entries(stream: &[u8], piece: usize) -> (Vec<JournalEntry>, Option<ExportFault>) {
    let (mut reader, mut buf, mut entries) = (ExportEntries::new(ENTRY_BYTES_MAX), BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece) {
        buf.extend_from_slice(piece);
        loop {
            match reader.next(&mut buf) {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => break,
                Err(fault) => return (entries, Some(fault)),
            }
        }
    }
    match reader.last(&buf) {
        Ok(last) => entries.extend(last),
        Err(fault) => return (entries, Some(fault)),
    }
    (entries, None)
}
