//! Changes that a reload may make.
//!
//! Invariant: all or nothing. A reload that touches one key which needs a restart changes nothing at all, and names
//! every such key: a daemon that runs on half of a file is on no file anybody wrote.

use super::schema::keys_of;
use super::types::Config;

/// One key that a reload changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value so far, as TOML.
    pub from: String,
    /// Its value from now on, as TOML.
    pub to: String,
}

/// Reason why a reload was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: a restart is needed for {}", keys.join(", "))]
pub struct ReloadRefused {
    /// The changed keys that a running daemon cannot take.
    pub keys: Vec<String>,
}

/// Changes between two configurations, where a running daemon can take them all.
///
/// # Errors
/// Names every changed key that needs a restart.
pub fn reload_diff(old: &Config, new: &Config) -> Result<Vec<Change>, ReloadRefused> {
    let mut changes = Vec::new();
    let mut keys = Vec::new();
    for key in keys_of(&[old, new]) {
        // A section that an operator has named may be in one alone.
        let shown = |config| key.get(config).map_or_else(String::new, |shown| shown.toml);
        let (from, to) = (shown(old), shown(new));
        if from == to {
            continue;
        }
        if key.key.live {
            changes.push(Change { key: key.name(), from, to });
        } else {
            keys.push(key.name());
        }
    }
    if keys.is_empty() { Ok(changes) } else { Err(ReloadRefused { keys }) }
}
