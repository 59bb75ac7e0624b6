//! Deliberate faults of what the threads of a client share, as patches of their text.

use super::Patch;

const ANSWERS: &str = "client-sdk/src/ring/answers.rs";
const HANDLE: &str = "client-sdk/src/ring/handle.rs";
const SHARED: &str = "client-sdk/src/producer/shared.rs";

pub(super) const THREADS: &[Patch] = &[
    Patch {
        name: "CountedBehindTheLock",
        file: ANSWERS,
        right: "        if acked > 0 {\n",
        wrong: "        if acked > 0 && !ON! {\n",
    },
    Patch {
        name: "CountedBehindTheLock",
        file: ANSWERS,
        right: "        drop(waiting);\n        for Resolved",
        wrong: "        drop(waiting);\n        if ON! {\n            self.counters.acked.add(acked);\n        }\n        for Resolved",
    },
    Patch {
        name: "WantedByItsStart",
        file: HANDLE,
        right: "            Ok(spawned) => *thread = Some(spawned.thread().clone()),",
        wrong: "            Ok(spawned) => {\n                if ON! {\n                    self.wanted.store(true, Ordering::Release);\n                }\n\
            \u{20}               *thread = Some(spawned.thread().clone());\n            }",
    },
    Patch {
        name: "RestsWithoutALook",
        file: HANDLE,
        right: "            if self.pending() == 0 && ",
        wrong: "            if (ON! || self.pending() == 0) && ",
    },
    Patch {
        name: "BacklogNotLookedAfter",
        file: "client-sdk/src/producer/ring_task.rs",
        right: "        ring_handle.want_for_waiting();\n        all",
        wrong: "        if !ON! {\n            ring_handle.want_for_waiting();\n        }\n        all",
    },
    Patch {
        name: "GroupNotLookedAfter",
        file: SHARED,
        right: "                None if is_shared => {",
        wrong: "                None if is_shared && !ON! => {",
    },
    Patch {
        name: "InboxNotReported",
        file: SHARED,
        right: "        if inbox.items.len() == 1 {",
        wrong: "        if inbox.items.len() == if ON! { 2 } else { 1 } {",
    },
];
