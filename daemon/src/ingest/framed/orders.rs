//! FLUSH, READ and CANCEL_READ, and the answers that the watermarks release.

use clad_journal::Watermarks;
use clad_proto::frame::{self, ErrorFrame, Flush};
use clad_proto::limits::MAX_READS_PER_CONNECTION;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::sync::watch;

use super::{Connection, OpenRead, count_refusal};
use crate::ingest::session::Answer;

impl Connection {
    pub(super) fn flush(&mut self, flush: Flush) {
        // No watermark covers appends that wait in its ring.
        if let Some(Err(error)) = self.drained.take() {
            return ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
        }
        if self.has_lost() {
            let text = "what this ring had given back as written is not in the log any more: it is lost";
            let mut error = ErrorInfo::new(ErrorCode::JournalFailed, text);
            (error.retryable, error.maybe_written) = (false, false);
            return ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
        }
        match self.session.ask_flush(&self.service.admission, flush) {
            Ok(None) => {}
            Ok(Some(mark)) => mark.encode(&mut self.out),
            Err(error) => ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out),
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
            self.service.reads.start(&read, self.peer.quota_owner())
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
        // The read itself reports where it ends, behind what it has given. One that has ended already has done that.
        if let Some(read) = self.reads.get(&request_id) {
            read.cancel.send_replace(true);
        }
    }

    pub(super) fn release(&mut self, watermarks: &Watermarks) {
        let mut answers = std::mem::take(&mut self.answers);
        self.session.release(watermarks, &mut answers);
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
