//! Time for which nothing is taken: of one ring, or of all.

use std::time::Instant;

use clad_proto::ErrorInfo;

/// Time until which nothing is taken.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) until: Instant,
    pub(super) why: ErrorInfo,
}
