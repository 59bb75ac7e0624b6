//! Connections that one thread serves.
//!
//! Invariants: each keeps its appends in flight however slow the others are; one that breaks ends alone; a daemon
//! that says nothing on any of them for [`ANSWER_TIMEOUT`] ends all. The thread waits for something to read, and for room only
//! while there is none: who waits inside the call that receives is woken each time the daemon takes an append, too.

use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{anyhow, bail};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::connection::{Connection, End};
use super::wire::ANSWER_TIMEOUT;
use crate::clock;

/// A thread's connections.
struct Together {
    poll: OwnedFd,
    start: Instant,
    /// Those that have not come to their end.
    open: Vec<Option<Open>>,
    ends: Vec<End>,
}

struct Open {
    connection: Connection,
    waits_for_room: bool,
}

/// Serves them to their ends.
pub(super) fn run(connections: Vec<Connection>) -> anyhow::Result<Vec<End>> {
    let open = connections.into_iter().map(|connection| Some(Open { connection, waits_for_room: false })).collect();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut together = Together { poll, start: clock::now(), open, ends: Vec::new() };
    let silent = together.serve().err();
    let Together { start, open, mut ends, .. } = together;
    let why = silent.map_or_else(String::new, |error| format!("{error:#}"));
    ends.extend(open.into_iter().flatten().map(|left| left.connection.over(start, Some(anyhow!("{why}")))));
    Ok(ends)
}

impl Together {
    fn serve(&mut self) -> anyhow::Result<()> {
        for at in 0..self.open.len() {
            if let Some(Some(open)) = self.open.get(at) {
                epoll::add(&self.poll, &open.connection.wire, at_index(at), epoll::EventFlags::IN)?;
            }
            self.turn(at, epoll::EventFlags::empty());
        }
        let timeout = Timespec { tv_sec: ANSWER_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(self.open.len());
        while self.ends.len() < self.open.len() {
            events.clear();
            match epoll::wait(&self.poll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(0) => bail!("the daemon sent nothing for {ANSWER_TIMEOUT:?}"),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.turn(event.data.u64() as usize, event.flags);
            }
        }
        Ok(())
    }

    /// One connection's turn, with what the poll said of it.
    fn turn(&mut self, at: usize, flags: epoll::EventFlags) {
        let Some(place) = self.open.get_mut(at) else { return };
        let Some(mut open) = place.take() else { return };
        match open.turn(&self.poll, at, flags, self.start) {
            Ok(true) => *place = Some(open),
            ended => self.ends.push(open.connection.over(self.start, ended.err())),
        }
    }
}

impl Open {
    /// `false` when nothing is under way and nothing leaves any more.
    fn turn(&mut self, poll: &OwnedFd, at: usize, flags: epoll::EventFlags, start: Instant) -> anyhow::Result<bool> {
        // The end of the connection is read as well.
        if !flags.difference(epoll::EventFlags::OUT).is_empty() {
            self.connection.wire.receive()?;
            self.connection.answers(clock::now())?;
        }
        // The next appends leave now, not when the answers came.
        if !self.connection.leave(clock::now(), start) {
            return Ok(false);
        }
        let waits_for_room = !self.connection.wire.send_now()?;
        if waits_for_room != std::mem::replace(&mut self.waits_for_room, waits_for_room) {
            let room = if waits_for_room { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            epoll::modify(poll, &self.connection.wire, at_index(at), epoll::EventFlags::IN | room)?;
        }
        Ok(true)
    }
}

fn at_index(at: usize) -> epoll::EventData {
    epoll::EventData::new_u64(at as u64)
}
