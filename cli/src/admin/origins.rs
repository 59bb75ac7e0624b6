//! Streams of other logs that are forwarded to this one.

use clad_journal::owner_bytes::NETWORK;
use clad_proto::LogId;
use clad_proto::grpc::v1;
use serde_json::{Value, json};

use crate::format::human::count;
use crate::output::table;

/// Id of its log.
pub(super) fn log_of(origin: &v1::Origin) -> LogId {
    <[u8; 16]>::try_from(&origin.log_id[..]).map(LogId::from_bytes).unwrap_or_default()
}

/// A row for each.
pub(super) fn columns(origins: &[v1::Origin]) -> String {
    let row = |origin: &v1::Origin| {
        let owner = match origin.owner {
            uid if uid <= u32::MAX.into() => format!("uid {uid}"),
            owner => owner.to_string(),
        };
        vec![
            log_of(origin).to_string(),
            origin.stream.clone(),
            owner,
            origin.epoch.to_string(),
            count(origin.end),
            if origin.last_count > 0 { count(origin.last_offset) } else { String::new() },
            if origin.lost { "lost appends: drop it" } else { "" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = origins.iter().map(row).collect();
    table::columns(&["log", "stream", "owner", ">source epoch", ">source end", ">last here", "state"], &rows)
}

/// An origin for programs.
pub(super) fn object(origin: &v1::Origin) -> Value {
    let last = json!({
        "offset": origin.last_offset,
        "count": origin.last_count,
        "crc": format!("{:08x}", origin.last_crc),
    });
    json!({
        "log_id": log_of(origin).to_string(),
        "stream": origin.stream,
        "owner": origin.owner,
        "network": origin.owner & NETWORK != 0,
        "epoch": origin.epoch,
        "end": origin.end,
        "last": if origin.last_count > 0 { last } else { Value::Null },
        "lost": origin.lost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_objects() {
        let origin = v1::Origin {
            owner: 1000,
            log_id: vec![0xAB; 16].into(),
            stream: "main".to_owned(),
            epoch: 3,
            end: 1200,
            last_offset: 7000,
            last_count: 2,
            last_crc: 0x1F,
            lost: false,
        };
        let other = v1::Origin { owner: 1 << 63, last_count: 0, lost: true, ..origin.clone() };
        let text = columns(&[origin.clone(), other.clone()]);
        let rows: Vec<&str> = text.lines().collect();
        assert!(
            rows[1].starts_with("abababababababababababababababab  main") && rows[1].contains("uid 1000"),
            "{text}"
        );
        assert!(rows[1].contains("1,200") && rows[1].contains("7,000"), "{text}");
        assert!(rows[2].contains("9223372036854775808") && rows[2].ends_with("lost appends: drop it"), "{text}");
        assert_eq!(
            (object(&origin)["last"]["crc"].as_str(), &object(&other)["last"]),
            (Some("0000001f"), &Value::Null)
        );
    }
}
