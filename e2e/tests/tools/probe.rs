//! `clactl probe`: what it says, and that it leaves nothing behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use clad_e2e::tool::{Running, clactl, clactl_ends};
use clad_e2e::{Json, Scratch, TEST_TIMEOUT, is_root, not_run};
use nix::sys::signal::Signal;

fn probed(dir: &Path) -> Json {
    let dir = dir.display().to_string();
    clad_e2e::json(&clactl_ends(0, &["probe", &dir, "--duration", "0.3", "-o", "json"], b"").stdout)
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("the folder").next().is_none()
}

#[test]
fn what_it_says_of_a_folder() {
    let scratch = Scratch::new();
    let dir = scratch.data().join("folder");
    fs::create_dir(&dir).expect("a folder");
    let said = probed(&dir);
    assert!(is_empty(&dir), "something was left");
    assert_eq!(said["dir"], dir.display().to_string());
    assert!(said["substrate"]["filesystem"].is_string() && said["substrate"]["block_bytes"].as_u64() >= Some(4096));
    for key in ["devices", "mount_options", "notes", "below"] {
        assert!(said["substrate"][key].is_array(), "{key}: {said}");
    }
    assert!(said["io_uring"]["permitted"].is_boolean() && said["io_uring"]["kernel"].is_string(), "{said}");
    let methods = said["methods"].as_array().expect("a list");
    assert_eq!(methods.len(), 18);
    for method in methods {
        if method["error"].is_null() {
            let latency =
                |name: &str| method["latency_us"][name].as_f64().unwrap_or_else(|| panic!("{name}: {method}"));
            assert!(latency("p50") <= latency("p99") && latency("p99") <= latency("max"), "{method}");
            assert!(method["operations"].as_u64() > Some(0) && method["operations_per_second"].as_f64() > Some(0.0));
        } else {
            assert!(method["latency_us"].is_null() && method["operations_per_second"].is_null(), "{method}");
        }
        // What flushes nothing is safe only where there is no cache to be flushed.
        let volatile = !said["substrate"]["volatile_cache"].is_null();
        if method["flushes"] == false && volatile {
            assert_eq!(method["power_safe"], false, "{method}");
        }
    }
    // A plain synced write can be done everywhere.
    let plain = methods.iter().find(|method| method["space"] == "append" && method["method"] == "write + fdatasync");
    assert!(plain.is_some_and(|plain| plain["error"].is_null()), "{methods:?}");
    let advice = &said["recommendation"];
    let known = ["group_commit", "sync_file_range", "fire_and_forget"];
    assert!(advice["durability"].as_str().is_some_and(|policy| known.contains(&policy)), "{advice}");
    assert!(advice["io_engine"] == "uring" || advice["io_engine"] == "blocking", "{advice}");
    assert!([1, 2, 4, 8].map(Json::from).contains(&advice["in_flight"]), "{advice}");
    assert!(advice["reasons"].as_array().is_some_and(|reasons| !reasons.is_empty()), "{advice}");
    // And for people.
    let text = clactl_ends(0, &["probe", &dir.display().to_string(), "--duration", "0.1"], b"");
    let text = String::from_utf8(text.stdout).expect("text");
    for word in ["file system", "io_uring", "append", "sync_file_range", "p99", "recommended", "durability = "] {
        assert!(text.contains(word), "{word}:\n{text}");
    }
}

/// The manual's table of decisions names lines: they are in its example, with those figures, and in what is measured.
#[test]
fn the_manual_names_lines_that_are_there() {
    let manual = include_str!("../../../docs/OPERATIONS.md");
    let (_, rest) = manual.split_once("<!-- probe lines -->\n").expect("the table");
    let (table, rest) = rest.split_once("<!-- end of probe lines -->").expect("its end");
    let (_, example) = rest.split_once("clactl probe .\n").expect("the example");
    let (example, _) = example.split_once("\n```").expect("its end");
    let scratch = Scratch::new();
    let measured = probed(scratch.data())["methods"].take();
    let measured: Vec<_> =
        measured.as_array().expect("a list").iter().filter(|m| m["space"] == "zero-written").collect();
    let mut named = 0;
    for row in table.lines().skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let rate = cells[3].split("/s").next().and_then(|text| text.rsplit(' ').next()).expect("a rate");
        let lines: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
        let of_example = |name: &str| {
            example.lines().filter(|line| line.starts_with("zero-written ")).any(|line| {
                let method = line.trim_start_matches("zero-written").trim_start();
                method
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with("  ") && line.contains(&format!(" {rate} ")))
            })
        };
        assert!(lines.iter().any(|name| of_example(name)), "no line of {lines:?} has {rate} in the example");
        for name in lines {
            assert!(measured.iter().any(|m| m["method"] == name), "{name} is not measured: {measured:?}");
            named += 1;
        }
    }
    assert!(named >= 6, "{named} lines are named");
}

#[test]
fn memory_is_no_disk() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let said = probed(folder.path());
    assert_eq!(
        (&said["highest_ack"], &said["recommendation"]["durability"]),
        (&"written".into(), &"fire_and_forget".into())
    );
    let warnings = said["warnings"].to_string();
    assert!(warnings.contains("tmpfs keeps its files in memory"), "{warnings}");
    let methods = said["methods"].as_array().expect("a list");
    assert!(methods.iter().all(|method| method["power_safe"] == false), "{methods:?}");
}

#[test]
fn nothing_is_left_when_it_is_stopped() {
    let scratch = Scratch::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let dir = scratch.data().join(signal.as_str());
        fs::create_dir(&dir).expect("a folder");
        let running = Running::start(&mut clactl(&["probe", &dir.display().to_string(), "--duration", "600"]));
        // It has its trial file open: it is at work.
        let at_work = || {
            let open = fs::read_dir(format!("/proc/{}/fd", running.pid())).into_iter().flatten().flatten();
            open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file.starts_with(&dir))
        };
        let until = Instant::now() + TEST_TIMEOUT;
        while !at_work() {
            assert!(running.is_running() && Instant::now() < until, "it does not begin: {}", running.said());
            std::thread::sleep(Duration::from_millis(1));
        }
        running.send(signal);
        running.wait_end(TEST_TIMEOUT).expect("it ends");
        assert!(is_empty(&dir), "{signal}: something was left");
        if signal == Signal::SIGKILL {
            assert_eq!(running.signal(), Some(Signal::SIGKILL as i32));
        } else {
            assert_eq!(running.code(), Some(1), "{}", running.said());
            assert!(running.said().contains("nothing is left behind"), "{}", running.said());
        }
    }
}

#[test]
fn what_cannot_be_tried_is_said() {
    let scratch = Scratch::new();
    let said = |path: &Path| {
        let output = clactl_ends(1, &["probe", &path.display().to_string()], b"");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let file = scratch.data().join("file");
    fs::write(&file, "").expect("a file");
    assert!(said(&file).contains("is no folder"));
    assert!(said(&scratch.data().join("absent")).contains("No such file"));
    // Nobody can make a file there.
    assert!(said(Path::new("/proc")).contains("cannot write in /proc"));
    if is_root() {
        return not_run("a folder without permission to write", "root may write everywhere");
    }
    let closed = scratch.data().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o500)).expect("closed");
    assert!(said(&closed).contains("Permission denied"));
}

#[test]
fn a_wrong_call_ends_in_2() {
    clactl_ends(2, &["probe"], b"");
    clactl_ends(2, &["probe", ".", "--duration", "0"], b"");
}
