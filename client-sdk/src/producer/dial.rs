//! Greeting the daemon as this producer.

use super::options::Options;
use clad_proto::{
    frame::{Hello, Intent},
    limits::{MAX_VERSION, MIN_VERSION},
};

/// The greeting: the same each time, so that the daemon knows us again.
pub(super) fn greeting(options: &Options) -> Hello {
    Hello {
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        producer_id: options.producer_id,
        producer_epoch: options.producer_epoch,
        intent: Intent { append: true, read: false },
        name: options.name.clone(),
        secret: options.secret.clone(),
        forward: None,
    }
}
