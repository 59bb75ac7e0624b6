//! Rust source without what is not code.
//!
//! Invariants: the answer has the same lines as the source, so that a place in one is a place in the
//! other; comments, strings and character literals are blank. Not a parser: a source that the compiler
//! takes is assumed.

/// The source with comments and literals blanked.
pub(super) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        match end {
            Some(end) => {
                out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

/// The end of the comment or literal that starts here, if one does.
fn literal_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |rest| rest[0] == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at)),
        'r' if !is_word_before(chars, at) || matches!(chars[at - 1], 'b' | 'c') => raw_string_end(chars, at),
        '\'' => char_end(chars, at),
        _ => None,
    }
}

fn is_word_before(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

/// The first place from `at` on where `stop` holds of the rest, else the end.
fn find(chars: &[char], at: usize, stop: impl Fn(&[char]) -> bool) -> usize {
    (at..chars.len()).find(|place| stop(&chars[*place..])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut place = at;
    while place < chars.len() {
        if chars[place..].starts_with(&['/', '*']) {
            depth += 1;
            place += 2;
        } else if chars[place..].starts_with(&['*', '/']) {
            depth -= 1;
            place += 2;
            if depth == 0 {
                return place;
            }
        } else {
            place += 1;
        }
    }
    place
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut place = at + 1;
    while place < chars.len() {
        match chars[place] {
            '\\' => place += 2,
            '"' => return place + 1,
            _ => place += 1,
        }
    }
    chars.len()
}

/// `r"…"` or `r#"…"#`; `None` for a raw identifier or a plain `r`.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let end = find(chars, open + 1, |rest| rest.starts_with(&close));
    Some((end + close.len()).min(chars.len()))
}

/// A character literal; `None` for a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    if chars.get(at + 1) == Some(&'\\') {
        // The escaped character itself may be a quote.
        return Some((find(chars, at + 3, |rest| rest[0] == '\'') + 1).min(chars.len()));
    }
    (chars.get(at + 2) == Some(&'\'')).then_some(at + 3)
}

/// The code with the bodies of `#[cfg(test)] mod …` blanked; `code` is without literals.
pub(super) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find(MARK) {
        let (before, marked) = rest.split_at(start);
        out.push_str(before);
        let end = test_module_end(marked).unwrap_or(MARK.len());
        out.extend(marked[..end].chars().filter(|c| *c == '\n'));
        rest = &marked[end..];
    }
    out.push_str(rest);
    out
}

/// The end of the module that a mark stands before; `None` where it is no module with a body.
fn test_module_end(marked: &str) -> Option<usize> {
    let open = marked.find(['{', ';'])?;
    let is_module = marked[..open].split_whitespace().any(|word| word == "mod");
    if !is_module || !marked[open..].starts_with('{') {
        return None;
    }
    let mut depth = 0;
    for (at, c) in marked[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + at + 1);
        }
    }
    None
}

/// The words of code, each with its line from 1.
pub(super) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(number, line)| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .map(move |word| (number + 1, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(source: &str) -> Vec<String> {
        let code = code_only(source);
        assert_eq!(code.lines().count(), source.lines().count());
        words(&code).map(|(_, word)| word.to_owned()).collect()
    }

    #[test]
    fn comments_and_literals_go_and_code_stays() {
        for (source, words) in [
            ("a // b\nc", &["a", "c"][..]),
            ("a /* b /* c */ d */ e", &["a", "e"]),
            ("a \"b \\\" c\" d", &["a", "d"]),
            ("a r#\"b \" c\"# d", &["a", "d"]),
            ("a br\"b\\\" d", &["a", "b", "d"]),
            ("a '\"' b '\\'' c 'x' d", &["a", "b", "c", "d"]),
            ("fn f<'a>(x: &'a str)", &["fn", "f", "a", "x", "a", "str"]),
            ("let r#type = for_r\"x\"", &["let", "r", "type", "for_r"]),
            ("\"open\n// still\" x", &["x"]),
        ] {
            assert_eq!(left(source), words, "{source}");
        }
    }

    #[test]
    fn test_modules_go_and_lines_stay() {
        let code = "a\n#[cfg(test)]\nmod tests {\n  fn b() { c }\n}\nd\n#[cfg(test)]\nmod e;\nf\n";
        let rest = without_tests(code);
        let words: Vec<_> = words(&rest).collect();
        assert_eq!(words, [(1, "a"), (6, "d"), (8, "mod"), (8, "e"), (9, "f")]);
    }
}
