//! The task of a socket, as the models have it: the shipped task, inbox, session and room. In the place of a connection
//! there is a daemon that stores what it is sent.

use std::sync::Arc;

use clad_proto::{
    AckLevel, DurabilityPolicy, LogId,
    frame::{Accepted, Forwarding, Watermark, Welcome},
};

use super::{Producer, ProducerBuilder, shared::Shared, task::Task};
use crate::{ConnectError, clock::now, session::Out, sync, transport::Answer};

/// See the module.
pub struct SocketTask(Task);

/// A producer, and its task.
///
/// # Errors
/// When resource and scope are too long.
pub fn socket_client(builder: ProducerBuilder) -> Result<(Producer, SocketTask), ConnectError> {
    let shared = Arc::new(Shared::new(builder.finish())?);
    Ok((Producer::new(shared.clone()), SocketTask(Task::new(shared))))
}

impl SocketTask {
    /// Serves until it is closed and nothing waits; how many records were stored.
    pub async fn run(self) -> u64 {
        let mut task = self.0;
        let shared = task.shared.clone();
        let limit = 1 << 20;
        let welcome = Welcome {
            version: 1,
            policy: DurabilityPolicy::GroupCommit,
            highest_ack: AckLevel::Durable,
            may_read: false,
            log_id: LogId::from_bytes([7; 16]),
            epoch: 1,
            epoch_first_offset: 0,
            producer_id: shared.options.producer_id,
            producer_epoch: 0,
            secret: Vec::new(),
            last: None,
            window: 64,
            max_append_bytes: limit,
            max_record_bytes: limit,
            received: 0,
            written: 0,
            durable: 0,
            earlier: Vec::new(),
            forwarding: Forwarding::No,
        };
        task.session().connected(&welcome).expect("nobody else has this producer");
        let mut stored = 0;
        let durable = |id, offset| {
            let (epoch, level) = (1, AckLevel::Durable);
            Answer::Watermark(Watermark { request_id: id, epoch, epoch_first_offset: 0, level, offset })
        };
        let end = loop {
            let now = now();
            task.process_answers(now).expect("what was sent is answered");
            let life = shared.life();
            if let std::ops::ControlFlow::Break(end) = task.take_in(now) {
                break end;
            }
            loop {
                let out = task.session().next_out(now);
                let Some(out) = out else { break };
                sync::yield_now(); // what was sent is dropped for nobody any more
                match out {
                    Out::Append { head, .. } => {
                        let (first_seq, count) = (head.first_seq, head.count);
                        let first_offset = stored;
                        stored += u64::from(count);
                        let accepted = Accepted { first_seq, first_offset, count, epoch: 1, duplicate: false };
                        task.answers.extend([Answer::Accepted(accepted), durable(0, stored)]);
                    }
                    Out::Flush { id, .. } => task.answers.push(durable(id, stored)),
                }
            }
            task.deliver();
            if let std::ops::ControlFlow::Break(end) = task.over(&life, now) {
                break end;
            }
            if task.answers.is_empty() {
                shared.wake.notified().await;
            }
        };
        task.finish(&end);
        stored
    }
}
