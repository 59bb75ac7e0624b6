//! Making text harmless: what comes out can neither end a line, nor drive a terminal, nor reorder what stands there.
//!
//! Invariants: no control character (C0, DEL, C1), no line or paragraph separator, no bidirectional mark or override and
//! nothing that takes no room (zero width, byte order mark, tags) passes: two names that look alike are written alike.
//! Everything else passes unchanged, the backslash too, so that ordinary text stays as it is. An emoji that is joined of
//! several comes out as its parts.

use std::fmt::Write;

/// True if a character may stand in output as it is.
pub(super) fn is_harmless(c: char) -> bool {
    let is_unseen = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    !(c.is_control() || is_unseen)
}

/// Adds a text with what could do harm escaped: `\n`, `\t`, `\r`, `\0`, `\x1b`, `\u{202e}`.
pub(crate) fn text(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find(|c| !is_harmless(c)) {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = from.chars();
        if let Some(c) = chars.next() {
            one(out, c);
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

fn one(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0' => out.push_str("\\0"),
        c if c.is_ascii() => drop(write!(out, "\\x{:02x}", c as u32)),
        c => drop(write!(out, "\\u{{{:x}}}", c as u32)),
    }
}

/// Adds bytes: what is UTF-8 as [`text`], every other byte as `\xff`.
pub(crate) fn bytes(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text(out, chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
}

/// A copy with what could do harm escaped.
pub(crate) fn escaped(from: &str) -> String {
    let mut out = String::with_capacity(from.len());
    text(&mut out, from);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(input: &[u8]) -> String {
        let mut out = String::new();
        bytes(&mut out, input);
        out
    }

    #[test]
    fn what_drives_a_terminal_or_ends_a_line_is_escaped() {
        for (input, golden) in [
            (&b"a\nb\r\n"[..], r"a\nb\r\n"),
            (b"\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
            (b"nul\0tab\tbell\x07del\x7f", r"nul\0tab\tbell\x07del\x7f"),
            ("c1 \u{85}\u{9b}2J".as_bytes(), r"c1 \u{85}\u{9b}2J"),
            ("bidi \u{202e}\u{2066} sep \u{2028}".as_bytes(), r"bidi \u{202e}\u{2066} sep \u{2028}"),
            (
                "ad\u{200b}min\u{200d}\u{200f}\u{61c}\u{feff}".as_bytes(),
                r"ad\u{200b}min\u{200d}\u{200f}\u{61c}\u{feff}",
            ),
            ("tag \u{e0041}\u{e007f}".as_bytes(), r"tag \u{e0041}\u{e007f}"),
            (b"\xff\xfeok\xc3", r"\xff\xfeok\xc3"),
            (b"", ""),
        ] {
            assert_eq!(of(input), golden);
        }
    }

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in ["C:\\path\\new", "grüße, 世界 👋🏽", "\"quoted\" 'x' {y}", "\u{ad}\u{200a}\u{2010}\u{e0080}"]
        {
            assert_eq!(of(text.as_bytes()), text);
        }
    }
}
