//! FLUSH, READ and CANCEL_READ, and the answers that the marks release.

use clad_journal::{Level, Marks};
use clad_proto::frame::{self, ErrorFrame, Flush};
use clad_proto::limits::MAX_READS_PER_CONNECTION;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::sync::watch;

use super::{Connection, OpenRead, count_refusal};
use crate::ingest::session::Answer;

impl Connection {
    pub(super) fn flush(&mut self, flush: Flush) {
        // What waits in its ring is covered by no mark.
        if self.has_ring()
            && let Some(error) = self.is_overtaking().cloned()
        {
            return ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
        }
        let door = &self.service.door;
        let level = match flush.level {
            AckLevel::Durable => Level::Durable,
            _ => Level::Written,
        };
        // Where acks end at `written`, a flush still asks the disk: the sync is made, the mark is what it is.
        match flush.level {
            level if level > door.flush_reach => {
                let text = format!("this log reaches `{}` at most, not `{level}`", door.flush_reach);
                let error = ErrorInfo::new(ErrorCode::LevelUnreachable, text);
                ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
            }
            _ if self.session.unanswered() >= 2 * door.window as usize => {
                let error = ErrorInfo::new(ErrorCode::Busy, "too many FLUSHes are unanswered").retry_after_ms(100);
                ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
            }
            AckLevel::Durable | AckLevel::Written => {
                // Before the place is asked for: what fails in between may be of what it covers.
                let marks = door.journal.marks();
                if let Some(error) = self.session.lost_since(&marks) {
                    return ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
                }
                let end = match level {
                    Level::Durable => door.journal.request_sync(),
                    _ => marks.received,
                };
                self.session.flush(flush.request_id, end, level, marks.failures);
            }
            _ => {
                let m = door.journal.marks();
                frame::Watermark {
                    request_id: flush.request_id,
                    epoch: m.epoch,
                    epoch_first_offset: m.epoch_first,
                    level: AckLevel::Received,
                    offset: m.received,
                }
                .encode(&mut self.out);
            }
        }
    }

    pub(super) fn read(&mut self, read: frame::Read) {
        let refuse = |code, text: &str| Err(ErrorInfo::new(code, text));
        self.forget_ended_reads();
        let checked = if !self.peer.may_read {
            refuse(ErrorCode::PermissionDenied, "this peer may not read this log ([access] read_group, allow_read)")
        } else if self.reads.get(&read.request_id).is_some_and(|open| !open.cancel.is_closed()) || read.request_id == 0
        {
            refuse(ErrorCode::MalformedFrame, "a READ needs a request id that no open READ has")
        } else if self.reads.len() >= MAX_READS_PER_CONNECTION {
            refuse(ErrorCode::Busy, "too many READs are open on this connection")
        } else {
            self.service.reads.start(&read)
        };
        match checked {
            Ok(start) => {
                let (cancel, cancelled) = watch::channel(false);
                let task = tokio::spawn(start.run(self.records.0.clone(), self.service.stop.clone(), cancelled));
                let open = OpenRead { task: task.abort_handle(), follows: read.follow, cancel };
                self.reads.insert(read.request_id, open);
            }
            Err(error) => ErrorFrame { request_id: read.request_id, error }.encode(&mut self.out),
        }
    }

    pub(super) fn cancel(&mut self, request_id: u32) {
        // The read itself says where it ends, behind what it has given. One that has ended already has said so.
        if let Some(read) = self.reads.get(&request_id) {
            read.cancel.send_replace(true);
        }
    }

    pub(super) fn release(&mut self, marks: &Marks) {
        let mut answers = std::mem::take(&mut self.answers);
        self.session.release(marks, &mut answers);
        self.quiet.written = marks.written;
        for answer in answers.drain(..) {
            match answer {
                Answer::Watermark(w) => w.encode(&mut self.out),
                Answer::Refused(r) => {
                    count_refusal(AckLevel::Received, r.error.code, r.count);
                    r.encode(&mut self.out);
                }
                Answer::FlushFailed(request_id, error) => ErrorFrame { request_id, error }.encode(&mut self.out),
            }
        }
        self.answers = answers;
    }
}
