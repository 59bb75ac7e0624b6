//! Sync methods × engines × writers × sizes: what each costs beside the plain one, a write and a sync.
//!
//! Invariants: for each number of writers and each size, all methods take turns within a round, on new files in the
//! same folder; ratios are of runs of the same round.

use anyhow::Result;

use crate::durable::{Contender, Engine, Work};
use crate::place::Place;
use crate::results::{self, Results};
use crate::writers::Limit;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sync methods, and baselines.
    pub methods: Vec<Contender>,
    /// Engines of those that have a choice.
    pub engines: Vec<Engine>,
    /// Writers at once.
    pub writers: Vec<u32>,
    /// Bytes of an operation.
    pub sizes: Vec<usize>,
    /// How often.
    pub rounds: u32,
    /// Of each run.
    pub limit: Limit,
    /// Bytes of each file.
    pub file: u64,
}

/// What is compared by default; `strict` is the baseline in which no sync pays for another writer.
pub const METHODS: [Contender; 6] = [
    Contender::WriteSync,
    Contender::Strict,
    Contender::WriteAtSync,
    Contender::GroupCommit,
    Contender::SyncFileRange,
    Contender::None,
];

/// What the others are compared with.
const PLAIN: (Contender, Engine) = (Contender::WriteSync, Engine::Blocking);

impl Plan {
    fn pairs(&self) -> Vec<(Contender, Engine)> {
        let engines = |by: Contender| match by.has_engines() {
            true => self.engines.clone(),
            false => vec![Engine::Blocking],
        };
        self.methods.iter().flat_map(|by| engines(*by).into_iter().map(|engine| (*by, engine))).collect()
    }

    /// Runs all of it.
    ///
    /// # Errors
    /// A run cannot be set up, or something in it failed.
    pub fn run(&self, place: &Place) -> Result<Results> {
        let mut results = Results::new("write_sync", place, self.rounds, self.limit);
        for (writers, size) in self.writers.iter().flat_map(|w| self.sizes.iter().map(move |s| (*w, *s))) {
            self.group(place, writers, size, &mut results)?;
        }
        Ok(results)
    }

    fn group(&self, place: &Place, writers: u32, size: usize, results: &mut Results) -> Result<()> {
        let pairs = self.pairs();
        let mut outcomes = vec![Vec::new(); pairs.len()];
        for _ in 0..self.rounds {
            for ((by, engine), outcomes) in pairs.iter().zip(&mut outcomes) {
                let work = Work { by: *by, engine: *engine, writers, size, limit: self.limit, file: self.file };
                let folder = tempfile::tempdir_in(place.path())?;
                outcomes.push(work.run(folder.path())?.checked()?);
            }
        }
        let plain = pairs.iter().position(|pair| *pair == PLAIN).map(|at| outcomes[at].clone());
        let safe = place.ground().range_sync_is_safe;
        for ((by, engine), outcomes) in pairs.iter().zip(&outcomes) {
            let engine = if by.has_engines() { engine.name() } else { "" };
            let (writers, size) = (writers.to_string(), size.to_string());
            let cell = [("method", by.name()), ("engine", engine), ("writers", &writers), ("size", &size)];
            let row = results.add(&cell, outcomes);
            row.safe = by.flushes() || *by == Contender::SyncFileRange && safe;
            if let Some(plain) = &plain {
                row.beside.insert("write+sync".to_owned(), results::ratio(outcomes, plain));
            }
        }
        Ok(())
    }
}
