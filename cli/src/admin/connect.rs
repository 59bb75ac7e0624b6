//! Reaching the admin service through its Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clad_proto::grpc::{
    from_status,
    v1::{self, admin_client::AdminClient},
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::exit::Stop;

/// The client of the admin service.
pub(super) type Admin = AdminClient<Channel>;

/// Longest wait for the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for what a daemon knows: an answer takes a millisecond, and who takes so long hangs.
pub(super) const MEMORY_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for what needs the disk; the daemon itself gives up after a minute, and says so.
pub(super) const DISK_REPLY_TIMEOUT: Duration = Duration::from_secs(65);

/// Asks the daemon one thing, and waits so long for its answer.
pub(super) async fn ask<T>(
    path: &Path,
    timeout: Duration,
    what: impl AsyncFnOnce(&mut Admin) -> Result<tonic::Response<T>, Status>,
) -> Result<T, Stop> {
    let answer = async {
        let mut admin = connect(path).await?;
        Ok(what(&mut admin).await.map_err(|status| failed(path, &status))?.into_inner())
    };
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(silent(path, timeout)))
}

/// The status of the daemon.
pub(super) async fn status_of(path: &Path) -> Result<v1::StatusResponse, Stop> {
    ask(path, MEMORY_REPLY_TIMEOUT, async |admin| admin.status(v1::StatusRequest {}).await).await
}

/// Connects; what goes wrong says what to do.
async fn connect(path: &Path) -> Result<Admin, Stop> {
    let socket = path.to_owned();
    // The address is never used: the connector below knows the way.
    let endpoint = Endpoint::from_static("http://admin.sock").connect_timeout(CONNECT_TIMEOUT);
    let connector = service_fn(move |_| open(socket.clone()));
    // Before tonic wraps it, the system's own error says most.
    drop(open(path.to_owned()).await.map_err(|error| unreachable(path, &error))?);
    let channel = endpoint.connect_with_connector(connector).await;
    let channel = channel.map_err(|error| Stop::Failed(anyhow::anyhow!("{}: {error}", path.display())))?;
    // Of the daemon's own: a list of segments has no bound but the log's.
    Ok(Admin::new(channel).max_decoding_message_size(usize::MAX))
}

async fn open(path: PathBuf) -> std::io::Result<TokioIo<UnixStream>> {
    UnixStream::connect(path).await.map(TokioIo::new)
}

fn unreachable(path: &Path, error: &std::io::Error) -> Stop {
    use std::io::ErrorKind;
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => "; it is for root, the daemon's user and [access] admin_group",
        ErrorKind::ConnectionRefused => "; no daemon listens there any more: start `clad`",
        ErrorKind::NotFound => "; start `clad`, or give --admin unix://PATH",
        _ => "",
    };
    Stop::Failed(anyhow::anyhow!("cannot reach {}: {error}{hint}", path.display()))
}

/// A daemon that takes the connection, and says nothing.
fn silent(path: &Path, timeout: Duration) -> Stop {
    Stop::Failed(anyhow::anyhow!(
        "no answer over {} within {} s: the daemon hangs, or has not finished its start; `systemctl status clad` and its \
         messages say more",
        path.display(),
        timeout.as_secs()
    ))
}

/// A call that the daemon, or the way to it, ended badly.
fn failed(path: &Path, status: &Status) -> Stop {
    Stop::Failed(match (from_status(status), status.code()) {
        (Some(error), _) => anyhow::Error::new(error),
        (None, Code::Unimplemented) => {
            anyhow::anyhow!("{} does not know this order: is the daemon older than clactl?", path.display())
        }
        (None, _) => anyhow::anyhow!("{}: {}", path.display(), status.message()),
    })
}
