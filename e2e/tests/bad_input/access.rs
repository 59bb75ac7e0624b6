//! Who may read, and who is whom.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use clad_client::{Reader, Start};
use clad_e2e::raw::{hello_as, hello_reader};
use clad_e2e::tool::{clactl, clactl_ends, run};
use clad_e2e::{Daemon, Raw, Setup, binary, is_root, not_run};
use clad_proto::{AckLevel, ErrorCode, ProducerId};

use crate::Bystander;

const NOBODY: u32 = 65534;

/// `clactl` as `nobody`, from a folder that `nobody` can reach.
fn as_nobody(daemon: &Daemon, arguments: &[&str], input: &[u8]) -> std::process::Output {
    let folder = daemon.socket().parent().expect("its folder").to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
    let program: PathBuf = folder.join("clactl");
    if !program.exists() {
        // By another process, as below: the file must not be busy.
        let copied = std::process::Command::new("cp").arg(binary("clactl")).arg(&program).status().expect("cp");
        assert!(copied.success(), "cp {copied}");
    }
    let mut command = std::process::Command::new(program);
    command.args(arguments).env_clear().current_dir("/").uid(NOBODY).gid(NOBODY);
    run(&mut command, input)
}

#[test]
fn a_reader_without_permission_on_the_unix_socket() {
    if !is_root() {
        return not_run("a reader without permission on the Unix socket", "only root can be somebody else");
    }
    let daemon = Daemon::start();
    let server = daemon.address("unix");
    // Everybody may append,
    let output = as_nobody(&daemon, &["append", "--server", &server], b"from nobody\n");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    // not everybody may read,
    let output = as_nobody(&daemon, &["query", "--server", &server], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("permission_denied"), "{said}");
    assert!(output.stdout.is_empty());
    // nor give orders,
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    for order in ["status", "rotate", "sync", "segments"] {
        let output = as_nobody(&daemon, &[order, "--admin", &admin], b"");
        assert_eq!(output.status.code(), Some(1), "{order}");
        assert!(output.stdout.is_empty(), "{order}");
    }
    // nor look at the files.
    let output = as_nobody(&daemon, &["query", "--dir", &daemon.dir().display().to_string()], b"");
    assert_eq!(output.status.code(), Some(1));
    // The daemon knows who it was.
    let output = clactl_ends(0, &["query", "--server", &server, "-o", "json"], b"");
    let record = clad_e2e::json(&output.stdout);
    assert_eq!(record["body"], "from nobody", "{record}");
    assert!(record.to_string().contains("65534"), "no uid in {record}");
}

#[test]
fn the_read_group_may_read() {
    if !is_root() {
        return not_run("the read group", "only root can be somebody else");
    }
    // `nogroup` or `nobody`, as the distribution has it: the group whose number is 65534.
    let group = fs::read_to_string("/etc/group").expect("the groups");
    let group =
        group.lines().find(|line| line.split(':').nth(2) == Some("65534")).and_then(|line| line.split(':').next());
    let Some(group) = group else { return not_run("the read group", "no group has the number 65534") };
    let daemon = Setup::new().set("access.read_group", group).start();
    Bystander::of(&daemon);
    let output = as_nobody(&daemon, &["query", "--server", &daemon.address("unix"), "-o", "cat"], b"");
    assert_eq!(output.stdout, b"bystander 0\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn reading_over_tcp_is_off_unless_allowed() {
    let mut daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let mut raw = Raw::tcp(daemon.port("tcp"));
    assert!(!raw.greet(&hello_reader()).expect("WELCOME").may_read);
    let error = raw.read_from(0, AckLevel::Written).expect_err("no permission");
    assert_eq!((error.code, error.retryable), (ErrorCode::PermissionDenied, false));
    raw.ping();
    bystander.is_served();
    let server = daemon.address("tcp");
    let output = clactl_ends(1, &["query", "--server", &server], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("permission_denied"));
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("ingest.tcp.allow_read", "true");
    let output = clactl_ends(0, &["query", "--server", &daemon.address("tcp"), "-o", "cat"], b"");
    assert_eq!(output.stdout, b"bystander 0\nbystander 1\n");
}

#[test]
fn reading_over_grpc_is_off_unless_allowed() {
    let mut daemon = Daemon::start();
    Bystander::of(&daemon);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let read = |address: String| {
        runtime.block_on(async {
            let reader = Reader::builder(address.parse().expect("an address")).from(Start::Oldest).open().await;
            match reader {
                Ok(mut reader) => reader.next().await.map(|event| event.is_some()),
                Err(error) => Err(error),
            }
        })
    };
    let error = read(daemon.address("grpc")).expect_err("no permission");
    assert_eq!(error.code(), Some(ErrorCode::PermissionDenied), "{error}");
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("ingest.grpc.allow_read", "true");
    assert!(read(daemon.address("grpc")).expect("allowed"));
}

#[test]
fn a_connection_that_did_not_say_that_it_appends() {
    let daemon = Daemon::start();
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello_reader()).expect("WELCOME");
    raw.append(0, AckLevel::Durable, &[b"x"]);
    assert_eq!(raw.end().code, ErrorCode::MalformedFrame);
}

/// On TCP an id belongs to who knows its secret, whatever comes first: a crash too.
#[test]
fn a_producer_id_is_bound_to_its_secret_on_tcp() {
    let mut daemon = Setup::new().fixed_ports().start();
    let greet = |daemon: &Daemon, id, secret: &[u8]| {
        let mut raw = Raw::tcp(daemon.port("tcp"));
        let answer = raw.greet(&hello_as(id, 0, secret));
        (raw, answer)
    };
    let mut raw = Raw::tcp(daemon.port("tcp"));
    let welcome = raw.greet(&clad_e2e::raw::hello()).expect("WELCOME");
    let (id, secret) = (welcome.producer_id, welcome.secret);
    assert!(!id.is_zero() && !secret.is_empty(), "an id with a secret is assigned");
    raw.append_acked(0, AckLevel::Durable, &[b"mine"]);
    drop(raw);
    let not_yours = |daemon: &Daemon, secret: &[u8]| {
        let error = greet(daemon, id, secret).1.expect_err("somebody else's");
        assert_eq!((error.code, error.retryable), (ErrorCode::ProducerNotYours, false), "{error}");
    };
    not_yours(&daemon, b"a guess");
    not_yours(&daemon, b"");
    daemon.kill9();
    daemon.restart();
    not_yours(&daemon, b"a guess");
    let (mut raw, welcome) = greet(&daemon, id, &secret);
    assert_eq!(welcome.expect("its own").last.map(|last| last.sequence), Some(0));
    raw.append_acked(1, AckLevel::Durable, &[b"still mine"]);
    // The same id on the Unix socket belongs to a user, who is not the one with the secret.
    let error = Raw::unix(&daemon.socket()).greet(&hello_as(id, 0, b"")).expect_err("another owner");
    assert_eq!(error.code, ErrorCode::ProducerNotYours);
    // Who chooses an id over TCP brings a secret along.
    let error = greet(&daemon, ProducerId::from_bytes([7; 16]), b"").1.expect_err("no secret");
    assert_eq!(error.code, ErrorCode::ProducerNotYours);
}

#[test]
fn a_producer_id_is_bound_to_its_user_on_the_unix_socket() {
    if !is_root() {
        return not_run("a producer id of another user", "only root can be somebody else");
    }
    let mut daemon = Daemon::start();
    let id = ProducerId::from_bytes([9; 16]);
    let (mut raw, _) = Raw::resume(&daemon.socket(), id);
    raw.append_acked(0, AckLevel::Durable, &[b"root's"]);
    drop(raw);
    let steal = |daemon: &Daemon| {
        let folder = daemon.socket().parent().expect("its folder").to_owned();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        // A thread of our own with another file-system identity would not do: the socket shows the process's. So this
        // very test program is called again, as nobody.
        let program = folder.join("steal");
        // Copied by another process: a descriptor of ours that writes to it could live on in a daemon that another test
        // is just starting, and the kernel would not run the file (ETXTBSY).
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg(std::env::current_exe().expect("itself")).arg(&program).status().expect("cp");
        assert!(copied.success(), "cp {copied}");
        let mut command = std::process::Command::new(program);
        command.args(["--exact", "access::steals_an_id", "--ignored", "--nocapture"]).current_dir("/");
        command.env("E2E_SOCKET", daemon.socket()).uid(NOBODY).gid(NOBODY);
        let output = run(&mut command, b"");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    };
    steal(&daemon);
    daemon.kill9();
    daemon.restart();
    steal(&daemon);
    let (_, welcome) = Raw::resume(&daemon.socket(), id);
    assert_eq!(welcome.last.map(|last| last.sequence), Some(0));
}

/// Called by the test above, as another user.
#[test]
#[ignore = "called by a_producer_id_is_bound_to_its_user_on_the_unix_socket, as another user"]
fn steals_an_id() {
    let socket = std::env::var_os("E2E_SOCKET").expect("called by the other test");
    let mut raw = Raw::unix(socket.as_ref());
    let error = raw.greet(&hello_as(ProducerId::from_bytes([9; 16]), 1, b"")).expect_err("it is root's");
    assert_eq!(error.code, ErrorCode::ProducerNotYours, "{error}");
}

#[test]
fn the_tool_says_what_to_do_where_nobody_listens() {
    let mut daemon = Daemon::start();
    let server = daemon.address("unix");
    assert_eq!(daemon.term(), Some(0));
    let output = run(&mut clactl(&["append", "--server", &server]), b"x\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("clad"), "{output:?}");
}
