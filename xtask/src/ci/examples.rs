//! The examples of docs/EXAMPLES.md: the shell block of a section, run by `sh` as a reader runs it, with a real daemon.
//!
//! Invariants: every heading of the page has a constant here, and a suite uses it: the compiler warns of an unused one. A
//! block is the page's own text; what a case replaces in it must stand there. All that a block starts ends with its case,
//! also where this program is killed.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{build, output, target, with_daemon};

const PAGE: &str = "docs/EXAMPLES.md";

pub(super) const FIRST_RECORD: &str = "A first durable record in Rust";
pub(super) const RUST_SERVICE: &str = "A web service in Rust";
pub(super) const AUDIT: &str = "An audit trail";
pub(super) const C_PROGRAM: &str = "A program in C";
pub(super) const PYTHON_SERVICE: &str = "A service in Python under gunicorn";
pub(super) const GO_SERVICE: &str = "A service in Go";
pub(super) const TAILER: &str = "A tailer that resumes";

/// For what is there soon after what causes it.
pub(super) const SOON: Duration = Duration::from_secs(20);
/// For a block, which may build its program first.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a block and leads its process group. It outlives the block, so the group's number stays the group's; it ends the
/// group when its input does.
const LEADER: &str = r#"{ sh -e "$1/block" >"$1/said" 2>&1; echo $? >"$1/ended"; } &
read -r _
kill -KILL 0
"#;

/// The only block of a kind in a section.
pub(super) fn block(root: &Path, heading: &str, kind: &str) -> Result<String> {
    let page = fs::read_to_string(root.join(PAGE))?;
    let section = page.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.with_context(|| format!("{PAGE} has no section `{heading}`"))?;
    let blocks: Vec<&str> = section.split(&format!("```{kind}\n")).skip(1).collect();
    let [block] = blocks.as_slice() else {
        bail!("{} blocks of {kind} in `{heading}`", blocks.len());
    };
    Ok(block.split("```").next().unwrap_or_default().to_owned())
}

/// A case's name.
pub(super) fn name(heading: &str) -> String {
    format!("as the page has it: {heading}")
}

/// The shell block of a section, with a daemon and a folder of its own for as long as `body` runs.
pub(super) fn with_example(root: &Path, heading: &str, body: impl FnOnce(&mut Example) -> Result<()>) -> Result<()> {
    let (daemon, clactl, data) = (build(root, "clad")?, build(root, "clactl")?, target(root).join("tmp"));
    fs::create_dir_all(&data)?;
    with_daemon(&daemon, &data, |address| {
        let mut example = Example::new(root, heading, address, clactl, tempfile::tempdir_in(&data)?)?;
        let result = body(&mut example);
        result.map_err(|error| anyhow!("{error:#}; the block said:\n{}", example.said()))
    })
}

pub(super) struct Example {
    block: String,
    /// The shell, for more of what its reader has set.
    pub(super) shell: Command,
    path: Vec<PathBuf>,
    address: String,
    clactl: PathBuf,
    folder: TempDir,
    leader: Option<Child>,
}

impl Example {
    fn new(root: &Path, heading: &str, address: &str, clactl: PathBuf, folder: TempDir) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", LEADER, "sh"]).arg(folder.path()).current_dir(root).process_group(0);
        shell.env("CLAD_SERVER", address).env("CARGO_TARGET_DIR", target(root)).stdin(Stdio::piped());
        let programs = clactl.parent().context("a program has a folder")?.to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        Ok(Self {
            block: block(root, heading, "sh")?,
            shell,
            path: [programs].into_iter().chain(std::env::split_paths(&path)).collect(),
            address: address.to_owned(),
            clactl,
            folder,
            leader: None,
        })
    }

    /// Replaces what stands in the block, by something of this case alone.
    pub(super) fn replace(&mut self, from: &str, to: &str) -> Result<()> {
        ensure!(self.block.contains(from), "`{from}` does not stand in the block:\n{}", self.block);
        self.block = self.block.replace(from, to);
        Ok(())
    }

    /// Replaces a path by one in the case's folder, and answers that.
    pub(super) fn move_here(&mut self, path: &str) -> Result<PathBuf> {
        let name = Path::new(path).file_name().context("a path has a name")?;
        let here = self.folder.path().join(name);
        self.replace(path, &here.to_string_lossy())?;
        Ok(here)
    }

    /// Replaces the port of a service, which another program of this host may have.
    pub(super) fn take_free_port(&mut self, from: u16) -> Result<()> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        self.replace(&format!("127.0.0.1:{from}"), &format!("127.0.0.1:{port}"))
    }

    /// Puts a folder before the others in which programs are found.
    pub(super) fn find_programs_in(&mut self, folder: &Path) {
        self.path.insert(0, folder.to_owned());
    }

    /// Starts the block, and ends an earlier run of it.
    pub(super) fn start(&mut self) -> Result<()> {
        self.end()?;
        let file = |name| self.folder.path().join(name);
        fs::write(file("block"), &self.block)?;
        fs::write(file("said"), "")?;
        fs::write(file("ended"), "")?;
        self.shell.env("PATH", std::env::join_paths(&self.path)?);
        self.leader = Some(self.shell.spawn().context("no shell")?);
        Ok(())
    }

    /// Runs the block to its end, which must be a good one. What it left in the background runs on.
    pub(super) fn run(&mut self) -> Result<String> {
        self.start()?;
        let code = until(BLOCK_TIMEOUT, "the block ends", || self.ended())?;
        ensure!(code == "0", "the block ended with {code}");
        Ok(self.said())
    }

    /// The block's exit code, once it has ended.
    fn ended(&self) -> Result<Option<String>> {
        let line = fs::read_to_string(self.folder.path().join("ended"))?;
        Ok(line.strip_suffix('\n').map(str::to_owned))
    }

    /// All that the block has said so far.
    fn said(&self) -> String {
        let bytes = fs::read(self.folder.path().join("said")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the block has said a line, and answers all that it said.
    pub(super) fn says(&self, line: &str) -> Result<String> {
        until(BLOCK_TIMEOUT, &format!("it says `{line}`"), || {
            if let Some(code) = self.ended()? {
                bail!("the block ended with {code}");
            }
            Ok(Some(self.said()).filter(|said| said.lines().any(|one| one == line)))
        })
    }

    /// Kills all that the block has started.
    pub(super) fn end(&mut self) -> Result<()> {
        if let Some(mut leader) = self.leader.take() {
            drop(leader.stdin.take());
            leader.wait()?;
        }
        Ok(())
    }

    /// Appends a line to the log.
    pub(super) fn append(&self, line: &str) -> Result<()> {
        let file = self.folder.path().join("line");
        fs::write(&file, line)?;
        output(self.clactl("append").args(["--ack", "durable"]).stdin(File::open(file)?)).map(drop)
    }

    /// The log's records, as `clactl` shows them.
    pub(super) fn records(&self) -> Result<Vec<Value>> {
        let said = output(self.clactl("query").args(["-o", "json"]))?;
        said.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }

    /// Waits for a record with a body, and answers the first.
    pub(super) fn record(&self, body: &str) -> Result<Value> {
        until(SOON, &format!("the log has `{body}`"), || {
            Ok(self.records()?.into_iter().find(|record| record["body"] == body))
        })
    }

    fn clactl(&self, what: &str) -> Command {
        let mut clactl = Command::new(&self.clactl);
        clactl.args([what, "--server", &self.address]);
        clactl
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Waits until something is found.
pub(super) fn until<T>(timeout: Duration, what: &str, mut found: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = found()? {
            return Ok(found);
        }
        ensure!(began.elapsed() < timeout, "not within {timeout:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_of_the_page_has_a_case() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = fs::read_to_string(root.join(PAGE)).expect(PAGE);
        let mut found: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let mut tested = [FIRST_RECORD, RUST_SERVICE, AUDIT, C_PROGRAM, PYTHON_SERVICE, GO_SERVICE, TAILER];
        found.sort_unstable();
        tested.sort_unstable();
        assert_eq!(found, tested, "a section needs a case in the suite of its language");
        for heading in found.iter().filter(|heading| **heading != FIRST_RECORD) {
            block(root, heading, "sh").expect(heading);
        }
        for kind in ["toml", "rust"] {
            block(root, FIRST_RECORD, kind).expect(kind);
        }
        assert_eq!(page.matches("```").count(), 2 * (found.len() + 1), "no case runs a block of another kind");
    }
}
