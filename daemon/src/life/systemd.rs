//! Messages to the service manager, and its requests.
//!
//! Invariants: without `$NOTIFY_SOCKET` everything here does nothing. A service manager that does not read its socket
//! cannot hold up the daemon for longer than [`NOTIFY_TIMEOUT`] a message. The environment is read once and never
//! changed (changing it is not safe beside threads).

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

/// Longest wait for room in the service manager's socket.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection to the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
}

impl Notifier {
    /// The notifier that `$NOTIFY_SOCKET` names, if any.
    ///
    /// # Errors
    /// Where the variable names a socket that cannot be reached.
    pub fn of_process() -> io::Result<Self> {
        notify_socket().map(|socket| Self { socket })
    }

    /// A notifier to that socket; a leading `@` stands for the abstract name space.
    ///
    /// # Errors
    /// Where the socket cannot be reached.
    pub fn to(name: Option<&OsStr>) -> io::Result<Self> {
        name.map(connect).transpose().map(|socket| Self { socket })
    }

    /// Reports that recovery is over and the sockets listen.
    pub fn ready(&self, status: &str) {
        self.send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
    }

    /// Reports one line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(&[NotifyState::Status(&one_line(status))]);
    }

    /// Reports that a reload has begun; [`Self::ready`] ends it.
    pub fn reloading(&self) {
        // Newer service managers match the two messages by this time.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.send(&[NotifyState::Reloading, now]);
        }
    }

    /// Reports that the end has begun.
    pub fn stopping(&self, status: &str) {
        self.send(&[NotifyState::Stopping, NotifyState::Status(&one_line(status))]);
    }

    /// Reports progress of a long recovery or drain: it extends the timeout by this much.
    pub fn extend_timeout(&self, time: Duration) {
        let usec = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.send(&[NotifyState::ExtendTimeoutUsec(usec)]);
    }

    /// Reports that the daemon is alive.
    pub fn watchdog(&self) {
        self.send(&[NotifyState::Watchdog]);
    }

    /// A lost message is no reason to fail: the service manager has its own timeouts, and says so.
    fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut text = String::new();
        for state in states {
            let _ = writeln!(text, "{state}");
        }
        if let Err(error) = socket.send(text.as_bytes()) {
            tracing::warn!(%error, message = text.trim_end(), "the service manager could not be notified");
        }
    }
}

/// Returns true if systemd itself started this process, and not something that systemd started.
pub(crate) fn runs_this_process() -> bool {
    std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid.parse() == Ok(std::process::id()))
}

/// A socket to what `$NOTIFY_SOCKET` names, if anything.
pub(crate) fn notify_socket() -> io::Result<Option<UnixDatagram>> {
    let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
    name.as_deref().map(connect).transpose()
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(NOTIFY_TIMEOUT))?;
    Ok(socket)
}

/// A status is one line of the protocol.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Interval in which the service manager wants a message from this process: half of its timeout, as it advises.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    interval(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id())
}

fn interval(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    // The variables of a parent are inherited; its watchdog is not ours.
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let usec: u64 = usec?.parse().ok()?;
    (usec > 1).then(|| Duration::from_micros(usec / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn each_message_as_the_protocol_wants_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(Some(path.as_os_str())).unwrap();

        notifier.ready("serving\nfrom 7");
        assert_eq!(received(&manager), "READY=1\nSTATUS=serving from 7\n");
        notifier.status("cut 3 bytes");
        assert_eq!(received(&manager), "STATUS=cut 3 bytes\n");
        notifier.reloading();
        let text = received(&manager);
        assert!(text.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{text}");
        notifier.extend_timeout(Duration::from_secs(2));
        assert_eq!(received(&manager), "EXTEND_TIMEOUT_USEC=2000000\n");
        notifier.watchdog();
        assert_eq!(received(&manager), "WATCHDOG=1\n");
        notifier.stopping("draining");
        assert_eq!(received(&manager), "STOPPING=1\nSTATUS=draining\n");
    }

    #[test]
    fn an_abstract_name_is_reached_too() {
        let name = format!("clad-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notifier = Notifier::to(Some(OsStr::new(&format!("@{name}")))).unwrap();
        notifier.watchdog();
        assert_eq!(received(&manager), "WATCHDOG=1\n");
    }

    #[test]
    fn without_a_socket_nothing_happens_and_a_wrong_one_is_an_error() {
        Notifier::to(None).unwrap().ready("x");
        assert!(Notifier::to(Some(OsStr::new("/no/such/socket"))).is_err());
    }

    #[test]
    fn the_watchdog_is_ours_only_with_our_pid() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(interval(text("30000000"), None, 7), Some(Duration::from_secs(15)));
        assert_eq!(interval(text("30000000"), text("7"), 7), Some(Duration::from_secs(15)));
        for (usec, pid) in [(text("30000000"), text("8")), (None, text("7")), (text("0"), None), (text("soon"), None)] {
            assert_eq!(interval(usec, pid, 7), None);
        }
    }
}
