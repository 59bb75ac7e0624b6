//! The files that are ours.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A text file.
pub(super) struct File {
    /// Below the root.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl File {
    #[cfg(test)]
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.to_owned() }
    }

    pub(super) fn ends_with(&self, ends: &[&str]) -> bool {
        let name = self.path.to_string_lossy();
        ends.iter().any(|end| name.ends_with(end))
    }

    pub(super) fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// What is made, not written: folders, and in a linked work tree the file `.git`.
const SKIPPED: [&str; 3] = [".git", "target", "clad-data"];

/// Every text file below the root, in the order of their paths.
pub(super) fn walk(root: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                // What is not text (a golden file, say) has nothing that these rules are about.
                if let Ok(text) = String::from_utf8(fs::read(&path)?) {
                    let path = path.strip_prefix(root)?.to_owned();
                    files.push(File { path, text });
                }
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
