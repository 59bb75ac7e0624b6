//! Places of connections, over all listeners and transports.
//!
//! What must hold:
//! - **A place that is free is whoever's comes first**: where everything comes from one user, he has all of them.
//! - **With none free, nobody who has less than another is turned away**: the owner (a uid; the network as a whole) that has
//!   most gives one up, the one that has been silent for longest, unless the newcomer's would then have more than he. So
//!   parts become equal, and nobody is moved to and fro.
//! - Who gives his place up is answered what he is owed first, and told; until he is gone his descriptor counts among
//!   [`LEAVING`], and with as many of them nobody else makes room.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Instant;

use clad_proto::{ErrorCode, ErrorInfo};

use super::parts::Owner;
use crate::metrics::{self, Label};

/// Connections that have given their place up and are not gone yet. They are among the daemon's own descriptors.
pub(crate) const LEAVING: usize = 32;

/// How many connections there are, over all listeners, and how many there may be.
pub(crate) struct Listeners {
    seats: Mutex<Seats>,
    max: AtomicUsize,
    by_transport: [AtomicU64; metrics::Transport::ALL.len()],
}

#[derive(Default)]
struct Seats {
    last: u64,
    taken: HashMap<u64, Arc<Seat>>,
    /// How many each has that are not leaving.
    owners: HashMap<Owner, usize>,
    leaving: usize,
}

/// A connection's place among them, given back when it is dropped.
pub(crate) struct Place {
    listeners: Arc<Listeners>,
    transport: metrics::Transport,
    key: u64,
    seat: Arc<Seat>,
}

/// What others know of a connection.
pub(crate) struct Seat {
    owner: Owner,
    began: Instant,
    /// When something came, in nanoseconds since then.
    active: AtomicU64,
    /// It is in use though nothing comes by it.
    in_use: AtomicBool,
    leaving: AtomicBool,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("owner", &self.owner).field("leaving", &self.leaving).finish_non_exhaustive()
    }
}

impl Seat {
    fn new(owner: Owner) -> Self {
        let (active, in_use, leaving) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Self { owner, began: Instant::now(), active, in_use, leaving, wake: OnceLock::new() }
    }

    /// Something has come.
    pub(crate) fn active(&self, now: Instant) {
        self.active.store(now.duration_since(self.began).as_nanos() as u64, Ordering::Relaxed);
    }

    /// It is the control of a ring: others make room before it.
    pub(crate) fn in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// Whether it is to make room.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Waits until it is to make room, for a task that is woken then.
    pub(crate) async fn leaves(&self) {
        std::future::poll_fn(|_| if self.is_leaving() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// How it is told to look.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// When it was in use last, as far as others matter.
    fn since(&self) -> (bool, Instant) {
        let active = std::time::Duration::from_nanos(self.active.load(Ordering::Relaxed));
        (self.in_use.load(Ordering::Relaxed), self.began + active)
    }
}

/// Why a connection ends that makes room.
pub(crate) fn makes_room() -> ErrorInfo {
    let text = "as many connections as [limits] max_connections allows are open, most of them of this user (or of the \
                network), and others want a place: the one that was silent for longest makes room";
    ErrorInfo::new(ErrorCode::TooManyConnections, text).retry_after_ms(1000)
}

impl Seats {
    fn staying(&self) -> usize {
        self.taken.len() - self.leaving
    }

    /// Has somebody leave who can, for a newcomer of this owner.
    fn make_room(&mut self, newcomer: Owner) -> bool {
        let mine = self.owners.get(&newcomer).copied().unwrap_or_default();
        let Some((greediest, most)) = self.owners.iter().max_by_key(|(_, open)| **open).map(|(o, n)| (*o, *n)) else {
            return false;
        };
        if self.leaving >= LEAVING || most <= mine + 1 {
            return false;
        }
        let may = |seat: &&Arc<Seat>| seat.owner == greediest && !seat.is_leaving() && seat.wake.get().is_some();
        let Some(seat) = self.taken.values().filter(may).min_by_key(|seat| seat.since()).cloned() else { return false };
        seat.leaving.store(true, Ordering::Relaxed);
        self.leaving += 1;
        self.let_go(greediest);
        if let Some(wake) = seat.wake.get() {
            wake();
        }
        true
    }

    fn let_go(&mut self, owner: Owner) {
        if let Some(open) = self.owners.get_mut(&owner) {
            *open -= 1;
            if *open == 0 {
                self.owners.remove(&owner);
            }
        }
    }
}

impl Listeners {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { seats: Mutex::default(), max: AtomicUsize::new(max), by_transport: Default::default() })
    }

    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> usize {
        self.seats().taken.len()
    }

    /// How many there are on one transport.
    pub(crate) fn open_on(&self, transport: metrics::Transport) -> usize {
        self.by_transport[transport.index()].load(Ordering::Relaxed) as usize
    }

    /// How many there are on each transport.
    pub(crate) fn by_transport(&self) -> HashMap<String, u64> {
        let open = |transport: &metrics::Transport| self.by_transport[transport.index()].load(Ordering::Relaxed);
        metrics::Transport::ALL.iter().map(|transport| (transport.as_str().to_owned(), open(transport))).collect()
    }

    /// A place for one more connection, while there is one, or somebody makes room.
    pub(crate) fn place(self: &Arc<Self>, owner: Owner, transport: metrics::Transport) -> Option<Place> {
        let mut seats = self.seats();
        if seats.staying() >= self.max.load(Ordering::Relaxed) && !seats.make_room(owner) {
            return None;
        }
        seats.last += 1;
        let (key, seat) = (seats.last, Arc::new(Seat::new(owner)));
        seats.taken.insert(key, seat.clone());
        *seats.owners.entry(owner).or_default() += 1;
        drop(seats);
        self.by_transport[transport.index()].fetch_add(1, Ordering::Relaxed);
        Some(Place { listeners: self.clone(), transport, key, seat })
    }
}

impl Place {
    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.listeners.by_transport[self.transport.index()].fetch_sub(1, Ordering::Relaxed);
        let mut seats = self.listeners.seats();
        seats.taken.remove(&self.key);
        match self.seat.is_leaving() {
            true => seats.leaving -= 1,
            false => seats.let_go(self.seat.owner),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ME: Owner = Owner::Uid(1000);

    fn place(listeners: &Arc<Listeners>, owner: Owner) -> Option<Place> {
        let place = listeners.place(owner, metrics::Transport::Unix)?;
        place.seat.wake_by(|| ());
        Some(place)
    }

    fn leaving(places: &[Place]) -> Vec<usize> {
        (0..places.len()).filter(|at| places[*at].seat.is_leaving()).collect()
    }

    #[test]
    fn one_user_has_all_places_while_nobody_else_wants_one() {
        let listeners = Listeners::new(10);
        let mut mine: Vec<_> = (0..10).map(|_| place(&listeners, ME).expect("a free place")).collect();
        assert!(place(&listeners, ME).is_none() && leaving(&mine).is_empty());
        mine.pop();
        assert!(place(&listeners, ME).is_some());
    }

    #[test]
    fn who_has_less_takes_from_who_has_most_until_they_are_equal() {
        let listeners = Listeners::new(10);
        let mut mine: Vec<_> = (0..10).map(|_| place(&listeners, ME).unwrap()).collect();
        let mut others = Vec::new();
        for _ in 0..5 {
            others.push(place(&listeners, Owner::Network).expect("somebody makes room"));
        }
        assert_eq!(leaving(&mine).len(), 5);
        assert!(place(&listeners, Owner::Network).is_none(), "then they have as many");
        assert!(place(&listeners, ME).is_none(), "and none goes back and forth");
        let third = place(&listeners, Owner::Uid(7)).expect("who has none gets one");
        mine.retain(|place| !place.seat.is_leaving());
        others.retain(|place| !place.seat.is_leaving());
        assert_eq!(mine.len() + others.len(), 9);
        drop((mine, others, third));
        assert!(listeners.open() == 0 && listeners.seats().owners.is_empty() && listeners.seats().leaving == 0);
    }

    #[test]
    fn the_idlest_makes_room_and_who_holds_a_ring_comes_last() {
        let listeners = Listeners::new(4);
        let mine: Vec<_> = (0..4).map(|_| place(&listeners, ME).unwrap()).collect();
        let now = Instant::now();
        for (at, after) in [(0, 50), (1, 10), (2, 40), (3, 30)] {
            mine[at].seat.active(now + Duration::from_millis(after));
        }
        mine[1].seat.in_use();
        let _other = place(&listeners, Owner::Uid(7)).unwrap();
        assert_eq!(leaving(&mine), [3]);
        let _another = place(&listeners, Owner::Uid(8)).unwrap();
        assert_eq!(leaving(&mine), [2, 3]);
    }

    #[test]
    fn who_would_have_more_than_he_takes_from_gets_none() {
        let listeners = Listeners::new(3);
        let mine = [place(&listeners, ME).unwrap(), place(&listeners, ME).unwrap()];
        let _theirs = place(&listeners, Owner::Network).unwrap();
        assert!(
            place(&listeners, Owner::Network).is_none() && leaving(&mine).is_empty(),
            "they would only change places"
        );
        listeners.set_max(4);
        assert!(place(&listeners, Owner::Network).is_some(), "a free one");
    }

    /// Who is to leave has no place any more, though he is not gone yet.
    #[test]
    fn a_place_is_free_as_soon_as_it_was_given_up() {
        let listeners = Listeners::new(4);
        let mut mine: Vec<_> = (0..4).map(|_| place(&listeners, ME).unwrap()).collect();
        let _other = place(&listeners, Owner::Network).unwrap();
        let stays = mine.iter().position(|place| !place.seat.is_leaving()).unwrap();
        drop(mine.remove(stays));
        assert_eq!(listeners.open(), 4);
        assert!(place(&listeners, ME).is_some());
    }

    #[test]
    fn silence_is_told_apart_by_the_shortest_times() {
        let listeners = Listeners::new(2);
        let mine = [place(&listeners, ME).unwrap(), place(&listeners, ME).unwrap()];
        let later = Instant::now().max(mine[0].seat.began).max(mine[1].seat.began) + Duration::from_millis(7);
        mine[0].seat.active(later + Duration::from_nanos(2));
        mine[1].seat.active(later + Duration::from_nanos(1));
        let _other = place(&listeners, Owner::Network).unwrap();
        assert_eq!(leaving(&mine), [1]);
    }

    /// One that was just accepted, and whose task does not run yet: it could not hear that it is to make room.
    #[test]
    fn who_cannot_hear_of_it_makes_no_room() {
        let listeners = Listeners::new(2);
        let deaf = || listeners.place(ME, metrics::Transport::Tcp).unwrap();
        let mine = [deaf(), deaf()];
        assert!(place(&listeners, Owner::Network).is_none() && leaving(&mine).is_empty());
        let heard = Arc::new(AtomicUsize::new(0));
        let hears = heard.clone();
        mine[1].seat.wake_by(move || _ = hears.fetch_add(1, Ordering::Relaxed));
        assert!(place(&listeners, Owner::Network).is_some());
        assert_eq!((leaving(&mine), heard.load(Ordering::Relaxed)), (vec![1], 1));
    }

    #[test]
    fn connections_are_counted_by_their_transport() {
        let listeners = Listeners::new(4);
        let open = || metrics::Transport::ALL.iter().map(|transport| listeners.open_on(*transport)).collect::<Vec<_>>();
        let none = open();
        let unix = place(&listeners, ME).unwrap();
        let grpc = listeners.place(Owner::Network, metrics::Transport::Grpc).unwrap();
        assert_eq!(listeners.open_on(metrics::Transport::Unix), 1);
        assert_eq!(listeners.by_transport()[metrics::Transport::Grpc.as_str()], 1);
        assert_eq!(open().iter().sum::<usize>(), 2);
        drop((unix, grpc));
        assert_eq!(open(), none);
    }

    #[test]
    fn so_many_at_a_time_are_leaving() {
        let listeners = Listeners::new(4 * LEAVING);
        let mut mine: Vec<_> = (0..4 * LEAVING).map(|_| place(&listeners, ME).unwrap()).collect();
        let others: Vec<_> = (0..LEAVING).map(|_| place(&listeners, Owner::Network).unwrap()).collect();
        assert!(place(&listeners, Owner::Network).is_none(), "they are not gone yet");
        assert_eq!(listeners.open(), 5 * LEAVING);
        mine.remove(leaving(&mine)[0]);
        assert!(place(&listeners, Owner::Network).is_some());
        drop(others);
    }

    #[test]
    fn a_lower_limit_sends_nobody_away_by_itself() {
        let listeners = Listeners::new(4);
        let mine: Vec<_> = (0..4).map(|_| place(&listeners, ME).unwrap()).collect();
        listeners.set_max(2);
        assert!(place(&listeners, ME).is_none() && leaving(&mine).is_empty());
        assert!(place(&listeners, Owner::Network).is_some(), "one for one");
        assert_eq!(leaving(&mine).len(), 1);
    }
}
