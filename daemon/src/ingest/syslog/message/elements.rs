//! Structured data of RFC 5424. A `]` in a value needs no backslash here.

use std::borrow::Cow;

use super::words::header_part;

/// Structured data: elements with their parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements<'a>(&'a [u8]);

/// A parameter; its name is absent for an element that has none.
pub(crate) struct Parameter<'a> {
    pub(crate) element: &'a str,
    pub(crate) name: Option<&'a str>,
    pub(crate) value: Cow<'a, [u8]>,
}

impl<'a> Elements<'a> {
    /// Well formed elements, and what is behind them.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = bytes;
        while rest.first() == Some(&b'[') {
            let (_, mut behind) = name(&rest[1..])?;
            while let Some(parameter) = behind.strip_prefix(b" ") {
                (_, _, behind) = split_parameter(parameter)?;
            }
            rest = behind.strip_prefix(b"]")?;
        }
        let length = bytes.len() - rest.len();
        (length > 0).then(|| (Self(&bytes[..length]), rest))
    }

    /// Each parameter, in its order.
    pub(crate) fn parameters(self) -> impl Iterator<Item = Parameter<'a>> {
        let mut rest = self.0;
        let mut element = "";
        std::iter::from_fn(move || {
            let first = rest.strip_prefix(b"[");
            if let Some(inner) = first {
                (element, rest) = name(inner)?;
            }
            if let Some(parameter) = rest.strip_prefix(b" ") {
                let (name, value, behind) = split_parameter(parameter)?;
                rest = behind.strip_prefix(b"]").unwrap_or(behind);
                return Some(Parameter { element, name: Some(name), value: unescaped(value) });
            }
            rest = first.and(rest.strip_prefix(b"]"))?;
            Some(Parameter { element, name: None, value: Cow::Borrowed(b"") })
        })
    }
}

/// A name, and what is behind it.
fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| matches!(byte, b' ' | b'=' | b']' | b'"'))?;
    Some((header_part(&bytes[..end])?, &bytes[end..]))
}

/// A parameter's name, its value as it was sent, and what is behind it.
fn split_parameter(bytes: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (name, rest) = name(bytes)?;
    let value = rest.strip_prefix(b"=\"")?;
    let mut is_escaped = false;
    let end = value.iter().position(|byte| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((name, &value[..end], &value[end + 1..]))
}

/// The value: `\"`, `\\` and `\]` stand for the second character, any other backslash for itself.
fn unescaped(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.contains(&b'\\') {
        return Cow::Borrowed(value);
    }
    let mut plain = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [first, behind @ ..] = rest {
        let is_escape = *first == b'\\' && matches!(behind.first(), Some(b'"' | b'\\' | b']'));
        rest = if is_escape { behind } else { rest };
        plain.push(rest[0]);
        rest = &rest[1..];
    }
    Cow::Owned(plain)
}
