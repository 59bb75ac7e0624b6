//! Words of access rules, and names in certificates.

use clad::config::{Pattern, Who};

/// Longest name that a record may have of its peer.
const NAME_BYTES_MAX: usize = 128;

/// A pattern, a zero, and a text; each is also taken for a peer in words.
pub(crate) fn access(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let mut next = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let (pattern, text) = (next(), next());
    for words in [&pattern, &text] {
        if let Some(who) = Who::parse(words) {
            let shown = who.to_string();
            assert_eq!(Who::parse(&shown), Some(who), "{words:?} is shown as {shown:?}");
        }
    }
    if let Some(read) = Pattern::parse(&pattern) {
        assert_eq!(read.matches(&text), by_table(pattern.as_bytes(), text.as_bytes()), "{pattern:?} {text:?}");
    }
}

/// The same by a table of what of the pattern fits what of the text.
fn by_table(pattern: &[u8], text: &[u8]) -> bool {
    let mut fits = vec![false; text.len() + 1];
    fits[0] = true;
    for byte in pattern {
        if *byte == b'*' {
            // From the first place that fits on, everything does.
            let first = fits.iter().position(|fits| *fits).unwrap_or(fits.len());
            fits[first..].fill(true);
        } else {
            for at in (1..fits.len()).rev() {
                fits[at] = fits[at - 1] && text[at - 1] == *byte;
            }
            fits[0] = false;
        }
    }
    fits.last().copied().unwrap_or_default()
}

/// A certificate names one peer or nobody, and never a token.
pub(crate) fn certificate_name(data: &[u8]) {
    let name = clad::certificate_name(data);
    assert_eq!(name, clad::certificate_name(data), "it is the same each time");
    if let Some(name) = name {
        assert!((1..=NAME_BYTES_MAX).contains(&name.len()), "{} bytes", name.len());
        assert!(!name.starts_with("token:"), "{name:?}");
    }
}
