//! The manual's own commands: the blocks of OPERATIONS.md behind `<!-- run: NAME -->`, as they stand there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The block behind that mark.
pub(super) fn block(root: &Path, name: &str) -> Result<String> {
    let manual = fs::read_to_string(root.join("docs/OPERATIONS.md"))?;
    find(&manual, name)
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

    #[test]
    fn a_block_is_what_stands_behind_its_mark_once() {
        let text = "x\n<!-- run: a -->\n```\none\ntwo\n```\n<!-- run: b -->\n```\nthree\n```\n";
        assert_eq!(find(text, "a").unwrap(), "one\ntwo\n");
        assert_eq!(find(text, "b").unwrap(), "three\n");
        assert!(find(text, "c").is_err());
        assert!(find(&format!("{text}{text}"), "a").is_err());
    }
}
