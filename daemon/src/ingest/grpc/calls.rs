//! Number of calls that the end of the daemon waits for.

use std::sync::Arc;

use tokio::sync::watch;

/// The count; clones share it.
#[derive(Clone)]
pub(super) struct Calls(Arc<watch::Sender<usize>>);

/// One call, for as long as this lives.
pub(super) struct Call(Calls);

impl Default for Calls {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Calls {
    /// One more.
    pub(super) fn begin(&self) -> Call {
        self.0.send_modify(|open| *open += 1);
        Call(self.clone())
    }

    /// Waits until there is none.
    pub(super) async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open == 0).await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}
