//! Progress on a terminal; nothing anywhere else.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Drawn this often while nothing moves, so that the elapsed time goes on.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// A line on stderr that says how far a command has come. It is gone when dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar over so many bytes.
    pub(crate) fn bytes(what: &str, total: u64) -> Self {
        Self::styled(what, Some(total), "{msg} [{wide_bar:.cyan/blue}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// A bar over so many records.
    pub(crate) fn records(what: &str, total: u64) -> Self {
        Self::styled(what, Some(total), "{msg} [{wide_bar:.cyan/blue}] {human_pos}/{human_len} {per_sec} {eta}")
    }

    /// A bar over so many steps.
    pub(crate) fn count(what: &str, total: u64) -> Self {
        Self::styled(what, Some(total), "[{bar:16.cyan/blue}] {pos}/{len} {msg}")
    }

    /// A line without an end in sight.
    pub(crate) fn line(what: &str) -> Self {
        let progress = Self::styled(what, None, "{spinner} {msg} [{elapsed}]");
        progress.0.enable_steady_tick(REDRAW_INTERVAL);
        progress
    }

    fn styled(what: &str, total: Option<u64>, template: &str) -> Self {
        // Draws on terminals only, by itself.
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        // The templates above are fixed; one that does not parse falls back to the plain style.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        Self(bar)
    }

    /// True if it is shown; else costly text need not be made.
    pub(crate) fn is_seen(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Sets how far it is, of how much.
    pub(crate) fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Says where it stands.
    pub(crate) fn say(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
