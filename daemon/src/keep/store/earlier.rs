//! How an earlier version stored rings: each part under a name of its own, `clad-ring-<note>-<part>`, the note in hexadecimal
//! digits. With some 500 rings these names were more than a process can be handed.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::PREFIX;
use crate::keep::{Kept, Note, PARTS};

const NAMES: [&str; PARTS] = ["ring", "bell"];

/// The names of a ring's parts.
pub(super) fn names(note: &Note) -> [String; PARTS] {
    let hex: String = note.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    NAMES.map(|part| format!("{PREFIX}{hex}-{part}"))
}

/// What came back, by ring, and the notes of those of which not all came.
pub(super) fn sort(stored: Vec<(String, OwnedFd)>) -> (Vec<Kept>, Vec<Note>) {
    let mut rings: BTreeMap<[u8; Note::BYTES], [Option<OwnedFd>; PARTS]> = BTreeMap::new();
    for (name, fd) in stored {
        if let Some((note, part)) = parse(&name) {
            rings.entry(note).or_default()[part] = Some(fd);
        }
    }
    let (mut whole, mut rest) = (Vec::new(), Vec::new());
    for (note, parts) in rings {
        let note = Note::decode(&note);
        let fds: Vec<OwnedFd> = parts.into_iter().flatten().collect();
        match fds.len() {
            PARTS => whole.push(Kept { note, fds }),
            _ => rest.push(note),
        }
    }
    (whole, rest)
}

/// The note and the part of a name.
fn parse(name: &str) -> Option<([u8; Note::BYTES], usize)> {
    let (hex, part) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let part = NAMES.iter().position(|known| *known == part)?;
    if hex.len() != 2 * Note::BYTES || !hex.is_ascii() {
        return None;
    }
    let mut bytes = [0; Note::BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some((bytes, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_comes_back_by_ring_in_whatever_order() {
        let any_fd = || OwnedFd::from(std::io::pipe().expect("a pipe").0);
        let (one, two) = (Note { uid: 1000, pid: 7, ..Note::default() }, Note { uid: 1, ..Note::default() });
        let ([ring, bell], [half, _]) = (names(&one), names(&two));
        let stored = [bell, half, ring.clone(), "other".into()];
        let (whole, rest) = sort(stored.into_iter().map(|name| (name, any_fd())).collect());
        assert_eq!(whole.iter().map(|k| (k.note, k.fds.len())).collect::<Vec<_>>(), [(one, PARTS)]);
        assert_eq!(rest, [two], "in part");
        for bad in ["clad-ring-", "clad-ring-a-ring", "clad-ring-é-ring", &ring.replace("-ring", "-heart"), "ring"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
