//! One READ on one connection, on either transport.

use super::{
    framed::FramedSource,
    next::{Next, Opened},
    plan::{Plan, Start},
};
use crate::ReadError;
use std::num::NonZeroU64;

#[derive(Debug)]
pub(super) enum Source {
    Framed(Box<FramedSource>),
    #[cfg(feature = "grpc")]
    Grpc(Box<super::grpc::GrpcSource>),
}

impl Source {
    pub(super) async fn open(plan: &Plan, start: Start, limit: Option<NonZeroU64>) -> Result<Opened<Self>, ReadError> {
        match &plan.address {
            #[cfg(feature = "grpc")]
            crate::Address::Grpc(_) => {
                let opened = super::grpc::GrpcSource::open(plan, start, limit).await?;
                Ok(opened.map(|source| Self::Grpc(Box::new(source))))
            }
            #[cfg(all(feature = "grpc", feature = "tls"))]
            crate::Address::Grpcs(_) => {
                let opened = super::grpc::GrpcSource::open(plan, start, limit).await?;
                Ok(opened.map(|source| Self::Grpc(Box::new(source))))
            }
            _ => {
                let opened = FramedSource::open(plan, start, limit).await?;
                Ok(opened.map(|source| Self::Framed(Box::new(source))))
            }
        }
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Next, ReadError> {
        match self {
            Self::Framed(source) => source.next().await,
            #[cfg(feature = "grpc")]
            Self::Grpc(source) => source.next().await,
        }
    }
}
