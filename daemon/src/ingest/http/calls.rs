//! Calls that the end of the daemon waits for, and for how long.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Time for a peer to take the last words of its calls.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The count; clones share it.
#[derive(Clone)]
pub(crate) struct Calls(Arc<watch::Sender<usize>>);

/// One call, for as long as this lives.
pub(crate) struct Call(Calls);

impl Default for Calls {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Calls {
    /// One more.
    pub(crate) fn begin(&self) -> Call {
        self.0.send_modify(|open| *open += 1);
        Call(self.clone())
    }

    /// Waits until there is none.
    pub(crate) async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open == 0).await;
    }
}

impl Call {
    /// True if no other call is under way.
    pub(crate) fn is_alone(&self) -> bool {
        *self.0.0.borrow() == 1
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}
