//! What senders were answered against what the log has.
//!
//! Invariants: what a record's text must be is made from its stream and number alone; every text of the log belongs to a
//! stream, or is a fault.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Texts of faults that are kept, of each kind of sender.
const FAULT_TEXTS_MAX: usize = 5;
/// A record's text has fewer bytes of filling.
const FILLING_BYTES_MAX: u64 = 97;

/// What a kind of sender is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// What is answered is there; nothing is there twice; what a sender sent is in its order.
    ExactlyOnce,
    /// What is answered is there. What was sent again may be there as often as it was sent.
    AtLeastOnce,
    /// Nothing is answered. Of a connection there is what came first, whole, once and in order. A last message that came in part
    /// says that it was cut.
    Stream,
    /// The same, but a line that came in part says nothing.
    StreamOfLines,
}

impl Promise {
    const fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::StreamOfLines)
    }
}

/// What the log has of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) text: &'a str,
    /// It says that it was cut.
    pub(crate) is_cut: bool,
}

/// A sender's own words: of one life of a client, or of one connection where nothing is answered.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) kind: &'static str,
    pub(crate) stream: String,
    pub(crate) promise: Promise,
    /// Numbers below were sent, at least in part.
    pub(crate) sent: u64,
    /// Numbers below were answered by a success, or came over a connection that nobody cut.
    pub(crate) answered: u64,
    /// How often a number was sent, where that is more than once.
    pub(crate) sends: BTreeMap<u64, u64>,
}

impl Said {
    pub(crate) fn new(kind: &'static str, life: u64, promise: Promise) -> Self {
        Self { kind, stream: format!("{kind}.{life}"), promise, sent: 0, answered: 0, sends: BTreeMap::new() }
    }
}

/// The text of a record.
pub(crate) fn text(stream: &str, number: u64) -> String {
    let filling = "x".repeat((number.wrapping_mul(31) % FILLING_BYTES_MAX) as usize);
    format!("{stream} {number} {filling}.")
}

/// The texts that a sender sends.
#[derive(Debug, Clone)]
pub(crate) enum Texts {
    /// Made from stream and number.
    Made,
    /// Lines, by their numbers.
    Lines(Arc<Vec<Vec<u8>>>),
}

impl Texts {
    pub(crate) fn get(&self, stream: &str, number: u64) -> Vec<u8> {
        match self {
            Self::Made => text(stream, number).into_bytes(),
            Self::Lines(lines) => lines[number as usize].clone(),
        }
    }
}

/// A message of syslog with the text of a record.
pub(crate) fn message(stream: &str, number: u64) -> String {
    format!("<13>1 - host app - - - {}", text(stream, number))
}

/// Stream and number of a whole text.
fn parsed(text: &str) -> Option<(&str, u64)> {
    let (stream, rest) = text.split_once(' ')?;
    let number = rest.split_once(' ')?.0.parse().ok()?;
    (self::text(stream, number) == text).then_some((stream, number))
}

/// The kind of sender of a text.
pub(crate) fn kind_of(text: &str) -> &str {
    text.split('.').next().unwrap_or_default()
}

/// The findings about a kind of sender.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) stored: u64,
    /// Answered, and not there.
    pub(crate) lost: u64,
    /// There more often than the promise allows.
    pub(crate) twice: u64,
    /// There more often than once, as the promise allows.
    pub(crate) again: u64,
    pub(crate) out_of_order: u64,
    /// Cut, unknown, or behind something that is missing.
    pub(crate) broken: u64,
    pub(crate) faults: Vec<String>,
}

impl Verdict {
    pub(crate) const fn is_good(&self) -> bool {
        self.lost + self.twice + self.out_of_order + self.broken == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, answered, stored, lost, twice, again, out_of_order, broken, .. } = self;
        write!(f, "{sent} sent, {answered} answered, {stored} stored: {lost} lost, {twice} twice, ")?;
        write!(f, "{out_of_order} out of order, {broken} broken; {again} sent and stored again")
    }
}

/// A verdict for each kind.
pub(crate) fn all<'a>(said: &[Said], stored: impl IntoIterator<Item = Found<'a>>) -> BTreeMap<&'static str, Verdict> {
    let mut streams: HashMap<&str, Vec<u64>> = HashMap::new();
    let mut parts = Vec::new();
    for found in stored {
        match parsed(found.text) {
            Some((stream, number)) if !found.is_cut => streams.entry(stream).or_default().push(number),
            _ => parts.push(found),
        }
    }
    let mut verdicts: BTreeMap<&'static str, Verdict> = BTreeMap::new();
    // Of each stream of messages the one that may be there in part.
    let mut ends = Vec::new();
    for said in said {
        let stored = streams.remove(said.stream.as_str()).unwrap_or_default();
        let next = of_stream(said, &stored, verdicts.entry(said.kind).or_default());
        if said.promise.is_stream() && next < said.sent {
            ends.push((said.promise, message(&said.stream, next)));
        }
    }
    let mut faults: Vec<String> = streams.into_keys().map(|stream| format!("nobody sent {stream}")).collect();
    // What names its stream fits few, what is of a header alone fits any: the latter takes what the former leave.
    parts.sort_by_key(|part| std::cmp::Reverse((part.text.contains('.'), part.text.len())));
    for part in parts {
        // Without all of its header a message is taken apart otherwise.
        let promise = if part.is_cut { Promise::Stream } else { Promise::StreamOfLines };
        match ends.iter().position(|(of, message)| *of == promise && message.contains(part.text)) {
            Some(end) => drop(ends.swap_remove(end)),
            None => faults.push(format!("no text of a sender: {part:?}")),
        }
    }
    for fault in faults {
        let verdict = verdicts.entry("unknown").or_default();
        verdict.broken += 1;
        note(verdict, || fault);
    }
    verdicts
}

fn note(verdict: &mut Verdict, fault: impl FnOnce() -> String) {
    if verdict.faults.len() < FAULT_TEXTS_MAX {
        verdict.faults.push(fault());
    }
}

/// The number behind the last that is there.
fn of_stream(said: &Said, stored: &[u64], verdict: &mut Verdict) -> u64 {
    let stream = &said.stream;
    verdict.sent += said.sent;
    verdict.answered += said.answered;
    verdict.stored += stored.len() as u64;
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 0;
    for &number in stored {
        if number >= said.sent {
            verdict.broken += 1;
            note(verdict, || format!("{stream}: {number} is there, and {} were sent", said.sent));
        }
        let count = counts.entry(number).or_default();
        *count += 1;
        if *count > 1 {
            continue;
        }
        if number < next {
            verdict.out_of_order += 1;
            note(verdict, || format!("{stream}: {number} is behind {}", next - 1));
        }
        if number > next && said.promise.is_stream() {
            verdict.broken += 1;
            note(verdict, || format!("{stream}: {number} is there, and {next} is not"));
        }
        next = next.max(number + 1);
    }
    for (number, count) in &counts {
        let allowed = match said.promise {
            Promise::AtLeastOnce => said.sends.get(number).copied().unwrap_or(1),
            _ => 1,
        };
        verdict.again += count.min(&allowed) - 1;
        if *count > allowed {
            verdict.twice += count - allowed;
            note(verdict, || format!("{stream}: {number} is there {count} times, and {allowed} are allowed"));
        }
    }
    for number in (0..said.answered).filter(|number| !counts.contains_key(number)) {
        verdict.lost += 1;
        note(verdict, || format!("{stream}: {number} was answered and is not there"));
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(promise: Promise, sent: u64, answered: u64, stored: &[&str]) -> Verdict {
        let mut said = Said::new("a", 0, promise);
        (said.sent, said.answered) = (sent, answered);
        said.sends = [(1, 2)].into();
        let found = |text: &&'static str| Found { text: text.trim_end_matches('~'), is_cut: text.ends_with('~') };
        let stored: Vec<&'static str> = stored.iter().map(|text| &*text.to_string().leak()).collect();
        let mut verdicts = all(&[said], stored.iter().map(found));
        let mut verdict = verdicts.remove("a").expect("one was heard");
        verdict.broken += verdicts.remove("unknown").map_or(0, |unknown| unknown.broken);
        verdict
    }

    #[test]
    fn each_fault_is_seen_and_nothing_else() {
        use Promise::{AtLeastOnce, ExactlyOnce, Stream, StreamOfLines};
        let texts: Vec<String> = (0..5).map(|number| text("a.0", number)).collect();
        let [zero, one, two, three, four] = texts.iter().map(String::as_str).collect::<Vec<_>>()[..] else { panic!() };
        let half = &three[..three.len() - 1];
        let marked = format!("{half}~");
        for promise in [ExactlyOnce, AtLeastOnce, Stream, StreamOfLines] {
            let is = |stored: &[&str]| {
                let verdict = verdict(promise, 4, 3, stored);
                (verdict.lost, verdict.twice, verdict.out_of_order, verdict.broken)
            };
            let in_streams = u64::from(promise.is_stream());
            assert_eq!(is(&[zero, one, two]), (0, 0, 0, 0));
            assert_eq!(is(&[zero, one, two, three]), (0, 0, 0, 0));
            assert_eq!(is(&[zero, one]), (1, 0, 0, 0));
            assert_eq!(is(&[zero, two]), (1, 0, 0, in_streams));
            // The second was sent twice, and nothing else.
            assert_eq!(is(&[zero, one, one, two]), (0, u64::from(promise != AtLeastOnce), 0, 0));
            assert_eq!(is(&[zero, zero, one, two]), (0, 1, 0, 0));
            assert_eq!(is(&[zero, two, one]), (0, 0, 1, in_streams));
            // Only what comes next may be there in part, once, and as the promise says.
            assert_eq!(is(&[zero, one, two, half]).3, u64::from(promise != StreamOfLines));
            assert_eq!(is(&[zero, one, two, &marked]).3, u64::from(promise != Stream));
            assert_eq!(is(&[zero, one, two, "<13>1 - ho"]).3, u64::from(promise != StreamOfLines));
            assert!(is(&[zero, one, two, half, half]).3 > 0 && is(&[zero, one, two, &marked, &marked]).3 > 0);
            assert!(is(&[zero, one, half]).3 > 0 && is(&[zero, one, two, three, half]).3 > 0);
            assert_eq!(is(&[zero, one, two, "hello"]), (0, 0, 0, 1));
            assert_eq!(is(&[zero, one, two, &text("b.0", 0)]), (0, 0, 0, 1));
            assert_eq!(is(&[zero, one, two, three, four]), (0, 0, 0, 1));
        }
    }
}
