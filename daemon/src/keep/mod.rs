//! Who keeps the descriptors of rings while no daemon runs.
//!
//! A record that is committed in a ring must outlive the daemon. The memory lives as long as somebody has its
//! descriptor, so somebody else than the daemon and the client must have one: under systemd its descriptor store
//! (`store`), elsewhere a small process that does nothing else (`holder`).
//!
//! What must hold: a ring is given to a client only once it is kept; it is let go only once it is drained to its end
//! and its client is gone; at a start every ring that is kept comes back, or is let go because it is broken.

mod holder;
mod note;
mod store;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

pub(crate) use holder::hold;
pub(crate) use note::Note;
pub(crate) use store::Stored;

use holder::Holder;
use store::Store;

/// Descriptors that make up a ring: the ring itself, and its doorbell. (A board is made anew by each daemon.)
pub(crate) const PARTS: usize = 2;
/// The socket of the holder, beside the socket for records.
pub(crate) const HOLDER_SOCKET: &str = "rings.sock";

/// A ring that was kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) note: Note,
    /// [`PARTS`] of them.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Who keeps them.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// systemd.
    Store(Store),
    /// A process of ours.
    Holder(Holder),
}

impl Keeper {
    /// The one for this process, and what it has kept for us. `folder` is that of the socket for records. Blocks, for a
    /// moment.
    pub(crate) fn find(folder: &Path, stored: Stored) -> (Self, Vec<Kept>) {
        match Store::of_process() {
            Some(store) => {
                let kept = store.sort(stored);
                (Self::Store(store), kept)
            }
            None => {
                let holder = Holder::at(folder.join(HOLDER_SOCKET));
                let kept = holder.all().unwrap_or_else(|e| {
                    tracing::error!(error = %e, "the rings that were kept could not be asked for");
                    Vec::new()
                });
                (Self::Holder(holder), kept)
            }
        }
    }

    /// What it is, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Store(_) => "systemd's descriptor store",
            Self::Holder(_) => "a holder process",
        }
    }

    /// Has a ring kept. Blocks, for at most [`holder::PATIENCE`].
    pub(crate) fn keep(&self, note: &Note, fds: [BorrowedFd<'_>; PARTS]) -> io::Result<()> {
        match self {
            Self::Store(store) => store.keep(note, fds),
            Self::Holder(holder) => holder.keep(note, fds),
        }
    }

    /// Lets a ring go. Does not wait.
    pub(crate) fn forget(&self, note: &Note) {
        let told = match self {
            Self::Store(store) => store.forget(note),
            Self::Holder(holder) => holder.forget(note),
        };
        if let Err(e) = told {
            tracing::warn!(ring = %note.id, error = %e, "a ring that was given back is still kept");
        }
    }
}
