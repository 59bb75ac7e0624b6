//! The nearest valid name to one that is not valid.
//!
//! Invariant: there is always an answer, however far off: a list to look at beats a bare refusal.

/// The most similar of `names`, which must not be empty. A name whose last part alone is right (`dir`,
/// `jurnal.dir`) finds the key that ends in it.
pub(super) fn nearest<'a>(wrong: &str, names: &[&'a str]) -> &'a str {
    // No name has capitals: who writes them means the letters.
    let wrong = wrong.to_lowercase();
    names
        .iter()
        .copied()
        .map(|name| (similarity(&wrong, name), name))
        // The first of equals: the order of the schema decides, so the answer does not waver.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map_or("", |(_, name)| name)
}

fn similarity(wrong: &str, name: &str) -> f64 {
    /// A match of the last part alone counts a little less than one of the whole.
    const LAST_PART: f64 = 0.9;
    let whole = strsim::normalized_damerau_levenshtein(wrong, name);
    let last = strsim::normalized_damerau_levenshtein(last_part(wrong), last_part(name));
    // The whole breaks ties between sections that share a last part.
    whole.max(last * LAST_PART + whole * (1.0 - LAST_PART) * 0.5)
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    const NAMES: [&str; 5] =
        ["journal.dir", "journal.segment_bytes", "retention.max_age", "rotation.max_age", "ingest.tcp.listen"];

    #[test]
    fn finds_what_was_meant() {
        for (wrong, right) in [
            ("journal.segmet_bytes", "journal.segment_bytes"),
            ("segment_bytes", "journal.segment_bytes"),
            ("jurnal.dir", "journal.dir"),
            ("rotate.max_age", "rotation.max_age"),
            ("retention.maxage", "retention.max_age"),
            ("tcp.listen", "ingest.tcp.listen"),
        ] {
            assert_eq!(nearest(wrong, &NAMES), right, "{wrong}");
        }
    }

    #[test]
    fn there_is_always_an_answer() {
        assert!(!nearest("", &NAMES).is_empty());
        assert!(!nearest("\u{1f4a9}", &NAMES).is_empty());
    }
}
