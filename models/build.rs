//! Makes the wrong versions of the ingest threads' queue: the shipped text, each time with one place changed.
//!
//! Invariants: each change fits exactly one place, so that none gets lost when the code changes. The build fails otherwise.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

const QUEUE: &str = "../daemon/src/ingest/reactor/queue.rs";

/// A wrong version: its name in docs/TESTING.md, the place, and what stands there instead.
const WRONG: &[(&str, &str, &str)] = &[
    ("LeaderSleepsOverATask", "let sleeps = ready.tasks.is_empty() && !ready.stop;", "let sleeps = !ready.stop;"),
    (
        "SleepingLeaderNotRung",
        "                drop(ready);\n                self.sockets.ring();\n",
        "                drop(ready);\n",
    ),
    ("NobodyHearsWithoutALeader", "        self.help.watch(&self.sockets, true);\n", ""),
    ("GlanceTakesTheBell", "        if ready.leader != Leader::None {\n            return;\n        }\n", ""),
    ("HelpCalledOnce", "        ready.rung = false;\n", ""),
    ("EventsReturnedAgain", "        events.clear(); // earlier events are not reported again\n", ""),
    ("NextThreadNotStopped", "            self.help.ring(); // the next one\n", ""),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={QUEUE}");
    if env::var_os("CARGO_FEATURE_JOURNAL").is_none() {
        return;
    }
    let right = fs::read_to_string(QUEUE).unwrap_or_else(|e| panic!("{QUEUE}: {e}"));
    let text: String = right.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
    let mut all = String::new();
    for (name, place, instead) in WRONG {
        let places = text.matches(place).count();
        assert!(places == 1, "{name} fits {places} places in {QUEUE}, not one");
        let module = name.to_lowercase();
        let wrong = text.replace(place, instead);
        let _ = write!(all, "wrong! {{ {module} {{\n{wrong}}} }}\n");
    }
    let _ = write!(all, "/// Wrong versions of the queue.\npub const WRONG: &[(&str, fn())] = &[");
    for (name, ..) in WRONG {
        let _ = write!(all, "({name:?}, model::<{}::Queue<Task>>), ", name.to_lowercase());
    }
    all.push_str("];\n");
    let out = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(Path::new(&out).join("wrong_queues.rs"), all).expect("the build folder can be written");
}
