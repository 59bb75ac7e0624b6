//! Count of the threads of a journal that have not ended.

/// The journal's threads.
#[derive(Default)]
pub(crate) struct LiveThreads {
    /// Number of threads that have not ended.
    pub(crate) present: usize,
    /// A deadline passed while some of them, or the ring, were in calls to the disk: nothing waits for them any more.
    pub(crate) left: bool,
}
