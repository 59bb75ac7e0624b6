//! The named cursors of a log, for people and for programs.

use clad_proto::grpc::v1;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::format::human::{bytes, count};
use crate::format::times;
use crate::output::table;

fn owner(owner: u64) -> String {
    match owner >> 63 {
        0 => format!("uid {owner}"),
        _ => format!("network {owner:016x}"),
    }
}

fn note(cursor: &v1::NamedCursor) -> String {
    String::from_utf8_lossy(&cursor.note).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A row for each.
pub(super) fn columns(answer: &v1::CursorsResponse, zone: &TimeZone) -> String {
    let time = |nanos: u64| times::timestamp(nanos).to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string();
    let row = |cursor: &v1::NamedCursor| {
        let state = match (cursor.lost, cursor.hold) {
            (true, _) => "lost records",
            (false, true) => "holds",
            (false, false) => "",
        };
        vec![
            cursor.name.clone(),
            cursor.epoch.to_string(),
            count(cursor.offset),
            count(cursor.lag_records),
            state.to_owned(),
            time(cursor.committed),
            owner(cursor.owner),
            note(cursor),
        ]
    };
    let rows: Vec<Vec<String>> = answer.cursors.iter().map(row).collect();
    let heads = ["cursor", ">epoch", ">next offset", ">behind", "state", "committed", "owner", "note"];
    let held = format!("{} of {} cursors; {} held\n", rows.len(), answer.max, bytes(answer.held_bytes));
    table::columns(&heads, &rows) + &held
}

/// As an object.
pub(super) fn object(cursor: &v1::NamedCursor) -> Value {
    json!({
        "name": cursor.name,
        "owner": owner(cursor.owner),
        "epoch": cursor.epoch,
        "offset": cursor.offset,
        "committed": times::rfc3339_if_any(Some(cursor.committed)),
        "hold": cursor.hold,
        "lost": cursor.lost,
        "lag_records": cursor.lag_records,
        "note": String::from_utf8_lossy(&cursor.note),
    })
}

/// An object a line.
pub(super) fn lines(cursors: &[v1::NamedCursor]) -> String {
    cursors.iter().map(|cursor| format!("{}\n", object(cursor))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_lines() {
        let cursor = |name: &str| v1::NamedCursor { name: name.into(), owner: 7, epoch: 1, ..Default::default() };
        let answer = v1::CursorsResponse {
            cursors: vec![
                v1::NamedCursor {
                    offset: 1234,
                    hold: true,
                    lag_records: 5,
                    note: b"a\nb".to_vec().into(),
                    ..cursor("a")
                },
                v1::NamedCursor { lost: true, hold: true, owner: 1 << 63 | 1, ..cursor("b") },
            ],
            max: 64,
            held_bytes: 1 << 20,
        };
        assert_eq!(
            columns(&answer, &TimeZone::UTC),
            "cursor  epoch  next offset  behind  state         committed            owner                     note\n\
             a           1        1,234       5  holds         1970-01-01 00:00:00  uid 7                     a?b\n\
             b           1            0       0  lost records  1970-01-01 00:00:00  network 8000000000000001\n\
             2 of 64 cursors; 1.0 MiB held\n"
        );
        assert_eq!(
            lines(&answer.cursors).lines().next(),
            Some(
                r#"{"name":"a","owner":"uid 7","epoch":1,"offset":1234,"committed":"1970-01-01T00:00:00.000000000Z","hold":true,"lost":false,"lag_records":5,"note":"a\nb"}"#
            )
        );
    }
}
