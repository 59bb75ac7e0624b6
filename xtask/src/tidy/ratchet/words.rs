//! Words of a language of our own, each with what the field says.
//!
//! Invariants: a word is found in prose and within a name (`may_be_owed`, `OwedWrite`), in code, comments and docs. It is
//! not counted as the second word of one of `FIELD_TERMS`, where its use is the field's own. docs/GLOSSARY.md has the
//! meanings of the replacements.

use super::super::walk::File;
use super::Counts;

/// A word in all its forms, and what to say in its place.
struct Word {
    forms: &'static [&'static str],
    instead: &'static str,
}

const fn word(forms: &'static [&'static str], instead: &'static str) -> Word {
    Word { forms, instead }
}

const WORDS: [Word; 24] = [
    word(&["vouch", "vouches", "vouched", "vouching"], "commit marker; of a peer: peer metadata"),
    word(&["owe", "owes", "owed", "owing"], "deferred write"),
    word(&["crew"], "reactor, ingest threads"),
    word(&["door"], "admission"),
    word(&["seat"], "quota guard"),
    word(&["purse"], "permits"),
    word(&["gather", "gathers", "gathered", "gathering"], "batch builder, open batch"),
    word(&["keeper", "keepers", "unkept"], "fd store; unprotected"),
    word(&["aside"], "stalled; quarantined"),
    word(&["hindrance", "hindrances"], "attach error"),
    word(&["board", "boards"], "completion page"),
    word(&["island", "islands"], "abandoned region"),
    word(&["hole", "holes"], "uncommitted slot"),
    word(&["patience", "allowance", "allowances"], "timeout, budget"),
    word(&["stamp", "stamps", "stamped"], "timestamp"),
    word(&["outs"], "in flight"),
    word(&["dues"], "completions"),
    word(&["unheard"], "undelivered errors"),
    word(&["skim", "skims", "skimmed"], "oversize header"),
    word(&["foresee", "foresees", "foreseen"], "dry run"),
    word(&["desk"], "admin service"),
    word(&["footless"], "missing footer"),
    word(&["worn", "rotten"], "failing device, bit rot"),
    word(&["tell", "tells", "told", "anew"], "report, log, return, notify; again"),
];

/// Terms of the field, each of two words; the case does not matter.
const FIELD_TERMS: [[&str; 2]; 2] = [["punch", "hole"], ["punched", "hole"]];

pub(super) fn measure(files: &[File], counts: &mut Counts) {
    let ours =
        |file: &&File| file.ends_with(&[".rs", ".md", ".proto"]) && !file.path.starts_with("xtask/src/tidy/ratchet");
    for word in &WORDS {
        let count = files.iter().filter(ours).map(|file| occurrences(&file.text, word.forms)).sum();
        counts.insert(name(word), count);
    }
}

fn name(word: &Word) -> String {
    format!("word {}", word.forms[0])
}

/// What to say in place of a word, where the count is of one.
pub(super) fn hint(count: &str) -> String {
    let word = WORDS.iter().find(|word| name(word) == count);
    word.map_or_else(String::new, |word| format!(": say {}", word.instead))
}

fn occurrences(text: &str, forms: &[&str]) -> usize {
    let mut before = "";
    let counted = words(text).filter(|word| {
        let pair = [std::mem::replace(&mut before, word), word];
        forms.iter().any(|form| form.eq_ignore_ascii_case(word)) && !is_field_term(pair)
    });
    counted.count()
}

fn is_field_term(pair: [&str; 2]) -> bool {
    FIELD_TERMS.iter().any(|term| term.iter().zip(pair).all(|(word, found)| word.eq_ignore_ascii_case(found)))
}

/// The words of a text, and those that a name is made of.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic()).flat_map(|name| {
        let mut rest = name;
        std::iter::from_fn(move || {
            let bytes = rest.as_bytes();
            let is_begin = |at: usize| {
                bytes[at].is_ascii_uppercase()
                    && (bytes[at - 1].is_ascii_lowercase() || bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase))
            };
            let end = (1..bytes.len()).find(|at| is_begin(*at)).unwrap_or(bytes.len());
            let word;
            (word, rest) = rest.split_at(end);
            (!word.is_empty()).then_some(word)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_in_prose_and_in_names() {
        let all: Vec<&str> = words("may_be_owed(OwedWrite, HTTPServer) MAX_OWED told.").collect();
        assert_eq!(all, ["may", "be", "owed", "Owed", "Write", "HTTP", "Server", "MAX", "OWED", "told"]);
        assert_eq!(occurrences("Owed, allowed, owed: BorrowedOwed", &["owe", "owed"]), 3);
    }

    #[test]
    fn a_term_of_the_field_is_not_counted_and_the_word_alone_is() {
        let text = "FALLOC_FL_PUNCH_HOLE, a_punched_hole; HOLE, punches; two holes, punched into a hole";
        assert_eq!(occurrences(text, &["hole", "holes"]), 3);
    }

    #[test]
    fn every_word_has_a_count_and_a_hint() {
        let mut counts = Counts::new();
        measure(&[File::new("a.rs", "fn vouched() {} // a vouch"), File::new("b.txt", "vouch")], &mut counts);
        assert_eq!((counts.len(), counts["word vouch"]), (WORDS.len(), 2));
        assert!(hint("word vouch").contains("commit marker") && hint("lines").is_empty());
    }
}
