//! Parts that are the same at each event of a callsite: encoded once.

use clad_client::{EncodedPairs, KvWriter};
use tracing::{Level, Metadata};

/// Crates whose events never go to the log: they are about the way there.
const OWN_TARGETS: [&str; 4] = ["clad_client", "clad_proto", "clad_shm", "clad_tracing"];

/// True if a target is of the client itself.
pub(crate) fn is_own(target: &str) -> bool {
    let root = target.split("::").next().unwrap_or(target);
    OWN_TARGETS.contains(&root)
}

/// Metadata of a callsite, as records have it.
#[derive(Debug, Default)]
pub(crate) struct Site {
    /// Its events are not logged.
    pub(crate) is_own: bool,
    pub(crate) severity: i32,
    pub(crate) severity_text: &'static str,
    /// Nothing where it is the callsite's place again.
    pub(crate) event_name: &'static str,
    pub(crate) pairs: EncodedPairs,
}

impl Site {
    pub(crate) fn new(metadata: &'static Metadata<'static>) -> Self {
        let (severity, severity_text) = severity(*metadata.level());
        let place = Place {
            target: metadata.target(),
            module: metadata.module_path(),
            file: metadata.file(),
            line: metadata.line(),
        };
        Self {
            is_own: is_own(metadata.target()),
            severity,
            severity_text,
            event_name: Some(metadata.name()).filter(|name| !name.starts_with("event ")).unwrap_or_default(),
            // They are all simple values.
            pairs: EncodedPairs::new(|pairs| place.write(pairs)).unwrap_or_default(),
        }
    }
}

/// Where something was logged.
pub(crate) struct Place<'a> {
    pub(crate) target: &'a str,
    pub(crate) module: Option<&'a str>,
    pub(crate) file: Option<&'a str>,
    pub(crate) line: Option<u32>,
}

impl Place<'_> {
    pub(crate) fn write(&self, pairs: &mut KvWriter<'_>) {
        pairs.entry("log.target").text(self.target);
        if let Some(module) = self.module {
            pairs.entry("code.namespace").text(module);
        }
        if let Some(file) = self.file {
            pairs.entry("code.file.path").text(file);
        }
        if let Some(line) = self.line {
            pairs.entry("code.line.number").int(line.into());
        }
    }
}

/// The number and the name of a level.
pub(crate) const fn severity(level: Level) -> (i32, &'static str) {
    match level {
        Level::TRACE => (1, "TRACE"),
        Level::DEBUG => (5, "DEBUG"),
        Level::INFO => (9, "INFO"),
        Level::WARN => (13, "WARN"),
        Level::ERROR => (17, "ERROR"),
    }
}
