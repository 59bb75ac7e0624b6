//! A daemon of our own, with its log in the bench's folder: what the SDK's calls go to.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Places of the descriptor store: more than the bench has rings.
const FD_STORE_PLACES: &str = "64";

/// It ends with this.
pub(crate) struct Daemon {
    process: Child,
    socket: PathBuf,
    _folder: PathBuf,
}

impl Daemon {
    /// Starts this program below a folder, and waits for its socket.
    pub(crate) fn start(program: &Path, folder: &Path) -> Self {
        let folder = folder.join("daemon");
        std::fs::create_dir_all(&folder).expect("a folder");
        // The path of a socket is short by nature, that of the folder need not be.
        let socket = std::env::temp_dir().join(format!("ring_limit-{}.sock", std::process::id()));
        let admin = socket.with_extension("admin");
        let config = folder.join("clad.toml");
        std::fs::write(&config, "").expect("an empty configuration");
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&config);
        for (key, value) in [
            ("journal.dir", folder.join("log").display().to_string()),
            ("ingest.unix.path", socket.display().to_string()),
            ("admin.path", admin.display().to_string()),
            ("ingest.shm.ring_bytes", "64MiB".to_owned()),
            ("ingest.shm.spin", "50us".to_owned()),
            // A minute of this would fill a disk; what goes is written over, as in a log that has its size.
            ("retention.max_bytes", "1GiB".to_owned()),
            ("ingest.tcp.listen", String::new()),
            ("ingest.grpc.listen", String::new()),
            ("metrics.listen", String::new()),
            // The log is thrown away: what is measured is the flush, also where the file system has no journal.
            ("journal.power_loss_protected", "true".to_owned()),
        ] {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CLAD_")) {
            command.env_remove(name);
        }
        for name in ["NOTIFY_SOCKET", "STATE_DIRECTORY", "RUNTIME_DIRECTORY"] {
            command.env_remove(name);
        }
        command.env("NOTIFY_SOCKET", store_fds()).env("INVOCATION_ID", "ring_limit").env("FDSTORE", FD_STORE_PLACES);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut process = process.expect("a daemon");
        while !socket.exists() {
            assert_eq!(process.try_wait().expect("its state"), None, "the daemon ended at once");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { process, socket, _folder: folder }
    }

    /// Where it gives out rings.
    pub(crate) fn address(&self) -> String {
        format!("shm://{}", self.socket.display())
    }
}

/// Plays a service manager with a descriptor store, without which `posted` is not offered: what comes is stored until this
/// process ends. Returns its socket.
fn store_fds() -> PathBuf {
    let path = std::env::temp_dir().join(format!("ring_limit-{}.notify", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).expect("a socket");
    std::thread::spawn(move || {
        let mut stored = Vec::new();
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let Ok(got) = recvmsg(&socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) else { return };
            let rights = |message| match message {
                RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
                _ => Vec::new(),
            };
            let fds: Vec<OwnedFd> = ancillary.drain().flat_map(rights).collect();
            if bytes[..got.bytes].starts_with(b"FDSTORE=1") {
                stored.extend(fds); // a barrier is closed instead
            }
        }
    });
    path
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}
