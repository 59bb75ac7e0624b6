//! The manual's own commands: the blocks of OPERATIONS.md and SENDERS.md behind `<!-- run: NAME -->`, as they stand there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The block behind that mark.
pub(super) fn block(root: &Path, name: &str) -> Result<String> {
    let pages = ["docs/OPERATIONS.md", "docs/SENDERS.md"].map(|page| fs::read_to_string(root.join(page)));
    find(&pages.into_iter().collect::<Result<String, _>>()?, name)
}

fn find(manual: &str, name: &str) -> Result<String> {
    let mark = format!("<!-- run: {name} -->\n```\n");
    let mut parts = manual.split(&mark);
    let (_, rest) = (parts.next(), parts.next().with_context(|| format!("no block {name:?} in the manual"))?);
    if parts.next().is_some() {
        bail!("two blocks {name:?} in the manual");
    }
    let (block, _) = rest.split_once("\n```").context("the block has no end")?;
    ensure!(!block.trim().is_empty(), "the block {name:?} is empty");
    Ok(format!("{block}\n"))
}

#[cfg(test)]
mod tests {
    use super::find;

    /// `500 × 86400`, `(1 + 2) ÷ 0.8`: what the manual's table writes.
    fn sum(how: &str) -> f64 {
        if let Some((left, right)) = how.split_once(" ÷ ") {
            return sum(left) / sum(right);
        }
        let how = how.trim_start_matches('(').trim_end_matches(')');
        let product = |part: &str| part.split(" × ").map(|n| n.trim().parse::<f64>().unwrap()).product::<f64>();
        how.split(" + ").map(product).sum()
    }

    #[test]
    fn the_worked_sum_adds_up_and_goes_by_the_defaults() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let manual = std::fs::read_to_string(root.join("docs/OPERATIONS.md")).unwrap();
        let (_, rest) = manual.split_once("<!-- sum -->\n").expect("the sum");
        let (table, rest) = rest.split_once("<!-- end of sum -->").expect("its end");
        let rows: Vec<Vec<&str>> =
            table.lines().skip(2).map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
        assert!(rows.len() >= 6);
        for row in &rows {
            let (how, result) = (row[1], row[2].parse::<f64>().unwrap());
            assert!((sum(how) - result).abs() < 1.0, "{how} is {} and not {result}", sum(how));
        }
        let last: f64 = rows.last().unwrap()[2].parse().unwrap();
        let gigabytes = format!("So {} GB", (last / 1e10).ceil() * 10.0);
        assert!(rest.contains(&gigabytes), "{gigabytes:?} is not what it says");
        // The sizes of segments and reserve are the defaults of the table of keys.
        let reference = std::fs::read_to_string(root.join("docs/REFERENCE.md")).unwrap();
        for key in ["`journal.segment_bytes` | `\"64MiB\"`", "`journal.reserve_free` | `\"64MiB\"`"] {
            assert!(reference.contains(key), "{key}");
        }
        assert!(table.contains(&(64 << 20).to_string()));
    }

    /// The sum of bounds on memory, and what the units say of it.
    #[test]
    fn the_units_leave_room_for_the_sum_of_all_bounds_on_memory() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
        let (_, rest) = text.split_once("<!-- memory sum -->\n").expect("the sum");
        let (table, _) = rest.split_once("<!-- end of memory sum -->").expect("its end");
        let mut results = Vec::new();
        for row in table.lines().skip(2) {
            let row: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let (how, result) = (row[1], row[2].parse::<f64>().unwrap());
            assert!((sum(how) - result).abs() < 1.0, "{how} is {} and not {result}", sum(how));
            results.push(result);
        }
        let all = results.pop().expect("the last row");
        assert!((results.iter().sum::<f64>() - all).abs() < 1.0, "{all} is not the sum of the rows");
        for unit in ["clad.service", "clad@.service"] {
            let unit = std::fs::read_to_string(root.join("deploy").join(unit)).unwrap();
            let high =
                unit.lines().find_map(|line| line.strip_prefix("MemoryHigh=")?.strip_suffix('M')).expect("a bound");
            let high: f64 = high.parse().unwrap();
            assert!((all..1.25 * all).contains(&high), "MemoryHigh={high}M, and the sum is {all} MiB");
        }
    }

    #[test]
    fn a_block_is_what_stands_behind_its_mark_once() {
        let text = "x\n<!-- run: a -->\n```\none\ntwo\n```\n<!-- run: b -->\n```\nthree\n```\n";
        assert_eq!(find(text, "a").unwrap(), "one\ntwo\n");
        assert_eq!(find(text, "b").unwrap(), "three\n");
        assert!(find(text, "c").is_err());
        assert!(find(&format!("{text}{text}"), "a").is_err());
    }
}
