//! The segments of a log, for people and for programs.

use clad_proto::grpc::v1;
use jiff::tz::TimeZone;
use serde_json::json;

use crate::format::human::{bytes, count};
use crate::format::times;
use crate::output::table;

/// A row for each.
pub(super) fn columns(segments: &[v1::Segment], zone: &TimeZone) -> String {
    let time = |nanos: Option<u64>| {
        nanos.map_or_else(String::new, |nanos| {
            times::timestamp(nanos).to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        })
    };
    let row = |segment: &v1::Segment| {
        vec![
            segment.number.to_string(),
            if segment.sealed { "sealed" } else { "active" }.to_owned(),
            count(segment.first_offset),
            count(segment.end_offset),
            count(segment.records),
            bytes(segment.bytes),
            time(segment.min_time),
            time(segment.max_time),
        ]
    };
    let rows: Vec<Vec<String>> = segments.iter().map(row).collect();
    table::columns(&[">segment", "state", ">from", ">to (excl.)", ">records", ">size", "oldest", "newest"], &rows)
}

/// An object a line.
pub(super) fn lines(segments: &[v1::Segment]) -> String {
    let line = |segment: &v1::Segment| {
        let object = json!({
            "number": segment.number,
            "sealed": segment.sealed,
            "first_offset": segment.first_offset,
            "end_offset": segment.end_offset,
            "records": segment.records,
            "bytes": segment.bytes,
            "min_time": times::rfc3339_if_any(segment.min_time),
            "max_time": times::rfc3339_if_any(segment.max_time),
            "file": segment.file,
        });
        format!("{object}\n")
    };
    segments.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_lines() {
        let segments = [
            v1::Segment {
                end_offset: 1000,
                bytes: 64 << 20,
                sealed: true,
                min_time: Some(1_767_261_600_000_000_000),
                max_time: Some(1_767_261_601_000_000_000),
                records: 1000,
                file: "00000000000000000000.clog".into(),
                ..v1::Segment::default()
            },
            v1::Segment { number: 1, first_offset: 1000, end_offset: 1000, ..v1::Segment::default() },
        ];
        assert_eq!(
            columns(&segments, &TimeZone::UTC),
            "segment  state    from  to (excl.)  records      size  oldest               newest\n      \
             0  sealed      0       1,000    1,000  64.0 MiB  2026-01-01 10:00:00  2026-01-01 10:00:01\n      \
             1  active  1,000       1,000        0       0 B\n"
        );
        assert_eq!(
            lines(&segments).lines().next(),
            Some(
                r#"{"number":0,"sealed":true,"first_offset":0,"end_offset":1000,"records":1000,"bytes":67108864,"min_time":"2026-01-01T10:00:00.000000000Z","max_time":"2026-01-01T10:00:01.000000000Z","file":"00000000000000000000.clog"}"#
            )
        );
    }
}
