//! Text of values that only know how to write themselves: foreign code, which may panic.

use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Text in place of a value whose formatting panicked.
pub(crate) const PANICKED: &str = "<panicked while it was formatted>";
/// Text after a value whose formatting ended with an error.
const FAILED: &str = "<formatting failed>";

/// Writes a value behind what is there; a panic or an error of its formatting becomes text.
pub(crate) fn push_value(text: &mut String, value: fmt::Arguments<'_>) {
    let start = text.len();
    // What is left half-written by a panic is cut off.
    match catch_unwind(AssertUnwindSafe(|| text.write_fmt(value))) {
        Ok(Ok(())) => {}
        Ok(Err(_)) => text.push_str(FAILED),
        Err(_) => {
            text.truncate(start);
            text.push_str(PANICKED);
        }
    }
}

/// Writes a line to stderr, in one piece. Where stderr is gone nobody is left to hear of that: `eprintln!` would panic.
pub(crate) fn to_stderr(line: fmt::Arguments<'_>) {
    let mut text = String::new();
    push_value(&mut text, line);
    text.push('\n');
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

/// A word to the person who runs the program.
pub(crate) fn warn(what: fmt::Arguments<'_>) {
    to_stderr(format_args!("clad: {what}"));
}

/// At most `max` bytes of a text, whole letters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bad(bool);

    impl fmt::Debug for Bad {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half ")?;
            assert!(self.0, "no");
            Err(fmt::Error)
        }
    }

    #[test]
    fn what_cannot_be_formatted_says_so() {
        let mut text = "before ".to_owned();
        push_value(&mut text, format_args!("{:?}", Bad(true)));
        push_value(&mut text, format_args!(" {:?}", Bad(false)));
        assert_eq!(text, format!("before half {FAILED}{PANICKED}"));
        assert_eq!((cut("a\u{e4}", 2), cut("a\u{e4}", 3), cut("", 9)), ("a", "a\u{e4}", ""));
    }
}
