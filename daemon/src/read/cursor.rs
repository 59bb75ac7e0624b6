//! Place of a cursor in the log as it is now.
//!
//! Invariants: a cursor (log, epoch, offset) says "I have read everything below `offset` in the history that `epoch`
//! belongs to". It is good when that history is this one up to `offset`: no later epoch began below it. Else the
//! records that its owner has read at and above that place are not these, and the refusal names the place where they
//! part.

use clad_journal::format::meta::Meta;
use clad_proto::{Cursor, ErrorCode, ErrorInfo, LogId};

/// True if the records that a cursor's owner has read are there; nothing where the log does not remember so far.
pub(crate) fn is_there(meta: &Meta, end: u64, cursor: Cursor) -> Option<bool> {
    match resolve(meta, end, cursor) {
        Ok(_) => Some(true),
        Err(_) if is_forgotten(meta, cursor) => None,
        Err(_) => Some(false),
    }
}

/// Its epoch is older than what the log remembers.
fn is_forgotten(meta: &Meta, cursor: Cursor) -> bool {
    let oldest = meta.epochs.first().map_or(0, |e| e.epoch);
    let full = meta.epochs.len() >= clad_journal::format::meta::MAX_EPOCHS;
    cursor.log_id == LogId::from_bytes(meta.log_id) && cursor.epoch < oldest && oldest > 1 && full
}

/// The offset to resume at. Offsets were given up to the end of the log: records before the cursor of a READ at a lower
/// level may not have reached this one's level yet.
pub(super) fn resolve(meta: &Meta, end: u64, cursor: Cursor) -> Result<u64, ErrorInfo> {
    let log_id = LogId::from_bytes(meta.log_id);
    let unknown = |text: String| Err(ErrorInfo::new(ErrorCode::CursorUnknown, text));
    if cursor.log_id != log_id {
        return unknown(format!("the cursor is of log {}, this is log {log_id}", cursor.log_id));
    }
    if cursor.epoch > meta.epoch() {
        return unknown(format!("the cursor is of epoch {}, this log is at {}", cursor.epoch, meta.epoch()));
    }
    if is_forgotten(meta, cursor) {
        return unknown(format!("the cursor is of epoch {}, older than this log remembers", cursor.epoch));
    }
    match meta.parting(cursor.epoch, cursor.offset) {
        Some(next) => {
            let text = format!(
                "offsets from {} on were given again in epoch {}: records read there in epoch {} are not in this log",
                next.first_offset, next.epoch, cursor.epoch
            );
            let parting = Cursor { log_id, epoch: next.epoch, offset: next.first_offset };
            Err(ErrorInfo::new(ErrorCode::CursorAbandoned, text).parting_at(parting))
        }
        None if cursor.offset > end => unknown(format!(
            "the cursor is at offset {}, and this log ends at {end}: it was made up, or is of a longer copy of this \
                 log (a backup was restored); read on from offset {end}, or without a cursor",
            cursor.offset
        )),
        _ => Ok(cursor.offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clad_journal::format::meta::EpochStart;

    fn meta() -> Meta {
        let epoch = |epoch, first_offset| EpochStart { epoch, first_offset };
        Meta {
            generation: 1,
            log_id: [7; 16],
            clean: false,
            latched: false,
            lowest_segment: 0,
            lowest_offset: 0,
            highest_segment: 0,
            created_ns: 0,
            least_epoch: 0,
            proof: None,
            lost: Vec::new(),
            epochs: vec![epoch(1, 0), epoch(3, 100), epoch(4, 250)],
        }
    }

    fn at(epoch: u32, offset: u64) -> Result<u64, (ErrorCode, Option<u64>)> {
        let cursor = Cursor { log_id: LogId::from_bytes([7; 16]), epoch, offset };
        resolve(&meta(), 300, cursor).map_err(|e| (e.code, e.cursor.map(|c| c.offset)))
    }

    #[test]
    fn a_cursor_is_good_as_far_as_its_history_is_this_one() {
        assert_eq!(at(1, 100), Ok(100));
        assert_eq!(at(1, 101), Err((ErrorCode::CursorAbandoned, Some(100))));
        assert_eq!(at(2, 100), Ok(100), "an epoch that gave nothing");
        assert_eq!(at(3, 250), Ok(250));
        assert_eq!(at(3, 251), Err((ErrorCode::CursorAbandoned, Some(250))));
        assert_eq!(at(4, 300), Ok(300));
        assert_eq!(at(4, 301), Err((ErrorCode::CursorUnknown, None)));
        assert_eq!(at(5, 0), Err((ErrorCode::CursorUnknown, None)));
        let other = Cursor { log_id: LogId::from_bytes([8; 16]), epoch: 1, offset: 0 };
        assert_eq!(resolve(&meta(), 300, other).unwrap_err().code, ErrorCode::CursorUnknown);
        assert_eq!(is_there(&meta(), 300, other), Some(false));
    }

    #[test]
    fn what_is_older_than_the_log_remembers_is_neither_there_nor_not() {
        let at = |epoch, offset| Cursor { log_id: LogId::from_bytes([7; 16]), epoch, offset };
        let is_there = |meta: &Meta, cursor| is_there(meta, 300, cursor);
        let known = [at(1, 100), at(1, 101), at(4, 300), at(4, 301), at(5, 0)].map(|cursor| is_there(&meta(), cursor));
        assert_eq!(known, [true, false, true, false, false].map(Some));
        let mut full = meta();
        (10..)
            .take(clad_journal::format::meta::MAX_EPOCHS)
            .for_each(|epoch| full.push_epoch(epoch, 300 + u64::from(epoch)));
        assert_eq!(full.epochs.len(), clad_journal::format::meta::MAX_EPOCHS);
        assert_eq!(is_there(&full, at(1, 50)), None);
    }
}
