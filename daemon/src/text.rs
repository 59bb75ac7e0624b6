//! Text that may hold anything, for people to read.

use std::borrow::Cow;

/// The text with its control characters escaped, so that it can neither end a line nor drive a terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().flat_map(|c| {
        let control = c.is_control().then(|| c.escape_default());
        let plain = (!c.is_control()).then_some(c);
        control.into_iter().flatten().chain(plain)
    });
    Cow::Owned(escaped.collect())
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn only_control_characters_change() {
        assert_eq!(printable("the daemon's \"ü\""), "the daemon's \"ü\"");
        assert_eq!(printable("a\n\u{1b}[2J\u{9b}b"), "a\\n\\u{1b}[2J\\u{9b}b");
    }
}
