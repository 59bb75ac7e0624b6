//! Tokens: only their hashes are in the file.
//!
//! Invariants: a line is a name and the SHA-256 of a token; several tokens may have one name, so that one can be replaced
//! while both work. A file that others may write is refused: who writes it makes himself anybody.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Bit of a mode that lets others than owner and group write a file.
const OTHERS_WRITE: u32 = 0o002;
/// Longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest name.
const NAME_BYTES_MAX: usize = 64;

/// Names by the hashes of their tokens.
#[derive(Debug, Default)]
pub(super) struct Tokens(HashMap<[u8; 32], Arc<str>>);

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokensError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("others may write it (mode {0:04o}): chmod o-w")]
    Writable(u32),
    #[error("{0} bytes are no file of tokens")]
    Long(u64),
    #[error(
        "line {0}: a name (letters, digits, `.`, `_`, `-`) and 64 hexadecimal digits are wanted (printf %s TOKEN | sha256sum)"
    )]
    Line(usize),
    #[error("line {0}: its token is there before")]
    Twice(usize),
}

impl Tokens {
    pub(super) fn read(path: &Path) -> Result<Self, TokensError> {
        let found = std::fs::metadata(path)?;
        let mode = found.permissions().mode() & 0o7777;
        match found.len() {
            _ if mode & OTHERS_WRITE != 0 => Err(TokensError::Writable(mode)),
            0..=FILE_BYTES_MAX => Self::parse(&std::fs::read_to_string(path)?),
            long => Err(TokensError::Long(long)),
        }
    }

    fn parse(text: &str) -> Result<Self, TokensError> {
        let mut tokens = HashMap::new();
        for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let mut words = text.split_ascii_whitespace();
            let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
                return Err(TokensError::Line(line));
            };
            let hash = hash_of(hash).filter(|_| is_name(name)).ok_or(TokensError::Line(line))?;
            if tokens.insert(hash, name.into()).is_some() {
                return Err(TokensError::Twice(line));
            }
        }
        Ok(Self(tokens))
    }

    /// The name of a token. The hash is what is looked up, so the time says nothing of the token.
    pub(super) fn name(&self, token: &[u8]) -> Option<Arc<str>> {
        if token.is_empty() || self.0.is_empty() {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        self.0.get(&hash).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.values().any(|known| &**known == name)
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain)
}

fn hash_of(hex: &str) -> Option<[u8; 32]> {
    let digits = hex.bytes().map(|digit| char::from(digit).to_digit(16));
    let digits: Vec<u8> =
        digits.map(|digit| digit.and_then(|digit| u8::try_from(digit).ok())).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, token: &str) -> String {
        let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {hash}\n")
    }

    #[test]
    fn a_token_is_known_by_its_hash_alone() {
        let text = format!(
            "# a comment\n\n{}{}  {}",
            line("ci", "one"),
            line("ci", "two").to_uppercase().replace("CI", "ci"),
            line("web", "three")
        );
        let tokens = Tokens::parse(&text).expect("tokens");
        let name = |token: &str| tokens.name(token.as_bytes());
        assert_eq!(
            (name("one").as_deref(), name("two").as_deref(), name("three").as_deref()),
            (Some("ci"), Some("ci"), Some("web"))
        );
        let hash = line("ci", "one")[3..].trim().to_owned();
        assert_eq!((name(""), name("four"), name(&hash)), (None, None, None));
        assert!(tokens.has("web") && !tokens.has("four"));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let good = line("ci", "one");
        for (text, problem) in [
            ("ci\n".to_owned(), "line 1: a name"),
            (format!("{good}web {}\n", "g".repeat(64)), "line 2: a name"),
            (format!("a/b {}", &good[3..]), "line 1: a name"),
            (format!("{} x", good.trim()), "line 1: a name"),
            (format!("{good}\n{good}"), "line 3: its token is there before"),
            (format!("ci {}é\n", &good[3..65]), "line 1: a name"),
        ] {
            let error = Tokens::parse(&text).expect_err(&text).to_string();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, line("ci", "one")).expect("written");
        for (mode, is_taken) in [(0o600, true), (0o644, true), (0o660, true), (0o602, false), (0o666, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
            assert_eq!(Tokens::read(&path).is_ok(), is_taken, "{mode:o}");
        }
        assert!(matches!(Tokens::read(&folder.path().join("none")), Err(TokensError::Read(_))));
    }
}
