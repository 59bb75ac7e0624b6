//! Reaching the admin service through its Unix socket, or over TLS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clad_client::{Address, Channel, WithToken};
use clad_proto::grpc::{
    from_status,
    v1::{self, admin_client::AdminClient},
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tower::service_fn;

use crate::exit::Stop;
use crate::reach;

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
    at: &Address,
    timeout: Duration,
    what: impl AsyncFnOnce(&mut Admin) -> Result<tonic::Response<T>, Status>,
) -> Result<T, Stop> {
    let answer = async {
        let mut admin = connect(at).await?;
        Ok(what(&mut admin).await.map_err(|status| failed(at, &status))?.into_inner())
    };
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(silent(at, timeout)))
}

/// The status of the daemon.
pub(super) async fn status_of(at: &Address) -> Result<v1::StatusResponse, Stop> {
    ask(at, MEMORY_REPLY_TIMEOUT, async |admin| admin.status(v1::StatusRequest {}).await).await
}

/// Connects; what goes wrong says what to do.
async fn connect(at: &Address) -> Result<Admin, Stop> {
    // Of the daemon's own: a list of segments has no bound but the log's.
    let admin = |channel| Admin::new(channel).max_decoding_message_size(usize::MAX);
    let Address::Unix(path) = at else {
        return clad_client::channel(at).await.map(admin).map_err(|error| reach::unreachable(&error));
    };
    let socket = path.clone();
    // The address is never used: the connector below knows the way.
    let endpoint = Endpoint::from_static("http://admin.sock").connect_timeout(CONNECT_TIMEOUT);
    let connector = service_fn(move |_| open(socket.clone()));
    // Before tonic wraps it, the system's own error says most.
    drop(open(path.clone()).await.map_err(|error| unreachable(path, &error))?);
    let channel = endpoint.connect_with_connector(connector).await;
    let channel = channel.map_err(|error| Stop::Failed(anyhow::anyhow!("{}: {error}", path.display())))?;
    Ok(admin(InterceptedService::new(channel, WithToken::default())))
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
fn silent(at: &Address, timeout: Duration) -> Stop {
    Stop::Failed(anyhow::anyhow!(
        "no answer over {} within {} s: the daemon hangs, or has not finished its start; `systemctl status clad` and its \
         messages say more",
        shown(at),
        timeout.as_secs()
    ))
}

/// A call that the daemon, or the way to it, ended badly.
fn failed(at: &Address, status: &Status) -> Stop {
    Stop::Failed(match (from_status(status), status.code()) {
        (Some(error), _) => anyhow::Error::new(error),
        (None, Code::Unimplemented) => {
            anyhow::anyhow!("{} does not know this order: is the daemon older than clactl?", shown(at))
        }
        (None, _) => anyhow::anyhow!("{}: {}", shown(at), status.message()),
    })
}

/// The path alone where it is one.
fn shown(at: &Address) -> String {
    match at {
        Address::Unix(path) => path.display().to_string(),
        at => at.to_string(),
    }
}
