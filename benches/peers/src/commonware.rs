//! `Blob::write_at_sync` of commonware-runtime (in newer ones `write_at` with `WriteOptions::SYNC`), on its own runtime,
//! each writer a task; over zero-written space, as everybody else here.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use clad_benches::cli::OneDurable;
use clad_benches::durable::{FILE, Places};
use clad_benches::pattern::Pattern;
use clad_benches::stats::{self, Latency};
use clad_benches::{Outcome, clock};
use commonware_runtime::{Blob as _, Runner as _, Storage as _, tokio as runtime};

use crate::api;

/// One writer's share.
struct One {
    ops: u64,
    error: Option<String>,
    begun: Instant,
    end: Instant,
    latencies: Vec<u64>,
}

pub fn run(one: &OneDurable, dir: &Path) -> Result<Outcome> {
    let config = runtime::Config::default().with_storage_directory(dir);
    let one = one.clone();
    runtime::Runner::new(config).start(|context| async move { work(context, &one).await })
}

async fn work(context: api::Open, one: &OneDurable) -> Result<Outcome> {
    let places = Places::new(FILE, one.writers, one.size);
    let (blob, _) = context.open("bench", b"file").await?;
    blob.resize(places.len()).await?;
    for at in (0..places.len()).step_by(1 << 20) {
        let part = (places.len() - at).min(1 << 20) as usize;
        api::write(&blob, at, vec![0; part]).await?;
    }
    blob.sync().await?;
    let blob = Arc::new(blob);
    let start = Arc::new(tokio::sync::Barrier::new(one.writers as usize));
    let tasks: Vec<_> = (0..one.writers)
        .map(|writer| tokio::spawn(write(writer, blob.clone(), places, one.clone(), start.clone())))
        .collect();
    let mut ones = Vec::new();
    for task in tasks {
        ones.push(task.await?);
    }
    let mut verified = 0;
    for (writer, its) in ones.iter().enumerate() {
        let pattern = Pattern::new(writer as u32, one.size);
        let each = places.len() / one.size as u64 / u64::from(one.writers);
        for op in its.ops.saturating_sub(each)..its.ops {
            let at = places.of(writer as u32, op);
            let block = api::read(&blob, at, one.size).await?;
            ensure!(pattern.holds(&block, op), "operation {op} of writer {writer} is not at {at}");
            verified += 1;
        }
    }
    let mut latencies = stats::histogram();
    for nanos in ones.iter().flat_map(|one| &one.latencies) {
        latencies.record(*nanos)?;
    }
    let begun = ones.iter().map(|one| one.begun).min();
    let end = ones.iter().map(|one| one.end).max();
    let took = begun.zip(end).map_or(0.0, |(begun, end)| (end - begun).as_secs_f64());
    Ok(Outcome {
        work: "durable".to_owned(),
        by: api::NAME.to_owned(),
        writers: one.writers,
        size: one.size,
        ops: ones.iter().map(|one| one.ops).sum(),
        failed: ones.iter().filter(|one| one.error.is_some()).count() as u64,
        verified,
        seconds: took,
        latency_us: Latency::of(&latencies),
        notes: ones.into_iter().filter_map(|one| one.error).take(3).collect(),
    })
}

async fn write(
    writer: u32,
    blob: Arc<api::Blob>,
    places: Places,
    one: OneDurable,
    start: Arc<tokio::sync::Barrier>,
) -> One {
    let (limit, pattern) = (one.limit(), Pattern::new(writer, one.size));
    start.wait().await;
    let begun = clock::now();
    let mut its = One { ops: 0, error: None, begun, end: begun, latencies: Vec::new() };
    while its.ops < limit.ops && (its.ops == 0 || its.end - begun < limit.time) {
        // It wants to own the bytes of each write.
        let mut bytes = vec![0; one.size];
        pattern.fill(&mut bytes, its.ops);
        if let Err(error) = api::write_sync(&blob, places.of(writer, its.ops), bytes).await {
            its.error = Some(error.to_string());
            break;
        }
        let now = clock::now();
        its.latencies.push(u64::try_from((now - its.end).as_nanos()).unwrap_or(u64::MAX).max(1));
        its.end = now;
        its.ops += 1;
    }
    its
}
