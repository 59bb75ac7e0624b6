//! What the suites tried, summed up.
//!
//! A test says `tally: NAME=NUMBER …` in a line of its own words; every such line that a suite has read counts.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What may be counted, and what it is called in the closing line.
const COUNTED: [(&str, &str); 8] = [
    ("states", "crash states"),
    ("kills", "kills"),
    ("faults", "deliberate faults caught"),
    ("inputs", "hostile inputs"),
    ("attacks", "attacks"),
    ("orders", "orders of threads"),
    ("acks", "acknowledgements checked"),
    ("lost", "lost"),
];

static SUMS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Counts what stands in these lines. The test runner may have put words of its own before one.
pub(super) fn note(said: &str) {
    let mut sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, words) in said.lines().filter_map(|line| line.split_once("tally: ")) {
        for (name, number) in words.split_whitespace().filter_map(|word| word.split_once('=')) {
            if let Ok(number) = number.parse::<u64>() {
                *sums.entry(name.to_owned()).or_default() += number;
            }
        }
    }
}

/// The sums in words; what nobody counted is 0.
pub(super) fn words() -> String {
    let sums = SUMS.lock().unwrap_or_else(PoisonError::into_inner);
    let each = COUNTED.map(|(name, words)| format!("{} {words}", sums.get(name).copied().unwrap_or(0)));
    each.join(", ")
}

/// How much was counted of something.
pub(super) fn of(name: &str) -> u64 {
    SUMS.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed_wherever_they_begin() {
        note("nothing\ntest a ... tally: states=3 acks=10\nok\ntally: states=4 lost=0 words=x\n");
        assert_eq!((of("states"), of("acks"), of("lost"), of("kills")), (7, 10, 0, 0));
        assert!(words().starts_with("7 crash states, 0 kills, "), "{}", words());
        assert!(words().ends_with(" 10 acknowledgements checked, 0 lost"), "{}", words());
    }
}
