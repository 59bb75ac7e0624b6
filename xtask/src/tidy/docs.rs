//! Prose of the documents: the length of its sentences, and the constants that it names.
//!
//! Invariants: code counts as one word, a fenced block or an image as none. A cell of a table counts for the longest sentence, and not
//! for the median.

use std::path::Path;

use super::Finding;
use super::walk::File;

/// The page of bounds is made of the names of constants.
const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";
/// Longer sentences are counted.
const SENTENCE_WORDS_MAX: usize = 35;
/// Pages with a longer sentence at the median are counted.
const MEDIAN_WORDS_MAX: usize = 15;
/// Shorter ones are labels.
const SENTENCE_WORDS_MIN: usize = 3;

struct Sentence {
    line: usize,
    words: usize,
    is_cell: bool,
}

/// Names in the page of bounds that no code defines.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let code = || files.iter().filter(|file| file.ends_with(&[".rs"]));
    let defined = |name: &str| {
        let defines = ["const", "static"].map(|kind| format!("{kind} {name}:"));
        code().any(|file| defines.iter().any(|text| file.text.contains(text)))
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path == Path::new(ARCHITECTURE)) {
        for (line, text) in (1..).zip(file.text.lines()) {
            // Every other piece stands between backticks.
            for name in text.split('`').skip(1).step_by(2).filter(|name| is_constant(name) && !defined(name)) {
                let what = format!("no code defines the constant {name}");
                findings.push(Finding { path: file.path.clone(), line, what });
            }
        }
    }
    findings
}

fn is_constant(name: &str) -> bool {
    name.len() > 2
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Numbers of sentences and pages that are too long.
pub(super) fn measure(files: &[File]) -> [(&'static str, usize); 2] {
    let pages: Vec<_> = pages(files).map(|file| sentences(&file.text)).collect();
    let long = pages.iter().flatten().filter(|sentence| sentence.words > SENTENCE_WORDS_MAX).count();
    let heavy = pages.iter().filter(|page| median(page) > MEDIAN_WORDS_MAX).count();
    [("pages with a median sentence of more than 15 words", heavy), ("sentences of more than 35 words", long)]
}

/// `cargo xtask tidy --sentences`: the length of the sentences of each page, and the places of those that are too long.
pub(super) fn print(files: &[File]) {
    println!("{:>9} {:>6} {:>7}  page", "sentences", "median", "longest");
    for file in pages(files) {
        let all = sentences(&file.text);
        let longest = all.iter().map(|sentence| sentence.words).max().unwrap_or(0);
        println!("{:>9} {:>6} {longest:>7}  {}", all.len(), median(&all), file.path.display());
        for sentence in all.iter().filter(|sentence| sentence.words > SENTENCE_WORDS_MAX) {
            println!("{:>25} {} words in the paragraph of line {}", "", sentence.words, sentence.line);
        }
    }
}

fn pages(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.ends_with(&[".md"]))
}

fn median(sentences: &[Sentence]) -> usize {
    let mut lengths: Vec<usize> = sentences.iter().filter(|s| !s.is_cell).map(|s| s.words).collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

fn sentences(text: &str) -> Vec<Sentence> {
    let (mut all, mut paragraph, mut is_code) = (Vec::new(), (0, String::new()), false);
    for (line, text) in (1..).zip(text.lines()).chain([(0, "")]) {
        let text = text.trim();
        let is_fence = text.starts_with("```");
        is_code ^= is_fence;
        let is_prose = !(is_code
            || is_fence
            || text.starts_with(['|', '#'])
            || ["<!--", "!["].iter().any(|s| text.starts_with(s)));
        let item = text.split_once(' ').filter(|(mark, _)| is_item(mark)).map(|(_, rest)| rest);
        if !is_prose || text.is_empty() || item.is_some() {
            split(&std::mem::take(&mut paragraph.1), paragraph.0, false, &mut all);
            paragraph.0 = line;
        }
        if is_prose {
            paragraph.1.push_str(item.unwrap_or(text));
            paragraph.1.push(' ');
        } else if text.starts_with('|') && !is_code {
            text.split('|').for_each(|cell| split(cell, line, true, &mut all));
        }
    }
    all
}

/// `-`, `*`, `1.`
fn is_item(mark: &str) -> bool {
    let number = mark.strip_suffix('.').unwrap_or("x");
    matches!(mark, "-" | "*") || number.chars().all(|c| c.is_ascii_digit())
}

/// Adds the sentences of a paragraph or of a cell.
fn split(text: &str, line: usize, is_cell: bool, all: &mut Vec<Sentence>) {
    let without_code: Vec<&str> =
        text.split('`').enumerate().map(|(at, piece)| if at % 2 == 0 { piece } else { "code" }).collect();
    let mut words = 0;
    let mut end = |words: &mut usize| {
        let sentence = Sentence { line, words: std::mem::take(words), is_cell };
        all.extend(Some(sentence).filter(|sentence| sentence.words >= SENTENCE_WORDS_MIN));
    };
    for word in without_code.concat().split_whitespace() {
        words += usize::from(word.contains(|c: char| c.is_alphanumeric()));
        if word.trim_end_matches([')', '*', '"', '_']).ends_with(['.', '!', '?']) {
            end(&mut words);
        }
    }
    end(&mut words);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> File {
        File::new(ARCHITECTURE, text)
    }

    fn lengths(text: &str) -> Vec<usize> {
        sentences(text).iter().map(|sentence| sentence.words).collect()
    }

    #[test]
    fn a_sentence_ends_with_its_paragraph_item_or_cell() {
        assert_eq!(lengths("One two three. Four `five six` (seven\neight.) Nine ten"), [3, 4]);
        assert_eq!(lengths("- one two three\n- four five six seven\n\n2. a b c"), [3, 4, 3]);
        assert_eq!(
            lengths(
                "# no heading is one\n![nor is an image](x.svg)\n```\nno code is one\n```\n| a b c | d e f g |\n|---|---|"
            ),
            [3, 4]
        );
    }

    #[test]
    fn long_sentences_and_heavy_pages_are_counted() {
        let counts =
            |words: usize, end: &str| measure(&[page(&format!("{}{end}", "word ".repeat(words)))]).map(|c| c.1);
        assert_eq!(counts(15, "."), [0, 0]);
        assert_eq!(counts(16, "."), [1, 0]);
        assert_eq!(counts(36, "."), [1, 1]);
        assert_eq!(measure(&[page(&format!("| {} |", "word ".repeat(36)))]).map(|c| c.1), [0, 1], "a cell");
    }

    #[test]
    fn a_constant_that_no_code_defines_is_found() {
        let code = File::new("a.rs", "const WAIT_MAX: u8 = 1;");
        let found = check(&[page("`WAIT_MAX` and `wait`\n`WAIT_MOST`"), code]);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["docs/ARCHITECTURE.md:2: no code defines the constant WAIT_MOST"]
        );
    }
}
