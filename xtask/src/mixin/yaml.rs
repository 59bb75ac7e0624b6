//! Rules as YAML: expressions as blocks, so that a change reads as a change; all other text in double quotes, which
//! YAML reads as JSON does.

use std::fmt::Write;

use super::alerts::Alert;
use super::recording::Rule;

const HEAD: &str = "# Made by `cargo xtask mixin` from xtask/src/mixin/: change it there.\ngroups:\n";

/// The file of recording rules.
pub(super) fn recording(rules: &[Rule]) -> String {
    let mut out = format!("{HEAD}  - name: clad-recording\n    rules:\n");
    for rule in rules {
        let _ = writeln!(out, "      - record: {}", quoted(rule.record));
        block(&mut out, &rule.expr);
    }
    out
}

/// The file of alerts.
pub(super) fn alerts(alerts: &[Alert], runbook: &str) -> String {
    let mut out = format!("{HEAD}  - name: clad-alerts\n    rules:\n");
    for alert in alerts {
        let _ = writeln!(out, "      - alert: {}", alert.name);
        block(&mut out, &alert.expr);
        let _ = writeln!(out, "        for: {}", alert.hold);
        let _ = writeln!(out, "        labels:\n          severity: {}", alert.severity.as_str());
        let _ = writeln!(out, "        annotations:");
        let _ = writeln!(out, "          summary: {}", quoted(alert.summary));
        let _ = writeln!(out, "          description: {}", quoted(&alert.description));
        let url = format!("{runbook}#{}", alert.anchor());
        let _ = writeln!(out, "          runbook_url: {}", quoted(&url));
    }
    out
}

fn block(out: &mut String, expr: &str) {
    out.push_str("        expr: |-\n");
    for line in expr.lines() {
        let _ = writeln!(out, "          {line}");
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
