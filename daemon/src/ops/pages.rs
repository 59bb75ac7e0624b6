//! The listener of the pages: `[metrics] listen`.
//!
//! Invariant: every request is answered, whatever lies idle. At most [`PAGE_CONNECTIONS_MAX`] connections are open;
//! with one more, the one that has been silent for longest is closed. So they never take descriptors that the journal
//! needs.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::serve::Listener;
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Connections at once: some scrapers, probes and people with a browser.
pub(crate) const PAGE_CONNECTIONS_MAX: usize = 64;
/// Pause after an error of `accept` (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections to the pages.
pub(crate) struct Pages {
    listener: TcpListener,
    open: Arc<Mutex<Open>>,
}

/// A connection of theirs.
pub(crate) struct Page {
    stream: Arc<TcpStream>,
    key: u64,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    last: u64,
    /// Time when each last sent something.
    known: HashMap<u64, (Arc<TcpStream>, Instant)>,
}

fn locked(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, open: Arc::default() }
    }

    fn page(&self, stream: TcpStream) -> Page {
        let (stream, mut open) = (Arc::new(stream), locked(&self.open));
        if open.known.len() >= PAGE_CONNECTIONS_MAX
            && let Some(silent) = open.known.iter().min_by_key(|(_, (_, since))| *since).map(|(key, _)| *key)
            && let Some((stream, _)) = open.known.remove(&silent)
        {
            // Its task reads the end, and drops it. What fails has ended already.
            let _ = shutdown(&*stream, Shutdown::Both);
        }
        open.last += 1;
        let key = open.last;
        open.known.insert(key, (stream.clone(), Instant::now()));
        Page { stream, key, open: self.open.clone() }
    }
}

impl Listener for Pages {
    type Io = Page;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Page, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => return (self.page(stream), address),
                Err(e) => {
                    tracing::warn!(error = %e, "accept failed on the metrics socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        locked(&self.open).known.remove(&self.key);
    }
}

impl AsyncRead for Page {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    if let Some((_, since)) = locked(&self.open).known.get_mut(&self.key) {
                        *since = Instant::now();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }
}

impl AsyncWrite for Page {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // nothing is buffered here
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = shutdown(&*self.stream, Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(ACCEPT_PAUSE + TEST_TIMEOUT, stream.read(&mut answer)).await.unwrap().unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    }

    #[tokio::test]
    async fn who_asks_is_answered_and_who_is_silent_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pages = Pages::new(listener);
        let open = pages.open.clone();
        let served =
            tokio::spawn(async move { axum::serve(pages, Router::new().route("/", get(|| async { "here" }))).await });
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut first).await.ends_with("here"));
        let mut idle = Vec::new();
        for n in 0..3 * PAGE_CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"G").await.unwrap();
            idle.push(stream);
            if n % 16 == 0 {
                // It is never the one that has been silent for longest.
                assert!(ask(&mut first).await.ends_with("here"), "after {n}");
            }
            assert!(locked(&open).known.len() <= PAGE_CONNECTIONS_MAX);
        }
        let mut end = [0];
        let closed = tokio::time::timeout(TEST_TIMEOUT, idle[0].read(&mut end)).await.unwrap();
        assert!(matches!(closed, Ok(0) | Err(_)), "the first of them makes room: {closed:?}");
        let mut new = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut new).await.ends_with("here"));
        drop((idle, new, first));
        let began = Instant::now();
        while !locked(&open).known.is_empty() {
            assert!(began.elapsed() < TEST_TIMEOUT, "what is closed is forgotten");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        served.abort();
    }
}
