//! What the log has against what the agents have said.

use std::collections::HashMap;
use std::fmt;

use clad_client::{AckLevel, Chunk, DROPS_EVENT_NAME, Event, ProducerId, Reader, RecordView, ValueRef};
use clad_e2e::TEST_TIMEOUT;

use crate::agent::{Agent, Key, Mode, Said, key};

/// Texts of faults that are kept, of each agent.
const FAULT_TEXTS_MAX: usize = 10;

/// A record in the log.
#[derive(Debug, Clone, Copy)]
struct Place {
    key: Key,
    offset: u64,
    sequence: u64,
    producer: ProducerId,
}

/// Everything in the log of one agent, in order.
#[derive(Debug, Default)]
struct Logged {
    places: Vec<Place>,
    /// The sum of the reports of drops.
    reported: u64,
}

/// The log, by the names of the agents.
#[derive(Debug, Default)]
pub(crate) struct Log {
    agents: HashMap<String, Logged>,
    /// Records in all.
    pub(crate) end: u64,
    faults: Vec<String>,
}

impl Log {
    /// Everything that the daemon at an address gives out.
    pub(crate) async fn read(address: &str) -> Self {
        let address = address.parse().expect("an address");
        let mut reader = Reader::builder(address).level(AckLevel::Written).open().await.expect("a reader");
        let mut log = Self::default();
        loop {
            let event = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.expect("the read goes on");
            match event.expect("no error") {
                Some(Event::Records(chunk)) => log.add(&chunk),
                Some(other) => log.faults.push(format!("{other:?}")),
                None => return log,
            }
        }
    }

    fn add(&mut self, chunk: &Chunk) {
        if chunk.first_offset() != self.end {
            self.faults.push(format!("offset {} comes where {} belongs", chunk.first_offset(), self.end));
        }
        self.end = chunk.end_offset();
        let logged = self.agents.entry(chunk.component().unwrap_or_default().to_owned()).or_default();
        for (sequence, (offset, record)) in (chunk.first_sequence()..).zip(chunk.records()) {
            let body = record.body_bytes().and_then(|body| std::str::from_utf8(body).ok()).unwrap_or_default();
            if record.event_name() == DROPS_EVENT_NAME {
                logged.reported += reported(&record);
            } else if let Some(key) = key(body, ' ') {
                logged.places.push(Place { key, offset, sequence, producer: chunk.producer_id() });
            } else {
                self.faults.push(format!("offset {offset} has {body:?}"));
            }
        }
    }
}

/// The number of records that a report of drops is about.
fn reported(record: &RecordView<'_>) -> u64 {
    let report = record.attributes().iter().find(|pair| pair.key == "clad.dropped.records");
    match report.and_then(|pair| pair.value) {
        Some(ValueRef::Int(number)) => u64::try_from(number).unwrap_or_default(),
        _ => 0,
    }
}

/// The findings of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) receipts: u64,
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) out_of_order: u64,
    pub(crate) drops: u64,
    /// One for each finding, up to a bound.
    pub(crate) faults: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { receipts, lost, twice, out_of_order, drops, faults } = self;
        write!(
            f,
            "{receipts} receipts: {lost} lost, {twice} twice, {out_of_order} out of order; {drops} drops; {} faults",
            faults.len()
        )
    }
}

/// Findings about one agent.
struct Findings<'a> {
    verdict: &'a mut Verdict,
    agent: &'a str,
    texts: usize,
}

impl Findings<'_> {
    fn add(&mut self, what: impl FnOnce() -> String) {
        self.texts += 1;
        if self.texts <= FAULT_TEXTS_MAX {
            self.verdict.faults.push(format!("{}: {}", self.agent, what()));
        }
    }

    fn ensure(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.add(what);
        }
    }
}

/// Looks for every record and every receipt of these agents.
pub(crate) fn all(agents: &[Agent], log: &Log) -> Verdict {
    let mut verdict = Verdict { faults: log.faults.clone(), ..Verdict::default() };
    let nothing = Logged::default();
    for agent in agents {
        let mut findings = Findings { verdict: &mut verdict, agent: &agent.name, texts: 0 };
        let said = agent.said();
        said.faults.iter().for_each(|fault| findings.add(|| fault.clone()));
        let logged = log.agents.get(&agent.name).unwrap_or(&nothing);
        match agent.mode {
            Mode::Follows => findings
                .ensure(said.followed == log.end, || format!("has read {} of {} records", said.followed, log.end)),
            Mode::Keeps => {
                once_in_order_at_its_offset(&mut findings, &said, logged);
                offsets_are_known(&mut findings, agent, &said);
                nothing_missing(&mut findings, agent.id, logged);
            }
            Mode::Drops(_) | Mode::Mixed => {
                once_in_order_at_its_offset(&mut findings, &said, logged);
                offsets_are_known(&mut findings, agent, &said);
                adds_up(&mut findings, agent.mode, &said, logged);
            }
        }
    }
    verdict
}

fn once_in_order_at_its_offset(findings: &mut Findings<'_>, said: &Said, logged: &Logged) {
    let mut offsets = HashMap::with_capacity(logged.places.len());
    let mut last = HashMap::new();
    for &Place { key: key @ (thread, number), offset, .. } in &logged.places {
        if let Some(first) = offsets.insert(key, offset) {
            findings.verdict.twice += 1;
            findings.add(|| format!("record {thread}:{number} is there twice, at {first} and {offset}"));
        }
        if let Some(before) = last.insert(thread, number).filter(|before| *before > number) {
            findings.verdict.out_of_order += 1;
            findings.add(|| format!("out of order: record {thread}:{number} comes behind {before}"));
        }
    }
    let mut known = HashMap::with_capacity(said.receipts.len());
    for &(key @ (thread, number), offset) in &said.receipts {
        findings.verdict.receipts += 1;
        match offsets.get(&key) {
            Some(found) if offset.is_none_or(|offset| offset == *found) => {}
            Some(found) => {
                findings.add(|| format!("record {thread}:{number} is at {found}, its receipt says {offset:?}"))
            }
            None => {
                findings.verdict.lost += 1;
                findings.add(|| format!("record {thread}:{number} has a receipt and is lost"));
            }
        }
        findings.ensure(known.insert(key, offset).is_none(), || format!("record {thread}:{number} has two receipts"));
    }
    for key @ (thread, number) in &said.never {
        findings
            .ensure(!offsets.contains_key(key), || format!("record {thread}:{number} is not written, and is there"));
        findings
            .ensure(!known.contains_key(key), || format!("record {thread}:{number} is not written, with a receipt"));
    }
    findings.ensure(!said.receipts.is_empty(), || "has no receipt: nothing is shown".to_owned());
}

/// Only where a ring outlives the daemon can an offset be lost with a daemon that had sent it.
fn offsets_are_known(findings: &mut Findings<'_>, agent: &Agent, said: &Said) {
    let unknown = said.receipts.iter().filter(|(_, offset)| offset.is_none()).count();
    findings.ensure(agent.has_ring() || unknown == 0, || format!("{unknown} receipts without an offset"));
}

/// An agent that goes on from what the log has leaves nothing out: the number of each record is its sequence.
fn nothing_missing(findings: &mut Findings<'_>, id: Option<ProducerId>, logged: &Logged) {
    for (at, &Place { key: (_, number), sequence, producer, .. }) in (0..).zip(&logged.places) {
        findings.ensure(number == at, || format!("record {number} is the {at}th"));
        findings.ensure(number == sequence, || format!("record {number} has the sequence {sequence}"));
        findings.ensure(Some(producer) == id, || format!("record {number} is from producer {producer}"));
    }
}

/// Drops and stored are logged, exactly; the log reports each drop.
fn adds_up(findings: &mut Findings<'_>, mode: Mode, said: &Said, logged: &Logged) {
    let Some([all, acked, dropped, refused]) = said.stats else {
        return findings.add(|| "has no statistics".to_owned());
    };
    findings.verdict.drops += dropped;
    let stats = format!("logged {all}, acknowledged {acked}, dropped {dropped}, refused {refused}");
    findings.ensure(all == acked + dropped + refused, || format!("does not add up: {stats}"));
    if mode == Mode::Mixed {
        return; // a daemon may die with records of lower levels
    }
    let (stored, receipts, never) = (logged.places.len() as u64, said.receipts.len() as u64, said.never.len() as u64);
    let reported = logged.reported;
    findings.ensure(stored == acked && receipts == acked, || format!("{stored} stored, {receipts} receipts; {stats}"));
    // A client may count a report of drops that was dropped itself among the refused: it has no line.
    findings.ensure((dropped..=dropped + refused).contains(&never), || format!("{never} never written; {stats}"));
    findings.ensure(reported == dropped, || format!("{reported} reported in the log; {stats}"));
}
