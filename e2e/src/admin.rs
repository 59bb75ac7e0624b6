//! The admin service, asked through its socket.

use std::future::Future;
use std::path::{Path, PathBuf};

use clad_proto::grpc::v1::admin_client::AdminClient;
use clad_proto::grpc::v1::{
    RotateRequest, RotateResponse, Segment, SegmentsRequest, StatusRequest, StatusResponse, SyncRequest,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::TEST_TIMEOUT;

/// The admin socket of a daemon.
#[derive(Clone, Debug)]
pub struct Admin(PathBuf);

impl Admin {
    /// The one that listens here.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// `Admin.Status`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn status(&self) -> Result<StatusResponse, String> {
        self.call(async |mut admin| admin.status(StatusRequest {}).await.map(tonic::Response::into_inner))
    }

    /// `Admin.Segments`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn segments(&self) -> Result<Vec<Segment>, String> {
        self.call(async |mut admin| admin.segments(SegmentsRequest {}).await.map(|answer| answer.into_inner().segments))
    }

    /// `Admin.Rotate`.
    ///
    /// # Errors
    /// When there is no answer, or no rotation.
    pub fn rotate(&self) -> Result<RotateResponse, String> {
        self.call(async |mut admin| admin.rotate(RotateRequest {}).await.map(tonic::Response::into_inner))
    }

    /// `Admin.Sync`; below what all is durable.
    ///
    /// # Errors
    /// When there is no answer, or the sync failed.
    pub fn sync(&self) -> Result<u64, String> {
        self.call(async |mut admin| admin.sync(SyncRequest {}).await.map(|answer| answer.into_inner().durable))
    }

    fn call<T, F>(&self, ask: impl FnOnce(AdminClient<Channel>) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let path = self.0.clone();
        let asked = async {
            // The address is never used: the connector knows the way.
            let connector = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            let channel = Endpoint::from_static("http://admin.sock").connect_with_connector(connector).await;
            ask(AdminClient::new(channel.map_err(|e| format!("{e:?}"))?)).await.map_err(|e| format!("{e:?}"))
        };
        runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, asked).await.map_err(|_| "no answer".to_owned())? })
    }
}
