//! Changes that a reload may make.
//!
//! Invariant: all or nothing. A reload that touches one key which needs a restart changes nothing at all, and names
//! every such key: a daemon that runs on half of a file is on no file anybody wrote.

use super::schema::KEYS;
use super::types::Config;

/// One key that a reload changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: &'static str,
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
    pub keys: Vec<&'static str>,
}

/// Changes between two configurations, where a running daemon can take them all.
///
/// # Errors
/// Names every changed key that needs a restart.
pub fn reload_diff(old: &Config, new: &Config) -> Result<Vec<Change>, ReloadRefused> {
    let mut changes = Vec::new();
    let mut keys = Vec::new();
    for key in KEYS {
        let (from, to) = ((key.get)(old).toml, (key.get)(new).toml);
        if from == to {
            continue;
        }
        if key.live {
            let key = key.name;
            changes.push(Change { key, from, to });
        } else {
            keys.push(key.name);
        }
    }
    if keys.is_empty() { Ok(changes) } else { Err(ReloadRefused { keys }) }
}
