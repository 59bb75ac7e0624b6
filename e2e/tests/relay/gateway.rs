//! To a bucket of versitygw's, which checks signatures and keeps objects as files, and is killed.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clad_e2e::Scratch;

use super::bucket::{Act, BUCKET, Between};
use super::forward::{Numbers, small};
use super::objects::{SMALL, assert_found, bodies, end, parquet_files, relay, verify, wait_stored};
use super::wait;

/// The server, at one port over all its starts.
struct Gateway {
    child: Child,
    address: SocketAddr,
    scratch: Scratch,
}

impl Gateway {
    fn start() -> Self {
        let (scratch, address) = (Scratch::new(), SocketAddr::from(([127, 0, 0, 1], clad_e2e::fixed_port())));
        fs::create_dir_all(scratch.data().join("buckets").join(BUCKET)).expect("a folder");
        let gateway = Self { child: Self::child(&scratch, address), address, scratch };
        gateway.wait();
        gateway
    }

    fn child(scratch: &Scratch, address: SocketAddr) -> Child {
        let mut command = Command::new(std::env::var("CLAD_GATEWAY").expect("call `cargo xtask ci relay others`"));
        command.args(["--quiet", "--access", "key", "--secret", "secret", "--port", &address.to_string(), "posix"]);
        command.arg(scratch.data().join("buckets"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    fn wait(&self) {
        wait("the gateway", || TcpStream::connect(self.address).is_ok());
    }

    fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn restart(&mut self) {
        self.child = Self::child(&self.scratch, self.address);
        self.wait();
    }

    fn objects(&self) -> usize {
        parquet_files(self.folder()).len()
    }

    fn folder(&self) -> PathBuf {
        self.scratch.data().join("buckets").join(BUCKET)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill9();
    }
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs a gateway: `cargo xtask ci relay others`"]
fn every_record_is_in_a_bucket_of_files_once_though_its_server_is_killed() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (mut daemon, mut gateway) = (small().start(), Gateway::start());
    let between = Between::start(gateway.address, None);
    let lost = Arc::new(AtomicU64::new(0));
    let (mut creations, counter) = (0, lost.clone());
    between.acts(move |first| {
        creations += u64::from(first.starts_with("PUT"));
        if first.starts_with("PUT") && creations % 5 == 0 {
            counter.fetch_add(1, Ordering::Relaxed);
            return Act::ForwardAndCut;
        }
        Act::Forward
    });
    let mut relay = relay(&daemon, "", |relay| between.lines(&relay.folder()) + SMALL);
    relay.start();
    for kill in 0..kills {
        Numbers::new(&daemon).append(20, 100);
        if kill % 4 == 0 {
            let before = gateway.objects();
            wait("another object", || {
                relay.keep();
                gateway.objects() > before
            });
        }
        if kill % 3 == 0 {
            gateway.kill9();
            gateway.restart();
        } else {
            relay.or_daemon_is_killed(&mut daemon, kill);
        }
    }
    wait_stored(&mut relay, end(&daemon));
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains("nothing is wrong"), "{said}");
    let copy = Scratch::new();
    assert_found(between.read(copy.data()), &bodies(&daemon));
    let lost = lost.load(Ordering::Relaxed);
    assert!(lost > 0, "no answer was lost");
    println!("kills: {kills}, {} objects of a bucket of files, {lost} answers lost", gateway.objects());
}
