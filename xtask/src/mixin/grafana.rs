//! A Grafana dashboard as a value, and how it is written: the schema of Grafana 10 and later.
//!
//! What must hold: panels flow from left to right in rows of 24 columns, and ids count up, so that a panel that is put
//! in between moves the others and no number is chosen by hand.

use serde_json::{Value, json};

/// The schema that Grafana 10.4 writes; later ones migrate it by themselves.
const SCHEMA: u32 = 39;
const COLUMNS: u32 = 24;
const INTERVAL: &str = "$__rate_interval";
/// Which series a query of a panel is about.
pub(super) const SELECT: &str = r#"job=~"$job", instance=~"$instance""#;

/// A dashboard.
pub(super) struct Dashboard {
    /// Its place in the URL: never changes.
    pub(super) uid: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) rows: Vec<Row>,
}

/// Panels under a heading.
pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) panels: Vec<Panel>,
}

/// What a panel looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Lines over time.
    Lines,
    /// Areas on top of each other.
    Stacked,
    /// One large number; above the thresholds it changes its colour.
    Number,
    /// As [`Look::Number`], where less is worse.
    Left,
    /// 1 is good, 0 is bad.
    Good,
    /// 0 is good, 1 is bad.
    Bad,
    /// Buckets over time.
    Heatmap,
}

/// A panel.
pub(super) struct Panel {
    look: Look,
    title: String,
    description: String,
    unit: &'static str,
    width: u32,
    targets: Vec<(String, String)>,
    thresholds: Vec<f64>,
}

impl Panel {
    /// A panel over a third of the width.
    pub(super) fn new(look: Look, title: impl Into<String>, unit: &'static str) -> Self {
        Self {
            look,
            title: title.into(),
            description: String::new(),
            unit,
            width: 8,
            targets: Vec::new(),
            thresholds: Vec::new(),
        }
    }

    /// What the reader should know.
    pub(super) fn about(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Columns of 24.
    pub(super) fn wide(mut self, columns: u32) -> Self {
        self.width = columns;
        self
    }

    /// Yellow from the first on, red from the second.
    pub(super) fn limits(mut self, thresholds: &[f64]) -> Self {
        self.thresholds = thresholds.to_vec();
        self
    }

    /// A query and what its series are called.
    pub(super) fn query(mut self, expr: impl Into<String>, legend: &str) -> Self {
        self.targets.push((expr.into(), legend.to_owned()));
        self
    }

    /// Quantiles of a histogram, over all instances that are chosen.
    pub(super) fn quantiles(self, metric: &str, more: &str) -> Self {
        [("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99")].into_iter().fold(self, |panel, (q, name)| {
            panel.query(format!("histogram_quantile({q}, {})", by("le", metric_rate(metric, "_bucket", more))), name)
        })
    }

    fn json(&self, id: u32, (x, y): (u32, u32)) -> Value {
        let (height, kind) = match self.look {
            Look::Lines | Look::Stacked => (8, "timeseries"),
            Look::Heatmap => (8, "heatmap"),
            Look::Number | Look::Left | Look::Good | Look::Bad => (4, "stat"),
        };
        let source = source();
        let target = |(at, (expr, legend)): (usize, &(String, String))| {
            json!({
                "refId": char::from(b'A' + u8::try_from(at).unwrap_or(25)).to_string(),
                "datasource": source,
                "editorMode": "code",
                "expr": expr,
                "format": if self.look == Look::Heatmap { "heatmap" } else { "time_series" },
                "legendFormat": legend,
                "range": true,
            })
        };
        json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": source,
            "gridPos": { "h": height, "w": self.width, "x": x, "y": y },
            "fieldConfig": { "defaults": self.field(), "overrides": [] },
            "options": self.options(),
            "targets": self.targets.iter().enumerate().map(target).collect::<Vec<_>>(),
        })
    }

    const fn height(&self) -> u32 {
        match self.look {
            Look::Lines | Look::Stacked | Look::Heatmap => 8,
            Look::Number | Look::Left | Look::Good | Look::Bad => 4,
        }
    }

    fn field(&self) -> Value {
        let mut field = json!({ "unit": self.unit, "min": 0 });
        match self.look {
            Look::Lines | Look::Stacked => {
                let stacked = self.look == Look::Stacked;
                field["color"] = json!({ "mode": "palette-classic" });
                field["custom"] = json!({
                    "drawStyle": "line",
                    "lineWidth": 1,
                    "fillOpacity": if stacked { 40 } else { 8 },
                    "showPoints": "never",
                    "spanNulls": false,
                    "stacking": { "group": "A", "mode": if stacked { "normal" } else { "none" } },
                });
            }
            Look::Heatmap => field["custom"] = json!({ "scaleDistribution": { "type": "linear" } }),
            _ => {
                field["color"] = json!({ "mode": "thresholds" });
                field["thresholds"] = json!({ "mode": "absolute", "steps": self.steps() });
            }
        }
        if matches!(self.look, Look::Good | Look::Bad) {
            let (zero, one) = if self.look == Look::Good { ("red", "green") } else { ("green", "red") };
            field["mappings"] = json!([{ "type": "value", "options": {
                "0": { "index": 0, "text": "no", "color": zero },
                "1": { "index": 1, "text": "yes", "color": one },
            } }]);
        }
        field
    }

    fn steps(&self) -> Value {
        let colours = match self.look {
            Look::Left => ["red", "yellow", "green"],
            _ => ["green", "yellow", "red"],
        };
        let first = json!({ "color": if self.thresholds.is_empty() { "text" } else { colours[0] }, "value": null });
        let rest =
            self.thresholds.iter().zip(&colours[1..]).map(|(value, colour)| json!({ "color": colour, "value": value }));
        std::iter::once(first).chain(rest).collect()
    }

    fn options(&self) -> Value {
        match self.look {
            Look::Lines | Look::Stacked => json!({
                "legend": { "calcs": ["mean", "max", "lastNotNull"], "displayMode": "table", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Look::Heatmap => json!({
                "calculate": false,
                "cellGap": 1,
                "color": { "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": false },
                "filterValues": { "le": 1e-9 },
                "legend": { "show": true },
                "rowsFrame": { "layout": "auto" },
                "tooltip": { "mode": "single", "showColorScale": true, "yHistogram": true },
                "yAxis": { "axisPlacement": "left", "reverse": false, "unit": self.unit },
            }),
            _ => json!({
                "colorMode": "value",
                "graphMode": "area",
                "justifyMode": "auto",
                "orientation": "auto",
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                "textMode": "auto",
            }),
        }
    }
}

/// `rate(metric…)` of what is chosen, with `more` in its selector.
pub(super) fn metric_rate(metric: &str, end: &str, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { ", " };
    format!("rate({metric}{end}{{{SELECT}{comma}{more}}}[{INTERVAL}])")
}

/// The sum by a label.
pub(super) fn by(label: &str, expr: impl AsRef<str>) -> String {
    format!("sum by ({label}) ({})", expr.as_ref())
}

/// The rate of a counter, by a label.
pub(super) fn rate_by(label: &str, metric: &str) -> String {
    by(label, metric_rate(metric, "", ""))
}

/// A gauge of what is chosen.
pub(super) fn gauge(metric: &str) -> String {
    format!("{metric}{{{SELECT}}}")
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn variable(name: &str, label: &str, query: &str) -> Value {
    json!({
        "name": name,
        "label": label,
        "type": "query",
        "datasource": source(),
        "definition": query,
        "query": { "query": query, "refId": "StandardVariableQuery" },
        "refresh": 2,
        "sort": 1,
        "multi": true,
        "includeAll": true,
        "allValue": ".+",
        "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
    })
}

impl Dashboard {
    fn panels(&self) -> Vec<Value> {
        let (mut panels, mut id, mut y) = (Vec::new(), 1, 0);
        for row in &self.rows {
            panels.push(json!({
                "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
                "gridPos": { "h": 1, "w": COLUMNS, "x": 0, "y": y },
            }));
            (id, y) = (id + 1, y + 1);
            let (mut x, mut height) = (0, 0);
            for panel in &row.panels {
                if x + panel.width > COLUMNS {
                    (x, y, height) = (0, y + height, 0);
                }
                panels.push(panel.json(id, (x, y)));
                (id, x, height) = (id + 1, x + panel.width, height.max(panel.height()));
            }
            y += height;
        }
        panels
    }

    /// As Grafana reads it.
    pub(super) fn json(&self) -> String {
        let dashboard = json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["clad", "logging"],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": { "from": "now-1h", "to": "now" },
            "timezone": "",
            "links": [{
                "type": "dashboards", "tags": ["clad"], "title": "clad", "asDropdown": false,
                "includeVars": true, "keepTime": true, "targetBlank": false,
            }],
            "annotations": { "list": [{
                "name": "Alerts",
                "datasource": source(),
                "enable": true,
                "expr": r#"ALERTS{alertname=~"Clad.+", alertstate="firing", instance=~"$instance"}"#,
                "iconColor": "red",
                "titleFormat": "{{alertname}}",
                "textFormat": "{{instance}}",
            }] },
            "templating": { "list": [
                { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
                  "multi": false, "includeAll": false, "refresh": 1, "current": {} },
                variable("job", "Job", "label_values(clad_build_info, job)"),
                variable("instance", "Instance", r#"label_values(clad_build_info{job=~"$job"}, instance)"#),
            ] },
            "panels": self.panels(),
        });
        let mut text = serde_json::to_string_pretty(&dashboard).unwrap_or_default();
        text.push('\n');
        text
    }
}
