//! The threads that sleep until there is a job, and until when.

/// Sleeping threads, and their wake-up times.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) sleepers: usize,
    /// The earliest moment at which a sleeper wakes by itself.
    pub(crate) armed_ns: Option<u64>,
    /// The ring's thread has nothing to do.
    pub(crate) ring_rests: bool,
    /// Time at which it looks by itself.
    pub(crate) ring_armed_ns: Option<u64>,
}

impl Watch {
    #[cfg(feature = "models")]
    pub(crate) fn alarm(&self) -> Option<u64> {
        let thread = self.armed_ns.filter(|_| self.sleepers > 0);
        let ring = self.ring_armed_ns.filter(|_| self.ring_rests);
        [thread, ring].into_iter().flatten().min()
    }
}
