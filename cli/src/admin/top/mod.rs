//! `clactl top`: the status of a daemon, again and again.
//!
//! Invariants: however it ends (a key, a signal, an error, a panic) the terminal is as it was; a daemon that is slow
//! to answer, or gone, holds up no key, is said to be, and is asked again; where stdout is no terminal it writes one
//! screen for each look, as `top -b` does.
//!
//! The files: `draw` what is on the screen.

mod draw;

use std::time::Duration;

use clad_client::Address;
use clad_proto::grpc::v1;
use clap::Args;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use self::draw::{Look, Screen};
use super::connect::status_of;
use super::status::screen;
use crate::clock;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};

/// Keys that wait to be looked at.
const KEY_QUEUE_MAX: usize = 16;

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds from one look to the next
    #[arg(short, long, value_name = "S", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after so many looks [default: never]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    looks: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is wanted".to_owned())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("from 0.1 to 3600 seconds".to_owned()),
    }
}

/// `clactl top`.
pub(crate) fn run(context: &mut Context, args: &TopArgs) -> Outcome {
    let at = context.which.admin(&context.around)?;
    // One that is not there from the beginning is a wrong call, not something to wait for.
    let first = context.block_on(look(&at)).map_err(|why| Stop::Failed(anyhow::anyhow!(why)))?;
    if context.output.is_terminal() { on_screen(context, args, at, first) } else { in_pages(context, args, &at, first) }
}

/// Connects again for each look: a daemon that was started again is another one.
async fn look(at: &Address) -> Look {
    status_of(at).await.map(Box::new).map_err(|stop| stop.to_string())
}

fn in_pages(context: &mut Context, args: &TopArgs, at: &Address, first: Box<v1::StatusResponse>) -> Outcome {
    let mut status = first;
    let mut left = args.looks.unwrap_or(u64::MAX);
    loop {
        let page = screen::still(&status, clock::unix_nanos(), usize::MAX);
        context.output.write(format!("{page}\n").as_bytes())?;
        context.output.flush()?;
        left -= 1;
        if left == 0 {
            return Ok(Exit::Done);
        }
        let next = context.block_on(async {
            tokio::time::sleep(args.interval).await;
            look(at).await
        });
        status = next.map_err(|why| Stop::Failed(anyhow::anyhow!(why)))?;
    }
}

/// The terminal in its other state; dropped, it is as it was. (A panic puts it back as well, by ratatui's hook.)
struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    fn take() -> Result<Self, Stop> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore());
        Ok(Self(terminal.map_err(|error| anyhow::Error::new(error).context("the terminal"))?))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Signals that end it.
struct Signals([Signal; 3]);

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?]))
    }

    async fn any(&mut self) {
        let [term, int, hup] = &mut self.0;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
            _ = hup.recv() => {}
        }
    }
}

fn on_screen(context: &Context, args: &TopArgs, at: Address, first: Box<v1::StatusResponse>) -> Outcome {
    context.block_on(async {
        let wrong = |error: std::io::Error| Stop::Failed(anyhow::Error::new(error).context("the terminal"));
        let mut signals = Signals::catch().map_err(wrong)?;
        let mut screen = Screen::new(args.interval);
        screen.look(Ok(first));
        let mut terminal = Terminal::take()?;
        let mut keys = keys();
        let (sender, mut looks) = mpsc::channel(1);
        let interval = args.interval;
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                if sender.send(look(&at).await).await.is_err() {
                    return;
                }
            }
        });
        let mut left = args.looks.unwrap_or(u64::MAX);
        loop {
            let now = clock::unix_nanos();
            terminal.0.draw(|frame| screen.draw(frame, now)).map_err(wrong)?;
            tokio::select! {
                () = signals.any() => return Ok(Exit::Done),
                event = keys.recv() => if event.is_none_or(|event| ends(&event)) { return Ok(Exit::Done) },
                Some(look) = looks.recv() => {
                    left -= 1;
                    if left == 0 {
                        return Ok(Exit::Done);
                    }
                    screen.look(look);
                }
            }
        }
    })
}

/// Events of the terminal: what is typed, and that the terminal has another size: both want the screen drawn again.
fn keys() -> mpsc::Receiver<Event> {
    let (sender, keys) = mpsc::channel(KEY_QUEUE_MAX);
    // It waits in the kernel for as long as nobody types, and so ends with the process, not before.
    std::thread::spawn(move || {
        while let Ok(event) = read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    keys
}

/// `q`, Escape, and what would be SIGINT if the terminal made signals of keys now.
fn ends(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return false };
    match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c' | 'd') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_end_it() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(ends(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(ends(&key(KeyCode::Esc, KeyModifiers::NONE)));
        assert!(ends(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!ends(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!ends(&Event::Resize(80, 24)));
    }

    #[test]
    fn intervals() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "1e9", "NaN"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
