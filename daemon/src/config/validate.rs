//! Judges values by the rules of `rules.rs`.
//!
//! Invariants: nothing is corrected; every refusal says what could work; it points at a value that was set, so that the
//! line to change is the line that is named.

use super::error::ConfigError;
use super::origin::Provenance;
use super::rules::rules;
use super::types::Config;

/// Checks everything; `refused` keys are left out, for they hold no value of the operator's.
pub(super) fn validate(config: &Config, provenance: &Provenance, refused: &[String]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for rule in rules() {
        let involved = || std::iter::once(rule.key).chain(rule.beside.iter().copied());
        if involved().any(|key| refused.iter().any(|name| name == key)) {
            continue;
        }
        let Some(reason) = (rule.broken)(config) else { continue };
        let at = involved()
            .map(|key| provenance.of(key))
            .find(|origin| origin.kind() != "default")
            .unwrap_or_else(|| provenance.of(rule.key));
        errors.push(ConfigError::At { at, problem: format!("`{}`: {reason}", rule.key) });
    }
    errors
}
