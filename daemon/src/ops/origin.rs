//! Origin of the configuration in use, for status requests. A reload that is taken changes it.

use std::sync::{Arc, PoisonError, RwLock};

use crate::config::Loaded;

/// Clones share one.
#[derive(Clone, Debug)]
pub(crate) struct Origin(Arc<RwLock<OriginSnapshot>>);

/// As it is reported.
#[derive(Clone, Debug)]
pub(crate) struct OriginSnapshot {
    /// Files that were read, the weakest first.
    pub(crate) files: Vec<String>,
    /// Overrides that the environment and the command line set over them.
    pub(crate) overrides: Vec<String>,
}

impl Origin {
    pub(crate) fn of(loaded: &Loaded) -> Self {
        Self(Arc::new(RwLock::new(OriginSnapshot::of(loaded))))
    }

    pub(crate) fn set(&self, loaded: &Loaded) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = OriginSnapshot::of(loaded);
    }

    pub(crate) fn snapshot(&self) -> OriginSnapshot {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl OriginSnapshot {
    fn of(loaded: &Loaded) -> Self {
        let files = loaded.files.iter().map(|path| path.display().to_string()).collect();
        Self { files, overrides: loaded.provenance.overrides() }
    }
}
