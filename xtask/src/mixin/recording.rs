//! Recording rules: what alerts and more than one panel or person ask for, named `level:metric:operations`.

use super::Options;

/// A series that Prometheus computes.
pub(super) struct Rule {
    pub(super) record: &'static str,
    pub(super) expr: String,
}

/// The rules, in the order in which they are evaluated.
pub(super) fn rules(options: &Options) -> Vec<Rule> {
    let job = format!("job=\"{}\"", options.job);
    let w = options.pace.window(300);
    let quantile = |q: &str, metric: &str| format!("histogram_quantile({q}, rate({metric}_bucket{{{job}}}[{w}]))");
    let rule = |record, expr| Rule { record, expr };
    vec![
        rule(
            "instance_transport:clad_appended_records:rate5m",
            format!("rate(clad_appended_records_total{{{job}}}[{w}])"),
        ),
        rule("instance:clad_appended_bytes:rate5m", format!("rate(clad_appended_bytes_total{{{job}}}[{w}])")),
        rule("instance_level:clad_acked_records:rate5m", format!("rate(clad_acked_records_total{{{job}}}[{w}])")),
        rule(
            "instance_reason:clad_rejected_records:rate5m",
            format!("rate(clad_rejected_records_total{{{job}}}[{w}])"),
        ),
        rule("instance_reason:clad_dropped_records:rate5m", format!("rate(clad_dropped_records_total{{{job}}}[{w}])")),
        rule("instance_level:clad_append_duration_seconds:p50_5m", quantile("0.5", "clad_append_duration_seconds")),
        rule("instance_level:clad_append_duration_seconds:p99_5m", quantile("0.99", "clad_append_duration_seconds")),
        rule("instance:clad_sync_duration_seconds:p50_5m", quantile("0.5", "clad_sync_duration_seconds")),
        rule("instance:clad_sync_duration_seconds:p99_5m", quantile("0.99", "clad_sync_duration_seconds")),
        rule(
            "instance:clad_undurable_records",
            format!(
                "clad_offset{{{job}, watermark=\"received\"}}\n  - ignoring (watermark)\n\
                 clad_offset{{{job}, watermark=\"durable\"}}"
            ),
        ),
        rule(
            "instance:clad_disk_free:ratio",
            format!("clad_disk_free_bytes{{{job}}}\n  /\nclad_disk_size_bytes{{{job}}}"),
        ),
    ]
}
