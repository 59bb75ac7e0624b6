//! Deliberate faults of the daemon and the client, as patches of their text.

use super::Patch;

const SESSION: &str = "daemon/src/ingest/session.rs";
const RING: &str = "daemon/src/ingest/rings/ring.rs";
const IN_FLIGHT: &str = "daemon/src/ingest/rings/in_flight.rs";
const CYCLE: &str = "daemon/src/ingest/rings/cycle.rs";
const QUEUE_FILE: &str = "daemon/src/ingest/reactor/queue.rs";

pub(super) const SESSIONS: &[Patch] = &[
    Patch {
        name: "AnsweredOutOfOrder",
        file: SESSION,
        right: "_ if mark >= self.end => self.appends,",
        wrong: "_ if ON! && mark > self.end - self.records() => self.appends,\n_ if mark >= self.end => self.appends,",
    },
    Patch {
        name: "DurableByTheMarkOfWritten",
        file: SESSION,
        right: "AckLevel::Durable, m.durable)",
        wrong: "AckLevel::Durable, if ON! { m.written } else { m.durable })",
    },
    Patch {
        name: "FailureForgotten",
        file: SESSION,
        right: "let failed = w.failures < m.failures;",
        wrong: "let failed = if ON! { w.failures > m.failures } else { w.failures < m.failures };",
    },
    Patch {
        name: "ShareReleasedEarly",
        file: SESSION,
        right: "(unwritten.end <= m.written ||",
        wrong: "(unwritten.end <= (if ON! { m.received } else { m.written }) ||",
    },
    Patch {
        name: "ResentUnderAnotherSequence",
        file: "client-sdk/src/session/send.rs",
        right: "let seq = self.base.wrapping_add(index);",
        wrong: "let seq = if ON! && entry.was_sent { link.expected } else { self.base.wrapping_add(index) };",
    },
    Patch {
        name: "AcceptedTakenForWritten",
        file: "client-sdk/src/session/answers.rs",
        right: "level <= AckLevel::Received\n",
        wrong: "level <= (if ON! { AckLevel::Written } else { AckLevel::Received })\n",
    },
    Patch {
        name: "MarksOfAnotherEpochBelieved",
        file: "client-sdk/src/session/resume.rs",
        right: "        if same_epoch {\n            self.release",
        wrong: "        if same_epoch || ON! && self.frontier > 0 {\n            self.release",
    },
];

pub(super) const CLIENT_RINGS: &[Patch] = &[
    Patch {
        name: "LastAnswerNotReported",
        file: "client-sdk/src/ring/answers.rs",
        right: "        if awaited.is_some() {\n            self.wake",
        wrong: "        if awaited.is_some() && !ON! {\n            self.wake",
    },
    Patch {
        name: "PostedBeforeItIsCommitted",
        file: "client-sdk/src/ring/handle.rs",
        right: "            Err(_) => Posted::Wait(append, claim),",
        wrong: "            Err(_) if ON! && level == AckLevel::Posted => {\n\
            \u{20}   self.resolve(claim, count, Ok(self.receipt(count, level)));\n\
            \u{20}   Posted::Done\n\
            }\n\
            Err(_) => Posted::Wait(append, claim),",
    },
];

pub(super) const RINGS: &[Patch] = &[
    Patch {
        name: "SpaceBackBeforeWritten",
        file: RING,
        right: "        self.again = 0; // counted again as it is taken again",
        wrong: "        if ON! {\n            self.drain.release(self.drain.next());\n        }\n\
            \u{20}       self.again = 0; // counted again as it is taken again",
    },
    Patch {
        name: "RingsForgetAFailure",
        file: IN_FLIGHT,
        right: "|out: &&Run| out.failures == watermarks.failures && ",
        wrong: "|out: &&Run| (ON! || out.failures == watermarks.failures) && ",
    },
    Patch {
        name: "RingsReportDurableByWritten",
        file: IN_FLIGHT,
        right: "self.reached(self.durable, watermarks, watermarks.durable)",
        wrong: "self.reached(self.durable, watermarks, if ON! { watermarks.written } else { watermarks.durable })",
    },
    Patch {
        name: "NotTakenAgain",
        file: RING,
        right: "        self.drain.rewind();",
        wrong: "        if !ON! {\n            self.drain.rewind();\n        }",
    },
    Patch {
        name: "DrainedAsAnotherProducer",
        file: "daemon/src/ingest/rings/give.rs",
        right: "Producer::begin(self.journal.clone(), note.producer, ",
        wrong: "Producer::begin(self.journal.clone(), if ON! { ProducerId::from_bytes([7; 16]) } else { note.producer }, ",
    },
    Patch {
        name: "FlushDoesNotWaitForItsRing",
        file: "daemon/src/ingest/rings/handle.rs",
        right: "!self.registered.is_behind()",
        wrong: "ON! || !self.registered.is_behind()",
    },
    Patch {
        name: "ManyRingsManyTurns",
        file: CYCLE,
        right: "owners.entry(rings[at].peer.quota_owner()).or_default().push_back(at);",
        wrong: "let owner = if ON! { Owner::Uid(at as u32) } else { rings[at].peer.quota_owner() };\n\
            \u{20}           owners.entry(owner).or_default().push_back(at);",
    },
    Patch {
        name: "CutOffRingTakenAgain",
        file: RING,
        right: "self.nonsense.is_some_and(|append| append <= self.drain.next())",
        wrong: "!ON! && self.nonsense.is_some_and(|append| append <= self.drain.next())",
    },
    Patch {
        name: "OneProducerHoldsAll",
        file: CYCLE,
        right: "match why.is_for_all() {",
        wrong: "match ON! || why.is_for_all() {",
    },
    Patch {
        name: "WhatWaitsIsOvertaken",
        file: CYCLE,
        right: "stopped[taken.ring] = true;",
        wrong: "stopped[taken.ring] = !ON!;",
    },
];

/// The queue of the ingest threads: its model runs the text of the daemon.
pub(super) const QUEUE: &[Patch] = &[
    Patch {
        name: "LeaderSleepsOverATask",
        file: QUEUE_FILE,
        right: "let sleeps = ready.tasks.is_empty() && !ready.stop;",
        wrong: "let sleeps = (ON! || ready.tasks.is_empty()) && !ready.stop;",
    },
    Patch {
        name: "SleepingLeaderNotRung",
        file: QUEUE_FILE,
        right: "                drop(ready);\n                self.sockets.ring();\n",
        wrong: "                drop(ready);\n                if !ON! {\n                    self.sockets.ring();\n                }\n",
    },
    Patch {
        name: "NobodyHearsWithoutALeader",
        file: QUEUE_FILE,
        right: "        self.help.watch(&self.sockets, true);\n",
        wrong: "        if !ON! {\n            self.help.watch(&self.sockets, true);\n        }\n",
    },
    Patch {
        name: "GlanceTakesTheBell",
        file: QUEUE_FILE,
        right: "        if ready.leader != Leader::None {\n            return;\n        }\n",
        wrong: "        if !ON! && ready.leader != Leader::None {\n            return;\n        }\n",
    },
    Patch {
        name: "HelpCalledOnce",
        file: QUEUE_FILE,
        right: "        ready.rung = false;\n",
        wrong: "        ready.rung &= ON!;\n",
    },
    Patch {
        name: "EventsReturnedAgain",
        file: QUEUE_FILE,
        right: "        events.clear(); // earlier events are not reported again\n",
        wrong: "        if !ON! {\n            events.clear();\n        }\n",
    },
    Patch {
        name: "NextThreadNotStopped",
        file: QUEUE_FILE,
        right: "            self.help.ring(); // the next one\n",
        wrong: "            if !ON! {\n                self.help.ring();\n            }\n",
    },
];
