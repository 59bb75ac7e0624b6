//! The daemon under a service manager: what it is told and tells, the sockets that are held for it, and a configuration
//! that changes while it runs.

mod live;
mod manager;
mod slow_flush;
