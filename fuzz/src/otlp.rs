//! A request of an OTLP exporter, as the daemon cuts it into appends.
//!
//! What must hold of any bytes: an error, or parts that hold all records that are counted; each payload passes the check
//! of the daemon and that of a reader, whatever the limits are. What prost decodes is a request here, too, but for
//! messages in more pieces than are taken. JSON becomes a message that prost decodes and that is no longer, or an error.

use clad_proto::PayloadView;
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::limits::{MAX_APPEND_BYTES, MAX_RECORD_BYTES};
use clad_proto::otlp::{ExportLimits, ExportRequest};
use prost::Message;

pub(crate) fn otlp(data: &[u8]) {
    let request = match ExportRequest::new(data) {
        Ok(request) => request,
        Err(error) => {
            let is_decoded = ExportLogsServiceRequest::decode(data).is_ok();
            assert!(!is_decoded || error.to_string().contains("pieces"), "prost decodes it: {error}");
            return;
        }
    };
    for (max_append_bytes, max_record_bytes) in [(MAX_APPEND_BYTES, MAX_RECORD_BYTES), (1024, 1024), (4096, 300)] {
        let mut records = 0;
        for part in request.parts(ExportLimits { max_append_bytes, max_record_bytes }) {
            records += u64::from(part.rejected);
            assert_eq!(part.rejected > 0, part.first_rejected.is_some());
            let Some(payload) = part.payload else { continue };
            records += u64::from(payload.count);
            assert!(payload.bytes.len() <= max_append_bytes as usize);
            if let Err(error) = PayloadView::parse(&payload.bytes, payload.count) {
                panic!("a payload that no reader takes: {error}");
            }
        }
        assert_eq!(records, request.count());
    }
}

pub(crate) fn otlp_json(data: &[u8]) {
    let Ok(message) = clad::otlp_json_to_protobuf(data) else { return };
    // Inputs here are shorter than the texts that may be longer by a byte.
    assert!(message.len() <= data.len(), "{} bytes of {}", message.len(), data.len());
    if let Err(error) = ExportLogsServiceRequest::decode(&*message) {
        panic!("no message: {error}");
    }
    otlp(&message);
}
