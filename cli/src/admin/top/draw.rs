//! The screen of `top`: a head, records in over time, the numbers, and what is wrong.
//!
//! Invariants: what is wrong is never cut off before the numbers are; numbers are of the time between the last two
//! looks; after a look that failed the last numbers stay, and it is said that they are old.

use std::collections::VecDeque;
use std::time::Duration;

use clad_proto::grpc::v1;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline};

use crate::admin::status::{Sample, Weight, lately, screen, words};
use crate::format::human::{count, duration};
use crate::output::table::wrapped;

/// Looks that are remembered: as many as the widest screen has columns.
const SAMPLES_MAX: usize = 512;
/// Lines of the curve, with its frame.
const CURVE_LINES: u16 = 5;

/// One look: the status, or why there is none.
pub(super) type Look = Result<Box<v1::StatusResponse>, String>;

/// Everything that was seen so far.
pub(super) struct Screen {
    interval: Duration,
    status: Option<Box<v1::StatusResponse>>,
    /// Of the time since the look before; of the daemon's own memory at the first.
    sample: Option<Sample>,
    /// Records a second at each look, the newest last.
    rates: VecDeque<u64>,
    /// Why the last look failed.
    trouble: Option<String>,
}

impl Screen {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, status: None, sample: None, rates: VecDeque::new(), trouble: None }
    }

    /// Takes what a look gave.
    pub(super) fn look(&mut self, look: Look) {
        match look {
            Err(why) => self.trouble = Some(why),
            Ok(status) => {
                let before = self.status.as_ref().and_then(|before| before.counters.as_ref());
                self.sample = match (before, status.counters.as_ref()) {
                    (Some(before), Some(now)) => Sample::between(Some(before), now),
                    _ => lately(&status),
                };
                if let Some(sample) = &self.sample {
                    if self.rates.len() == SAMPLES_MAX {
                        self.rates.pop_front();
                    }
                    let records = sample.counted.appended_records.values().sum();
                    self.rates.push_back(sample.rate(records).round() as u64);
                }
                (self.status, self.trouble) = (Some(status), None);
            }
        }
    }

    pub(super) fn draw(&self, frame: &mut Frame, now_ns: u64) {
        let Some(status) = &self.status else { return };
        let area = frame.area();
        let attention = self.attention(status, usize::from(area.width));
        let wanted = u16::try_from(attention.lines.len()).unwrap_or(u16::MAX).min(area.height.saturating_sub(2));
        let numbers = screen::live(status, self.sample.as_ref(), now_ns, usize::from(area.width));
        let lines = u16::try_from(numbers.lines().count()).unwrap_or(u16::MAX);
        // The curve goes first where there is no room for everything.
        let needed = u32::from(wanted) + u32::from(lines) + 2;
        let curve = if u32::from(area.height) >= needed + 3 { CURVE_LINES.min(area.height - needed as u16) } else { 0 };
        let [head, chart, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(curve),
            Constraint::Fill(1),
            Constraint::Length(wanted + 1),
        ])
        .areas(area);
        self.head(frame, head, status);
        self.curve(frame, chart);
        frame.render_widget(Paragraph::new(numbers), body);
        let block = Block::new().borders(Borders::TOP).title(" attention ");
        frame.render_widget(Paragraph::new(attention).block(block), foot);
    }

    fn head(&self, frame: &mut Frame, area: Rect, status: &v1::StatusResponse) {
        let well = status.ready && !status.failed && self.trouble.is_none();
        let style = Style::new().add_modifier(Modifier::REVERSED);
        let style = if well { style } else { style.fg(Color::Red) };
        let text = format!(" clad {}", screen::head(status));
        let help = format!("every {}, q quits ", duration(self.interval));
        let room = usize::from(area.width).saturating_sub(text.chars().count());
        let help = if room > help.chars().count() { format!("{help:>room$}") } else { " ".repeat(room) };
        frame.render_widget(Line::from(vec![Span::raw(text), Span::raw(help)]).style(style), area);
    }

    fn curve(&self, frame: &mut Frame, area: Rect) {
        if area.height < 3 {
            return;
        }
        let width = usize::from(area.width);
        let newest: Vec<u64> = self.rates.iter().rev().take(width).rev().copied().collect();
        let most = newest.iter().copied().max().unwrap_or(0);
        let block = Block::new().borders(Borders::TOP).title(format!(" records in, at most {}/s ", count(most)));
        frame.render_widget(Sparkline::default().block(block).data(&newest).style(Style::new().fg(Color::Cyan)), area);
    }

    fn attention(&self, status: &v1::StatusResponse, columns: usize) -> Text<'static> {
        let mut lines = Vec::new();
        let mut say = |text: &str, colour| {
            let style = Style::new().fg(colour);
            lines.extend(wrapped(text, columns).into_iter().map(|line| Line::styled(line, style)));
        };
        if let Some(why) = &self.trouble {
            say(&format!("{why}. The numbers are those of the last answer; it is asked again."), Color::Red);
        }
        for word in words(status, self.sample.as_ref()) {
            say(&word.text, if word.weight == Weight::Grave { Color::Red } else { Color::Yellow });
        }
        if lines.is_empty() {
            lines.push(Line::from("nothing"));
        }
        lines.into()
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::admin::status::tests::loaded;

    const NOW: u64 = 8_200_000_000_000;

    fn shown(screen: &Screen, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame, NOW)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| {
            let cells: String = (0..columns).map(|x| buffer[(x, y)].symbol()).collect();
            format!("{}\n", cells.trim_end())
        };
        (0..lines).map(line).collect()
    }

    fn screen(looks: Vec<Look>) -> Screen {
        let mut screen = Screen::new(Duration::from_secs(1));
        looks.into_iter().for_each(|look| screen.look(look));
        screen
    }

    /// As [`loaded`], a second and `more` records later.
    fn later(more: u64) -> Box<v1::StatusResponse> {
        let mut status = loaded();
        let counters = status.counters.as_mut().expect("counters");
        counters.uptime_us += 1_000_000;
        *counters.appended_records.get_mut("unix").expect("unix") += more;
        Box::new(status)
    }

    #[test]
    fn eighty_by_twenty_four() {
        let screen = screen(vec![Ok(Box::new(loaded())), Ok(later(500))]);
        let golden = "
 clad 0.0.1, pid 99, up 1 min 1 s, taking appends          every 1.0 s, q quits
 records in, at most 12,301/s ──────────────────────────────────────────────────
█
█
";
        let text = shown(&screen, 80, 24);
        assert!(format!("\n{text}").starts_with(golden), "{text}");
        // The numbers are those of the last second.
        assert!(text.contains(" records in  500/s, 0 B/s over 1.0 s\n"), "{text}");
        assert!(text.ends_with("nothing\n"), "{text}");
        assert!(text.contains("  in flight  39.1 KiB of at most 16.0 MiB\n"), "{text}");
    }

    #[test]
    fn what_is_wrong_is_the_last_to_be_cut() {
        let failed = v1::StatusResponse { failed: true, ready: false, failure: "EIO".into(), ..loaded() };
        let failed = screen(vec![Ok(Box::new(failed))]);
        for (columns, lines) in [(80, 24), (60, 14), (40, 10), (200, 60)] {
            let text = shown(&failed, columns, lines);
            assert!(text.contains("The journal has failed (EIO)"), "{columns} x {lines}:\n{text}");
            assert!(text.contains("for the cause."), "to its end, {columns} x {lines}:\n{text}");
        }
    }

    #[test]
    fn a_daemon_that_goes_away_is_said_and_comes_back() {
        let mut screen = screen(vec![Ok(Box::new(loaded())), Err("cannot reach x".into())]);
        let text = shown(&screen, 80, 30);
        assert!(text.contains("cannot reach x. The numbers are those of the last answer"), "{text}");
        assert!(text.contains("125,234 received"), "{text}");
        screen.look(Ok(later(0)));
        assert!(!shown(&screen, 80, 30).contains("cannot reach"));
    }

    #[test]
    fn any_size_is_drawn() {
        let screen = screen(vec![Ok(Box::new(loaded()))]);
        for size in [(1, 1), (3, 2), (10, 5), (80, 3), (500, 200)] {
            let _ = shown(&screen, size.0, size.1);
        }
    }

    #[test]
    fn history_is_bounded() {
        let mut screen = Screen::new(Duration::from_secs(1));
        let mut status = later(0);
        for _ in 0..2 * SAMPLES_MAX {
            status.counters.as_mut().expect("counters").uptime_us += 1_000_000;
            screen.look(Ok(status.clone()));
        }
        assert_eq!(screen.rates.len(), SAMPLES_MAX);
    }
}
