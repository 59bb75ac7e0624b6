//! Bar charts.

use std::fmt::Write;

/// Room for the names, for the bars, and for the figures behind them.
const NAMES: f64 = 310.0;
const BARS: f64 = 380.0;
const FIGURES: f64 = 130.0;
const BAR: f64 = 16.0;
const GAP: f64 = 6.0;
const TITLE: f64 = 34.0;

/// One bar.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    /// The least and the greatest.
    pub(super) from: f64,
    pub(super) to: f64,
    /// Ours.
    pub(super) ours: bool,
}

/// A chart with a title, its bars from above to below.
pub(super) fn chart(title: &str, unit: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.to.max(bar.value)).fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| NAMES + value / most * BARS;
    let height = TITLE + bars.len() as f64 * (BAR + GAP) + GAP;
    let width = NAMES + BARS + FIGURES;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"8\" y=\"21\" \
         font-size=\"14\" fill=\"#111111\">{} ({})</text>\n",
        escaped(title),
        escaped(unit)
    );
    for (number, bar) in bars.iter().enumerate() {
        let y = TITLE + number as f64 * (BAR + GAP);
        let (middle, text) = (y + BAR / 2.0, y + BAR - 4.0);
        let fill = if bar.ours { "#1f6feb" } else { "#9aa4b1" };
        let end = x(bar.value);
        // Into a String: it cannot fail.
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\" fill=\"#111111\">{}</text>\n\
             <rect x=\"{NAMES:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR:.1}\" fill=\"{fill}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" stroke=\"#111111\"/>\n\
             <text x=\"{:.1}\" y=\"{text:.1}\" fill=\"#111111\">{}</text>\n",
            NAMES - 6.0,
            escaped(&bar.name),
            end - NAMES,
            x(bar.from),
            x(bar.to),
            x(bar.to.max(bar.value)) + 6.0,
            super::table::count(bar.value)
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_as_long_as_there_is_room() {
        let bar = |name: &str, value: f64| Bar { name: name.to_owned(), value, from: value, to: value, ours: false };
        let svg = chart("a < b", "1/s", &[bar("one & two", 50.0), bar("three", 100.0)]);
        assert!(svg.contains("a &lt; b (1/s)") && svg.contains("one &amp; two"), "{svg}");
        assert!(svg.contains("width=\"380.0\"") && svg.contains("width=\"190.0\""), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(chart("none", "1/s", &[]).ends_with("</svg>\n"));
    }
}
