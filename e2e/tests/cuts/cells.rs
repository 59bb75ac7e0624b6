//! The cells of the matrix: policy × engine × file system × cache.
//!
//! A policy or an engine that is not in this version of clad is named as such by the daemon itself, and reported so; from
//! the version on that has it, its cells run by themselves. What a policy cannot promise on a disk must be refused.

use std::fmt;
use std::path::Path;

use clad_client::AckLevel;
use clad_e2e::Setup;
use clad_e2e::cuts::{Cache, Filesystem};

/// What `[journal] durability` may be. A new policy is a line here.
pub(crate) const POLICIES: &[&str] = &["group_commit", "per_message", "fire_and_forget", "sync_file_range"];
/// What `[journal] io_engine` may be.
pub(crate) const ENGINES: &[&str] = &["blocking", "uring"];

/// Small, so that there are many rotations.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;
/// What retention leaves, where it is on.
pub(crate) const RETENTION_BYTES: u64 = 4 * SEGMENT_BYTES;

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) policy: &'static str,
    pub(crate) engine: &'static str,
    pub(crate) filesystem: Filesystem,
    pub(crate) cache: Cache,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.policy, self.engine, self.filesystem.name(), self.cache)
    }
}

impl Cell {
    /// All cells of a file system.
    pub(crate) fn all(filesystem: Filesystem) -> Vec<Self> {
        let mut all = Vec::new();
        for cache in Cache::ALL {
            for policy in POLICIES {
                for engine in ENGINES {
                    all.push(Self { policy, engine, filesystem, cache });
                }
            }
        }
        all
    }

    /// The one that these words name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = Filesystem::ALL.into_iter().flat_map(Self::all);
        all.into_iter().find(|cell| cell.to_string() == text.trim())
    }

    /// The setup of its daemon.
    pub(crate) fn setup(&self, dir: &Path, retention: bool) -> Setup {
        let size = |bytes: u64| format!("{}KiB", bytes >> 10);
        let mut setup = Setup::in_folder(dir)
            .set("journal.durability", self.policy)
            .set("journal.io_engine", self.engine)
            .set("journal.segment_bytes", &size(SEGMENT_BYTES))
            .set("limits.max_append_bytes", "32KiB")
            .set("journal.max_record_bytes", "16KiB");
        for listener in ["ingest.tcp.listen", "ingest.grpc.listen", "metrics.listen"] {
            setup = setup.set(listener, "");
        }
        if retention { setup.set("retention.max_bytes", &size(RETENTION_BYTES)) } else { setup }
    }

    /// Why the daemon must refuse this cell, as a word that its message must have.
    pub(crate) fn must_be_refused(&self) -> Option<&'static str> {
        match (self.policy, self.filesystem, self.cache) {
            ("sync_file_range", Filesystem::Btrfs, _) => Some("btrfs"),
            ("sync_file_range", _, Cache::Volatile) => Some("cache"),
            _ => None,
        }
    }

    /// Whether segments are used again here: where it pays to write into blocks that were written before.
    pub(crate) fn recycles(&self) -> bool {
        self.policy != "fire_and_forget" && self.filesystem != Filesystem::Btrfs
    }

    /// The highest level that it must offer.
    pub(crate) fn highest(&self) -> AckLevel {
        if self.policy == "fire_and_forget" { AckLevel::Written } else { AckLevel::Durable }
    }
}
