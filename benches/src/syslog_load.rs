//! A sender of syslog or RELP that sends as fast as it is let, for clad or any other receiver. Of RELP each message's time to its
//! answer is taken, from all of them.
//!
//! What must hold: all messages were sent, and over RELP all were answered with 200; else there are no figures.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::stats::{Latency, histogram, record};

/// Bytes that are written at once.
const WRITE_BYTES: usize = 64 << 10;
const HEAD: &[u8] = b"<13>Nov 27 10:00:00 host app[1]: ";

/// What to send.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `udp://`, `tcp://`, `relp://` or `unix-dgram://` and an address.
    pub to: String,
    /// Messages.
    pub messages: u64,
    /// Bytes of each.
    pub size: usize,
    /// Messages of RELP that wait for an answer, at most.
    pub window: usize,
    /// Datagrams a second, at most.
    pub rate: Option<f64>,
}

/// Figures of a run.
#[derive(Debug, Serialize)]
pub struct Sent {
    /// Messages.
    pub messages: u64,
    /// Messages a second, to the last answer where there are any.
    pub rate: f64,
    /// To the answer, in microseconds; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<Latency>,
}

impl Plan {
    /// Sends them.
    ///
    /// # Errors
    /// The receiver is not there, closes, or answers otherwise.
    pub fn run(&self) -> Result<Sent> {
        ensure!(self.size >= HEAD.len(), "a message has at least {} bytes", HEAD.len());
        let (protocol, address) = self.to.split_once("://").context("PROTOCOL://ADDRESS")?;
        let mut message = HEAD.to_vec();
        message.resize(self.size, b'x');
        let began = Instant::now();
        let answered = match protocol {
            "tcp" => self.lines(&message, address).map(|()| None)?,
            "relp" => Some(self.relp(&message, address)?),
            "udp" => {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.connect(address)?;
                self.datagrams(|| socket.send(&message)).map(|()| None)?
            }
            "unix-dgram" => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(address)?;
                self.datagrams(|| socket.send(&message)).map(|()| None)?
            }
            other => bail!("{other} is no protocol: udp, tcp, relp or unix-dgram"),
        };
        Ok(Sent { messages: self.messages, rate: self.messages as f64 / began.elapsed().as_secs_f64(), answered })
    }

    fn lines(&self, message: &[u8], address: &str) -> Result<()> {
        let mut stream = TcpStream::connect(address)?;
        let line = [message, b"\n"].concat();
        let together = (WRITE_BYTES / line.len()).max(1);
        let lines = line.repeat(together);
        let mut left = self.messages;
        while left > 0 {
            let now = left.min(together as u64);
            stream.write_all(&lines[..now as usize * line.len()])?;
            left -= now;
        }
        Ok(())
    }

    fn datagrams(&self, send: impl Fn() -> std::io::Result<usize>) -> Result<()> {
        let began = Instant::now();
        for number in 0..self.messages {
            send()?;
            if let Some(rate) = self.rate
                && number % 100 == 0
            {
                let due = Duration::from_secs_f64(number as f64 / rate);
                while began.elapsed() < due {
                    std::hint::spin_loop();
                }
            }
        }
        Ok(())
    }

    fn relp(&self, message: &[u8], address: &str) -> Result<Latency> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let offers = "relp_version=0\nrelp_software=bench\ncommands=syslog";
        writeln!(stream, "1 open {} {offers}", offers.len())?;
        let mut unread = Vec::new();
        while next(&mut unread)?.is_none() {
            fill(&mut stream, &mut unread)?;
        }
        let (mut took, mut waiting, mut sent, mut batch) = (histogram(), VecDeque::new(), 0, Vec::new());
        let mut answers = 0;
        while answers < self.messages {
            let now = Instant::now();
            while sent < self.messages && waiting.len() < self.window && batch.len() < WRITE_BYTES {
                write!(batch, "{} syslog {} ", sent + 2, message.len())?;
                batch.extend_from_slice(message);
                batch.push(b'\n');
                waiting.push_back(now);
                sent += 1;
            }
            stream.write_all(&batch)?;
            batch.clear();
            fill(&mut stream, &mut unread)?;
            while let Some(number) = next(&mut unread)? {
                ensure!(number == answers + 2, "the answer of {number} comes where that of {} was due", answers + 2);
                record(&mut took, waiting.pop_front().context("an answer that nobody waits for")?.elapsed());
                answers += 1;
            }
        }
        Ok(Latency::of(&took))
    }
}

fn fill(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Result<()> {
    let mut piece = [0; WRITE_BYTES];
    match stream.read(&mut piece)? {
        0 => bail!("the receiver has closed"),
        read => unread.extend_from_slice(&piece[..read]),
    }
    Ok(())
}

/// The transaction of the next whole answer, which must be a 200.
fn next(unread: &mut Vec<u8>) -> Result<Option<u64>> {
    // Longer than any header; the data of an answer may hold blanks and lines.
    let head = String::from_utf8_lossy(&unread[..unread.len().min(64)]).into_owned();
    let mut words = head.splitn(4, [' ', '\n']);
    let (Some(number), Some(command), Some(length), Some(rest)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    let (length, start): (usize, usize) = (length.parse()?, number.len() + command.len() + length.len() + 3);
    if unread.len() < start + length + 1 {
        return Ok(None);
    }
    ensure!(command == "rsp" && rest.starts_with("200"), "not an answer of success: {head}");
    let number = number.parse()?;
    unread.drain(..start + length + 1);
    Ok(Some(number))
}
