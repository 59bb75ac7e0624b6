//! Bad days of a disk: full, read-only, in memory, another file system, large sectors; and a clock that jumps.
//!
//! Invariants: each case has a file system of its own, in a file behind a loop device, which is gone afterwards
//! whatever happened. The cases themselves are the tests in `e2e/tests/disk`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Run, has, need, output};

/// A mount is busy for a moment after a process in it has ended; so often is it tried.
const UNMOUNT_ATTEMPTS_MAX: u32 = 50;

/// A file system to be made.
pub(super) enum Kind {
    /// This type, of so many MiB, on sectors of so many bytes, on a device that says this of its cache.
    Loop { make: &'static [&'static str], mebibytes: u64, sector: u32, cache: &'static str, options: &'static str },
    /// In memory.
    Memory { mebibytes: u64 },
}

pub(super) const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F", "-m", "0"];
const XFS: &[&str] = &["mkfs.xfs", "-q", "-f"];
const BTRFS: &[&str] = &["mkfs.btrfs", "-q", "-f"];
pub(super) const WRITE_BACK: &str = "write back";
const WRITE_THROUGH: &str = "write through";

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.no_args()?;
    ensure!(is_root()?, "only root can mount");
    need("mkfs.ext4", &["e2fsprogs"])?;
    need("losetup", &["mount", "util-linux"])?;
    let tests = built_tests(&run.root, "disk")?;
    let small = plain(EXT4, 24);
    let room = plain(EXT4, 128);

    let seconds = run.flush_seconds;
    match need("fusermount3", &["fuse3"]) {
        Ok(()) => run.case("a device that does not flush for a long time", || {
            on(&room, |point| {
                let mut command = call(&tests, "slow_flush::is_waited_for", Some(point));
                passes(command.env("CLAD_FLUSH_SECONDS", seconds))
            })
        }),
        Err(error) => println!("  NOT RUN a device that does not flush for a long time: {error:#}"),
    }
    let mut case = |name: &str, kind: &Kind, test: &str| {
        run.case(name, || on(kind, |point| one_test(&tests, test, point)));
    };
    case("a full disk refuses, loses nothing, and resumes by itself", &small, "full::fills_up_and_resumes");
    case("a disk that others fill up", &small, "full::is_filled_by_others");
    let without = "full::without_inodes_nothing_gets_an_offset_for_which_there_is_no_segment";
    case("a disk without inodes", &ext4_of(&["-N", "64"]), without);
    case("a full disk stops an export, which goes on", &small, "full::stops_an_export_which_resumes");
    case(
        "a device that fails what it took is reported by the sync",
        &small,
        "full::fails_a_device_and_the_sync_reports_it",
    );
    case("a disk that hangs costs no call of the client its deadline", &room, "hangs::costs_no_call_its_deadline");
    case("a read-only file system is said so, and ends in 1", &room, "mounts::is_read_only");
    case("a file system that becomes read-only under the daemon", &room, "mounts::becomes_read_only");
    case(
        "in memory `durable` is refused, and `written` works",
        &Kind::Memory { mebibytes: 64 },
        "mounts::is_in_memory",
    );
    case("ext4 without a journal", &ext4_of(&["-O", "^has_journal"]), "mounts::has_no_journal");
    case("ext4 in small blocks", &ext4_of(&["-b", "1024"]), "mounts::holds_a_log");
    case("a start waits for the writes of a dead process", &room, "dead_writes::are_waited_for");
    for (name, test) in [
        (
            "flushes that reach the device, for each kind of write",
            "flushes::are_made_by_synced_writes_and_by_nothing_else",
        ),
        ("flushes that reach the device, under per_message", "flushes::are_one_for_each_append_under_per_message"),
    ] {
        case(name, &room, test);
    }
    let large = Kind::Loop { make: EXT4, mebibytes: 128, sector: 4096, cache: WRITE_BACK, options: "rw" };
    case("a disk of 4096-byte sectors", &large, "mounts::holds_a_log");
    for (name, program, package, make) in
        [("xfs", "mkfs.xfs", "xfsprogs", XFS), ("btrfs", "mkfs.btrfs", "btrfs-progs", BTRFS)]
    {
        match need(program, &[package]) {
            Ok(()) => case(name, &plain(make, 512), "mounts::holds_a_log"),
            Err(error) => println!("  NOT RUN {name}: {error:#}"),
        }
    }
    full_starts(&mut case);
    ranges(&mut case);
    breaks(run, &tests, &room);
    super::wrong::run(run, &tests, &room);
    benches(run)?;
    match real_disk(&super::target(&run.root)) {
        Ok(folder) => run.case("sync_file_range where every disk reports write through", || {
            one_test(&tests, "ranges::is_reported_down_to_the_last", folder.path())
        }),
        Err(error) => println!("  NOT RUN sync_file_range where every disk reports write through: {error:#}"),
    }
    match faketime(&run.root) {
        Ok(faketime) => {
            for (name, test) in [
                ("a clock that steps back", "clock::steps_back"),
                ("a clock that jumps ahead under retention by age", "clock::jumps_ahead"),
            ] {
                run.case(name, || on(&room, |point| passes(faketime.over(&mut call(&tests, test, Some(point))))));
            }
        }
        Err(error) => println!("  NOT RUN a clock that jumps: {error:#}"),
    }
    Ok(())
}

/// The storage benches on file systems of their own: what a record costs the device, counted, and every sync method.
fn benches(run: &mut Run) -> Result<()> {
    let program = super::build(&run.root, "clad-benches")?;
    let target = super::target(&run.root);
    for (name, make) in [("ext4", EXT4), ("xfs", XFS)] {
        if !has(make[0]) {
            println!("  NOT RUN the storage benches on {name}: {} is not there", make[0]);
            continue;
        }
        let bench = |words: &str| {
            let mut command = Command::new(&program);
            command.args(words.split(' ')).args(["--on", name, "--rounds", "1", "--dir"]).arg(&target);
            output(&mut command).map(drop)
        };
        run.case(&format!("bytes that reach the device for a durable record, on {name}"), || {
            bench("device_bytes --segments 1")
        });
        run.case(&format!("every sync method on {name}"), || {
            bench("write_sync --seconds 0.01 --writers 1,8 --size 4096")
        });
    }
    Ok(())
}

/// A start after a kill, on a disk that somebody else has filled.
fn full_starts(case: &mut dyn FnMut(&str, &Kind, &str)) {
    let name = "a start behind a torn tail on a full disk";
    case(name, &plain(EXT4, 48), "full_start::comes_up_behind_a_torn_tail");
    // The smallest that their `mkfs` makes.
    for (name, make, mebibytes) in [("ext4", EXT4, 48), ("xfs", XFS, 320), ("btrfs", BTRFS, 128)] {
        match has(make[0]) {
            true => {
                let name = format!("a start after a kill on a full disk, {name}");
                case(&name, &plain(make, mebibytes), "full_start::serves_or_says_what_to_do");
            }
            false => println!("  NOT RUN a start after a kill on a full disk, {name}: {} is not there", make[0]),
        }
    }
}

/// File systems that give up when their device breaks.
fn breaks(run: &mut Run, tests: &Path, room: &Kind) {
    for (name, make, test) in [
        ("xfs shuts down under the daemon", XFS, "breaks::xfs_shuts_down"),
        ("btrfs becomes read-only under the daemon", BTRFS, "breaks::btrfs_becomes_read_only"),
    ] {
        match has(make[0]) && has("fusermount3") {
            true => run.case(name, || on(room, |point| one_test(tests, test, point))),
            false => println!("  NOT RUN {name}: {} or fusermount3 is not there", make[0]),
        }
    }
}

/// The policy `sync_file_range`, and files that are used again.
fn ranges(case: &mut dyn FnMut(&str, &Kind, &str)) {
    let journaled = Kind::Loop { make: EXT4, mebibytes: 128, sector: 512, cache: WRITE_BACK, options: "data=journal" };
    case("sync_file_range: ext4 with data=journal is refused", &journaled, "ranges::journals_its_data");
    for (name, make) in [("ext4", EXT4), ("xfs", XFS)] {
        if !has(make[0]) {
            println!("  NOT RUN sync_file_range and recycling on {name}: {} is not there", make[0]);
            continue;
        }
        let kind = plain(make, 512);
        let through = Kind::Loop { make, mebibytes: 512, sector: 512, cache: WRITE_THROUGH, options: "rw" };
        case(&format!("sync_file_range on {name}: no flush, on the operator's word"), &kind, "ranges::needs_the_word");
        let test = "ranges::says_write_through_over_the_page_cache";
        case(&format!("sync_file_range on {name}: a loop device without flushes is refused"), &through, test);
        case(&format!("recycling on {name}: bytes that reach the device"), &kind, "ranges::recycling_pays");
        let test = "ranges::readers_and_copies_keep_their_bytes";
        case(&format!("recycling on {name}: readers and copies"), &kind, test);
    }
    if has(BTRFS[0]) {
        case("sync_file_range: btrfs is refused", &plain(BTRFS, 512), "ranges::is_another_file_system");
    } else {
        println!("  NOT RUN sync_file_range: btrfs is refused: {} is not there", BTRFS[0]);
    }
}

/// A folder on ext4 or xfs that lies on a disk, and not on a file.
fn real_disk(target: &Path) -> Result<tempfile::TempDir> {
    let mut findmnt = Command::new("findmnt");
    let said = output(findmnt.args(["--noheadings", "--output", "FSTYPE,SOURCE", "--target"]).arg(target))?;
    let (kind, source) = said.trim().split_once(char::is_whitespace).context("findmnt says nothing")?;
    let disk = source.trim().starts_with("/dev/") && !source.contains("/dev/loop");
    ensure!(disk && ["ext4", "xfs"].contains(&kind), "{} lies on {kind} on {source}", target.display());
    // The daemon rightly refuses one without a journal; that a word changes that is shown elsewhere.
    let device = source.trim().trim_start_matches("/dev/");
    let journals = fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
    let has_journal = journals
        .map(|entry| entry.file_name())
        .any(|name| name.to_string_lossy().strip_prefix(device).is_some_and(|rest| rest.starts_with('-')));
    ensure!(kind != "ext4" || has_journal, "{} lies on an ext4 without a journal", target.display());
    tempfile::Builder::new().prefix("clad-disk-").tempdir_in(target).context("no temporary folder")
}

/// On a device as they mostly are: flushes are asked for and passed on.
fn plain(make: &'static [&'static str], mebibytes: u64) -> Kind {
    Kind::Loop { make, mebibytes, sector: 512, cache: WRITE_BACK, options: "rw" }
}

fn ext4_of(more: &[&'static str]) -> Kind {
    plain([EXT4, more].concat().leak(), 128)
}

pub(super) fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim() == "0")
}

/// Builds a test of `e2e` and answers its path.
pub(super) fn built_tests(root: &Path, name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Of the whole workspace, as `cargo test --workspace` has built it.
    command.current_dir(root).args(["test", "--no-run", "--workspace", "--test", name]);
    let said = output(&mut command)?;
    // `Executable tests/disk/main.rs (target/debug/deps/disk-0123456789abcdef)`; those of other crates are no folders.
    let start = format!("Executable tests/{name}/main.rs ");
    let line = said.lines().find(|line| line.trim_start().starts_with(&start)).context("no test was built")?;
    let path = line.rsplit_once('(').and_then(|(_, path)| path.strip_suffix(')')).context("no path of the test")?;
    Ok(root.join(path))
}

/// Whether exactly one test ran, and passed.
pub(super) fn closing_words(said: &str) -> bool {
    said.contains("test result: ok. 1 passed; 0 failed; 0 ignored")
}

/// The call of one test; where it is about a file system, that is mounted at `point`.
pub(super) fn call(tests: &Path, test: &str, point: Option<&Path>) -> Command {
    let mut command = Command::new(tests);
    command.args(["--ignored", "--exact", test]).env("RUST_BACKTRACE", "0");
    if let Some(point) = point {
        command.env("CLAD_E2E_DIR", point);
    }
    command
}

fn one_test(tests: &Path, test: &str, point: &Path) -> Result<()> {
    passes(&mut call(tests, test, Some(point)))
}

pub(super) fn passes(command: &mut Command) -> Result<()> {
    let said = output(command.arg("--nocapture"))?;
    ensure!(closing_words(&said), "the test did not run:\n{said}");
    for figure in said.lines().filter(|line| line.contains("device bytes a byte of records")) {
        println!("          {figure}");
    }
    Ok(())
}

/// A clock that can be set, and a daemon that looks at it.
pub(super) struct Faketime {
    shim: PathBuf,
    /// A folder.
    binaries: PathBuf,
}

/// Installs the library, and builds a daemon that reads its clocks where the library is asked.
pub(super) fn faketime(root: &Path) -> Result<Faketime> {
    need("faketime", &["faketime"])?;
    let found = output(Command::new("find").args(["/usr/lib", "-name", "libfaketime.so.1"]))?;
    let shim = found.lines().next().map(PathBuf::from).context("libfaketime.so.1 is not in /usr/lib")?;
    let folder = super::target(root).join("libc-clock");
    let mut build = super::sim::cargo(root);
    build.args(["build", "--quiet", "--features", "clad-e2e/libc-clock"]);
    output(super::set_apart(&mut build, root, &folder).args(["--workspace", "--bin", "clad", "--bin", "clactl"]))?;
    Ok(Faketime { shim, binaries: folder.join("debug") })
}

impl Faketime {
    pub(super) fn over<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("CLAD_E2E_FAKETIME", &self.shim).env("CLAD_E2E_BIN", &self.binaries)
    }
}

/// What a device says of its cache outlives the attachment: it is set at each, and read back.
fn set_cache(device: &str, cache: &str) -> Result<()> {
    let name = Path::new(device).file_name().context("a device has a name")?;
    let file = Path::new("/sys/block").join(name).join("queue/write_cache");
    fs::write(&file, cache).with_context(|| format!("{} cannot be set", file.display()))?;
    let said = fs::read_to_string(&file)?;
    ensure!(said.trim() == cache, "{} says {}, not {cache}", file.display(), said.trim());
    Ok(())
}

/// A mounted file system; gone when dropped.
pub(super) struct Mount {
    pub(super) point: PathBuf,
    device: Option<String>,
    mounted: bool,
    _folder: tempfile::TempDir,
}

/// Makes a file system, mounts it, and does something in it.
pub(super) fn on(kind: &Kind, body: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mount = Mount::new(kind)?;
    let done = body(&mount.point);
    let gone = mount.away();
    done.and(gone)
}

impl Mount {
    pub(super) fn new(kind: &Kind) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("clad-disk-").tempdir().context("no temporary folder")?;
        let point = folder.path().join("mount");
        fs::create_dir(&point)?;
        let image = folder.path().join("image");
        let mut mount = Self { point, device: None, mounted: false, _folder: folder };
        match kind {
            Kind::Memory { mebibytes } => {
                let size = format!("size={mebibytes}m");
                output(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&mount.point))?;
            }
            Kind::Loop { make, mebibytes, sector, cache, options } => {
                File::create(&image)?.set_len(mebibytes << 20)?;
                let mut attach = Command::new("losetup");
                attach.args(["--find", "--show", "--sector-size", &sector.to_string()]).arg(&image);
                let device = output(&mut attach)?.trim().to_owned();
                mount.device = Some(device.clone());
                set_cache(&device, cache)?;
                ensure!(has(make[0]), "{} is not there", make[0]);
                output(Command::new(make[0]).args(&make[1..]).arg(&device))?;
                output(Command::new("mount").args(["-o", options]).arg(&device).arg(&mount.point))?;
            }
        }
        mount.mounted = true;
        Ok(mount)
    }

    /// Unmounts it and reports what went wrong.
    fn away(mut self) -> Result<()> {
        self.clear()
    }

    fn clear(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            let mut tries = 0;
            while let Err(error) = output(Command::new("umount").arg(&self.point)) {
                tries += 1;
                if tries == UNMOUNT_ATTEMPTS_MAX {
                    // So that at least nobody meets it any more.
                    let _ = output(Command::new("umount").arg("--lazy").arg(&self.point));
                    return Err(error);
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        match self.device.take() {
            Some(device) => {
                // As loop devices are, for whoever gets it next.
                let _ = set_cache(&device, WRITE_BACK);
                output(Command::new("losetup").arg("--detach").arg(device)).map(drop)
            }
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            println!("          left behind: {error:#}");
        }
    }
}
