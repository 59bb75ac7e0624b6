//! Result of a start's recovery.

use std::sync::Arc;

use super::report::Report;
use crate::config::JournalConfig;
use crate::format::footer::Before;
use crate::io::File;
use crate::read::catalog::Sealed;
use crate::write::metafile::MetaFile;
use crate::write::origin::OriginTable;
use crate::write::producer::ProducerTable;
use crate::write::resend::ResendWindow;

/// A log that is ready to resume.
pub(crate) struct Recovered {
    pub(crate) meta: MetaFile,
    pub(crate) lock: Arc<dyn File>,
    pub(crate) producers: ProducerTable,
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) next_offset: u64,
    pub(crate) before: Option<Before>,
    pub(crate) report: Report,
}

/// An empty table of producers, with an empty resend window and no origins.
pub(crate) fn table(config: &JournalConfig) -> ProducerTable {
    let keep = i64::try_from(config.keep_producer.as_nanos()).unwrap_or(i64::MAX);
    let resends = ResendWindow::new(config.resend_entries, config.resend_keep, config.segment_bytes);
    let origins = OriginTable::new(config.max_origins, config.segment_bytes);
    ProducerTable::new(config.max_producers, config.window, keep).with(resends, origins)
}
