//! To a bucket over links of other kinds, within TLS and slow ones; and to a folder that is full.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clad_e2e::{Scratch, TEST_TIMEOUT, is_root, not_run};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::bucket::{Act, Bucket};
use super::certs::{Authority, Issued, Wanted};
use super::forward::{Numbers, small};
use super::objects::{SMALL, assert_found, bodies, end, parquet_files, relay, verify, wait_stored};
use super::wait;

fn settings(issued: &Issued) -> Arc<ServerConfig> {
    let versions = ServerConfig::builder_with_provider(default_provider().into()).with_safe_default_protocol_versions();
    let chain = vec![CertificateDer::from_pem_slice(issued.cert.as_bytes()).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key");
    versions.expect("versions").with_no_client_auth().with_single_cert(chain, key).expect("they fit").into()
}

/// Which certificates the relay takes, and what it says of those that it does not take.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_bucket_within_tls_is_one_whose_certificate_is_right() {
    let authority = Authority::new("an authority");
    let daemon = small().start();
    let mut numbers = Numbers::new(&daemon);
    numbers.append(10, 100);
    let other = Wanted { dns_names: &["another.example"], ..Wanted::default() };
    let expired = Wanted { dns_names: &["127.0.0.1"], valid: (2020, 2021), ..Wanted::default() };
    let server = authority.server();
    for (issued, knows_authority, words) in [
        (&server, false, "UnknownIssuer"),
        (&authority.issue(other), true, "not valid for name"),
        (&authority.issue(expired), true, "expired"),
        (&server, true, ""),
    ] {
        let bucket = Bucket::within_tls(settings(issued));
        let mut relay = relay(&daemon, "", |relay| {
            let ca = relay.folder().join("ca.crt");
            fs::write(&ca, authority.pem()).expect("written");
            let ca = if knows_authority { format!("ca = {ca:?}\n") } else { String::new() };
            bucket.lines(&relay.folder()) + SMALL + &ca
        });
        relay.start();
        if words.is_empty() {
            let end = end(&daemon);
            wait_stored(&mut relay, end);
            assert_found(bucket.read(), &bodies(&daemon));
            let (said, is_right) = verify(&relay, &[]);
            assert!(is_right, "{said}");
        } else {
            wait("the reason", || {
                relay.keep();
                relay.said().contains(words)
            });
            assert!(bucket.keys().is_empty(), "{:?}", bucket.keys());
        }
    }
}

/// A link over which an object of the size that is set takes longer than a request may. Some of those that were given up come late.
#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn over_a_slow_link_objects_are_smaller_and_nothing_is_missing_or_there_twice() {
    const OBJECT_BYTES: usize = 4 << 20;
    // A request may take a second.
    const BYTES_PER_SECOND: usize = 1_500_000;
    let daemon = small().start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "", |relay| {
        let lines = bucket.lines(&relay.folder()).replace("timeout = \"10s\"", "timeout = \"1s\"");
        format!("{lines}max_age = \"1m\"\nobject_bytes = {OBJECT_BYTES}\nformat = \"raw\"\n")
    });
    // The first requests are of a few bytes.
    let (slow, slow_ones) = (Arc::new(Mutex::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_slow, count) = (slow.clone(), slow_ones.clone());
    bucket.acts(move |first| match *is_slow.lock().expect("whole") && first.starts_with("PUT") {
        true => {
            let is_late = count.fetch_add(1, Ordering::Relaxed) % 4 == 3;
            Act::Slow(BYTES_PER_SECOND, if is_late { TEST_TIMEOUT } else { Duration::from_secs(1) })
        }
        false => Act::Forward,
    });
    let mut numbers = Numbers::new(&daemon);
    numbers.append_noise(80, 100_000);
    relay.start();
    // Most of it is there while the link is slow.
    super::objects::wait_stored_at_least(&mut relay, end(&daemon) / 2);
    let said = relay.said();
    assert!(said.contains("bytes were not stored within to.objects.timeout"), "{said}");
    // The origin is the last of the keys.
    let mut slow_objects = bucket.sizes();
    slow_objects.pop();
    assert!(slow_objects.iter().any(|&bytes| bytes < BYTES_PER_SECOND), "{slow_objects:?}");
    *slow.lock().expect("whole") = false;
    numbers.append_noise(200, 100_000);
    // Not by the age of the last one: a stop stores it.
    super::objects::wait_stored_at_least(&mut relay, end(&daemon) - 80);
    assert!(relay.term(), "{}", relay.said());
    relay.start();
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains(&format!(" {end} records")) && said.contains(" 0 gaps"), "{said}");
    let largest = bucket.sizes().split_off(slow_objects.len()).into_iter().max().unwrap_or_default();
    assert!(largest > OBJECT_BYTES / 2, "{largest}: they are small for ever");
    let tries = slow_ones.load(Ordering::Relaxed);
    println!("kills: 0; {tries} objects over the slow link, sizes {slow_objects:?}; later up to {largest} bytes");
}

/// A file system of its own, until it is dropped.
struct Mounted(Scratch);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(self.0.data(), MntFlags::MNT_DETACH);
    }
}

/// What has no room leaves nothing behind, and is stored when there is room.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_full_folder_is_waited_for() {
    const BYTES: usize = 4 << 20;
    if !is_root() {
        return not_run("a full folder", "only root mounts a file system of a size");
    }
    let archive = Mounted(Scratch::new());
    let size = format!("size={BYTES}");
    let tmpfs = Some("tmpfs");
    mount(tmpfs, archive.0.data(), tmpfs, MsFlags::empty(), Some(size.as_str())).expect("mounted");
    let ballast = archive.0.data().join("of-somebody-else");
    fs::write(&ballast, vec![1; BYTES - (64 << 10)]).expect("written");
    let daemon = small().start();
    let mut numbers = Numbers::new(&daemon);
    numbers.append_noise(10, 100_000);
    let folder = archive.0.data().display().to_string();
    let mut relay = relay(&daemon, "", |_| format!("[to.objects]\nurl = \"file://{folder}\"\n{SMALL}"));
    relay.start();
    wait("no room", || {
        relay.keep();
        relay.said().contains("No space left on device")
    });
    assert!(parquet_files(folder.clone().into()).is_empty());
    fs::remove_file(&ballast).expect("removed");
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains(&format!(" {end} records")), "{said}");
}
