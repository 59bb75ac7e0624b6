//! Threads that no other can stand in for, and the state that all of them need: the journal's.
//!
//! Invariant: a panic in one of them, or under the journal's lock, ends the process at once. Its duties (the lead, a
//! deferred write, the drain of the rings, their storage) would never be done, and everybody would wait for it. The next
//! start of the daemon finds all that was acknowledged.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Message where a thread cannot continue.
fn last_words(who: &str) -> String {
    format!("{who} found a defect of clad and cannot continue: clad ends (nothing acknowledged is lost)\n")
}

/// Does a thread's work; a panic in it ends the process.
pub(crate) fn ends_clad(who: &str, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        end_clad(who);
    }
}

/// Ends the process after a panic, whose message is on stderr already.
pub(crate) fn end_clad(who: &str) -> ! {
    // Not by the log, which another thread writes: this is the last message.
    let _ = rustix::io::write(io::stderr(), last_words(who).as_bytes());
    #[expect(clippy::disallowed_methods, reason = "an error or a panic would end this thread alone")]
    std::process::abort()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::last_words;

    /// Runs a test of this program again, in a process of its own with this variable set. There it must panic in a
    /// thread of that name, and so end. (`module` is its `module_path!()`.)
    pub(crate) fn ends_by_a_panic(module: &str, test: &str, variable: &str, who: &str) {
        let (_, module) = module.split_once("::").expect("a module of this crate");
        let this = format!("{module}::{test}");
        let folder = tempfile::tempdir().expect("a folder"); // what an aborted process has made, it leaves behind
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again.args(["--exact", &this, "--nocapture"]).env(variable, "1").env("TMPDIR", folder.path());
        let ended = again.output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {said}");
        assert!(said.contains(&last_words(who)), "{said}");
    }
}
