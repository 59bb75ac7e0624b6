//! The daemon under a service manager: their notifications, the sockets that are held for it, a configuration
//! that changes while it runs, and what it says on a bad day.

mod alone;
mod live;
mod manager;
mod slow_flush;
mod words;
