//! Readers that commit their named cursors, each on a connection of its own and each at its own moments.
//!
//! What must hold: every commit was answered; else there are no figures.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clad_client::{Address, Cursor, Cursors, Producer};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::stats::{Latency, histogram, record};

/// What to commit.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// The daemon: `unix://`, `tcp://` or `tcp+tls://` and an address. It has as many durable records as a cursor gets commits
    server: Address,
    /// Cursors
    #[arg(long, default_value_t = 64)]
    cursors: u32,
    /// Seconds between two commits of a cursor
    #[arg(long, value_name = "S", default_value_t = 0.1)]
    every: f64,
    /// Seconds to run
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    duration: f64,
}

/// Figures of a run.
#[derive(Debug, Serialize)]
pub struct Committed {
    commits: u64,
    /// Commits a second.
    rate: f64,
    /// To the answer, in microseconds.
    answered: Latency,
}

impl Plan {
    /// Commits them.
    ///
    /// # Errors
    /// No daemon; one that refuses a commit; fewer durable records than commits of a cursor.
    pub fn run(&self) -> Result<Committed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.commit())
    }

    async fn commit(&self) -> Result<Committed> {
        let producer = Producer::builder(self.server.clone()).connect().await.context("no daemon")?;
        let log = producer.log().context("no greeting")?;
        let commits = (self.duration / self.every) as u64;
        ensure!(log.durable > commits, "{} durable records, and {commits} commits of each cursor", log.durable);
        let (begun, every) = (Instant::now(), Duration::from_secs_f64(self.every));
        let mut readers = JoinSet::new();
        for number in 0..self.cursors {
            let mut cursors = Cursors::connect(self.server.clone()).await?;
            // Spread over the time between two commits, as those of strangers are.
            let first = begun + every.mul_f64(f64::from(number) / f64::from(self.cursors));
            readers.spawn(async move {
                let mut took = Vec::new();
                for commit in 0..commits {
                    tokio::time::sleep_until((first + every * commit as u32).into()).await;
                    let place = Cursor { log_id: log.log_id, epoch: log.epoch, offset: commit };
                    let asked = Instant::now();
                    cursors.commit(&format!("bench-{number}"), place, false, "").await?;
                    took.push(asked.elapsed());
                }
                cursors.remove(&format!("bench-{number}")).await?;
                Ok::<_, anyhow::Error>(took)
            });
        }
        let mut all = histogram();
        while let Some(took) = readers.join_next().await {
            took??.into_iter().for_each(|took| record(&mut all, took));
        }
        let rate = all.len() as f64 / begun.elapsed().as_secs_f64();
        Ok(Committed { commits: all.len(), rate, answered: Latency::of(&all) })
    }
}
