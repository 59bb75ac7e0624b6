//! Connections: how what the session wants sent gets to the daemon, and its answers back.
//!
//! One enum with two transports inside; above it nothing knows which. Sending is a queue that is filled without waiting
//! ([`Connection::queue`], while [`Connection::has_room`]); [`Connection::drive`] moves bytes in both directions.

pub(crate) mod address;
mod answer;
mod framed;
#[cfg(feature = "grpc")]
mod grpc;
mod out_buffer;
mod stream;
#[cfg(feature = "tls")]
mod tls;
pub(crate) mod token;

pub(crate) use answer::Answer;
pub(crate) use framed::Framed;
#[cfg(feature = "grpc")]
pub(crate) use grpc::of_status;
#[cfg(feature = "grpc")]
pub use grpc::{Channel, WithToken, channel};

use crate::{Address, ConnectError, session::Out};
use clad_proto::frame::{Hello, Welcome};
use std::time::Duration;

/// No more is queued beyond this: what is queued is counted as sent.
pub(crate) const QUEUE_BYTES: usize = 256 * 1024;
/// The longest time that the end of a connection may take.
const END_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Connection {
    Framed(Box<Framed>),
    #[cfg(feature = "grpc")]
    Grpc(Box<grpc::Grpc>),
}

impl Connection {
    /// Connects and greets.
    pub(crate) async fn connect(
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> Result<(Self, Welcome), ConnectError> {
        let connecting = async {
            match address {
                #[cfg(feature = "grpc")]
                Address::Grpc(_) => {
                    let (connection, welcome) = grpc::Grpc::connect(address, hello).await?;
                    Ok((Self::Grpc(Box::new(connection)), welcome))
                }
                #[cfg(all(feature = "grpc", feature = "tls"))]
                Address::Grpcs(_) => {
                    let (connection, welcome) = grpc::Grpc::connect(address, hello).await?;
                    Ok((Self::Grpc(Box::new(connection)), welcome))
                }
                _ => {
                    let (connection, welcome) = Framed::connect(address, hello).await?;
                    Ok((Self::Framed(Box::new(connection)), welcome))
                }
            }
        };
        match tokio::time::timeout(timeout, Box::pin(connecting)).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Timeout { address: address.clone(), timeout }),
        }
    }

    /// Puts something in line to be sent.
    pub(crate) fn queue(&mut self, out: Out) -> Result<(), ConnectError> {
        match self {
            Self::Framed(framed) => framed.queue(out),
            #[cfg(feature = "grpc")]
            Self::Grpc(grpc) => return grpc.queue(out),
        }
        Ok(())
    }

    /// True if more should be put in line now.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Framed(framed) => framed.queued_bytes() < QUEUE_BYTES,
            #[cfg(feature = "grpc")]
            Self::Grpc(grpc) => grpc.queued_bytes() < QUEUE_BYTES,
        }
    }

    /// Asks for a sign of life. False where the transport sees to that itself.
    pub(crate) fn ping(&mut self) -> bool {
        match self {
            Self::Framed(framed) => {
                framed.ping();
                true
            }
            #[cfg(feature = "grpc")]
            Self::Grpc(_) => false,
        }
    }

    /// Sends and receives until there are answers, or until room has come for more to send.
    ///
    /// Cancel safe: sent data is out of the line, received data is stored.
    pub(crate) async fn drive(&mut self, answers: &mut Vec<Answer>) -> Result<(), ConnectError> {
        match self {
            Self::Framed(framed) => framed.drive(answers).await,
            #[cfg(feature = "grpc")]
            Self::Grpc(grpc) => grpc.drive(answers).await,
        }
    }

    /// Sends what is in line, with a good-bye if the producer is done, and waits until the daemon has seen it, but not
    /// for long.
    pub(crate) async fn end(self, bye: bool) {
        let parting = async {
            match self {
                Self::Framed(framed) => framed.end(bye).await,
                #[cfg(feature = "grpc")]
                Self::Grpc(grpc) => grpc.end(bye).await,
            }
        };
        // What does not get through now has no answer that anybody waits for.
        let _ = tokio::time::timeout(END_TIMEOUT, Box::pin(parting)).await;
    }
}
