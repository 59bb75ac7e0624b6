//! A producer's session, the same over every transport.
//!
//! Invariants: what a test asks of a session is done as a client of that transport does it; a refusal is an answer, anything
//! else that is not expected fails the test. Over the network an id's secret is the id.

use bytes::BytesMut;
use clad_e2e::by_hand::{ByHand, push};
use clad_e2e::grpc::{Call, append_of};
use clad_e2e::raw::{hello_as, payload};
use clad_e2e::{Daemon, Raw};
use clad_proto::frame::{AppendHead, Frame, Hello, encode_append, encode_bye};
use clad_proto::{AckLevel, ErrorInfo, ProducerId};
use tokio::runtime::{Builder, Runtime};

/// What a session goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Unix,
    Tcp,
    Grpc,
    Ring,
}

pub(crate) const TRANSPORTS: [Transport; 4] = [Transport::Unix, Transport::Tcp, Transport::Grpc, Transport::Ring];

/// The last record that WELCOME names: its sequence and offset.
pub(crate) type Last = Option<(u64, u64)>;

/// The answer to an append of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) offset: u64,
    pub(crate) duplicate: bool,
}

pub(crate) struct Session(Over);

enum Over {
    Framed(Raw),
    Grpc(Call, Runtime),
    Ring(clad_shm::Producer, ByHand),
}

impl Session {
    /// Says HELLO as this producer, epoch 0.
    pub(crate) fn open(daemon: &Daemon, over: Transport, id: ProducerId) -> Result<(Self, Last), ErrorInfo> {
        let hello = hello_of(over, id);
        let (over, last) = match over {
            Transport::Unix | Transport::Tcp => {
                let mut raw = connect(daemon, over);
                let welcome = raw.greet(&hello)?;
                (Over::Framed(raw), welcome.last.map(|last| (last.sequence, last.offset)))
            }
            Transport::Grpc => {
                let (runtime, address) = (runtime(), daemon.port("grpc").to_string());
                let (call, welcome) = runtime.block_on(Call::greet(&address, id.as_bytes().to_vec(), 0))?;
                (Over::Grpc(call, runtime), welcome.last.map(|last| (last.sequence, last.offset)))
            }
            Transport::Ring => {
                let client = ByHand::ask(&daemon.socket(), &hello)?;
                let last = client.welcome.last.map(|last| (last.sequence, last.offset));
                (Over::Ring(client.attach(), client), last)
            }
        };
        Ok((Self(over), last))
    }

    /// Appends one record and waits for its level. There is no answer at level `none`, and none that names an offset by a ring.
    pub(crate) fn append(&mut self, sequence: u64, level: AckLevel, body: &str) -> Result<Option<Answer>, ErrorInfo> {
        match &mut self.0 {
            Over::Framed(raw) => {
                raw.append(sequence, level, &[body.as_bytes()]);
                if level == AckLevel::None {
                    return Ok(None);
                }
                let accepted = match raw.answer() {
                    Frame::Accepted(accepted) => accepted,
                    Frame::Refused(refused) => return Err(refused.error),
                    Frame::Error(error) => return Err(error.error),
                    other => panic!("no answer to an append: {other:?}"),
                };
                if level > AckLevel::Received {
                    raw.wait_watermark(level, accepted.epoch, accepted.first_offset);
                }
                Ok(Some(Answer { offset: accepted.first_offset, duplicate: accepted.duplicate }))
            }
            Over::Grpc(call, runtime) => runtime.block_on(async {
                if level == AckLevel::None {
                    call.ask_append(append_of(sequence, level, body)).await;
                    return Ok(None);
                }
                let accepted = call.append(sequence, level, body).await?;
                if level > AckLevel::Received {
                    // Its own watermark may have come before Accepted; a Flush is answered behind it.
                    call.flush(1, level).await?;
                }
                Ok(Some(Answer { offset: accepted.first_offset, duplicate: accepted.duplicate }))
            }),
            Over::Ring(ring, client) => {
                push(ring, level, body);
                if level > AckLevel::None {
                    client.flush(level)?;
                }
                Ok(None)
            }
        }
    }

    /// Says BYE and waits for the end of the connection, or call.
    pub(crate) fn bye(self) {
        match self.0 {
            Over::Framed(raw) => raw.bye(),
            Over::Grpc(call, runtime) => runtime.block_on(call.bye()),
            Over::Ring(ring, client) => {
                drop(ring);
                client.bye();
            }
        }
    }
}

/// HELLO, an append at level `none` and BYE, in one write where the transport lets a client do that; then the end is waited for.
pub(crate) fn all_at_once(daemon: &Daemon, over: Transport, id: ProducerId, body: &str) -> Result<(), ErrorInfo> {
    match over {
        Transport::Unix | Transport::Tcp => {
            let payload = payload(&[body.as_bytes()]);
            let (count, payload_crc) = (payload.count, payload.checksum());
            let head = AppendHead { first_seq: 0, count, level: AckLevel::None, gap: false, payload_crc };
            let mut raw = connect(daemon, over);
            raw.send(|buf: &mut BytesMut| {
                hello_of(over, id).encode(buf);
                encode_append(buf, &head, &payload.bytes);
                encode_bye(buf);
            });
            while let Some(frame) = raw.frame() {
                match frame {
                    Frame::Welcome(_) => {}
                    Frame::Error(error) => return Err(error.error),
                    other => panic!("to HELLO, APPEND and BYE: {other:?}"),
                }
            }
        }
        Transport::Grpc | Transport::Ring => {
            let (mut session, _) = Session::open(daemon, over, id)?;
            session.append(0, AckLevel::None, body)?;
            session.bye();
        }
    }
    Ok(())
}

pub(crate) fn connect(daemon: &Daemon, over: Transport) -> Raw {
    match over {
        Transport::Tcp => Raw::tcp(daemon.port("tcp")),
        _ => Raw::unix(&daemon.socket()),
    }
}

fn hello_of(over: Transport, id: ProducerId) -> Hello {
    let secret = if over == Transport::Tcp { id.as_bytes().to_vec() } else { Vec::new() };
    hello_as(id, 0, &secret)
}

/// A runtime whose thread serves the connection also while the test does something else. It is the user's who makes it.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}
